"""Study of `choose`: its choices beside the best of thirty candidates, by pairs of a task and delays."""
