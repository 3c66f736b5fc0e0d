"""Adapters, one module for each suite; imported at the first use of the suite."""
