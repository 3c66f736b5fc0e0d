"""Ranges of an environment's observations, rewards and actions, and recommended settings for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stellaris_jax.base.statistics import mean_ci95
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.envs.base import Box, HostEnv, VecEnv
from stellaris_jax.envs.rescale import is_far, own_actions

LARGE = 5.0
"""Absolute value of observations and rewards above which a network learns badly without normalisation."""


class Ranges(NamedTuple):
    """Ranges in a short random run, as (smallest, largest), and what its episodes earn.

    Only episodes that began so early that the run is as long as their time limit count, or the first ones if it is
    shorter than that. Otherwise short episodes would count more than long ones.

    Attributes:
      observation: range of observations, over all their elements.
      reward: range of rewards.
      returns: returns of episodes, `[episodes]`, so far where the run ended before the episode.
      steps: steps of these episodes, `[episodes]`.
      unfinished: number of episodes before whose end the run ended.
    """

    observation: tuple[float, float]
    reward: tuple[float, float]
    returns: np.ndarray
    steps: np.ndarray
    unfinished: int


def ranges_of(
    observations: np.ndarray, rewards: np.ndarray, done: np.ndarray, dead: np.ndarray, limit: int | None
) -> Ranges:
    """Ranges of observations and rewards, and the returns of episodes.

    Args:
      observations: observations of any shape.
      rewards: rewards, `[T, N]`.
      done: whether a step ended an episode, `[T, N]`.
      dead: whether a step only starts an episode, `[T, N]`.
      limit: most steps of an episode, if there is such a number.
    """
    last = 0 if limit is None else max(0, len(done) - limit)
    columns = zip(rewards.T, done.T, dead.T, strict=True)
    episodes = np.array([own for column in columns for own in _episodes(*column, last)])
    returns, steps, over = episodes.T
    kept = rewards[~dead]
    observed, earned = ((float(array.min()), float(array.max())) for array in (observations, kept))
    return Ranges(observed, earned, returns, steps, int((over == 0).sum()))


def _episodes(rewards: np.ndarray, done: np.ndarray, dead: np.ndarray, last: int) -> Iterator[tuple[float, int, bool]]:
    """Return, steps and whether it is over, of each episode of one environment that began by step `last`."""
    begin = 0
    for end in map(int, np.union1d(np.flatnonzero(done), len(done) - 1)):
        begin += int(dead[begin])
        if begin <= min(last, end):
            yield float(rewards[begin : end + 1].sum(dtype=float)), end + 1 - begin, bool(done[end])
        begin = end + 1


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
    random = _random_line(ranges, "life" if config.life_loss else "episode")
    space = own_actions(env)
    if space is None:
        return [observations, rewards, random]
    bounds = _shown((min(space.low), max(space.high)))
    actions = f"actions from {bounds}, reached by a policy's -1 to 1 (env.rescale_action=true)"
    return [observations, rewards, random, actions]


def _random_line(ranges: Ranges, episode: str) -> str:
    """Line on what random actions earn in an episode, or in the part of it that was played."""
    mean, half = mean_ci95(ranges.returns)
    value, count = _figure(mean, 4), len(ranges.returns)
    if half > 0.0:  # equal returns say little of others
        value += f" ± {_figure(half, 2)}"
    if not ranges.unfinished:
        steps = _figure(float(ranges.steps.mean()), 3)
        return f"random actions return {value} per {episode}, of {steps} steps (means over {count})"
    played = f"the first {ranges.steps.max():,.0f} steps of each {episode}"
    return f"random actions earn {value} in {played}, after which {ranges.unfinished} of {count} were not over"


def _figure(value: float, digits: int) -> str:
    """Number without an exponent where it is large.

    >>> _figure(1163.4, 4), _figure(132.0, 2), _figure(0.123, 2)
    ('1,163', '132', '0.12')
    """
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:,.{digits}g}"


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
