"""Training runs: trainer, data sources, checkpoints and evaluation."""
