"""Preparation of training data from a fragment: values, scaled rewards, advantages, statistics."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.advantages import Estimate
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import AdvantageInputs, Samples, Steps
from stellaris_jax.agent.networks import PolicyNetwork, normalizer
from stellaris_jax.agent.networks.normalizer import RunningStatistics
from stellaris_jax.agent.networks.recurrent import Carry, Past, reset_carry
from stellaris_jax.agent.recipe import PPO_RECIPE, Recipe
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine.device_rows import gathered
from stellaris_jax.engine.rollout import EpisodeTotals, Fragment, Normalizers, Trajectory, view


class CriticBatch(NamedTuple):
    """Largest critic batch after a fragment: in observations, and in numbers (images are large)."""

    rows: int
    inputs: int


CRITIC_ON_CPU, CRITIC_ON_ACCELERATOR = CriticBatch(2**12, 2**22), CriticBatch(2**17, 2**26)
"""Small batches stay in a CPU's cache; each batch keeps an accelerator waiting for the one before."""


class EpisodeStatistics(NamedTuple):
    """Statistics of the episodes with finite return that ended within a fragment.

    Attributes:
      ended: number of these episodes.
      total_return: sum of their returns.
      total_length: sum of their lengths, in steps.
    """

    ended: jax.Array
    total_return: jax.Array
    total_length: jax.Array


class Collected(NamedTuple):
    """Data of a fragment as its behaviour policy leaves them, arrays `[T, N, ...]`.

    Attributes:
      obs: observations, as the behaviour policy received them.
      raw_obs: observations as the environment returned them; `None` unless statistics of them are kept.
      action, distribution, reward, terminated, truncated, valid: see `Trajectory`.
      value: values of the observations, by the behaviour policy's critic; `None` without a critic.
      next_value: values of the next observations before any reset, by the same critic.
      discounted_return: running discounted sums of rewards; `None` unless statistics of them are kept.
      first: whether an observation starts an episode, bool; `None` without memory.
      next_obs: observations after the steps, before any reset; `None` unless the algorithm learns from a replay buffer.
      discount: see `Transition`; `None` likewise.
    """

    obs: jax.Array
    raw_obs: jax.Array | None
    action: jax.Array
    distribution: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    valid: jax.Array | None
    value: jax.Array | None
    next_value: jax.Array | None
    discounted_return: jax.Array | None
    first: jax.Array | None
    next_obs: Any = None
    discount: Any = None


def prepare(
    network: PolicyNetwork,
    hyper: Hyper,
    config: EnvConfig,
    fragment: Fragment,
    normalizers: Normalizers,
    recipe: Recipe = PPO_RECIPE,
    present: jax.Array | None = None,
    axis: str | None = None,
) -> tuple[Samples, Normalizers, EpisodeStatistics]:
    """Convert a fragment into training samples, and update the normalisers' statistics.

    Devices evaluate the critic on their own environments, and gather the rest.

    Args:
      network: the policy's network.
      hyper: discounts.
      config: options of the normalisers.
      fragment: arrays `[T, N, ...]`.
      normalizers: statistics so far.
      recipe: parts of the agent that make training data.
      present: environments that took part, bool `[N]`, by default all; the others are ignored.
      axis: mesh axis of devices that have shares of the N environments; `None` if each has all of them.

    Returns:
      (samples `[T * N, ...]`, normalisers, statistics of the episodes that ended).
    """
    data = collected(network, config, fragment, present)
    carry, episodes = fragment.carry, ended_episodes(fragment.trajectory, present)
    if axis is not None:
        data = gathered(data, axis, along=1)
        carry, present = gathered((carry, present), axis)
        episodes = jax.lax.psum(episodes, axis)
    samples, normalizers = prepared(network, hyper, config, data, carry, normalizers, recipe, present)
    return samples, normalizers, episodes


