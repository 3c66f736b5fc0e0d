"""Study of token tasks: how stale is too stale for language models, on a small scale."""
