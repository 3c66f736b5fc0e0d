"""Store of independent actors' fragments: raw data from collection until a batch is formed of them."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.losses.common import Samples
from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.normalizer import RunningStatistics
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine.prepare import Collected, EpisodeStatistics
from stellaris_jax.engine.spec import ProgramSpec

PARTIAL_SUMS = 3 * 4
"""Numbers in the sums over a part of a round, besides the losses' metrics: three each of gradients, updates, and
episodes in used and in dropped data."""


class Store(NamedTuple):
    """Fragments of shards, one row for each; the last row holds data that nobody needs.

    Attributes:
      data: data of the fragments, arrays `[rows + 1, T, n, ...]`, where n is the number of a shard's environments;
        without `first`, which depends on where episodes ended.
      carry: memory's states at the first observations, `[rows + 1, n, ...]`; `None` without memory.
      version: version of the policy that acted in each segment, int32 `[rows + 1, S]`.
      episodes: statistics of the episodes that ended, `[rows + 1, 3]`, as `EpisodeStatistics`.
      statistics: observation statistics that each version in the version ring acts with, arrays `[H, ...]`; `None`
        unless observations are normalised.
      lengths: steps of each shard's last segment until all its environments had ended an episode, int32 `[A]`; `None`
        unless fragments end with their episodes.
      ended: whether all had, bool `[A]`; `None` likewise.
      samples: places of each shard's last segment that hold a sample, int32 `[A]`; `None` likewise.
    """

    data: Collected
    carry: Carry
    version: jax.Array
    episodes: jax.Array
    statistics: RunningStatistics | None
    lengths: jax.Array | None = None
    ended: jax.Array | None = None
    samples: jax.Array | None = None


def init_store(
    network: PolicyNetwork, options: EnvConfig, spec: ProgramSpec, samples: Samples, statistics: RunningStatistics
) -> Store:
    """Empty store.

    Args:
      network: the policy's network.
      options: options of observations and rewards.
      spec: program spec of the run.
      samples: training data `[M, ...]`, for the kinds of its arrays.
      statistics: initial statistics of observations.
    """
    shape = spec.collection
    assert shape is not None, "actors are not independent"
    rows, envs = shape.rows + 1, spec.shard_envs

    def zeros(like: jax.Array, dtype: Any = None) -> jax.Array:
        return jnp.zeros((rows, spec.steps, envs, *like.shape[1:]), dtype or like.dtype)

    number = jnp.zeros((rows, spec.steps, envs))
    flag, transition = number > 0, samples.transition
    raw = jnp.zeros((rows, spec.steps, envs, *network.observation_space.shape), network.observation_space.dtype)
    data = Collected(
        obs=zeros(samples.obs),
        raw_obs=raw if options.normalize_observation else None,
        action=zeros(samples.action),
        distribution=None if transition is not None else zeros(samples.distribution),
        reward=number,
        terminated=flag,
        truncated=flag,
        valid=flag if spec.has_invalid else None,
        value=number if spec.critic else None,
        next_value=number if spec.critic else None,
        discounted_return=number if options.normalize_reward else None,
        first=None,
        next_obs=None if transition is None else zeros(transition.next_obs),
        discount=None if transition is None else number,
    )
    carry = network.stored(network.initial_carry(envs))
    repeated = partial(jax.tree.map, lambda x: jnp.broadcast_to(x, (spec.shape.ring.length, *x.shape)).copy())
    return Store(
        data=data,
        carry=jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), carry),
        version=jnp.zeros((rows, shape.segments), jnp.int32),
        episodes=jnp.zeros((rows, len(EpisodeStatistics._fields))),
        statistics=repeated(statistics) if options.normalize_observation else None,
        lengths=jnp.zeros(shape.shards, jnp.int32) if shape.follows else None,
        ended=jnp.zeros(shape.shards, bool) if shape.follows else None,
        samples=jnp.zeros(shape.shards, jnp.int32) if shape.follows else None,
    )


class Rolled(NamedTuple):
    """Segments that a wave has rolled, one for each shard; arrays `[A, ...]`.

    Attributes:
      data: data `[A, t, n, ...]` of t steps.
      carry: memory's states at the first observations, `[A, n, ...]`.
      version: versions that acted.
      episodes: statistics of the episodes that ended, `[A, 3]`.
    """

    data: Collected
    carry: Carry
    version: jax.Array
    episodes: jax.Array


def write(store: Store, rolled: Rolled, rows: jax.Array, first: jax.Array, segments: jax.Array) -> Store:
    """Store with the segments of all shards.

    Args:
      store: the store.
      rolled: the segments.
      rows: row of each shard's fragment, `[A]`.
      first: first step of each segment in its fragment, `[A]`.
      segments: index of each segment; those with index 0 begin their row anew, `[A]`.
    """

    def body(shard: jax.Array, store: Store) -> Store:
        row, begins = rows[shard], segments[shard] == 0
        valid = store.data.valid
        if valid is not None:  # segments that never begin, because all episodes have ended, hold no samples
            store = store._replace(data=store.data._replace(valid=valid.at[row].set(valid[row] & ~begins)))

        def put(stored: jax.Array, part: jax.Array) -> jax.Array:
            start: list[Any] = [row, first[shard], *[0] * (stored.ndim - 2)]
            return jax.lax.dynamic_update_slice(stored, part[shard][None], start)

        def begun(stored: jax.Array, part: jax.Array) -> jax.Array:
            return stored.at[row].set(jnp.where(begins, part[shard], stored[row]))

        return store._replace(
            data=jax.tree.map(put, store.data, rolled.data._replace(first=None)),
            carry=jax.tree.map(begun, store.carry, rolled.carry),
            version=jax.lax.dynamic_update_slice(
                store.version, jnp.full((1, 1), rolled.version[shard], jnp.int32), (row, segments[shard])
            ),
            episodes=store.episodes.at[row].set(rolled.episodes[shard] + jnp.where(begins, 0.0, store.episodes[row])),
        )

    written: Store = jax.lax.fori_loop(0, rows.shape[0], body, store)
    return written


def batch(store: Store, rows: jax.Array, recurrent: bool) -> tuple[Collected, Carry, jax.Array, EpisodeStatistics]:
    """Data of a batch from the rows `[A]` of its fragments.

    Args:
      store: the store.
      rows: rows of the fragments.
      recurrent: whether the network has memory.

    Returns:
      (data `[T, N, ...]`, memory's states at the first observations `[N, ...]`, version that acted in each sample
      `[T * N]`, statistics of the episodes that ended).
    """

    def columns(x: jax.Array) -> jax.Array:
        chosen = jnp.moveaxis(x[rows], 0, 1)  # [T, A, n, ...]
        return chosen.reshape(chosen.shape[0], -1, *chosen.shape[3:])

    data: Collected = jax.tree.map(columns, store.data)
    valid, raw_obs = data.valid, data.raw_obs
    if store.lengths is not None and raw_obs is not None:
        assert valid is not None, "fragments end with their episodes"
        # Statistics leave out NaN. A segment that never began has the observations of an older fragment in its row.
        every = valid.reshape(valid.shape + (1,) * (raw_obs.ndim - valid.ndim))
        data = data._replace(raw_obs=jnp.where(every, raw_obs, jnp.nan))
    if recurrent:
        # The observation after a dead transition, which follows the end of an episode, is the first of an episode.
        ended = data.terminated | data.truncated if data.valid is None else ~data.valid
        data = data._replace(first=jnp.concatenate([jnp.zeros_like(ended[:1]), ended[:-1]]))
    steps, envs = data.reward.shape
    version = jnp.repeat(store.version[rows], steps // store.version.shape[1], axis=1)  # [A, T]
    version = jnp.repeat(version.T, envs // len(rows), axis=1)
    carry = jax.tree.map(lambda x: x[rows].reshape(-1, *x.shape[2:]), store.carry)
    return data, carry, version.reshape(-1), EpisodeStatistics(*store.episodes[rows].sum(axis=0))


def publish_statistics(store: Store, statistics: RunningStatistics, newest: jax.Array, before: jax.Array) -> Store:
    """Store in which the versions after `before`, up to the `newest`, act with these statistics of observations."""
    ring = store.statistics
    if ring is None:
        return store
    length = jax.tree.leaves(ring)[0].shape[0]
    behind = (newest - jnp.arange(length)) % length
    fresh = behind < newest - before

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(fresh.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

    return store._replace(statistics=jax.tree.map(put, ring, statistics))


def every_version_acts_with(store: Store, statistics: RunningStatistics) -> Store:
    """Store in which all versions act with the same statistics of observations, those that a run starts from."""
    if store.statistics is None:
        return store
    return store._replace(statistics=jax.tree.map(lambda old, new: old.at[:].set(new), store.statistics, statistics))


def cut(store: Store | None, place: tuple[int, ...]) -> Store:
    """Store in which a step (row, step), of several seeds (seed, row, step), ends an episode, and is invalid."""
    assert store is not None, "actors are not independent"
    data = store.data
    assert data.valid is not None, "the program steps the environments"
    truncated, valid = data.truncated.at[place].set(True), data.valid.at[place].set(False)
    return store._replace(data=data._replace(truncated=truncated, valid=valid))