def collected(
    network: PolicyNetwork, config: EnvConfig, fragment: Fragment, present: jax.Array | None = None
) -> Collected:
    """Data of a fragment, with values by its behaviour policy's critic.

    Observations are normalised with the statistics that the behaviour policy used. For arguments see `prepare`.
    """
    trajectory = only_present(fragment.trajectory, present)
    seen = partial(view, fragment.normalizers, config=config)
    obs = seen(trajectory.obs)
    value = next_value = None
    if network.has_value:
        value, next_value = bootstrapped_values(network, fragment, trajectory, obs, seen)
    totals = EpisodeTotals.of(trajectory.totals) if config.normalize_reward else None
    return Collected(
        obs=obs,
        raw_obs=trajectory.obs if config.normalize_observation else None,
        action=trajectory.action,
        distribution=trajectory.distribution,
        reward=trajectory.reward,
        terminated=trajectory.terminated,
        truncated=trajectory.truncated,
        valid=trajectory.valid,
        value=value,
        next_value=next_value,
        discounted_return=totals and totals.discounted_return,
        first=trajectory.first[:-1] if network.recurrent else None,
    )


def prepared(
    network: PolicyNetwork,
    hyper: Hyper,
    config: EnvConfig,
    data: Collected,
    carry: Carry,
    normalizers: Normalizers,
    recipe: Recipe = PPO_RECIPE,
    present: jax.Array | None = None,
) -> tuple[Samples, Normalizers]:
    """Training samples `[T * N, ...]` of a batch of data `[T, N, ...]`, and the updated statistics.

    Rewards are scaled with statistics that include the batch. `carry` is the memory's state at the first observations,
    `[N, ...]`; for other arguments see `prepare`.
    """
    reward, reward_statistics = learned_reward(data, normalizers.reward, config)
    obs_statistics = observed(data, normalizers.obs, config, present)
    steps = AdvantageInputs(
        reward=reward,
        value=data.value,
        next_value=data.next_value,
        terminated=data.terminated,
        truncated=data.truncated,
        valid=data.valid,
        log_ratio=None,
        gamma=hyper.gamma,
        gae_lambda=hyper.gae_lambda,
    )
    estimate = Estimate(None, None) if recipe.advantage.by_learners else recipe.estimate(hyper, steps)
    samples = Samples(
        obs=data.obs,
        action=data.action,
        distribution=data.distribution,
        log_prob=network.distribution.log_prob(data.distribution, data.action),
        value=data.value,
        advantage=estimate.advantage,
        target=estimate.target,
        valid=data.valid,
        steps=Steps(reward, data.next_value, data.terminated, data.truncated) if recipe.sequences else None,
        first=data.first,
        own=recipe.fields(hyper, steps),
    )
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)
    return flat._replace(carry=carry), Normalizers(obs_statistics, reward_statistics)


def only_present(trajectory: Trajectory, present: jax.Array | None) -> Trajectory:
    """Trajectory in which all steps of absent environments (`present` `[N]` is false) are invalid."""
    if present is None:
        return trajectory
    everywhere = jnp.broadcast_to(present, trajectory.reward.shape)
    return trajectory._replace(valid=everywhere if trajectory.valid is None else everywhere & trajectory.valid)


