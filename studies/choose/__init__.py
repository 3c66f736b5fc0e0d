"""Study of `choose`: its choices beside the best of thirty candidates, on twelve pairs of a task and delays."""
