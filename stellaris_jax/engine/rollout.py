"""Actors: a policy steps environments for one fragment."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.losses.gae import linear_recurrence
from stellaris_jax.agent.networks import ActorCritic, normalizer
from stellaris_jax.agent.networks.normalizer import RunningStatistics
from stellaris_jax.agent.networks.recurrent import Carry, blanked
from stellaris_jax.config.tree import EnvConfig
from stellaris_jax.envs.base import Box, VecEnv


class EpisodeTotals(NamedTuple):
    """What an episode has come to so far; kept as one array `[..., 3]`, so that adding up takes one operation."""

    total_return: Any
    length: Any
    discounted_return: Any

    @classmethod
    def of(cls, totals: jax.Array) -> EpisodeTotals:
        """The totals in an array `[..., 3]`."""
        return cls(*jnp.moveaxis(totals, -1, 0))

    def stacked(self) -> jax.Array:
        """The totals as one array `[..., 3]`."""
        return jnp.stack(self, axis=-1)


class ActorState(NamedTuple):
    """What persists between fragments; every leaf has a leading axis `[N]`.

    totals: `EpisodeTotals` of the episode under way, `[N, 3]`. env, obs, carry: `None` for host environments, whose
    actors keep them. carry: what the network carries to `obs`; `None` without memory.
    """

    env: Any
    obs: Any
    totals: jax.Array
    carry: Carry = None


class Trajectory(NamedTuple):
    """One fragment, arrays `[T, N, ...]` (`last_obs` `[N, ...]`); observations as the environment gave them.

    final_obs: `None` where the next observation is the final one, as in host environments. totals: `EpisodeTotals`
    `[T, N, 3]` after each step and before any reset; `None` until they are added up. valid: false for the dead
    transitions of host environments; `None` where there are none. first: bool `[T + 1, N]`, observations, the last one
    among them, to which nothing is carried, because an episode has ended; `None` without memory.
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
    first: Any = None


class Normalizers(NamedTuple):
    """Statistics of observations and of discounted returns."""

    obs: RunningStatistics
    reward: RunningStatistics


class Fragment(NamedTuple):
    """What actors hand over: a trajectory, and what they acted on: parameters `[P]`, the normalisers, the number of the
    version, an int32, and what was carried to the first observations, `[N, ...]`; `None` without memory."""

    trajectory: Trajectory
    params: jax.Array
    normalizers: Normalizers
    version: Any = 0
    carry: Carry = None


def init_normalizers(observation_space: Box) -> Normalizers:
    """Statistics that have seen nothing."""
    return Normalizers(normalizer.init(observation_space.shape), normalizer.init(()))


def init_actor(env: VecEnv | None, network: ActorCritic, keys: jax.Array) -> ActorState:
    """Freshly reset environments, one per key `[N]`; without `env`, of what actors on the host keep themselves."""
    totals = jnp.zeros((keys.shape[0], len(EpisodeTotals._fields)))
    if env is None:
        return ActorState(None, None, totals)
    return ActorState(*env.reset(keys), totals, network.initial_carry(keys.shape[0]))


def view(normalizers: Normalizers, obs: jax.Array, config: EnvConfig) -> jax.Array:
    """Observations as the networks see them."""
    return normalizer.normalize(normalizers.obs, obs) if config.normalize_observation else obs


def viewed(space: Box, config: EnvConfig) -> str:
    """The dtype of what `view` makes of observations."""
    return "float32" if config.normalize_observation else space.dtype


def rollout(
    env: VecEnv,
    network: ActorCritic,
    params: jax.Array,
    normalizers: Normalizers,
    actor: ActorState,
    keys: jax.Array,
    start_key: jax.Array,
    length: int,
    gamma: jax.Array | float,
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

    def step(before: tuple[Any, jax.Array, Carry], x: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
        state, obs, carry = before
        keys, noise = x
        distribution, carry = network.act(tree, view(normalizers, obs, config), carry)
        action = network.distribution.perturb(distribution, noise)
        state, time_step = env.step(keys, state, action, starts)
        carry = blanked(carry, time_step.terminated, time_step.truncated)
        return (state, time_step.obs, carry), (obs, action, distribution, time_step)

    (state, last_obs, carry), (obs, action, distribution, steps) = jax.lax.scan(
        step, (actor.env, actor.obs, actor.carry), (step_keys, jnp.swapaxes(noise, 0, 1))
    )
    done = steps.terminated | steps.truncated
    totals, carried = episode_totals(steps.reward, jnp.ones_like(steps.reward), done, actor.totals, gamma)
    trajectory = Trajectory(
        obs=obs,
        action=action,
        distribution=distribution,
        reward=steps.reward,
        terminated=steps.terminated,
        truncated=steps.truncated,
        final_obs=steps.final_obs,
        totals=totals,
        last_obs=last_obs,
        # Where an episode ended just before the fragment, nothing is carried to it anyway.
        first=jnp.concatenate([jnp.zeros_like(done[:1]), done]) if network.recurrent else None,
    )
    return ActorState(state, last_obs, carried, carry), trajectory


def episode_totals(
    reward: jax.Array, length: jax.Array, done: jax.Array, start: jax.Array, gamma: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """`EpisodeTotals` after every step, `[T, N, 3]`, and what the next fragment starts from, `[N, 3]`.

    `reward`, `done` `[T, N]`; `length` is what a step adds to an episode's length; `start` `[N, 3]`.
    """
    going = 1.0 - done.astype(jnp.float32)
    kept = EpisodeTotals(total_return=1.0, length=1.0, discounted_return=gamma)
    added = EpisodeTotals(total_return=reward, length=length, discounted_return=reward)
    decay = jnp.concatenate([jnp.ones_like(going[:1]), going[:-1]])[..., None] * jnp.array(kept)
    totals = linear_recurrence(decay, added.stacked(), start)
    return totals, jnp.where(done[-1][:, None], 0.0, totals[-1])
