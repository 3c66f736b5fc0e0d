"""Nitro (VLDB'25)."""
