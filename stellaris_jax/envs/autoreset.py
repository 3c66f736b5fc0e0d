"""Vectorisation and automatic resets of a single environment, shared by all JAX adapters.

An adapter writes `reset_one` and `step_one` for a single environment; `AutoResetEnv` vectorises them and
starts the next episode in the step that ends one.

Start states come from a pool. A reset draws random numbers. On a CPU that costs as much as the rest of a
CartPole step, and for a physics engine as much as many steps. Under `vmap` every environment would pay
for it at every step. So `starts` draws `start_pool` independent start states once per fragment, and
an environment whose episode ends takes one of them at random. Every start state has exactly the environment's
distribution; the only effect of the pool is that two episodes of one fragment share a start state with
probability `1 / start_pool`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp

from stellaris_jax.envs.base import Array, Box, EnvState, Space, TimeStep
from stellaris_jax.envs.drawing import Renderer, not_drawn


class AutoResetEnv(ABC):
    """Base of `VecEnv`s that are defined by a single environment's `reset_one` and `step_one`."""

    name: str
    observation_space: Box
    action_space: Space
    max_episode_steps: int | None
    start_pool: int = 256

    @abstractmethod
    def reset_one(self, key: Array) -> tuple[EnvState, Array]:
        """Start an episode: one key -> (state, observation)."""

    @abstractmethod
    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        """Step once without a reset -> (state, observation, reward, terminated, truncated).

        `action` is an element of the action space: an int32 scalar or vector, or a float32 vector inside the bounds.
        """

    def renderer(self) -> Renderer:
        """Renderer of one environment's states. Raises ConfigError if the environment cannot be drawn."""
        raise not_drawn(self.name)

    def reset(self, keys: Array) -> tuple[EnvState, Array]:
        """Start episodes: keys `[N]` -> (state with leading axis `[N]` on every leaf, observations `[N, ...]`)."""
        state, obs = jax.vmap(self.reset_one)(keys)
        return jax.tree.map(_strong, state), obs.astype(self.observation_space.dtype)

    def starts(self, key: Array) -> Any:
        """Draw the next fragment's start states and observations from one key, leading axis `[start_pool]`."""
        return self.reset(jax.random.split(key, self.start_pool))

    def step(self, keys: Array, state: EnvState, action: Array, starts: Any) -> tuple[EnvState, TimeStep]:
        """Step all environments once; ended episodes are followed by a start state from `starts`.

        Actions of a `Box` space are clipped to its bounds, because policies are unbounded.
        Keys must be random (from `jax.random.split`): their bits choose the start state.
        """
        if isinstance(self.action_space, Box):
            action = jnp.clip(action, *_bounds(self.action_space))
        next_state, final_obs, reward, terminated, truncated = jax.vmap(self.step_one)(keys, state, action)
        final_obs = final_obs.astype(self.observation_space.dtype)
        terminated, truncated = terminated.astype(bool), truncated.astype(bool)
        done = terminated | truncated

        # The bits of a key are random, and independent of numbers drawn from it: using them saves a draw.
        choice = (jax.random.key_data(keys)[:, -1] % len(starts[1])).astype(jnp.int32)

        def restart(start: Array, stepped: Array) -> Array:
            # Cast to the pool's dtypes, so that the state keeps its types through every step of a scan.
            mask = done.reshape(done.shape + (1,) * (stepped.ndim - 1))
            return jnp.where(mask, start.at[choice].get(mode="promise_in_bounds"), stepped.astype(start.dtype))

        state, obs = jax.tree.map(restart, starts, (next_state, final_obs))
        return state, TimeStep(obs, reward.astype(jnp.float32), terminated, truncated, final_obs)


def _strong(leaf: Array) -> Array:
    """Array without JAX's weak type, which would make a second call compile again."""
    return leaf.astype(leaf.dtype)


def _bounds(space: Box) -> tuple[Array, Array]:
    low, high = (jnp.asarray(bound, jnp.float32).reshape(space.shape) for bound in (space.low, space.high))
    return low, high
