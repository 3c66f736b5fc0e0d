"""Nitro (VLDB'25): its evaluation."""
