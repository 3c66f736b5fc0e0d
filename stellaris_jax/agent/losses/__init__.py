"""Losses and algorithms, advantages, masks, and global importance-sampling truncation."""

from __future__ import annotations

from stellaris_jax.agent.losses.algorithm import Algorithm, PolyakTarget, TargetNetwork
from stellaris_jax.agent.losses.dqn import DQN
from stellaris_jax.agent.losses.impact import IMPACT
from stellaris_jax.agent.losses.impala import IMPALA
from stellaris_jax.agent.losses.masks import Mask
from stellaris_jax.agent.losses.objectives import A3PO, BAPO, CISPO, SAPO, TIS, TOPR, Decoupled, Importance
from stellaris_jax.agent.losses.off_policy import OffPolicy, ReplayInputs
from stellaris_jax.agent.losses.ppo import PPO, PolicyObjective
from stellaris_jax.agent.losses.sac import SAC
from stellaris_jax.agent.losses.sequences import GRPO, GSPO

__all__ = [
    "A3PO",
    "BAPO",
    "CISPO",
    "DQN",
    "GRPO",
    "GSPO",
    "IMPACT",
    "IMPALA",
    "PPO",
    "SAC",
    "SAPO",
    "TIS",
    "TOPR",
    "Algorithm",
    "Decoupled",
    "Importance",
    "Mask",
    "OffPolicy",
    "PolicyObjective",
    "PolyakTarget",
    "ReplayInputs",
    "TargetNetwork",
]
