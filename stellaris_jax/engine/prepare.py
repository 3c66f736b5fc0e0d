"""Preparation of training data from a fragment: values, scaled rewards, advantages, statistics."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import Samples, Steps
from stellaris_jax.agent.losses.gae import gae
from stellaris_jax.agent.networks import ActorCritic, normalizer
from stellaris_jax.agent.networks.normalizer import RunningStatistics
from stellaris_jax.agent.networks.recurrent import Carry, Past, reset_carry
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine.rollout import EpisodeTotals, Fragment, Normalizers, Trajectory, view

CRITIC_ROWS, CRITIC_INPUTS = 4096, 2**22
"""Largest critic batch after a fragment: in observations, and in numbers (images are large)."""


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


def prepare(
    network: ActorCritic,
    hyper: Hyper,
    config: EnvConfig,
    fragment: Fragment,
    normalizers: Normalizers,
    sequences: bool = False,
    present: jax.Array | None = None,
) -> tuple[Samples, Normalizers, EpisodeStatistics]:
    """Convert a fragment into training samples, and update the normalisers' statistics.

    Observations are normalised with the statistics that the behaviour policy used. Rewards are scaled with statistics
    that include the fragment. Advantages are standardised over the fragment's valid and finite ones.

    Args:
      network: the policy's network.
      hyper: discounts.
      config: options of the normalisers.
      fragment: arrays `[T, N, ...]`.
      normalizers: statistics so far.
      sequences: whether the algorithm learns from sequences, and so needs every step.
      present: environments that took part, bool `[N]`, by default all; the others are ignored.

    Returns:
      (samples `[T * N, ...]`, normalisers, statistics of the episodes that ended).
    """
    trajectory = only_present(fragment.trajectory, present)
    seen = partial(view, fragment.normalizers, config=config)
    obs = seen(trajectory.obs)
    value, next_value = bootstrapped_values(network, fragment, trajectory, obs, seen)
    reward, reward_statistics = learned_reward(trajectory, normalizers.reward, config)
    obs_statistics = observed(trajectory, normalizers.obs, config, present)

    ends = (trajectory.terminated, trajectory.truncated)
    advantage, target = gae(reward, value, next_value, *ends, hyper.gamma, hyper.gae_lambda)
    samples = Samples(
        obs=obs,
        action=trajectory.action,
        distribution=trajectory.distribution,
        log_prob=network.distribution.log_prob(trajectory.distribution, trajectory.action),
        value=value,
        advantage=standardised(advantage, trajectory.valid),
        target=target,
        valid=trajectory.valid,
        steps=Steps(reward, next_value, *ends) if sequences else None,
        first=trajectory.first[:-1] if network.recurrent else None,
    )
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)
    flat = flat._replace(carry=fragment.carry)
    return flat, Normalizers(obs_statistics, reward_statistics), ended_episodes(trajectory, present)


def only_present(trajectory: Trajectory, present: jax.Array | None) -> Trajectory:
    """Trajectory in which all steps of absent environments (`present` `[N]` is false) are invalid."""
    if present is None:
        return trajectory
    everywhere = jnp.broadcast_to(present, trajectory.reward.shape)
    return trajectory._replace(valid=everywhere if trajectory.valid is None else everywhere & trajectory.valid)


def values(network: ActorCritic, tree: dict[str, Any], obs: jax.Array, carries: Carry = None) -> jax.Array:
    """State values `[T, N]` of observations `[T, N, ...]`, in batches of steps, to bound the memory of activations.

    `carries` are the memory's states at the observations, `[T, N, ...]`; `None` without memory.
    """

    def evaluated(x: tuple[jax.Array, Carry]) -> jax.Array:
        obs, carry = x
        return network.value(tree, obs) if carry is None else network.value_step(tree, obs, carry)[0]

    rows = min(CRITIC_ROWS, CRITIC_INPUTS // math.prod(obs.shape[2:]))
    return jax.lax.map(evaluated, (obs, carries), batch_size=max(1, rows // obs.shape[1]))


def remembered_values(
    network: ActorCritic, tree: dict[str, Any], obs: jax.Array, past: Past
) -> tuple[jax.Array, Carry]:
    """State values `[T, N]` of observations `[T, N, ...]` in sequence, and the carry after each, `[T, N, ...]`."""

    def step(carry: Carry, x: tuple[jax.Array, jax.Array]) -> tuple[Carry, tuple[jax.Array, Carry]]:
        obs, first = x
        value, carry = network.value_step(tree, obs, reset_carry(carry, first))
        return carry, (value, carry)

    result: tuple[jax.Array, Carry] = jax.lax.scan(step, past.carry, (obs, past.first))[1]
    return result


def bootstrapped_values(
    network: ActorCritic, fragment: Fragment, trajectory: Trajectory, obs: jax.Array, seen: Any
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
    trajectory: Trajectory, statistics: RunningStatistics, config: EnvConfig
) -> tuple[jax.Array, RunningStatistics]:
    """Rewards `[T, N]` clipped and scaled as configured, and the updated statistics of discounted returns."""
    reward = jnp.sign(trajectory.reward) if config.clip_reward else trajectory.reward
    if not config.normalize_reward:
        return reward, statistics
    discounted = EpisodeTotals.of(trajectory.totals).discounted_return
    if trajectory.valid is not None:
        discounted = jnp.where(trajectory.valid, discounted, jnp.nan)
    statistics = normalizer.update(statistics, discounted.reshape(-1))
    return normalizer.rescale(statistics, reward), statistics


def observed(
    trajectory: Trajectory, statistics: RunningStatistics, config: EnvConfig, present: jax.Array | None
) -> RunningStatistics:
    """Statistics of observations, updated with the fragment's environments that are `present` `[N]`."""
    if not config.normalize_observation:
        return statistics
    obs = trajectory.obs
    if present is not None:
        obs = jnp.where(present.reshape(1, -1, *(1,) * (obs.ndim - 2)), obs, jnp.nan)
    return normalizer.update(statistics, obs.reshape(-1, *obs.shape[2:]))


def standardised(advantage: jax.Array, valid: jax.Array | None) -> jax.Array:
    """Standardised advantages `[T, N]`, with mean and deviation of the valid and finite ones."""
    finite = jnp.isfinite(advantage)
    if valid is not None:
        finite &= valid
    count = jnp.maximum(jnp.sum(finite), 1)
    mean = jnp.sum(jnp.where(finite, advantage, 0.0)) / count
    variance = jnp.sum(jnp.where(finite, jnp.square(advantage - mean), 0.0)) / count
    return (advantage - mean) * jax.lax.rsqrt(variance + 1e-8)


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
