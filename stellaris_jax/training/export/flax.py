"""Flax: parameters and statistics by name, as `flax.serialization.msgpack_restore` reads them, with the metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.rollout import init_normalizers
from stellaris_jax.registry import register
from stellaris_jax.training.export.artefact import Metadata
from stellaris_jax.training.export.spaces import space_of
from stellaris_jax.training.policy import Policy

if TYPE_CHECKING:
    from stellaris_jax.envs.base import Box


def write(policy: Policy, metadata: Metadata) -> bytes:
    """The file of a policy."""
    tree = {"params": policy.network.unravel(policy.params), "normalizer": policy.normalizers.obs._asdict()}
    arrays = jax.tree.map(np.asarray, jax.device_get(tree))
    return serialization.msgpack_serialize({"metadata": metadata.to_json(), **arrays})


def read(data: bytes) -> Policy:
    """The policy in a file. Raises ValueError, or what flax raises, where there is none.

    Nothing is imported for it: a torso of a plug-in must have been registered.
    """
    tree: Any = serialization.msgpack_restore(data)
    metadata = Metadata.from_json(tree["metadata"])
    settings: dict[str, Any] = {f"network.{name}": value for name, value in metadata.network.items()}
    config = Config().replace({**settings, "env.normalize_observation": metadata.normalize_observation})
    if config.network.torso not in register.torso:
        raise ValueError(f"its torso {config.network.torso} is a plug-in's; import that first")
    observations: Box = space_of(metadata.observation_space)  # type: ignore[assignment]
    network = ActorCritic(observations, space_of(metadata.action_space), config.network)
    template = jax.eval_shape(lambda: network.unravel(network.init(jax.random.key(0))))
    params = network.ravel(serialization.from_state_dict(template, tree["params"]))
    normalizers = init_normalizers(observations)
    seen = serialization.from_state_dict(normalizers.obs, tree["normalizer"])
    return Policy(network, params, normalizers._replace(obs=jax.tree.map(jnp.asarray, seen)), config)
