"""Policies outside training: loading, export, video."""
