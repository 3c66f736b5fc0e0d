"""Losses and algorithms, advantages, masks, and global importance-sampling truncation."""

from __future__ import annotations

from stellaris_jax.agent.losses.algorithm import Algorithm, PolyakTarget, TargetNetwork
from stellaris_jax.agent.losses.impact import IMPACT
from stellaris_jax.agent.losses.impala import IMPALA
from stellaris_jax.agent.losses.masks import Mask
from stellaris_jax.agent.losses.objectives import A3PO, BAPO, CISPO, SAPO, TIS, TOPR, Decoupled, Importance
from stellaris_jax.agent.losses.ppo import PPO, PolicyObjective
from stellaris_jax.agent.losses.sequences import GRPO, GSPO

__all__ = [
    "A3PO",
    "BAPO",
    "CISPO",
    "GRPO",
    "GSPO",
    "IMPACT",
    "IMPALA",
    "PPO",
    "SAPO",
    "TIS",
    "TOPR",
    "Algorithm",
    "Decoupled",
    "Importance",
    "Mask",
    "PolicyObjective",
    "PolyakTarget",
    "TargetNetwork",
]
