"""The configuration: its fields, how it is composed, and what it must be to run."""
