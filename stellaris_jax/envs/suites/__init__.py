"""Adapters, one module for each suite; imported when a job asks for it."""
