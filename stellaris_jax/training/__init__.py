"""Runs: the trainer, where its data come from, what it saves, and what is evaluated."""
