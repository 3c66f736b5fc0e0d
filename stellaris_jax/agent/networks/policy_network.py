"""Base class of policies: networks that choose actions, over one flat vector of parameters.

A policy version is one vector `[P]`, so the version ring, the accumulator and the optimizer work on single arrays.
The vector is padded with zeros to a multiple of `ALIGNMENT`: XLA does not vectorise loops over other lengths, which
made an Adam step four times slower.

To add a policy, subclass `PolicyNetwork` or `ActorCritic` and register it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from stellaris_jax.agent.networks.distributions import Distribution, for_space
from stellaris_jax.agent.networks.precision import lowered
from stellaris_jax.agent.networks.recurrent import Carry, Past, reset_carry
from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import Optioned
from stellaris_jax.config.sections import NetworkConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.envs.base import Box, Space

ALIGNMENT = 64
DISTRIBUTION, VALUE = "distribution", "value"
"""Names of outputs: parameters of the action distribution `[B, D]`, and state values `[B]`."""


class PolicyNetwork(Optioned):
    """Policy with options, which `network.options` sets; `size` counts its parameters.

    A tree of parameters is a nested dictionary of arrays.

    Args:
      observation_space, action_space: spaces of the environment.
      config: section `network` of the configuration.
    """

    outputs: ClassVar[tuple[str, ...]] = (DISTRIBUTION,)
    """Names of what `evaluate` returns. An algorithm that needs others refuses the policy."""

    has_memory: ClassVar[bool] = False
    """Whether `network.memory` gives it a memory; if not, that key is refused."""

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        memory = config.network.memory
        yield (
            cls.has_memory or memory == "none",
            f"network.memory={memory} changes nothing under network.policy={config.network.policy}; accepted: none.",
        )

    def __init__(self, observation_space: Box, action_space: Space, config: NetworkConfig):
        super().__init__(config.options)
        self.observation_space, self.action_space, self.config = observation_space, action_space, config

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"actor_precision": self.actor_precision}
        return type(self), (self.observation_space, self.action_space, self.config), state  # functions: no pickling

    actor_precision = "float32"
    """Arithmetic of actors, see `networks.precision.lowered`."""

    def acting(self, flat: jax.Array) -> dict[str, Any]:
        """Tree of the parameters in a vector `[P]`, as actors have them."""
        tree: dict[str, Any] = lowered(self.unravel(flat), self.actor_precision)
        return tree

    # What a policy defines ---------------------------------------------------------------------------------------

    def init_tree(self, key: jax.Array) -> dict[str, Any]:
        """Fresh parameters, as a tree."""
        raise NotImplementedError

    def act(self, tree: dict[str, Any], obs: jax.Array, carry: Carry) -> tuple[jax.Array, Carry]:
        """Step of the policy: (observations `[n, ...]`, carry) -> (parameters of the distribution `[n, D]`, carry)."""
        raise NotImplementedError

    def evaluate(self, tree: dict[str, Any], obs: jax.Array, past: Past | None = None) -> Mapping[str, jax.Array]:
        """Outputs for a minibatch, by the names in `outputs`; arrays `[B, ...]`.

        Args:
          tree: parameters.
          obs: observations, `[B, ...]`.
          past: context of the sequences that the observations form; `None` without memory.
        """
        raise NotImplementedError

    @cached_property
    def distribution(self) -> Distribution:
        """Action distribution; by default the one for the action space."""
        return for_space(self.action_space)

    def policy(self, tree: dict[str, Any], obs: jax.Array, past: Past | None = None) -> jax.Array:
        """Parameters `[B, D]` of the action distribution."""
        return self.evaluate(tree, obs, past)[DISTRIBUTION]

    def value(self, tree: dict[str, Any], obs: jax.Array, past: Past | None = None) -> jax.Array:
        """State values `[B]`, if `outputs` has them."""
        return self.evaluate(tree, obs, past)[VALUE]

    def fractions(self, obs: jax.Array) -> jax.Array:
        """Observations as a network reads them: bytes divided by their space's unit."""
        return obs.astype(jnp.float32) / self.observation_space.unit if obs.dtype == jnp.uint8 else obs

    # Memory ------------------------------------------------------------------------------------------------------

    recurrent = False
    """Whether actions depend on a carry: on what the policy remembers of an episode."""

    stores_carry: ClassVar[bool] = True
    """Whether learners need the carry at a sequence's start; if not, every sequence starts with an episode."""

    episodic: ClassVar[bool] = False
    """Whether a fragment has one episode of each environment: what comes after its end is padding."""

    def initial_carry(self, number: int) -> Carry:
        """Carry of `number` environments at the start of an episode; `None` without memory."""
        return None

    def begin(self, tree: dict[str, Any], obs: jax.Array, carry: Carry) -> Carry:
        """Carry before the first step with these parameters, for the observations `[n, ...]` of that step."""
        return carry

    def next_carry(self, before: Carry, after: Carry, ends: tuple[jax.Array, ...], alive: Any = None) -> Carry:
        """Carry after a step: reset where an episode has ended, and as before it where nothing took part.

        Args:
          before, after: carries before and after `act`.
          ends: flags of which any ends an episode, bool `[n]`.
          alive: whether an environment took part, bool `[n]`; `None` if all did.
        """
        after = reset_carry(after, *ends)
        return after if alive is None else where_rows(alive, after, before)

    def stored(self, carry: Carry) -> Carry:
        """Part of the carry at a sequence's start that learners get."""
        return carry if self.stores_carry else None

    def value_step(self, tree: dict[str, Any], obs: jax.Array, carry: Carry) -> tuple[jax.Array, Carry]:
        """Step of the critic: (observations, carry) -> (values `[n]`, next carry); needed with memory only."""
        raise NotImplementedError

    # The vector of parameters ------------------------------------------------------------------------------------

    @property
    def has_value(self) -> bool:
        """Whether the policy has a critic."""
        return VALUE in self.outputs

    def init(self, key: jax.Array) -> jax.Array:
        """Fresh parameters `[P]`."""
        return self.ravel(self.init_tree(key))

    def ravel(self, tree: dict[str, Any]) -> jax.Array:
        """Vector `[P]` of a tree of parameters or gradients."""
        return ravel_pytree((tree, self._tail))[0]

    def unravel(self, flat: jax.Array) -> dict[str, Any]:
        """Tree of the parameters in a vector `[P]`."""
        tree: dict[str, Any] = self._unravel(flat)[0]
        return tree

    @cached_property
    def template(self) -> dict[str, Any]:
        """Shapes and dtypes of the parameters, as a tree."""
        return jax.eval_shape(lambda: self.init_tree(jax.random.key(0)))

    @cached_property
    def size(self) -> int:
        """Number of parameters, without the padding."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.template))

    @cached_property
    def _tail(self) -> np.ndarray:
        return np.zeros(-self.size % ALIGNMENT, np.float32)

    @cached_property
    def _unravel(self) -> Callable[[jax.Array], Any]:
        # Shapes are enough. Arrays may be too large to allocate, and would add operations to the program being traced.
        functions: list[Callable[[jax.Array], Any]] = []
        jax.eval_shape(lambda tree: functions.append(ravel_pytree((tree, self._tail))[1]), self.template)
        return functions[0]


def where_rows(rows: jax.Array, true: Any, false: Any) -> Any:
    """Arrays `[n, ...]` of one tree where `rows` `[n]` is true, and of another elsewhere."""
    return jax.tree.map(lambda x, y: jnp.where(rows.reshape(-1, *(1,) * (x.ndim - 1)), x, y), true, false)


def policy_network(
    observation_space: Box, action_space: Space, config: NetworkConfig, actor_precision: str = "float32"
) -> PolicyNetwork:
    """Policy that `network.policy` names, for the spaces of an environment, and with actors of a precision.

    Raises:
      ConfigError: the policy cannot read the observations.
      ValueError: there is no action distribution for the space.
    """
    network: PolicyNetwork = register.policy[config.policy](observation_space, action_space, config)
    network.actor_precision = actor_precision
    # Made here, for arrays that a distribution makes inside a traced function could not leave it.
    assert network.distribution.size > 0, "a distribution has parameters"
    assert network.size > 0, "a policy has parameters"
    return network


def has_usual_distribution(network: PolicyNetwork) -> bool:
    """Whether a policy has the action distribution for its action space."""
    return type(network).distribution is PolicyNetwork.distribution


def has_outputs(config: Config, needs: tuple[str, ...], what: str) -> Iterator[tuple[bool, str]]:
    """Conditions that the policy has these outputs, each with the error message for its violation.

    Args:
      config: the configuration.
      needs: names of outputs.
      what: key and value of what needs them.
    """
    policy = register.policy.get(config.network.policy)
    for name in needs if policy is not None else ():
        able = [other for other, kind in register.policy.items() if name in (kind.outputs or ())]
        yield (
            name in (policy.outputs or ()),
            f"{what} needs the output {name}, which network.policy={config.network.policy} does not compute; "
            f"accepted: {', '.join(able)}.",
        )
