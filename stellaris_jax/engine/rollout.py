"""Actors inside the compiled program: a policy steps environments for one fragment."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.gae import linear_recurrence
from stellaris_jax.agent.networks import PolicyNetwork, normalizer
from stellaris_jax.agent.networks.normalizer import RunningStatistics
from stellaris_jax.agent.networks.policy_network import where_rows
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine.exploration import explored, mixed
from stellaris_jax.engine.keys import FragmentKeys, step_keys
from stellaris_jax.envs.base import Box, VecEnv


class EpisodeTotals(NamedTuple):
    """Totals of an episode so far; stored as one array `[..., 3]`, so that an update takes one operation.

    Attributes:
      total_return: sum of rewards.
      length: number of steps.
      discounted_return: running discounted sum of rewards.
    """

    total_return: Any
    length: Any
    discounted_return: Any

    @classmethod
    def of(cls, totals: jax.Array) -> EpisodeTotals:
        """Totals from an array `[..., 3]`."""
        return cls(*jnp.moveaxis(totals, -1, 0))

    def stacked(self) -> jax.Array:
        """Totals as one array `[..., 3]`."""
        return jnp.stack(self, axis=-1)


class ActorState(NamedTuple):
    """State of actors between fragments; every leaf has a leading axis `[N]`.

    Attributes:
      env: states of the environments; `None` for host environments, whose actors hold them.
      obs: current observations; `None` for host environments.
      totals: `EpisodeTotals` of the current episodes, `[N, 3]`.
      carry: state of the network's memory at `obs`; `None` without memory and for host environments.
      alive: whether no episode has ended in the fragment yet, bool, if fragments end with an episode; else `None`.
      window: `engine.transitions.Window`, the last steps of targets of several steps; `None` without these.
    """

    env: Any
    obs: Any
    totals: jax.Array
    carry: Carry = None
    alive: Any = None
    window: Any = None

    def awake(self, first: Any = None) -> ActorState:
        """State before step `first` of a fragment, its first one by default; no episode has ended at the fragment's."""
        if self.alive is None:
            return self
        return self._replace(alive=jnp.ones_like(self.alive) if first is None else self.alive | (first == 0))

    def with_windows_cut(self) -> ActorState:
        """State in which no target of several steps goes on from here, because episodes are lost."""
        if self.window is None:
            return self
        last = np.zeros(self.window.truncated.shape, bool)
        last[..., -1] = True
        return self._replace(window=self.window._replace(truncated=self.window.truncated | last))


