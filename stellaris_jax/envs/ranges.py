"""Ranges of an environment's observations, rewards and actions, and recommended settings for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.envs.base import Box, HostEnv, VecEnv
from stellaris_jax.envs.rescale import is_far, own_actions

LARGE = 5.0
"""Absolute value of observations and rewards above which a network learns badly without normalisation."""


class Ranges(NamedTuple):
    """Ranges in a short random run, as (smallest, largest).

    Attributes:
      observation: range of observations, over all their elements.
      reward: range of rewards.
    """

    observation: tuple[float, float]
    reward: tuple[float, float]


def ranges_of(observations: np.ndarray, rewards: np.ndarray) -> Ranges:
    """Ranges of observations and rewards of any shape."""
    return Ranges(*((float(array.min()), float(array.max())) for array in (observations, rewards)))


def range_lines(env: VecEnv | HostEnv, ranges: Ranges, config: EnvConfig) -> list[str]:
    """Lines on the measured ranges, each with the setting in force or a recommended one.

    Args:
      env: the environment, built from the configuration.
      ranges: the measured ranges.
      config: the environment's configuration.
    """
    observations = f"observations from {_shown(ranges.observation)}"
    if config.normalize_observation:
        observations += ": normalised (env.normalize_observation=true)"
    elif env.observation_space.dtype == "float32" and _size(ranges.observation) > LARGE:
        observations += ": large for a network; set env.normalize_observation=true"
    rewards = f"rewards from {_shown(ranges.reward)}"
    if config.normalize_reward or config.clip_reward:
        rewards += f": {'normalised (env.normalize_reward=true)' if config.normalize_reward else 'clipped'}"
    elif _size(ranges.reward) > LARGE:
        rewards += ": large for a network; set env.normalize_reward=true"
    space = own_actions(env)
    if space is None:
        return [observations, rewards]
    bounds = _shown((min(space.low), max(space.high)))
    actions = f"actions from {bounds}, reached by a policy's -1 to 1 (env.rescale_action=true)"
    return [observations, rewards, actions]


def warned(env: VecEnv | HostEnv) -> str | None:
    """Warning of actions that a policy's initial noise explores badly; None if there is no problem."""
    space = env.action_space
    if not isinstance(space, Box) or not is_far(space):
        return None
    bounds = _shown((min(space.low), max(space.high)))
    return f"has actions from {bounds}, which noise of deviation 1 explores badly; set env.rescale_action=true"


def _size(bounds: tuple[float, float]) -> float:
    return max(map(abs, bounds))


def _shown(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.4g} to {bounds[1]:.4g}"
