"""Losses: PPO, generalised advantages, global importance-sampling truncation."""
