"""Actor-critic networks over flat parameter vectors.

A policy version is one vector `[P]`: the version ring, the accumulator and the optimizer then work on single arrays.
Its length is a multiple of `ALIGNMENT`, the rest being zeros: XLA does not vectorise loops over a ragged length, and an
Adam step on one took four times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from stellaris_jax.config import NetworkConfig
from stellaris_jax.envs.base import Box, Space
from stellaris_jax.networks.distributions import DiagonalGaussian, Distribution, for_space

ALIGNMENT = 64
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"tanh": nn.tanh, "relu": nn.relu}


class MLP(nn.Module):
    """Dense layers on flattened observations `[B, ...]`, orthogonally initialised; the last layer is linear."""

    hidden: Sequence[int]
    outputs: int
    output_gain: float
    activation: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = ACTIVATIONS[self.activation](nn.Dense(width, kernel_init=nn.initializers.orthogonal(math.sqrt(2.0)))(x))
        return nn.Dense(self.outputs, kernel_init=nn.initializers.orthogonal(self.output_gain))(x)


class ActorCritic:
    """A policy and a value network that share nothing, addressed by one flat vector of parameters `[P]`.

    Gaussian policies have a free log-deviation per action dimension, initially 0. `size` counts the parameters.
    """

    def __init__(self, observation_space: Box, action_space: Space, config: NetworkConfig):
        self.distribution: Distribution = for_space(action_space)
        self.free_log_std = isinstance(self.distribution, DiagonalGaussian)
        outputs = self.distribution.size // 2 if self.free_log_std else self.distribution.size
        self._actor = MLP(config.hidden, outputs, 0.01, config.activation)
        self._critic = MLP(config.hidden, 1, 1.0, config.activation)
        self.observation_shape = observation_space.shape
        self._obs = jnp.zeros((1, *observation_space.shape))
        template = jax.eval_shape(self._init_tree, jax.random.key(0))
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), template)
        self.size: int = sum(leaf.size for leaf in jax.tree.leaves(zeros))
        self._tail = jnp.zeros(-self.size % ALIGNMENT)
        _, self._unravel = ravel_pytree((zeros, self._tail))

    def _init_tree(self, key: jax.Array) -> dict[str, Any]:
        actor_key, critic_key = jax.random.split(key)
        tree = {
            "actor": self._actor.init(actor_key, self._obs)["params"],
            "critic": self._critic.init(critic_key, self._obs)["params"],
        }
        if self.free_log_std:
            tree["log_std"] = jnp.zeros(self.distribution.size // 2)
        return tree

    def init(self, key: jax.Array) -> jax.Array:
        """Fresh parameters `[P]`."""
        return self.ravel(self._init_tree(key))

    def ravel(self, tree: dict[str, Any]) -> jax.Array:
        """The vector `[P]` of a tree of parameters, or of gradients."""
        return ravel_pytree((tree, self._tail))[0]

    def unravel(self, flat: jax.Array) -> dict[str, Any]:
        """The tree of parameters in a vector `[P]`."""
        tree: dict[str, Any] = self._unravel(flat)[0]
        return tree

    def policy(self, tree: dict[str, Any], obs: jax.Array) -> jax.Array:
        """Parameters `[B, D]` of the action distribution; `tree` is `unravel(flat)`."""
        outputs: jax.Array = self._actor.apply({"params": tree["actor"]}, self._scaled(obs))  # type: ignore[assignment]
        if self.free_log_std:
            outputs = jnp.concatenate([outputs, jnp.broadcast_to(tree["log_std"], outputs.shape)], axis=-1)
        return outputs

    def value(self, tree: dict[str, Any], obs: jax.Array) -> jax.Array:
        """State values `[B]`; `tree` is `unravel(flat)`."""
        values: jax.Array = self._critic.apply({"params": tree["critic"]}, self._scaled(obs))  # type: ignore[assignment]
        return values[:, 0]

    def _scaled(self, obs: jax.Array) -> jax.Array:
        """Images of bytes as fractions of 255."""
        return obs.astype(jnp.float32) / 255.0 if obs.dtype == jnp.uint8 else obs