class Trajectory(NamedTuple):
    """Trajectory of one fragment, arrays `[T, N, ...]`; observations are not normalised.

    Attributes:
      obs: observations.
      action: actions, as sampled.
      distribution: parameters of the behaviour policy's action distributions.
      reward: rewards.
      terminated: whether the step ended the task.
      truncated: whether a time limit ended the episode with the step.
      final_obs: observations after each step and before any reset; `None` if these are the next observations, as in
        host environments.
      totals: `EpisodeTotals` after each step and before any reset, `[T, N, 3]`; `None` until they are computed.
      last_obs: observations after the last step, `[N, ...]`.
      valid: false for dead transitions of host environments; `None` if there are none.
      first: whether an observation (including the last one) starts an episode, which resets the memory, bool
        `[T + 1, N]`; `None` without memory.
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
    """Result of a rollout: a trajectory, and the inputs of its behaviour policy.

    Attributes:
      trajectory: the trajectory.
      params: parameters of the behaviour policy, `[P]`.
      normalizers: normalisers that the behaviour policy used.
      version: version of the behaviour policy, int32.
      carry: state of the memory at the first observations, `[N, ...]`; `None` without memory.
    """

    trajectory: Trajectory
    params: jax.Array
    normalizers: Normalizers
    version: Any = 0
    carry: Carry = None


def init_normalizers(observation_space: Box) -> Normalizers:
    """Initial statistics, without any samples."""
    return Normalizers(normalizer.init(observation_space.shape), normalizer.init(()))


def init_actor(env: VecEnv | None, network: PolicyNetwork, keys: jax.Array) -> ActorState:
    """Initial state of actors: freshly reset environments, one per key `[N]`; only totals without `env`."""
    totals = jnp.zeros((keys.shape[0], len(EpisodeTotals._fields)))
    if env is None:
        return ActorState(None, None, totals)
    return ActorState(*env.reset(keys), totals, network.initial_carry(keys.shape[0]))


def view(normalizers: Normalizers, obs: jax.Array, config: EnvConfig) -> jax.Array:
    """Network inputs of observations: normalised if configured."""
    return normalizer.normalize(normalizers.obs, obs) if config.normalize_observation else obs


def viewed(space: Box, config: EnvConfig) -> str:
    """Dtype of the observations that `view` returns."""
    return "float32" if config.normalize_observation else space.dtype


class RolloutInputs(NamedTuple):
    """Inputs of a rollout.

    Attributes:
      params: parameters of the policy, `[P]`.
      normalizers: statistics of observations.
      actor: states of N environments.
      keys: keys of the fragment.
      gamma: discount of the discounted returns.
      first: number of the first step in the fragment, if only a segment of it is rolled; else `None`.
      chance: probability of a random action, `[N]`; `None` if actors take none.
    """

    params: jax.Array
    normalizers: Normalizers
    actor: ActorState
    keys: FragmentKeys
    gamma: Number
    first: Any = None
    chance: Any = None


def rollout(
    env: VecEnv,
    network: PolicyNetwork,
    options: EnvConfig,
    steps: int,
    inputs: RolloutInputs,
    fragment_steps: int | None = None,
) -> tuple[ActorState, Trajectory]:
    """Step N environments `steps` times with a policy.

    Args:
      env: the environments.
      network: the policy's network.
      options: options of observations.
      steps: number of steps.
      inputs: policy, environments and keys.
      fragment_steps: steps T of the fragment, whose keys a segment shares; by default `steps`.

    Returns:
      (state of the actors, trajectory).
    """
    params, normalizers, actor, keys, gamma, first, chance = inputs
    tree = network.acting(params)
    starts = env.starts(keys.start)
    length = fragment_steps or steps
    actor = actor.awake(first)
    streams = step_keys(keys.envs, length)
    noise = jax.vmap(lambda key: network.distribution.noise(key, (length,)))(streams[:, 0])
    env_keys = streams[:, 1:]
    random = None if chance is None else explored(network.action_space, chance, streams[:, 0], length)
    drawn = (env_keys, noise, random)
    if first is not None:
        drawn = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, steps, axis=1), drawn)
    drawn = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), drawn)

    def step(before: ActorState, x: tuple[jax.Array, jax.Array, Any]) -> tuple[ActorState, Any]:
        keys, noise, random = x
        obs, alive = before.obs, before.alive
        distribution, carry = network.act(tree, view(normalizers, obs, options), before.carry)
        action = mixed(random, network.distribution.perturb(distribution, noise))
        state, time_step = env.step(keys, before.env, action, starts)
        ends = (time_step.terminated, time_step.truncated)
        after = before._replace(env=state, obs=time_step.obs, carry=None)
        if alive is not None:
            after, time_step = stopped(alive, before, after, time_step)
        after = after._replace(carry=network.next_carry(before.carry, carry, ends, alive))
        return after, (obs, action, distribution, time_step, alive)

    carry = network.begin(tree, view(normalizers, actor.obs, options), actor.carry)
    start = actor._replace(totals=None, carry=carry, window=None)  # type: ignore[arg-type]
    after, (obs, action, distribution, results, valid) = jax.lax.scan(step, start, drawn)
    done = results.terminated | results.truncated
    counted = jnp.ones_like(results.reward) if valid is None else valid.astype(results.reward.dtype)
    totals, carried = episode_totals(results.reward, counted, done, actor.totals, gamma)
    trajectory = Trajectory(
        obs=obs,
        action=action,
        distribution=distribution,
        reward=results.reward,
        terminated=results.terminated,
        truncated=results.truncated,
        final_obs=results.final_obs,
        totals=totals,
        last_obs=after.obs,
        valid=valid,
        # The carry is zero already if an episode ended just before the fragment.
        first=jnp.concatenate([jnp.zeros_like(done[:1]), done]) if network.recurrent else None,
    )
    return after._replace(totals=carried, window=actor.window), trajectory


def stopped(alive: jax.Array, before: ActorState, after: ActorState, result: Any) -> tuple[ActorState, Any]:
    """State and result of a step of which only the environments `alive` `[N]` take part.

    The others have ended an episode in the fragment: they stay where their next episode begins.
    """
    ends = {name: getattr(result, name) & alive for name in ("terminated", "truncated")}
    result = result._replace(reward=jnp.where(alive, result.reward, 0.0), **ends)
    unchanged = before._replace(alive=None, carry=None)
    kept: ActorState = where_rows(alive, after._replace(alive=None), unchanged)
    return kept._replace(alive=alive & ~(ends["terminated"] | ends["truncated"])), result


def episode_totals(
    reward: jax.Array, length: jax.Array, done: jax.Array, start: jax.Array, gamma: Number
) -> tuple[jax.Array, jax.Array]:
    """`EpisodeTotals` after every step, `[T, N, 3]`, and at the start of the next fragment, `[N, 3]`.

    Args:
      reward: rewards, `[T, N]`.
      length: increment of an episode's length for each step (0 for dead transitions), `[T, N]`.
      done: whether the episode ended with the step, `[T, N]`.
      start: totals at the start of the fragment, `[N, 3]`.
      gamma: discount of the discounted returns.
    """
    going = 1.0 - done.astype(jnp.float32)
    factors = EpisodeTotals(total_return=1.0, length=1.0, discounted_return=gamma)
    added = EpisodeTotals(total_return=reward, length=length, discounted_return=reward)
    decay = jnp.concatenate([jnp.ones_like(going[:1]), going[:-1]])[..., None] * jnp.array(factors)
    totals = linear_recurrence(decay, added.stacked(), start)
    return totals, jnp.where(done[-1][:, None], 0.0, totals[-1])
