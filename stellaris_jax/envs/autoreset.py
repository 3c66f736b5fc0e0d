"""From one environment to a batch that resets itself: the machinery all adapters share.

An adapter writes `reset_one` and `step_one` for a single environment; `AutoResetEnv` vectorises them and
starts the next episode in the step that ends one.

Starts come from a pool. A reset draws random numbers, which on a CPU costs as much as the rest of a
CartPole step, and for a physics engine as much as many steps, and under `vmap` every environment would pay
for it at every step. `starts` therefore draws `start_pool` independent start states once per fragment, and
an environment whose episode ends takes one of them at random. Every start has exactly the environment's
own distribution; the only trace of the pool is that two episodes of one fragment share a start with
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
    """A `VecEnv` made of a single environment's `reset_one` and `step_one`."""

    name: str
    observation_space: Box
    action_space: Space
    max_episode_steps: int | None
    start_pool: int = 256

    @abstractmethod
    def reset_one(self, key: Array) -> tuple[EnvState, Array]:
        """One key -> (state, observation) at the start of an episode."""

    @abstractmethod
    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        """One step without a reset -> (state, observation, reward, terminated, truncated).

        `action` is as the action space has it: an int32 scalar or vector, or a float32 vector inside the bounds.
        """

    def renderer(self) -> Renderer:
        """Draws the states of one environment. Raises ConfigError where there is no drawing."""
        raise not_drawn(self.name)

    def reset(self, keys: Array) -> tuple[EnvState, Array]:
        """Keys `[N]` -> (state with leading axis `[N]` on every leaf, observations `[N, ...]`)."""
        state, obs = jax.vmap(self.reset_one)(keys)
        return jax.tree.map(_strong, state), obs.astype(self.observation_space.dtype)

    def starts(self, key: Array) -> Any:
        """One key -> the start states and observations of the next fragment, leading axis `[start_pool]`."""
        return self.reset(jax.random.split(key, self.start_pool))

    def step(self, keys: Array, state: EnvState, action: Array, starts: Any) -> tuple[EnvState, TimeStep]:
        """One step of all environments; ended ones continue from a start state of `starts`.

        Actions of a `Box` space are clipped to its bounds: the policy acts unbounded.
        Keys must be random (from `jax.random.split`): their bits choose the start state.
        """
        if isinstance(self.action_space, Box):
            action = jnp.clip(action, *_bounds(self.action_space))
        next_state, final_obs, reward, terminated, truncated = jax.vmap(self.step_one)(keys, state, action)
        final_obs = final_obs.astype(self.observation_space.dtype)
        terminated, truncated = terminated.astype(bool), truncated.astype(bool)
        done = terminated | truncated

        # A key is itself random bits, independent of what is drawn from it: choosing by them saves a draw.
        choice = (jax.random.key_data(keys)[:, -1] % len(starts[1])).astype(jnp.int32)

        def restart(start: Array, stepped: Array) -> Array:
            # The pool fixes the types, so that the state keeps them through every step of a scan.
            mask = done.reshape(done.shape + (1,) * (stepped.ndim - 1))
            return jnp.where(mask, start.at[choice].get(mode="promise_in_bounds"), stepped.astype(start.dtype))

        state, obs = jax.tree.map(restart, starts, (next_state, final_obs))
        return state, TimeStep(obs, reward.astype(jnp.float32), terminated, truncated, final_obs)


def _strong(leaf: Array) -> Array:
    """The same array without JAX's weak type, which would make a second call compile anew."""
    return leaf.astype(leaf.dtype)


def _bounds(space: Box) -> tuple[Array, Array]:
    low, high = (jnp.asarray(bound, jnp.float32).reshape(space.shape) for bound in (space.low, space.high))
    return low, high
