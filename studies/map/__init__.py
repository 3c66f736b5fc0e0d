"""Map of staleness: results of every method, by learners, learning rate and delays."""
