"""A trained policy as a function of observations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.config.schema import ConfigError
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.rollout import Normalizers, view
from stellaris_jax.envs.base import Box, rescaled
from stellaris_jax.envs.rescale import own_actions
from stellaris_jax.training.export.artefact import Outputs, is_single

if TYPE_CHECKING:
    from stellaris_jax.training.trainer import Trainer


@dataclass(frozen=True, eq=False)
class Policy:
    """Call it with one observation or a batch `[B, ...]`; with a key it samples, without one it acts by the mode.

    It is compiled at its first call, and again for every other size of a batch. It can be pickled. Actions of a
    continuous space are clipped to its bounds, as environments do in training.

    A policy with memory keeps nothing itself: `step` is handed what is carried, and returns what is carried on.

    Args:
      network: what the parameters belong to.
      params: `[P]`.
      normalizers: statistics of observations, of one seed.
      config: of the run.
      own: the environment's own actions, where the network's are from -1 to 1 (`env.rescale_action`): the policy's
        actions are within these bounds.
    """

    network: ActorCritic
    params: jax.Array
    normalizers: Normalizers
    config: Config
    own: Box | None = None

    def __repr__(self) -> str:
        observed, acted = self.network.observation_space, self.own or self.network.action_space
        spaces = f"{observed.dtype} observations of shape {observed.shape}, actions of {acted}"
        memory = f", network.memory={self.config.network.memory}" if self.network.recurrent else ""
        return f"Policy({self.config.env.name}, {spaces}{memory})"

    def __call__(self, obs: Any, key: jax.Array | None = None) -> jax.Array:
        """Actions of observations `[*obs]` or `[B, *obs]`, with as many leading axes.

        Raises ValueError for arrays of any other shape, and for a policy with memory, which takes `step`.
        """
        if self.network.recurrent:
            memory = self.config.network.memory
            raise ValueError(f"A policy with memory ({memory}) acts by action, carry = policy.step(obs, carry).")
        return self.step(obs, key=key)[0]

    def step(self, obs: Any, carry: Carry = None, key: jax.Array | None = None) -> tuple[jax.Array, Carry]:
        """Actions as of a call, and what is carried on to the next observations of the same environments.

        Without memory that is `None`.

        Args:
          obs: observations `[*obs]` or `[B, *obs]`.
          carry: what the step before returned; `None` before the first step of episodes.
          key: to sample by.

        Raises:
          ValueError: for arrays of any other shape.
        """
        space = self.network.observation_space
        obs = jnp.asarray(obs, space.dtype)  # bytes stay bytes: networks read them as fractions of their space's unit
        single = is_single(obs.shape, space.shape)
        if carry is None:
            carry = self.network.initial_carry(1 if single else len(obs))
        action, carry = self._act(self.params, self.normalizers, obs, carry, key)
        return action, carry

    def outputs(self, obs: jax.Array) -> Outputs:
        """All that a policy without memory says of observations `[B, ...]` of their space's dtype."""
        return self._said(self.params, self.normalizers, obs)

    @cached_property
    def _said(self) -> Callable[..., Outputs]:
        return jax.jit(self._outputs)

    def _outputs(self, params: jax.Array, normalizers: Normalizers, obs: jax.Array) -> Outputs:
        network = self.network
        distribution, value = network.policy_and_value(network.unravel(params), view(normalizers, obs, self.config.env))
        return Outputs(self._bounded(network.distribution.mode(distribution)), distribution, value)

    def _bounded(self, action: jax.Array) -> jax.Array:
        space = self.network.action_space
        if not isinstance(space, Box):
            return action
        action = jnp.clip(action, *jnp.array([space.low, space.high]))
        return action if self.own is None else rescaled(action, self.own)

    @cached_property
    def _act(self) -> Callable[..., tuple[jax.Array, Carry]]:
        network, env = self.network, self.config.env

        def act(
            params: jax.Array, normalizers: Normalizers, obs: jax.Array, carry: Carry, key: jax.Array | None
        ) -> tuple[jax.Array, Carry]:
            batch = obs.reshape(-1, *network.observation_space.shape)
            parameters, carry = network.act(network.unravel(params), view(normalizers, batch, env), carry)
            if key is None:
                action = network.distribution.mode(parameters)
            else:
                noise = network.distribution.noise(key, batch.shape[:1])
                action = network.distribution.perturb(parameters, noise)
            action = self._bounded(action)
            return action if obs.ndim == batch.ndim else action[0], carry

        return jax.jit(act)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without what was compiled


def policy_of(trainer: Trainer, seed: int | None = None) -> Policy:
    """The newest policy of a trainer, of one of its seeds (the first, if none is named). Raises ConfigError."""
    seed = trainer.seeds[0] if seed is None else seed
    if seed not in trainer.seeds:
        raise ConfigError(f"seed={seed} is not in the run; accepted: {', '.join(map(str, trainer.seeds))}.")
    index = trainer.seeds.index(seed)
    params, normalizers = jax.tree.map(lambda x: x[index], trainer.members.learned)
    return Policy(trainer.network, params, normalizers, trainer.config, own_actions(trainer.env))
