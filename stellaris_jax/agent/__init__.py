"""Agents: networks, losses and optimizers."""
