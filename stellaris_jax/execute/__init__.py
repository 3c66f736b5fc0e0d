"""Executors: trainers that carry plans out, and one run from its configuration to its summary."""
