"""Actions from -1 to 1 that stand for the bounds of an environment's own `Box` (`env.rescale_action`).

A policy explores with noise of deviation 1 at first: between bounds of ±1000 it would see nothing but the middle,
between bounds of ±0.1 nothing but the ends.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from stellaris_jax.config.schema import ConfigError
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Array, Box, EnvState, HostEnv, HostPool, HostStep, Space, VecEnv, rescaled
from stellaris_jax.envs.wrappers import Wrapper

NEAR, FAR = 0.5, 2.0
"""Sizes of bounds between which noise of deviation 1 explores a space."""


def is_far(space: Space) -> bool:
    """Whether actions have finite bounds that noise of deviation 1 around 0 explores badly.

    >>> [is_far(Box((1,), (low,), (high,))) for low, high in ((-1, 1), (-2, 2), (-1000, 1000), (0, 1), (-0.1, 0.1))]
    [False, False, True, True, True]
    """
    if not (isinstance(space, Box) and _is_finite(space)):
        return False
    pairs = zip(space.low, space.high, strict=True)
    return not all(-FAR <= low <= -NEAR and NEAR <= high <= FAR for low, high in pairs)


def rescale(env: VecEnv | HostEnv) -> VecEnv | HostEnv:
    """An environment behind actions from -1 to 1. Raises ConfigError where its actions have no finite bounds."""
    space = env.action_space
    if not isinstance(space, Box) or not _is_finite(space):
        raise ConfigError(
            f"env.rescale_action=true is not possible: {env.name} has no Box of actions between finite bounds."
        )
    if isinstance(env, HostEnv):
        return RescaledHost(env, space)
    if isinstance(env, AutoResetEnv):
        return Rescaled(env, space)
    raise ConfigError(f"env.rescale_action=true is not possible: {env.name} is not derived from AutoResetEnv.")


def own_actions(env: Any) -> Box | None:
    """The bounds that actions of -1 to 1 stand for; None where actions are those of the environment itself."""
    return env.own if isinstance(env, Rescaled | RescaledHost) else None


def _is_finite(space: Box) -> bool:
    return all(map(math.isfinite, (*space.low, *space.high)))


def unit_box(space: Box) -> Box:
    """Actions of as many elements, from -1 to 1."""
    return Box(space.shape, (-1.0,) * space.size, (1.0,) * space.size)


class Rescaled(Wrapper):
    """An environment in JAX whose actions go from -1 to 1.

    Args:
      env: the environment.
      own: its own actions.
    """

    def __init__(self, env: AutoResetEnv, own: Box):
        super().__init__(env)
        self.own, self.action_space = own, unit_box(own)

    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        return self.env.step_one(key, state, rescaled(action, self.own))


class RescaledHost:
    """An environment on the host whose actions go from -1 to 1.

    Args:
      env: the environment.
      own: its own actions.
    """

    def __init__(self, env: HostEnv, own: Box):
        self.action_space: Space = unit_box(own)
        self.env, self.own = env, own
        self.name, self.observation_space = env.name, env.observation_space
        self.max_episode_steps = env.max_episode_steps
        if hasattr(env, "stage"):
            self.stage, self.steps_per_second = self._stage, cast(Any, env).steps_per_second

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> HostPool:
        """A pool of environments at the start of an episode."""
        return RescaledPool(self.env.open(num_envs, seed, evaluation), self.own)

    def _stage(self, seed: int) -> RescaledPool:
        """A pool of one environment that can be looked at with `render`."""
        return RescaledPool(cast(Any, self.env).stage(seed), self.own)


class RescaledPool:
    """A pool whose actions go from -1 to 1.

    Args:
      pool: the environment's own.
      own: its own actions.
    """

    def __init__(self, pool: HostPool, own: Box):
        self.pool, self.own = pool, own

    def send(self, action: np.ndarray) -> None:
        self.pool.send(rescaled(action, self.own))

    def recv(self) -> HostStep:
        return self.pool.recv()

    def render(self) -> np.ndarray:
        picture: np.ndarray = cast(Any, self.pool).render()
        return picture

    def close(self) -> None:
        self.pool.close()
