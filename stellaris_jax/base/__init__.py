"""Foundations: registry of names, files, machine, errors."""
