"""Adapter of gymnax: classic control, MinAtar, bsuite and small tasks, all in JAX (gymnax 1.0)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.schema import shown
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Array, Box, Discrete, EnvState
from stellaris_jax.envs.drawing import BOARD_STEPS_PER_SECOND, CLASSIC_CONTROL, Renderer, board
from stellaris_jax.envs.lazy_imports import lazily
from stellaris_jax.envs.names import INTEGERS, check_options, positive_int

PICTURES = ("seaborn", "matplotlib.animation", "matplotlib.colors", "matplotlib.pyplot")
with lazily(*PICTURES):  # gymnax imports them for its own pictures, which are not used here
    import gymnax
    from gymnax.environments import spaces

REFUSED = {
    "MNISTBandit-bsuite": "it downloads its data while it is being made",
}


def available() -> list[str]:
    """Ids of the available environments, as in gymnax."""
    return [name for name in gymnax.registered_envs if name not in REFUSED]


def make(name: str, **kwargs: Any) -> GymnaxEnv:
    """Environment of an id; see `GymnaxEnv` for the arguments."""
    return GymnaxEnv(name, **kwargs)


class GymnaxEnv(AutoResetEnv):
    """gymnax environment. A `Discrete` observation becomes a one-hot vector.

    Args:
      name: id, e.g. `CartPole-v1`.
      start_pool: number of start states drawn per fragment.
      params: fields of the environment's parameters (`max_steps_in_episode`, `gravity`, ...).

    Raises:
      ConfigError: a field is unknown, a value has the wrong type, or a space is neither a `Box` nor a `Discrete`.
    """

    def __init__(self, name: str, *, start_pool: int = 256, **params: Any):
        self.name = f"gymnax/{name}"
        self.start_pool = positive_int("start_pool", start_pool)
        self._env, defaults = gymnax.make(name)
        known = {field.name: getattr(defaults, field.name) for field in fields(defaults)}
        check_options(self.name, params, [*known, "start_pool"])
        self._params = defaults.replace(**{key: _like(known[key], key, value) for key, value in params.items()})
        self.max_episode_steps = positive_int("max_steps_in_episode", int(self._params.max_steps_in_episode))

        observation = _space(self._env.observation_space(self._params))
        action = _space(self._env.action_space(self._params))
        if observation is None or action is None:
            raise ConfigError(
                f"env.name={self.name} cannot be trained on: observations and actions must be a Box or Discrete."
            )
        self.one_hot, self.action_space = isinstance(observation, Discrete), action
        n = observation.n if isinstance(observation, Discrete) else 0
        self.observation_space = observation if isinstance(observation, Box) else Box((n,), (0.0,) * n, (1.0,) * n)

    def observe(self, obs: Array) -> Array:
        """Observation converted to `observation_space`."""
        return jax.nn.one_hot(obs, self.observation_space.size) if self.one_hot else obs

    def reset_one(self, key: Array) -> tuple[EnvState, Array]:
        obs, state = self._env.reset_env(key, self._params)
        return state, self.observe(obs)

    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        # Use step_env, because step computes a fresh reset at every step.
        obs, state, reward, terminated, _ = self._env.step_env(key, state, action, self._params)
        return state, self.observe(obs), reward, terminated, self._env.is_truncated(state, self._params)

    def renderer(self) -> Renderer:
        """Renderer of classic control, and of observations that are boards of cells (MinAtar)."""
        task = self.name.partition("/")[2]
        if task in CLASSIC_CONTROL:
            draw, pace = CLASSIC_CONTROL[task]
            return Renderer(lambda state: draw(state, self._params), pace)
        shape = self.observation_space.shape
        if len(shape) in (2, 3) and min(shape[:2]) > 1:
            observe = jax.jit(lambda state: self._env.get_obs(state, self._params))
            return Renderer(lambda state: board(np.asarray(observe(state))), BOARD_STEPS_PER_SECOND)
        return super().renderer()


def _space(space: spaces.Space) -> Box | Discrete | None:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.Box):
        low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
        return Box(tuple(space.shape), tuple(low.ravel().tolist()), tuple(high.ravel().tolist()))
    return None


def _like(default: Any, key: str, value: Any) -> Any:
    """Value in the type of the parameter that it replaces: a number, a flag or an array. Raises ConfigError."""
    if np.ndim(default):
        array = jnp.asarray(value, default.dtype)
        if array.shape == default.shape:
            return array
        raise ConfigError(f"env.kwargs.{key}={shown(value)} must have the shape {default.shape}.")
    kind = type(default)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"env.kwargs.{key}={shown(value)} must be of type {kind.__name__}.")
    if kind is int and abs(value) >= INTEGERS:
        raise ConfigError(f"env.kwargs.{key}={value} must be an integer of less than 32 bits.")
    return value
