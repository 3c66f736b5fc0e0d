"""Ranges of an environment's observations, rewards and actions, and recommended settings for them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.envs.base import Box, HostEnv, VecEnv
from stellaris_jax.envs.rescale import is_far, own_actions

LARGE = 5.0
"""Absolute value of observations and rewards above which a network learns badly without normalisation."""


class Ranges(NamedTuple):
    """Ranges in a short random run, as (smallest, largest), and what its episodes earn.

    Attributes:
      observation: range of observations, over all their elements.
      reward: range of rewards.
      returns: returns of the episodes that ended, `[episodes]`.
      steps: mean steps of these episodes; NaN if none ended.
    """

    observation: tuple[float, float]
    reward: tuple[float, float]
    returns: np.ndarray
    steps: float


def ranges_of(observations: np.ndarray, rewards: np.ndarray, done: np.ndarray, dead: np.ndarray) -> Ranges:
    """Ranges of observations and rewards, and the returns of episodes.

    Args:
      observations: observations of any shape.
      rewards: rewards, `[T, N]`.
      done: whether a step ended an episode, `[T, N]`.
      dead: whether a step only starts an episode, `[T, N]`.
    """
    ended = [column[:, flags] for column, flags in zip(_totals(rewards, dead).transpose(2, 0, 1), done.T, strict=True)]
    returns, steps = np.concatenate([np.diff(column, prepend=0.0) for column in ended], axis=1)
    kept = rewards[~dead]
    observed, earned = ((float(array.min()), float(array.max())) for array in (observations, kept))
    return Ranges(observed, earned, returns, float(steps.mean()) if len(steps) else math.nan)


def _totals(rewards: np.ndarray, dead: np.ndarray) -> np.ndarray:
    """Sums of rewards and of steps so far, `[2, T, N]`."""
    return np.cumsum([np.where(dead, 0.0, rewards.astype(float)), ~dead], axis=1)


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
    random = []
    if len(ranges.returns):
        mean = f"{ranges.returns.mean():.4g}"
        random = [
            f"random actions return {mean} an episode, a mean over {len(ranges.returns)} of {ranges.steps:.3g} steps"
        ]
    space = own_actions(env)
    if space is None:
        return [observations, rewards, *random]
    bounds = _shown((min(space.low), max(space.high)))
    actions = f"actions from {bounds}, reached by a policy's -1 to 1 (env.rescale_action=true)"
    return [observations, rewards, *random, actions]


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
