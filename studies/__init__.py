"""Reproduction of papers' evaluations: each figure's training runs, the paper's values, and ours."""
