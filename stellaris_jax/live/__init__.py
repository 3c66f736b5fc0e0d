"""The same asynchrony for real: actors and learner functions in processes of their own, one coordinator, one record."""
