"""Policies of random parameters, as training would have left them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.rollout import init_normalizers
from stellaris_jax.envs.base import Box, Space
from stellaris_jax.training.policy import Policy


def random_policy(observation: Box, action: Space, normalize: bool | None = None, **network: Any) -> Policy:
    """A policy that has seen some observations; it normalises those that are real, or as it is told."""
    normalize = observation.dtype == "float32" if normalize is None else normalize
    settings = {f"network.{name}": value for name, value in {"hidden": (8,), **network}.items()}
    config = Config().replace({**settings, "env.normalize_observation": normalize})
    built = ActorCritic(observation, action, config.network)
    shape = jax.eval_shape(built.init, jax.random.key(0)).shape
    scale = 0.3 if len(observation.shape) < 3 else 0.05  # what a convolution adds up is large
    params = jnp.asarray(scale * np.random.default_rng(1).standard_normal(shape, np.float32))
    normalizers = init_normalizers(observation)
    seen = normalizers.obs._replace(mean=jnp.full(observation.shape, 0.5), variance=jnp.full(observation.shape, 4.0))
    return Policy(built, params, normalizers._replace(obs=seen), config)
