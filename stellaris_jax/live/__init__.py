"""Live execution: actors and learner functions run in separate processes, with one coordinator and one trace."""
