"""Ranges of what an environment gives and takes, and the settings that they call for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stellaris_jax.config.tree import EnvConfig
from stellaris_jax.envs.base import Box, HostEnv, VecEnv
from stellaris_jax.envs.rescale import is_far, own_actions

LARGE = 5.0
"""Size of observations and rewards from which on a network learns badly from them as they are."""


class Ranges(NamedTuple):
    """Least and greatest values in a short random run.

    Attributes:
      observation: of observations, over all their elements.
      reward: of rewards.
    """

    observation: tuple[float, float]
    reward: tuple[float, float]


def ranges_of(observations: np.ndarray, rewards: np.ndarray) -> Ranges:
    """The ranges of observations and rewards of any shape."""
    return Ranges(*((float(array.min()), float(array.max())) for array in (observations, rewards)))


def told(env: VecEnv | HostEnv, found: Ranges, config: EnvConfig) -> list[str]:
    """Lines on what was measured, each with the setting in force or the one to choose.

    Args:
      env: the environment, as the configuration makes it.
      found: what was measured.
      config: how it is trained.
    """
    seen = f"observations from {_shown(found.observation)}"
    if config.normalize_observation:
        seen += ": normalised (env.normalize_observation=true)"
    elif env.observation_space.dtype == "float32" and _size(found.observation) > LARGE:
        seen += ": large for a network; set env.normalize_observation=true"
    paid = f"rewards from {_shown(found.reward)}"
    if config.normalize_reward or config.clip_reward:
        paid += f": {'normalised (env.normalize_reward=true)' if config.normalize_reward else 'clipped'}"
    elif _size(found.reward) > LARGE:
        paid += ": large for a network; set env.normalize_reward=true"
    own = own_actions(env)
    if own is None:
        return [seen, paid]
    bounds = _shown((min(own.low), max(own.high)))
    return [seen, paid, f"actions from {bounds}, reached by a policy's -1 to 1 (env.rescale_action=true)"]


def warned(env: VecEnv | HostEnv) -> str | None:
    """A warning of actions that a policy's first noise does not explore; None where there is no need for one."""
    space = env.action_space
    if not isinstance(space, Box) or not is_far(space):
        return None
    bounds = _shown((min(space.low), max(space.high)))
    return f"has actions from {bounds}, which noise of deviation 1 explores badly; set env.rescale_action=true"


def _size(bounds: tuple[float, float]) -> float:
    return max(map(abs, bounds))


def _shown(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.4g} to {bounds[1]:.4g}"