def values(network: PolicyNetwork, tree: dict[str, Any], obs: jax.Array, carries: Carry = None) -> jax.Array:
    """State values `[T, N]` of observations `[T, N, ...]`, in batches of steps, to bound the memory of activations.

    `carries` are the memory's states at the observations, `[T, N, ...]`; `None` without memory.
    """

    def evaluated(x: tuple[jax.Array, Carry]) -> jax.Array:
        obs, carry = x
        return network.value(tree, obs) if carry is None else network.value_step(tree, obs, carry)[0]

    limits = CRITIC_ON_CPU if jax.default_backend() == "cpu" else CRITIC_ON_ACCELERATOR
    rows = min(limits.rows, limits.inputs // math.prod(obs.shape[2:]))
    return jax.lax.map(evaluated, (obs, carries), batch_size=max(1, rows // obs.shape[1]))


def remembered_values(
    network: PolicyNetwork, tree: dict[str, Any], obs: jax.Array, past: Past
) -> tuple[jax.Array, Carry]:
    """State values `[T, N]` of observations `[T, N, ...]` in sequence, and the carry after each, `[T, N, ...]`."""

    def step(carry: Carry, x: tuple[jax.Array, jax.Array]) -> tuple[Carry, tuple[jax.Array, Carry]]:
        obs, first = x
        value, carry = network.value_step(tree, obs, reset_carry(carry, first))
        return carry, (value, carry)

    result: tuple[jax.Array, Carry] = jax.lax.scan(step, past.carry, (obs, past.first))[1]
    return result


def bootstrapped_values(
    network: PolicyNetwork, fragment: Fragment, trajectory: Trajectory, obs: jax.Array, seen: Any
) -> tuple[jax.Array, jax.Array]:
    """Values of the observations `obs` and of the next observations before any reset, both `[T, N]`.

    `seen` converts observations to the network's inputs. Final observations of truncated episodes are evaluated only
    if the fragment has any.
    """
    tree, every = network.unravel(fragment.params), jnp.concatenate([obs, seen(trajectory.last_obs)[None]])
    next_carries = None
    if network.recurrent:
        value, carries = remembered_values(network, tree, every, Past(fragment.carry, trajectory.first))
        next_carries = jax.tree.map(lambda x: x[:-1], carries)
    else:
        value = values(network, tree, every)
    next_value = value[1:]
    if trajectory.final_obs is not None:
        truncated = trajectory.truncated & ~trajectory.terminated

        def with_final(next_value: jax.Array) -> jax.Array:
            final_value = values(network, tree, seen(trajectory.final_obs), next_carries)
            return jnp.where(truncated, final_value, next_value)

        next_value = jax.lax.cond(jnp.any(truncated), with_final, lambda next_value: next_value, next_value)
    return value[:-1], next_value


def learned_reward(
    data: Collected, statistics: RunningStatistics, config: EnvConfig
) -> tuple[jax.Array, RunningStatistics]:
    """Rewards `[T, N]` clipped and scaled as configured, and the updated statistics of discounted returns."""
    reward = jnp.sign(data.reward) if config.clip_reward else data.reward
    discounted = data.discounted_return
    if discounted is None:
        return reward, statistics
    if data.valid is not None:
        discounted = jnp.where(data.valid, discounted, jnp.nan)
    statistics = normalizer.update(statistics, discounted.reshape(-1))
    return normalizer.rescale(statistics, reward), statistics


def observed(
    data: Collected, statistics: RunningStatistics, config: EnvConfig, present: jax.Array | None
) -> RunningStatistics:
    """Statistics of observations, updated with the data's environments that are `present` `[N]`."""
    obs = data.raw_obs
    if obs is None:
        return statistics
    if present is not None:
        obs = jnp.where(present.reshape(1, -1, *(1,) * (obs.ndim - 2)), obs, jnp.nan)
    return normalizer.update(statistics, obs.reshape(-1, *obs.shape[2:]))


def ended_episodes(trajectory: Trajectory, present: jax.Array | None) -> EpisodeStatistics:
    """Statistics of the episodes that ended in environments that are `present` `[N]`."""
    totals = EpisodeTotals.of(trajectory.totals)
    ended = (trajectory.terminated | trajectory.truncated) & jnp.isfinite(totals.total_return)
    if present is not None:
        ended &= present
    return EpisodeStatistics(
        ended=jnp.sum(ended, dtype=jnp.float32),
        total_return=jnp.sum(jnp.where(ended, totals.total_return, 0.0)),
        total_length=jnp.sum(jnp.where(ended, totals.length, 0.0)),
    )
