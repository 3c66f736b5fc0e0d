"""Actors: a policy steps environments for one fragment, and the fragment becomes training data."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.losses.common import Samples, Steps
from stellaris_jax.agent.losses.gae import gae, linear_recurrence
from stellaris_jax.agent.networks import ActorCritic, normalizer
from stellaris_jax.agent.networks.normalizer import RunningStatistics
from stellaris_jax.config.tree import AlgorithmConfig, EnvConfig
from stellaris_jax.envs.base import Box, HostEnv, VecEnv
from stellaris_jax.registry import register

CRITIC_ROWS, CRITIC_INPUTS = 4096, 2**22
"""Observations the critic sees at once after a fragment, and numbers in them (images are large): both at most."""


class ActorState(NamedTuple):
    """What persists between fragments; every leaf has a leading axis `[N]`.

    totals: `[N, 3]`: undiscounted return, length and discounted return of the episode under way. env, obs: `None` for
    host environments, whose actors keep them.
    """

    env: Any
    obs: Any
    totals: jax.Array


class Trajectory(NamedTuple):
    """One fragment, arrays `[T, N, ...]` (`last_obs` `[N, ...]`); observations as the environment gave them.

    final_obs: `None` where the next observation is the final one, as in host environments. totals: `[T, N, 3]`, as in
    `ActorState`, after each step and before any reset; `None` until they are added up. valid: false for the dead
    transitions of host environments; `None` where there are none.
    """

    obs: jax.Array
    action: jax.Array
    distribution: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: Any
    totals: Any
    last_obs: jax.Array
    valid: Any = None


class Normalizers(NamedTuple):
    """Statistics of observations and of discounted returns."""

    obs: RunningStatistics
    reward: RunningStatistics


class EpisodeStatistics(NamedTuple):
    """Episodes of finite return that ended within a fragment: how many, and the sums of their returns and lengths."""

    ended: jax.Array
    total_return: jax.Array
    total_length: jax.Array


class Fragment(NamedTuple):
    """What host actors hand over: a trajectory, and what they acted on: parameters `[P]` and the normalisers."""

    trajectory: Trajectory
    params: jax.Array
    normalizers: Normalizers


def init_normalizers(observation_space: Box) -> Normalizers:
    """Statistics that have seen nothing."""
    return Normalizers(normalizer.init(observation_space.shape), normalizer.init(()))


def init_actor(env: VecEnv | HostEnv, keys: jax.Array) -> ActorState:
    """Freshly reset environments, one per key `[N]`."""
    state, obs = (None, None) if isinstance(env, HostEnv) else env.reset(keys)
    return ActorState(state, obs, jnp.zeros((keys.shape[0], 3)))


def view(normalizers: Normalizers, obs: jax.Array, config: EnvConfig) -> jax.Array:
    """Observations as the networks see them."""
    return normalizer.normalize(normalizers.obs, obs) if config.normalize_observation else obs


def rollout(
    env: VecEnv,
    network: ActorCritic,
    params: jax.Array,
    normalizers: Normalizers,
    actor: ActorState,
    keys: jax.Array,
    start_key: jax.Array,
    length: int,
    gamma: float,
    config: EnvConfig,
) -> tuple[ActorState, Trajectory]:
    """Step N environments `length` times with the policy `params` `[P]`.

    `keys` `[N]` drive one environment each (policy noise included); `start_key` the start states all of them share.
    """
    tree = network.unravel(params)
    starts = env.starts(start_key)
    streams = jax.vmap(lambda key: jax.random.split(key, length + 1))(keys)
    noise = jax.vmap(lambda key: network.distribution.noise(key, (length,)))(streams[:, 0])
    step_keys = jnp.swapaxes(streams[:, 1:], 0, 1)

    def step(carry: tuple[Any, jax.Array], x: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, jax.Array], Any]:
        state, obs = carry
        keys, noise = x
        distribution = network.policy(tree, view(normalizers, obs, config))
        action = network.distribution.perturb(distribution, noise)
        state, time_step = env.step(keys, state, action, starts)
        return (state, time_step.obs), (obs, action, distribution, time_step)

    (state, last_obs), (obs, action, distribution, steps) = jax.lax.scan(
        step, (actor.env, actor.obs), (step_keys, jnp.swapaxes(noise, 0, 1))
    )
    done = steps.terminated | steps.truncated
    totals, carried = episode_totals(steps.reward, jnp.ones_like(steps.reward), done, actor.totals, gamma)
    trajectory = Trajectory(
        obs, action, distribution, steps.reward, steps.terminated, steps.truncated, steps.final_obs, totals, last_obs
    )
    return ActorState(state, last_obs, carried), trajectory


def episode_totals(
    reward: jax.Array, length: jax.Array, done: jax.Array, start: jax.Array, gamma: float
) -> tuple[jax.Array, jax.Array]:
    """Totals of the episodes under way after every step, `[T, N, 3]`, and what the next fragment starts from `[N, 3]`.

    `reward`, `done` `[T, N]`; `length` is what a step adds to an episode's length; `start` `[N, 3]`.
    """
    going = 1.0 - done.astype(jnp.float32)
    decay = jnp.concatenate([jnp.ones_like(going[:1]), going[:-1]])[..., None] * jnp.array([1.0, 1.0, gamma])
    totals = linear_recurrence(decay, jnp.stack([reward, length, reward], axis=-1), start)
    return totals, jnp.where(done[-1][:, None], 0.0, totals[-1])


def values(network: ActorCritic, tree: dict[str, Any], obs: jax.Array) -> jax.Array:
    """State values `[T, N]` of observations `[T, N, ...]`, some steps at a time to keep what is in between small."""
    rows = min(CRITIC_ROWS, CRITIC_INPUTS // math.prod(obs.shape[2:]))
    return jax.lax.map(partial(network.value, tree), obs, batch_size=max(1, rows // obs.shape[1]))


def _columns(present: jax.Array, like: jax.Array) -> jax.Array:
    """`[N]` as a mask of arrays `[T, N, ...]`."""
    return present.reshape(1, -1, *(1,) * (like.ndim - 2))


def prepare(
    network: ActorCritic,
    params: jax.Array,
    seen: Normalizers,
    normalizers: Normalizers,
    trajectory: Trajectory,
    algorithm: AlgorithmConfig,
    config: EnvConfig,
    present: jax.Array | None = None,
) -> tuple[Samples, Normalizers, EpisodeStatistics]:
    """Turn a fragment into `T x N` training samples, and learn the normalisers' next statistics from it.

    Samples see the observation statistics their policy acted on, `seen`; rewards are scaled by statistics that include
    the fragment. Advantages are standardised over the fragment's valid and finite ones. `present` `[N]` says which of
    the environments took part, by default all: what the others did counts for nothing.
    """
    tree = network.unravel(params)
    length, num = trajectory.reward.shape
    if present is not None:
        everywhere = jnp.broadcast_to(present, (length, num))
        valid = everywhere if trajectory.valid is None else everywhere & trajectory.valid
        trajectory = trajectory._replace(valid=valid)
    done = trajectory.terminated | trajectory.truncated

    obs = view(seen, trajectory.obs, config)
    every = jnp.concatenate([obs, view(seen, trajectory.last_obs, config)[None]])
    value = values(network, tree, every)
    cut = trajectory.truncated & ~trajectory.terminated

    def with_final(next_value: jax.Array) -> jax.Array:
        final_value = values(network, tree, view(seen, trajectory.final_obs, config))
        return jnp.where(cut, final_value, next_value)

    next_value = value[1:]
    if trajectory.final_obs is not None:
        next_value = jax.lax.cond(jnp.any(cut), with_final, lambda next_value: next_value, next_value)

    reward, reward_statistics, obs_statistics = trajectory.reward, normalizers.reward, normalizers.obs
    if config.clip_reward:
        reward = jnp.sign(reward)
    if config.normalize_reward:
        discounted = trajectory.totals[..., 2]
        if trajectory.valid is not None:
            discounted = jnp.where(trajectory.valid, discounted, jnp.nan)
        reward_statistics = normalizer.update(reward_statistics, discounted.reshape(-1))
        reward = normalizer.rescale(reward_statistics, reward)
    if config.normalize_observation:
        seen_obs = trajectory.obs
        if present is not None:
            seen_obs = jnp.where(_columns(present, seen_obs), seen_obs, jnp.nan)
        obs_statistics = normalizer.update(obs_statistics, seen_obs.reshape(length * num, *obs.shape[2:]))

    ends = (trajectory.terminated, trajectory.truncated)
    advantage, target = gae(reward, value[:-1], next_value, *ends, algorithm.gamma, algorithm.gae_lambda)
    finite = jnp.isfinite(advantage)
    if trajectory.valid is not None:
        finite &= trajectory.valid
    count = jnp.maximum(jnp.sum(finite), 1)
    mean = jnp.sum(jnp.where(finite, advantage, 0.0)) / count
    variance = jnp.sum(jnp.where(finite, jnp.square(advantage - mean), 0.0)) / count
    samples = Samples(
        obs=obs,
        action=trajectory.action,
        distribution=trajectory.distribution,
        log_prob=network.distribution.log_prob(trajectory.distribution, trajectory.action),
        value=value[:-1],
        advantage=(advantage - mean) * jax.lax.rsqrt(variance + 1e-8),
        target=target,
        valid=trajectory.valid,
        steps=Steps(reward, next_value, *ends) if register.algorithm[algorithm.name].sequences else None,
    )
    returns, lengths = trajectory.totals[..., 0], trajectory.totals[..., 1]
    ended = done & jnp.isfinite(returns)
    if present is not None:
        ended &= present
    episodes = EpisodeStatistics(
        ended=jnp.sum(ended, dtype=jnp.float32),
        total_return=jnp.sum(jnp.where(ended, returns, 0.0)),
        total_length=jnp.sum(jnp.where(ended, lengths, 0.0)),
    )
    flat = jax.tree.map(lambda x: x.reshape(length * num, *x.shape[2:]), samples)
    return flat, Normalizers(obs_statistics, reward_statistics), episodes
