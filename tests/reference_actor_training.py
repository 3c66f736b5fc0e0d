"""The numbers of the literal system with independent actors: what shards roll, and what the data loader makes of it.

A segment is rolled when it begins, by the policy that is visible then. Statistics, advantages and values are computed
anew, in NumPy; what is taken from the package is how environments are stepped (`rollout`). If fragments end with their
episodes, every environment is stepped once at a time, until it has ended an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from reference_admissions import Batch, Fragment
from reference_events import Aggregation, Delivery
from reference_training import Functions, Training, Tree

from stellaris_jax.agent.losses.common import Samples, Steps
from stellaris_jax.agent.networks.normalizer import RunningStatistics
from stellaris_jax.engine.keys import FragmentKeys
from stellaris_jax.engine.rollout import ActorState, Normalizers, RolloutInputs, rollout


class Statistics(NamedTuple):
    """Number of samples, their mean and their variance."""

    samples: float
    mean: Any
    variance: Any


def statistics_of(samples: list[np.ndarray], shape: tuple[int, ...]) -> Statistics:
    """Statistics of all samples `[..., *shape]` seen so far, in 64 bits."""
    if not samples:
        return Statistics(0.0, np.zeros(shape), np.ones(shape))
    every = np.concatenate([x.reshape(-1, *shape) for x in samples]).astype(np.float64)
    return Statistics(len(every), every.mean(axis=0), every.var(axis=0))


class Part(NamedTuple):
    """Data of a segment, arrays `[t, n, ...]`."""

    obs: Any
    raw_obs: Any
    action: Any
    distribution: Any
    reward: Any
    terminated: Any
    truncated: Any
    value: Any
    next_value: Any
    valid: Any


@dataclass
class Rolled:
    """Data of an attempt so far: its segments, the shard's environments after them, and what was carried into it.

    `alive` says which environments have ended no episode yet, `length` how many steps the last segment had until none
    was left; both matter only if fragments end with their episodes.
    """

    actor: ActorState
    carry: Any
    parts: list[Part] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    alive: np.ndarray = field(default_factory=lambda: np.ones(0, bool))
    length: int = 0

    def fill(self, steps: int) -> None:
        """Steps that never happened, so that there are so many: zeros, and not valid."""
        missing = steps - len(self.versions)
        if missing > 0:
            shapes = [(x.shape[1:], x.dtype) for x in self.parts[0]]
            self.parts.append(Part(*(np.zeros((missing, *shape), dtype) for shape, dtype in shapes)))
            self.versions += [self.versions[-1]] * missing


def joined(whole: list[Rolled]) -> Part:
    """Data `[T, N, ...]` of a batch: the segments of a fragment follow one another, fragments stand side by side."""
    columns = [Part(*(np.concatenate(segments) for segments in zip(*rolled.parts, strict=True))) for rolled in whole]
    return Part(*(np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True)))


def _where(chosen: np.ndarray, one: Any, other: Any) -> np.ndarray:
    """Rows of `one` where they are chosen, else of `other`."""
    one, other = np.asarray(one), np.asarray(other)
    return np.where(chosen.reshape(-1, *(1,) * (one.ndim - 1)), one, other)


class ActorFunctions(Functions):
    """The pure functions of a configuration whose actors are independent."""

    def __init__(self, config: Any, env: Any, network: Any):
        super().__init__(config, env, network)
        self.roll: Callable[..., Any] = jax.jit(self._roll)
        self.follows = config.delays.by == "episodes"
        self.segment_steps = config.algorithm.rollout_length // config.segments

    def _roll(
        self,
        params: Tree,
        statistics: Statistics,
        actor: ActorState,
        key: jax.Array,
        shard: jax.Array,
        first: jax.Array,
    ) -> tuple[ActorState, Part]:
        """Roll a segment of a shard's fragment, or a step, whose first step is `first`."""
        env, algorithm, shards = self.config.env, self.config.algorithm, self.config.actor_shards
        steps = 1 if self.follows else self.segment_steps
        start_key, actor_key = jax.random.split(key)
        keys = jax.random.split(actor_key, env.num_envs).reshape(shards, -1)[shard]
        normalizers = Normalizers(RunningStatistics(*map(jnp.float32, statistics)), RunningStatistics(0, 0, 1))
        inputs = RolloutInputs(
            self.network.ravel(params), normalizers, actor, FragmentKeys(start_key, keys), algorithm.gamma, first
        )
        after, trajectory = rollout(self.env, self.network, env, steps, inputs, algorithm.rollout_length)

        def seen(obs: jax.Array) -> jax.Array:
            if not env.normalize_observation:
                return obs
            mean, variance = normalizers.obs.mean, normalizers.obs.variance
            return jnp.clip((obs - mean) / jnp.sqrt(variance + 1e-8), -10.0, 10.0)

        values, next_values, carry = [], [], actor.carry
        every = jnp.concatenate([trajectory.obs, trajectory.last_obs[None]])
        finals = every[1:] if trajectory.final_obs is None else trajectory.final_obs
        done = trajectory.terminated | trajectory.truncated
        for t in range(steps):
            value, carry = self._value(params, seen(every[t]), carry)
            values.append(value)
            next_values.append(self._value(params, seen(finals[t]), carry)[0])
            carry = jax.tree.map(lambda x, t=t: jnp.where(done[t][:, None], 0.0, x), carry)
        part = Part(
            seen(trajectory.obs), trajectory.obs, trajectory.action, trajectory.distribution, trajectory.reward,
            trajectory.terminated, trajectory.truncated, jnp.stack(values), jnp.stack(next_values),
            jnp.ones_like(done),
        )  # fmt: skip
        return after, part

    def _value(self, params: Tree, obs: jax.Array, carry: Any) -> tuple[jax.Array, Any]:
        if carry is None:
            return self.network.value(params, obs), None
        value: tuple[jax.Array, Any] = self.network.value_step(params, obs, carry)
        return value

    def _loss(
        self, params: Tree, batch: Tree, smallest: jax.Array, kl_coefficient: float, target: Tree
    ) -> tuple[jax.Array, Any]:
        if self.config.algorithm.name != "a3po":
            return super()._loss(params, batch, smallest, kl_coefficient, target)
        c, value = self.config.algorithm, self._evaluated(params, batch)[1]
        policy = self._policy(params, batch)
        log_ratio = self._log_prob(policy, batch.action) - batch.log_prob
        near = jax.lax.stop_gradient(batch.version * log_ratio)  # `version` is the share a of A-3PO here
        _, weight = self._truncated(jnp.exp(log_ratio), smallest)
        weight *= jnp.minimum(jnp.exp(near), self.options["behaviour_cap"])
        gain = weight * self._clipped(jnp.exp(log_ratio - near), batch.advantage)
        error = (value - batch.target) ** 2
        entropy, kl = self._entropy_and_kl(policy, batch.distribution, jnp.issubdtype(batch.action.dtype, jnp.integer))
        loss = -gain + c.value_coefficient * 0.5 * error - c.entropy_coefficient * entropy + kl_coefficient * kl
        return self._mean(loss, batch), self._mean(kl, batch)


