"""Losses, the algorithms made of them, advantages and global importance-sampling truncation."""

from __future__ import annotations

from stellaris_jax.agent.losses.algorithm import Algorithm, TargetNetwork
from stellaris_jax.agent.losses.impact import IMPACT
from stellaris_jax.agent.losses.impala import IMPALA
from stellaris_jax.agent.losses.ppo import PPO

__all__ = ["IMPACT", "IMPALA", "PPO", "Algorithm", "TargetNetwork"]
