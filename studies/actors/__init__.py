"""Study of independent actors: data staleness, its bound, its cost, its correction and its learning rate."""
