"""Configuration: its fields, their composition, and the checks before a run."""
