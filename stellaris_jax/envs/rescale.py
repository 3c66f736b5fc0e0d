"""Rescaling of actions from [-1, 1] to the bounds of an environment's `Box` (`env.rescale_action`).

A policy initially explores with noise of deviation 1. With bounds of ±1000 it would only explore the middle, with
bounds of ±0.1 only the ends.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Array, Box, EnvState, HostEnv, HostPool, HostStep, Space, VecEnv, rescaled
from stellaris_jax.envs.wrappers import Wrapper

NEAR, FAR = 0.5, 2.0
"""Range of absolute bounds for which noise of deviation 1 explores a space well."""


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
    """Environment with actions rescaled from -1 to 1. Raises ConfigError if its actions have no finite bounds."""
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
    """Action space of the environment inside a rescaling; None without rescaling."""
    return env.own if isinstance(env, Rescaled | RescaledHost) else None


def _is_finite(space: Box) -> bool:
    return all(map(math.isfinite, (*space.low, *space.high)))


def unit_box(space: Box) -> Box:
    """Space of actions from -1 to 1 with the shape of `space`."""
    return Box(space.shape, (-1.0,) * space.size, (1.0,) * space.size)


class Rescaled(Wrapper):
    """JAX environment with actions from -1 to 1.

    Args:
      env: the environment.
      own: its original action space.
    """

    def __init__(self, env: AutoResetEnv, own: Box):
        super().__init__(env)
        self.own, self.action_space = own, unit_box(own)

    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        return self.env.step_one(key, state, rescaled(action, self.own))


class RescaledHost:
    """Host environment with actions from -1 to 1.

    Args:
      env: the environment.
      own: its original action space.
    """

    def __init__(self, env: HostEnv, own: Box):
        self.action_space: Space = unit_box(own)
        self.env, self.own = env, own
        self.name, self.observation_space = env.name, env.observation_space
        self.max_episode_steps = env.max_episode_steps
        if hasattr(env, "stage"):
            self.stage, self.steps_per_second = self._stage, cast(Any, env).steps_per_second

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> HostPool:
        """Pool of environments at the start of an episode."""
        return RescaledPool(self.env.open(num_envs, seed, evaluation), self.own)

    def _stage(self, seed: int) -> RescaledPool:
        """Pool of one environment that supports `render`."""
        return RescaledPool(cast(Any, self.env).stage(seed), self.own)


class RescaledPool:
    """Pool with actions from -1 to 1.

    Args:
      pool: the environment's pool.
      own: its original action space.
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
