"""Run directories: layout, checkpoints, list of runs, signals."""
