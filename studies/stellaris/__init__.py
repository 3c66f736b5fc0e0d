"""Stellaris (SC'24): its evaluation."""
