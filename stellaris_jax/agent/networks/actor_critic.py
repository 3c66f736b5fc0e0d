"""Actor-critic: a policy and a value network with a common torso or their own, with or without memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from stellaris_jax.agent.networks.convolution import Initializer
from stellaris_jax.agent.networks.dense import product
from stellaris_jax.agent.networks.distributions import DiagonalGaussian
from stellaris_jax.agent.networks.policy_network import DISTRIBUTION, VALUE, PolicyNetwork
from stellaris_jax.agent.networks.recurrent import Carry, Past, Trunk, unroll
from stellaris_jax.agent.networks.torsos import check_observation, torso
from stellaris_jax.base.registry import register
from stellaris_jax.config.sections import NetworkConfig
from stellaris_jax.envs.base import Box, Space

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"tanh": nn.tanh, "relu": nn.relu}
LOG_STD_RANGE = (-5.0, 2.0)
"""Bounds of state-dependent log-deviations."""


def normc(norm: float) -> Initializer:
    """Initialiser of kernels whose columns (all weights of one output) are random vectors of norm `norm` (RLlib)."""

    def init(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        kernel = jax.random.normal(key, shape, dtype)
        return kernel * norm * jax.lax.rsqrt(jnp.sum(jnp.square(kernel), axis=range(len(shape) - 1), keepdims=True))

    return init


class Initialization(NamedTuple):
    """Initialisation of a network.

    Attributes:
      kernel: function from a scale to an initialiser of kernels.
      inner: scale of inner layers.
      actor: scale of the policy's outputs.
      critic: scale of the critic's output.
    """

    kernel: Callable[[float], Initializer]
    inner: float
    actor: float
    critic: float


INITIALIZATIONS = {
    "orthogonal": Initialization(nn.initializers.orthogonal, math.sqrt(2.0), 0.01, 1.0),
    "normc": Initialization(normc, 1.0, 0.01, 0.01),
}


class MLP(nn.Module):
    """Dense layers on flattened inputs `[B, ...]`, after a torso if there is one; the last layer is linear.

    Biases start at 0.

    Attributes:
      torso: name of the torso.
      hidden: widths of the hidden layers.
      activation: name of the activation.
      kernel_init: initialiser of inner kernels.
      outputs: number of outputs.
      output_init: initialiser of the last kernel; `None` leaves the last layer out.
    """

    torso: str
    hidden: Sequence[int]
    activation: str
    kernel_init: Initializer
    outputs: int = 0
    output_init: Initializer | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        convolutions = torso(self.torso, self.kernel_init)
        if convolutions is not None:
            x = convolutions(x)
        x = x.reshape(x.shape[0], -1)
        layer = partial(nn.Dense, dot_general=product)
        for width in self.hidden:
            x = ACTIVATIONS[self.activation](layer(width, kernel_init=self.kernel_init)(x))
        return x if self.output_init is None else layer(self.outputs, kernel_init=self.output_init)(x)


@register.policy("actor_critic")
class ActorCritic(PolicyNetwork):
    """Policy and value network; a subclass may have another `distribution`.

    The two networks share no parameters, or with `network.shared` all but their output layers. The log-deviations of a
    Gaussian policy are free parameters, one per action dimension and initially 0. With `network.log_std=state` they
    are outputs of the policy, clipped to `LOG_STD_RANGE`.

    With `network.memory` a recurrent cell precedes the outputs. Observations are then steps of sequences, together with
    `past`, or current observations of environments, together with a carry. Without memory both are `None`.

    Raises:
      ConfigError: the torso cannot read the observations.
    """

    outputs = (DISTRIBUTION, VALUE)
    has_memory = True

    def __init__(self, observation_space: Box, action_space: Space, config: NetworkConfig):
        super().__init__(observation_space, action_space, config)
        check_observation(config.torso, observation_space.shape)
        start = INITIALIZATIONS[config.init]
        inner = (config.torso, tuple(config.hidden), config.activation, start.kernel(start.inner))
        cell = register.memory[config.memory](config.memory_size, start.kernel(1.0))
        self.recurrent = cell is not None
        self._trunks: dict[str, MLP | Trunk] = {}
        for name in ("body",) if config.shared else ("actor_body", "critic_body") if self.recurrent else ():
            self._trunks[name] = Trunk(MLP(*inner), cell) if self.recurrent else MLP(*inner)
        self._above = ("mlp", (), *inner[2:]) if self._trunks else inner
        self._critic = MLP(*self._above, 1, start.kernel(start.critic))

    @cached_property
    def _actor(self) -> MLP:
        start = INITIALIZATIONS[self.config.init]
        outputs = self.distribution.size // 2 if self.free_log_std else self.distribution.size
        return MLP(*self._above, outputs, start.kernel(start.actor))

    @property
    def free_log_std(self) -> bool:
        """Whether the log-deviations of a Gaussian policy are free parameters."""
        return isinstance(self.distribution, DiagonalGaussian) and self.config.log_std == "free"

    @property
    def _state_log_std(self) -> bool:
        return isinstance(self.distribution, DiagonalGaussian) and self.config.log_std == "state"

    def init_tree(self, key: jax.Array) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        features = jnp.zeros((1, *self.observation_space.shape))
        actor_key, critic_key, *keys = jax.random.split(key, 2 + len(self._trunks))
        for trunk_key, (name, trunk) in zip(keys, self._trunks.items(), strict=True):
            obs = jnp.zeros((1, *self.observation_space.shape))
            if isinstance(trunk, Trunk):
                carry = trunk.cell.initial_carry(1)
                (_, features), variables = trunk.init_with_output(trunk_key, carry, obs, method="both")
            else:
                features, variables = trunk.init_with_output(trunk_key, obs)
            tree[name] = variables["params"]
        tree["actor"] = self._actor.init(actor_key, features)["params"]
        tree["critic"] = self._critic.init(critic_key, features)["params"]
        if self.free_log_std:
            tree["log_std"] = jnp.zeros(self.distribution.size // 2)
        return tree

    def policy(self, tree: dict[str, Any], obs: jax.Array, past: Past | None = None) -> jax.Array:
        """Parameters `[B, D]` of the action distribution; `tree` is `unravel(flat)`."""
        return self._policy(tree, self._features(tree, "actor", obs, past))

    def value(self, tree: dict[str, Any], obs: jax.Array, past: Past | None = None) -> jax.Array:
        """State values `[B]`; `tree` is `unravel(flat)`."""
        return self._value(tree, self._features(tree, "critic", obs, past))

    def evaluate(self, tree: dict[str, Any], obs: jax.Array, past: Past | None = None) -> Mapping[str, jax.Array]:
        """`policy` and `value` for the same observations.

        Differentiates a shared body once. Two calls would differentiate it twice: the compiler merges equal forward
        passes, but not backward passes of different errors.
        """
        of_policy = of_value = self._features(tree, "actor", obs, past)
        if self._trunk("actor") != self._trunk("critic"):
            of_value = self._features(tree, "critic", obs, past)
        return {DISTRIBUTION: self._policy(tree, of_policy), VALUE: self._value(tree, of_value)}

    # Step by step ------------------------------------------------------------------------------------------------

    def initial_carry(self, number: int) -> Carry:
        """Carry of `number` environments at the start of an episode; `None` without memory."""
        if not self.recurrent:
            return None
        return {
            name: trunk.cell.initial_carry(number) for name, trunk in self._trunks.items() if isinstance(trunk, Trunk)
        }

    def act(self, tree: dict[str, Any], obs: jax.Array, carry: Carry) -> tuple[jax.Array, Carry]:
        """Step of the policy: (observations, carry) -> (parameters `[n, D]`, next carry)."""
        if carry is None:
            return self.policy(tree, obs), None
        features, carry = self._step(tree, obs, carry)
        return self._policy(tree, features[self._trunk("actor")]), carry

    def value_step(self, tree: dict[str, Any], obs: jax.Array, carry: Carry) -> tuple[jax.Array, Carry]:
        """Step of the critic: (observations, carry) -> (values `[n]`, next carry)."""
        features, carry = self._step(tree, obs, carry)
        return self._value(tree, features[self._trunk("critic")]), carry

    def _step(self, tree: dict[str, Any], obs: jax.Array, carry: Carry) -> tuple[dict[str, jax.Array], Carry]:
        features, next_carry, x = {}, {}, self.fractions(obs)
        for name, trunk in self._trunks.items():
            variables = {"params": tree[name]}
            encoded: Any = trunk.apply(variables, x, method="encode")
            next_carry[name], features[name] = trunk.apply(variables, carry[name], encoded)
        return features, next_carry

    # Parts -------------------------------------------------------------------------------------------------------

    def _trunk(self, head: str) -> str:
        """Name of the trunk before the outputs of `actor` or `critic`; empty without one."""
        return "body" if "body" in self._trunks else f"{head}_body" if self._trunks else ""

    def _features(self, tree: dict[str, Any], head: str, obs: jax.Array, past: Past | None) -> jax.Array:
        """Inputs of the output layers of `actor` or `critic`: outputs of their trunk, or observations without one."""
        x, name = self.fractions(obs), self._trunk(head)
        if not name:
            return x
        trunk, variables = self._trunks[name], {"params": tree[name]}
        if past is None:
            return trunk.apply(variables, x)  # type: ignore[return-value]
        encoded: Any = trunk.apply(variables, x, method="encode")
        step: Any = partial(trunk.apply, variables)
        return unroll(step, past.carry[name], past.first, encoded)

    def _policy(self, tree: dict[str, Any], features: jax.Array) -> jax.Array:
        outputs: jax.Array = self._actor.apply({"params": tree["actor"]}, features)  # type: ignore[assignment]
        if self.free_log_std:
            return jnp.concatenate([outputs, jnp.broadcast_to(tree["log_std"], outputs.shape)], axis=-1)
        if self._state_log_std:
            mean, log_std = jnp.split(outputs, 2, axis=-1)
            return jnp.concatenate([mean, jnp.clip(log_std, *LOG_STD_RANGE)], axis=-1)
        return outputs

    def _value(self, tree: dict[str, Any], features: jax.Array) -> jax.Array:
        values: jax.Array = self._critic.apply({"params": tree["critic"]}, features)  # type: ignore[assignment]
        return values[:, 0]
