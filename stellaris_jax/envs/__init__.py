"""Environments: protocols, a registry of names, and adapters for the suites."""

from __future__ import annotations

from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Box, Discrete, MultiBinary, MultiDiscrete, TimeStep, VecEnv
from stellaris_jax.envs.check import check_env
from stellaris_jax.envs.registry import available, make, register, resolve

__all__ = [
    "AutoResetEnv",
    "Box",
    "Discrete",
    "MultiBinary",
    "MultiDiscrete",
    "TimeStep",
    "VecEnv",
    "available",
    "check_env",
    "make",
    "register",
    "resolve",
]
