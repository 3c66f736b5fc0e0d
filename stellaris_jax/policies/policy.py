"""Trained policy as a function of observations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.policy_network import DISTRIBUTION, VALUE
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.config.options import memory_setting
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.rollout import Normalizers, view
from stellaris_jax.envs.base import Box, rescaled
from stellaris_jax.envs.rescale import own_actions
from stellaris_jax.policies.export.artefact import Outputs, is_single

if TYPE_CHECKING:
    from stellaris_jax.execute.trainer import Trainer


@dataclass(frozen=True, eq=False)
class Policy:
    """Trained policy, called with one observation or a batch `[B, ...]`; samples if given a key, else takes the mode.

    The policy compiles at its first call, and again for every new batch size. It can be pickled. Actions of a
    continuous space are clipped to its bounds, as environments do in training.

    A policy with memory stores no state: `step` takes the carry and returns the next one.

    Attributes:
      network: network of the parameters.
      params: `[P]`, flat parameters.
      normalizers: observation statistics of one seed.
      config: configuration of the run.
      own: the environment's action space if the network's actions are rescaled from [-1, 1] (`env.rescale_action`); the
        policy's actions are within these bounds.
    """

    network: PolicyNetwork
    params: jax.Array
    normalizers: Normalizers
    config: Config
    own: Box | None = None

    def __repr__(self) -> str:
        observed, acted = self.network.observation_space, self.own or self.network.action_space
        spaces = f"{observed.dtype} observations of shape {observed.shape}, actions of {acted}"
        memory = f", {memory_setting(self.config.network)}" if self.network.recurrent else ""
        return f"Policy({self.config.env.name}, {spaces}{memory})"

    def __call__(self, obs: Any, key: jax.Array | None = None) -> jax.Array:
        """Actions for observations `[*obs]` or `[B, *obs]`, with the same number of leading axes.

        Raises ValueError for arrays of any other shape, and for a policy with memory, which needs `step`.
        """
        if self.network.recurrent:
            memory = memory_setting(self.config.network).partition("=")[2]
            raise ValueError(f"A policy with memory ({memory}) acts by action, carry = policy.step(obs, carry).")
        return self.step(obs, key=key)[0]

    def step(self, obs: Any, carry: Carry = None, key: jax.Array | None = None) -> tuple[jax.Array, Carry]:
        """Actions as a call returns them, and the carry for the next observations of the same environments.

        Args:
          obs: observations `[*obs]` or `[B, *obs]`.
          carry: carry that the previous step returned; `None` before the first step of episodes.
          key: PRNG key to sample with; without it actions are the mode.

        Returns:
          Actions and the next carry, which is `None` without memory.

        Raises:
          ValueError: the array has any other shape.
        """
        space = self.network.observation_space
        obs = jnp.asarray(obs, space.dtype)  # bytes stay bytes: networks read them as fractions of their space's unit
        single = is_single(obs.shape, space.shape)
        if carry is None:
            carry = self.network.initial_carry(1 if single else len(obs))
        action, carry = self._act(self.params, self.normalizers, obs, carry, key)
        return action, carry

    def outputs(self, obs: Any) -> Outputs:
        """Outputs of a policy without memory for one observation or a batch, with the same number of leading axes."""
        space = self.network.observation_space
        obs = jnp.asarray(obs, space.dtype)
        single = is_single(obs.shape, space.shape)
        outputs = self._compiled_outputs(self.params, self.normalizers, obs[None] if single else obs)
        return Outputs(*(x[0] if single else x for x in outputs))

    @cached_property
    def _compiled_outputs(self) -> Callable[..., Outputs]:
        return jax.jit(self._outputs)

    def _outputs(self, params: jax.Array, normalizers: Normalizers, obs: jax.Array) -> Outputs:
        network = self.network
        outputs = network.evaluate(network.unravel(params), view(normalizers, obs, self.config.env))
        distribution = outputs[DISTRIBUTION]
        value = outputs[VALUE] if network.has_value else jnp.full(obs.shape[:1], jnp.nan)  # every format has a value
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
            tree, seen = network.unravel(params), view(normalizers, batch, env)
            parameters, carry = network.act(tree, seen, network.begin(tree, seen, carry))
            if key is None:
                action = network.distribution.mode(parameters)
            else:
                noise = network.distribution.noise(key, batch.shape[:1])
                action = network.distribution.perturb(parameters, noise)
            action = self._bounded(action)
            return action if obs.ndim == batch.ndim else action[0], carry

        return jax.jit(act)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # compiled functions cannot be pickled


def policy_of(trainer: Trainer, seed: int | None = None) -> Policy:
    """Newest policy of a trainer for one of its seeds (default: the first). Raises ConfigError for an unknown seed."""
    index = trainer.place_of(seed)
    params, normalizers = jax.tree.map(lambda x: x[index], trainer.seed_states.learned)
    return Policy(trainer.network, params, normalizers, trainer.config, own_actions(trainer.env))
