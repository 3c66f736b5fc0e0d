"""The map of staleness: which method learns what, by learners, learning rate and delays."""
