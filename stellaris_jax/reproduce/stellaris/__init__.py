"""Stellaris (SC'24)."""
