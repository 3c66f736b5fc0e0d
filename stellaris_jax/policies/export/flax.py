"""Flax format: named parameters and statistics for `flax.serialization.msgpack_restore`, with the metadata."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
from flax import serialization

from stellaris_jax.agent.networks import policy_network
from stellaris_jax.base.inputs import DOCUMENT
from stellaris_jax.base.registry import register
from stellaris_jax.config.schema import DEEPEST, shown
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.rollout import init_normalizers
from stellaris_jax.envs.base import Box
from stellaris_jax.envs.rescale import unit_box
from stellaris_jax.envs.space_data import space_from_data
from stellaris_jax.policies.export.artefact import Metadata
from stellaris_jax.policies.export.metadata import MOST_AXES
from stellaris_jax.policies.policy import Policy

ARRAY = 1
"""Flax's number of the extension type for arrays."""
MOST_NAMES = 1000
"""Largest number of names in a mapping."""


def write(policy: Policy, metadata: Metadata) -> bytes:
    """Contents of a policy's file."""
    tree = {"params": policy.network.unravel(policy.params), "normalizer": policy.normalizers.obs._asdict()}
    arrays = jax.tree.map(np.asarray, jax.device_get(tree))
    return serialization.msgpack_serialize({"metadata": metadata.to_json(), **arrays})


def read(data: bytes) -> Policy:
    """Read the policy in a file.

    Nothing is imported for it: a plug-in's policy and torso must be registered already. No array is made before the
    metadata is checked and the arrays in the file match its network.

    Raises:
      ValueError: the file holds no policy.
      ConfigError: its network is not possible.
    """
    tree = _unpacked(data)
    metadata = Metadata.from_json(tree["metadata"])
    settings: dict[str, Any] = {f"network.{name}": value for name, value in metadata.network.items()}
    config = Config().replace({**settings, "env.normalize_observation": metadata.normalize_observation})
    for kind in ("policy", "torso"):
        if (name := getattr(config.network, kind)) not in register[kind]:
            raise ValueError(f"its {kind} {name} is a plug-in's; import that first")
    size = sum(array.size for array in _arrays(tree["params"]))
    if max(config.network.hidden, default=0) > size:
        raise ValueError(f"its network.hidden is {shown(metadata.network['hidden'])}, but it holds {size} parameters")
    observations: Box = space_from_data(metadata.observation_space)  # type: ignore[assignment]
    actions = space_from_data(metadata.action_space)
    own_actions = actions if metadata.rescale_action and isinstance(actions, Box) else None
    network = policy_network(observations, actions if own_actions is None else unit_box(own_actions), config.network)
    if network.size != size:
        raise ValueError(f"its network has {network.size} parameters, but it holds {size}")
    _match("params", jax.eval_shape(lambda: network.unravel(network.init(jax.random.key(0)))), tree["params"])
    template = jax.eval_shape(lambda: init_normalizers(observations))
    _match("normalizer", template.obs._asdict(), tree["normalizer"])
    normalizers = init_normalizers(observations)
    seen = normalizers.obs._replace(**{name: jnp.asarray(array) for name, array in tree["normalizer"].items()})
    return Policy(network, network.ravel(tree["params"]), normalizers._replace(obs=seen), config, own_actions)


def _unpacked(data: bytes) -> dict[str, Any]:
    """Metadata and mappings of arrays in a file. Raises ValueError.

    Counts in the file are bounded, because msgpack allocates memory for them before it reads the elements.
    """
    tree = msgpack.unpackb(
        data,
        raw=False,
        ext_hook=_array,
        max_str_len=DOCUMENT,
        max_bin_len=0,
        max_array_len=0,
        max_map_len=MOST_NAMES,
        max_ext_len=len(data),
    )
    names = ["metadata", "normalizer", "params"]
    if not isinstance(tree, dict) or set(tree) != set(names):
        raise ValueError(f"it is no mapping of {', '.join(names)}")
    if not isinstance(tree["metadata"], str):
        raise ValueError("its metadata is no text")
    return tree


def _array(kind: int, data: bytes) -> np.ndarray:
    """Float32 array of Flax's extension type, over the bytes of the file. Raises ValueError for any other."""
    if kind != ARRAY:
        raise ValueError(f"it holds an object of type {kind}; accepted: arrays")
    limits = {"max_array_len": MOST_AXES, "max_map_len": 0, "max_ext_len": 0, "max_str_len": MOST_NAMES}
    parts = msgpack.unpackb(data, raw=False, max_bin_len=len(data), **limits)
    if not isinstance(parts, list) or [type(part) for part in parts] != [list, str, bytes]:
        raise ValueError("it holds an array that is not made of a shape, a dtype and bytes")
    shape, dtype, content = parts
    if dtype != "float32" or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"it holds an array of dtype {shown(dtype)} and shape {shown(shape)}; accepted: float32")
    if len(content) != 4 * math.prod(shape):
        raise ValueError(f"it holds an array of shape {shown(shape)} with {len(content)} bytes")
    return np.frombuffer(content, np.float32).reshape(shape)


def _arrays(tree: Any, depth: int = 0) -> list[np.ndarray]:
    """Arrays in nested mappings. Raises ValueError for anything else."""
    if isinstance(tree, np.ndarray):
        return [tree]
    if not isinstance(tree, dict) or depth > DEEPEST:
        raise ValueError(f"its params hold {shown(tree)}; accepted: mappings of arrays")
    return [array for part in tree.values() for array in _arrays(part, depth + 1)]


def _match(key: str, template: Any, given: Any) -> None:
    """Raise ValueError unless nested mappings hold arrays with the names and shapes of a template."""
    if isinstance(template, dict):
        if not isinstance(given, dict) or set(given) != set(template):
            names = sorted(map(str, given)) if isinstance(given, dict) else given
            raise ValueError(f"its {key} holds {shown(names)}; accepted: {', '.join(sorted(template))}")
        for name, part in template.items():
            _match(f"{key}.{name}", part, given[name])
    elif not isinstance(given, np.ndarray) or given.shape != template.shape:
        shape = list(given.shape) if isinstance(given, np.ndarray) else given
        raise ValueError(f"its {key} is {shown(shape)}; accepted: an array of shape {list(template.shape)}")
