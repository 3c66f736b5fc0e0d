"""A trained policy as a function of observations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.config.schema import ConfigError
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.rollout import Normalizers, view


@dataclass(frozen=True, eq=False)
class Policy:
    """Call it with one observation or a batch `[B, ...]`; with a key it samples, without one it acts by the mode.

    It is compiled at its first call, and again for every other size of a batch. It can be pickled. Actions of a
    continuous space are not clipped to its bounds; the environments do that.

    A policy with memory keeps nothing itself: `step` is handed what is carried, and returns what is carried on.

    Args:
      network: what the parameters belong to.
      params: `[P]`.
      normalizers: statistics of observations, of one seed.
      config: of the run.
    """

    network: ActorCritic
    params: jax.Array
    normalizers: Normalizers
    config: Config

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
        obs = jnp.asarray(obs, space.dtype)  # bytes stay bytes: networks read them as fractions of 255
        single = obs.ndim == len(space.shape)
        if obs.shape[0 if single else 1 :] != space.shape:
            batch = ", ".join(["(B", *map(str, space.shape)]) + ")"
            raise ValueError(f"Observations of shape {obs.shape} do not fit; accepted: {space.shape} or {batch}.")
        if carry is None:
            carry = self.network.blank(1 if single else len(obs))
        action, carry = self._act(self.params, self.normalizers, obs, carry, key)
        return action, carry

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
            return action if obs.ndim == batch.ndim else action[0], carry

        return jax.jit(act)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without what was compiled


def load_policy(run_dir: str | Path, seed: int | None = None) -> Policy:
    """The newest policy saved in a run directory, of one of its seeds (the first, if none is named)."""
    from stellaris_jax.training.run import open_run

    trainer = open_run(run_dir)
    seed = trainer.seeds[0] if seed is None else seed
    if seed not in trainer.seeds:
        raise ConfigError(f"seed={seed} is not in {run_dir}; accepted: {', '.join(map(str, trainer.seeds))}.")
    index = trainer.seeds.index(seed)
    params, normalizers = jax.tree.map(lambda x: x[index], trainer.members.learned)
    return Policy(trainer.network, params, normalizers, trainer.config)
