"""Policies of random parameters, as training would have left them, and files of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.base.registry import register
from stellaris_jax.config.schema import plain
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.rollout import init_normalizers
from stellaris_jax.envs.base import Box, Space
from stellaris_jax.envs.space_data import space_to_data
from stellaris_jax.policies.export.artefact import ENDINGS, Metadata, with_fingerprint
from stellaris_jax.policies.policy import Policy


def random_policy(
    observation: Box, action: Space, normalize: bool | None = None, own: Box | None = None, **network: Any
) -> Policy:
    """A policy that has seen some observations; it normalises those that are real, or as it is told.

    With `own` its actions stand for those of that space.
    """
    normalize = observation.dtype == "float32" if normalize is None else normalize
    settings = {f"network.{name}": value for name, value in {"hidden": (8,), **network}.items()}
    config = Config().replace({**settings, "env.normalize_observation": normalize})
    built = register.policy[config.network.policy](observation, action, config.network)
    shape = jax.eval_shape(built.init, jax.random.key(0)).shape
    scale = 0.3 if len(observation.shape) < 3 else 0.05  # what a convolution adds up is large
    params = jnp.asarray(scale * np.random.default_rng(1).standard_normal(shape, np.float32))
    normalizers = init_normalizers(observation)
    seen = normalizers.obs._replace(mean=jnp.full(observation.shape, 0.5), variance=jnp.full(observation.shape, 4.0))
    return Policy(built, params, normalizers._replace(obs=seen), config, own)


def metadata_of(policy: Policy) -> Metadata:
    """The metadata that a run of seed 3 would write."""
    network, config = policy.network, policy.config
    own = policy.own
    spaces = space_to_data(network.observation_space), space_to_data(own or network.action_space)
    normalize = bool(config.env.normalize_observation)
    return Metadata("own/task", *spaces, plain(config.network), normalize, 3, 100.0, own is not None)


def written(policy: Policy, to: str, folder: Path) -> Path:
    """The sealed file of a policy, in a folder."""
    path = folder / f"policy{ENDINGS[to]}"
    data = import_module(f"stellaris_jax.policies.export.{to}").write(policy, metadata_of(policy))
    path.write_bytes(with_fingerprint(data))
    return path