class ActorTraining(Training):
    """The numbers behind the events of `reference_actors.ActorSystem`.

    `seen` has the observations of every batch formed so far, and `acting` the statistics that every version acts with:
    those of the batches that were formed before its aggregation began.
    """

    def __init__(self, functions: ActorFunctions, start: Any, orders: Sequence[np.ndarray], schedule: Sequence[float]):
        super().__init__(functions, start, orders, schedule)
        self.made = functions
        self.shards = [jax.tree.map(lambda x, a=a: x[a], start.actor) for a in range(functions.config.actor_shards)]
        self.attempts: dict[int, Rolled] = {}
        self.complete: dict[tuple[int, int], Rolled] = {}
        self.shape = start.actor.obs.shape[2:]
        self.seen: list[np.ndarray] = []
        self.returns: list[np.ndarray] = []
        self.acting = {0: statistics_of([], self.shape)}
        # Of each environment's present episode: return, length, running discounted return.
        self.totals = np.zeros((len(self.shards), start.actor.obs.shape[1], 3))
        self.episodes: dict[tuple[int, int], list[tuple[float, float]]] = {}
        self.discounted: dict[tuple[int, int], np.ndarray] = {}

    # Shards -----------------------------------------------------------------------------------------------------------

    def begin(self, attempt: Fragment) -> None:
        """Begin an attempt from where the shard's last complete fragment has left its environments."""
        actor = self.shards[attempt.shard]
        self.attempts[attempt.shard] = Rolled(
            actor, jax.device_get(actor.carry), alive=np.ones(self.totals.shape[1], bool)
        )
        self.segment(attempt)

    def segment(self, attempt: Fragment) -> None:
        """Roll the segment of an attempt that has just begun, with the version that was visible."""
        rolled, version = self.attempts[attempt.shard], attempt.versions[-1]
        steps = self.made.segment_steps
        key = jax.random.fold_in(self.key, attempt.number)

        def roll(actor: ActorState) -> tuple[ActorState, Part]:
            first = sum(len(part.reward) for part in rolled.parts)
            acts = (self.cache[version], self.acting[version], actor, key, attempt.shard, first)
            result: tuple[ActorState, Part] = jax.device_get(self.made.roll(*acts))
            return result

        if not self.made.follows:
            rolled.actor, part = roll(rolled.actor)
            rolled.parts.append(part)
            rolled.versions += [version] * steps
            return
        rolled.length = 0
        while rolled.alive.any() and rolled.length < steps:
            after, part = roll(rolled.actor)
            rolled.actor = jax.tree.map(partial(_where, rolled.alive), after, rolled.actor)
            rolled.parts.append(part._replace(valid=rolled.alive[None].copy()))
            rolled.versions.append(version)
            rolled.alive &= ~(part.terminated | part.truncated)[0]
            rolled.length += 1

    def lengths(self, shard: int, number: int, segment: int) -> tuple[int, bool]:
        """Steps of the segment that a shard has begun now, and whether every environment has ended an episode."""
        rolled = self.attempts[shard]
        return rolled.length, not rolled.alive.any()

    def end(self, attempt: Fragment) -> None:
        """Keep what a complete attempt has rolled."""
        rolled = self.attempts.pop(attempt.shard)
        self.shards[attempt.shard] = rolled.actor
        self.complete[attempt.name] = rolled
        rolled.fill(self.made.config.algorithm.rollout_length)
        self.count_episodes(attempt, rolled)

    def count_episodes(self, attempt: Fragment, rolled: Rolled) -> None:
        """Discounted returns of a fragment's steps, and (return, length) of the episodes that ended in it."""
        totals, gamma = self.totals[attempt.shard], self.made.config.algorithm.gamma
        ended, discounted = [], []
        for part in rolled.parts:
            columns = (part.reward, part.terminated, part.truncated, part.valid)
            for reward, terminated, truncated, valid in zip(*columns, strict=True):
                added = np.stack([reward, np.ones_like(reward), reward + (gamma - 1.0) * totals[:, 2]], axis=1)
                totals[valid] += added[valid]
                discounted.append(totals[:, 2].copy())
                done = (terminated | truncated) & valid
                ended += [(one[0], one[1]) for one in totals[done]]
                totals[done] = 0.0
        self.episodes[attempt.name], self.discounted[attempt.name] = ended, np.array(discounted)

    # Data loader ------------------------------------------------------------------------------------------------------

    def form(self, batch: Batch) -> None:
        """Samples of a batch, row after row of steps: [T * N]."""
        config = self.made.config
        whole = [self.complete.pop(fragment.name) for fragment in batch.fragments]
        data = joined(whole)
        reward = np.sign(data.reward) if config.env.clip_reward else data.reward
        if config.env.normalize_reward:
            discounted = np.concatenate([self.discounted[one.name] for one in batch.fragments], axis=1)
            self.returns += [discounted[data.valid]]
            reward = np.clip(reward / np.sqrt(statistics_of(self.returns, ()).variance + 1e-8), -10.0, 10.0)
        self.seen.append(data.raw_obs[data.valid])
        advantage = np.zeros_like(data.value)
        later = np.zeros(data.value.shape[1])
        for t in reversed(range(len(reward))):
            terminated, truncated = data.terminated[t], data.truncated[t]
            bootstrap = np.where(terminated, 0.0, config.algorithm.gamma * data.next_value[t])
            decay = np.where(terminated | truncated, 0.0, config.algorithm.gamma * config.algorithm.gae_lambda)
            advantage[t] = later = reward[t] + bootstrap - data.value[t] + decay * later
            later = np.where(data.valid[t], later, 0.0)
        used = advantage[data.valid]
        standard = (advantage - used.mean()) / np.sqrt(used.var() + 1e-8)
        ends = (data.terminated, data.truncated)
        done = data.terminated | data.truncated
        envs = data.value.shape[1] // len(whole)
        samples = Samples(
            obs=data.obs, action=data.action, distribution=data.distribution, log_prob=None, value=data.value,
            advantage=standard, target=advantage + data.value, steps=Steps(reward, data.next_value, *ends),
            valid=data.valid if self.made.follows else None,
            first=np.concatenate([np.zeros_like(done[:1]), done[:-1]]),
            version=np.concatenate([np.repeat(np.array(one.versions)[:, None], envs, axis=1) for one in whole], axis=1),
        )  # fmt: skip
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)
        log_prob = self.made._log_prob(jnp.asarray(flat.distribution), jnp.asarray(flat.action))
        floats = jax.tree.map(lambda x: np.float32(x) if x.dtype == np.float64 else x, flat)
        carries = [rolled.carry for rolled in whole]
        carry = None if carries[0] is None else jax.tree.map(lambda *x: np.concatenate(x), *carries)
        if carry is None:
            floats = floats._replace(first=None)
        self.fragments[batch.index] = floats._replace(log_prob=np.asarray(log_prob), carry=carry)

    def gradient(self, delivery: Delivery) -> Tree:
        samples = self.fragments[delivery.fragment]
        if self.made.config.algorithm.name != "a3po":
            self.fragments[delivery.fragment] = samples._replace(version=None)
            gradient = super().gradient(delivery)
        else:
            interval, learner = self.made.options["proximal_interval"], delivery.version
            proximal = np.maximum(learner - learner % interval, samples.version)
            share = (proximal - samples.version) / np.maximum(learner - samples.version, 1)
            self.fragments[delivery.fragment] = samples._replace(version=np.float32(share))
            gradient = super().gradient(delivery)
        self.fragments[delivery.fragment] = samples
        return gradient

    def update(self, clock: int, aggregation: Aggregation) -> None:
        self.newest = aggregation.round
        super().update(clock, aggregation)
        self.acting[clock + 1] = statistics_of(self.seen, self.shape)
