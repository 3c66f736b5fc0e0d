"""Steps of independent actors: shards roll segments into the store, and batches are formed of it."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import Samples
from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine import learner, store, versions
from stellaris_jax.engine.aggregator import rows as as_rows
from stellaris_jax.engine.device_rows import gathered
from stellaris_jax.engine.exploration import chance
from stellaris_jax.engine.keys import FragmentKeys
from stellaris_jax.engine.mesh import AXIS
from stellaris_jax.engine.prepare import Collected, EpisodeStatistics, collected, ended_episodes, prepared
from stellaris_jax.engine.rollout import (
    ActorState,
    Fragment,
    Normalizers,
    RolloutInputs,
    Trajectory,
    episode_totals,
    rollout,
)
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.state import EngineState
from stellaris_jax.engine.transitions import replayed, steps_for_replay, transitions
from stellaris_jax.envs.base import VecEnv


class Shards(NamedTuple):
    """Program parts of independent actors, for one seed and one device.

    Attributes:
      env: the environment; `None` if the host steps it.
      network: the policy's network.
      options: options of observations and rewards.
      spec: program spec of the run.
    """

    env: VecEnv | None
    network: PolicyNetwork
    options: EnvConfig
    spec: ProgramSpec

    @property
    def axis(self) -> str | None:
        """Mesh axis of several devices, which share the environments unless these are on the host."""
        return AXIS if self.spec.devices > 1 and not self.spec.host_fragments else None

    def _keys(self, state: EngineState, number: jax.Array) -> FragmentKeys:
        """Keys of fragment `number` on this device; `envs` has the shape `[A, n]`."""
        spec = self.spec
        assert spec.collection is not None, "actors are not independent"
        keys = FragmentKeys.of(state.key, number, spec.envs)
        envs, local = keys.envs.reshape(spec.collection.shards, spec.shard_envs), spec.shard_envs // spec.devices
        if self.axis is not None:
            envs = jax.lax.dynamic_slice_in_dim(envs, jax.lax.axis_index(self.axis) * local, local, axis=1)
        return keys._replace(envs=envs)

    def _rolled(self, fragment: Fragment, episodes: EpisodeStatistics, data: Any) -> store.Rolled:
        """Segments `[A, t, n, ...]`, gathered from all devices."""
        carry = fragment.carry
        totals = jnp.stack(episodes, axis=-1)
        if self.axis is not None:
            data, carry = gathered(data, self.axis, along=2), gathered(carry, self.axis, along=1)
            totals = jax.lax.psum(totals, self.axis)
        return store.Rolled(data, carry, fragment.version, totals)

    def whole_wave(
        self, hyper: Hyper, state: EngineState, slot: jax.Array, number: jax.Array, rows: jax.Array
    ) -> EngineState:
        """Roll fragment `number` of all shards with the version in a ring slot, into the rows `[A]` of the store."""
        assert self.env is not None, "fragments come from the host"
        keys = self._keys(state, number)
        keys = keys._replace(envs=keys.envs.reshape(-1))
        before: ActorState = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), state.actor)
        params, normalizers = versions.fetch(state.ring, slot), self._normalizers(state, slot)
        chances = self._chances(hyper, number, slice(None))
        flat = None if chances is None else chances.reshape(-1)
        inputs = RolloutInputs(params, normalizers, before, keys, hyper.gamma, chance=flat)
        actor, trajectory = rollout(self.env, self.network, self.options, self.spec.steps, inputs)
        return self._stored(hyper, state, slot, rows, self.network.stored(before.carry), actor, trajectory)

    def _chances(self, hyper: Hyper, number: jax.Array, shards: Any) -> jax.Array | None:
        """Probability of a random action in fragment `number` of the environments `[W, n]` of shards."""
        if self.spec.buffer is None:
            return None
        assert self.spec.collection is not None, "actors are not independent"
        envs, local = jnp.arange(self.spec.envs).reshape(self.spec.collection.shards, -1), self.spec.shard_envs
        if self.axis is not None:
            local //= self.spec.devices
            envs = jax.lax.dynamic_slice_in_dim(envs, jax.lax.axis_index(self.axis) * local, local, axis=1)
        return chance(self.spec, hyper, jnp.asarray(number)[..., None], envs[shards])

    def data(self, gamma: Number, fragment: Fragment, window: Any) -> tuple[Collected, Any]:
        """Data of a fragment or segment, and the window of steps after it; see `engine.transitions`."""
        if self.spec.buffer is None:
            return collected(self.network, self.options, fragment), window
        return transitions(steps_for_replay(self.options, fragment), window, self.spec.buffer.steps, gamma)

    def host_whole_wave(
        self, hyper: Hyper, state: EngineState, slot: jax.Array, rows: jax.Array, data: HostData
    ) -> EngineState:
        """Store a whole wave that the host has rolled with the version in a ring slot."""
        state = published(state)

        def together(x: jax.Array) -> jax.Array:  # [A, T, n, ...] -> [T, N, ...]
            return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])

        flat = partial(jax.tree.map, lambda x: x.reshape(-1, *x.shape[2:]))
        columns = data.trajectory._replace(last_obs=data.trajectory.last_obs[:, None])
        trajectory: Trajectory = jax.tree.map(together, columns)
        trajectory = trajectory._replace(last_obs=trajectory.last_obs[0])
        trajectory, totals = with_totals(trajectory, flat(state.actor.totals), hyper.gamma)
        actor = ActorState(None, None, totals, window=flat(state.actor.window))
        return self._stored(hyper, state, slot, rows, flat(data.carry), actor, trajectory)

    def _stored(
        self,
        hyper: Hyper,
        state: EngineState,
        slot: jax.Array,
        rows: jax.Array,
        carry: Carry,
        actor: ActorState,
        trajectory: Trajectory,
    ) -> EngineState:
        """Store a trajectory `[T, N, ...]` of all shards.

        Args:
          hyper: hyper-parameters.
          state: training state before.
          slot: ring slot of the version that acted.
          rows: rows of the store, `[A]`.
          carry: memory's states at the first observations.
          actor: states of the environments after it.
          trajectory: the trajectory.
        """
        shape, kept = self.spec.collection, _store(state)
        assert shape is not None, "actors are not independent"
        params, normalizers = versions.fetch(state.ring, slot), self._normalizers(state, slot)
        version = state.version - versions.behind(state.ring, state.version, slot)
        fragment = Fragment(trajectory, params, normalizers, version, carry)
        data, window = self.data(hyper.gamma, fragment, actor.window)
        actor = actor._replace(window=window)

        def by_shard(x: jax.Array) -> jax.Array:
            return jnp.moveaxis(x.reshape(x.shape[0], shape.shards, -1, *x.shape[2:]), 1, 0)

        columns = trajectory._replace(last_obs=trajectory.last_obs[None], first=None)
        episodes = jax.vmap(lambda one: ended_episodes(one, None))(jax.tree.map(by_shard, columns))
        sharded = partial(jax.tree.map, lambda x: x.reshape(shape.shards, -1, *x.shape[1:]))
        fragment = fragment._replace(carry=sharded(carry), version=jnp.full(shape.shards, version))
        rolled = self._rolled(fragment, episodes, jax.tree.map(by_shard, data))
        zeros = jnp.zeros(shape.shards, jnp.int32)
        kept = store.write(kept, rolled, rows, zeros, zeros)
        kept = kept._replace(version=kept.version.at[rows].set(version))
        kept = self._measured(kept, rolled.data, jnp.arange(shape.shards), jnp.ones(shape.shards, bool))
        return state._replace(actor=sharded(actor), store=kept)

    def _measured(self, kept: store.Store, data: Any, shards: jax.Array, rolls: jax.Array) -> store.Store:
        """Store with the lengths of the segments `[W, t, n]` that shards `[W]` have rolled, if they follow episodes."""
        if kept.lengths is None or kept.ended is None or kept.samples is None:
            return kept
        # The last valid step of an environment that has ended an episode ends it; others are valid to the last step.
        lengths = jnp.sum(data.valid, axis=1, dtype=jnp.int32).max(axis=1)
        ends = (data.terminated | data.truncated).any(axis=1)
        ended = jnp.all(ends | ~data.valid[:, 0], axis=1)
        samples = jnp.sum(data.valid, axis=(1, 2), dtype=jnp.int32)
        return kept._replace(
            lengths=kept.lengths.at[shards].set(jnp.where(rolls, lengths, kept.lengths[shards])),
            ended=kept.ended.at[shards].set(jnp.where(rolls, ended, kept.ended[shards])),
            samples=kept.samples.at[shards].set(jnp.where(rolls, samples, kept.samples[shards])),
        )

    def wave(self, hyper: Hyper, state: EngineState, wave: Segments) -> EngineState:
        """Roll one segment of each shard with a version of its own, into the store."""
        shape, steps = self.spec.collection, self.spec.segment_steps
        assert shape is not None, "actors are not independent"
        fetched = jax.vmap(partial(versions.fetch, state.ring))(wave.slot)
        keys = jax.vmap(partial(self._keys, state))(wave.number)
        places = jnp.arange(shape.width)
        keys = keys._replace(envs=keys.envs[places, wave.shard])  # each shard's own of its fragment's
        first, normalizers = wave.segment * steps, self._normalizers(state, wave.slot)
        one, env = self._seen_axes, self.env
        assert env is not None, "fragments come from the host"

        def roll(inputs: RolloutInputs) -> tuple[ActorState, Any, EpisodeStatistics]:
            actor, trajectory = rollout(env, self.network, self.options, steps, inputs, self.spec.steps)
            fragment = Fragment(trajectory, inputs.params, inputs.normalizers, 0, inputs.actor.carry)
            data, window = self.data(inputs.gamma, fragment, actor.window)
            return actor._replace(window=window), data, ended_episodes(trajectory, None)

        axes = RolloutInputs(0, one, 0, 0, None, 0, 0)  # type: ignore[arg-type]
        before = self._of_wave(state.actor, wave)
        chances = self._chances(hyper, wave.number, wave.shard)
        inputs = RolloutInputs(fetched, normalizers, before, keys, hyper.gamma, first, chances)
        actor, data, episodes = jax.vmap(roll, in_axes=(axes,))(inputs)
        return self._written(state, wave, self.network.stored(before.carry), actor, data, episodes)

    def _of_wave(self, actor: ActorState, wave: Segments) -> ActorState:
        """States of the shards that roll in a wave."""
        shape = self.spec.collection
        assert shape is not None, "actors are not independent"
        if shape.width == shape.shards:
            return actor
        chosen: ActorState = jax.tree.map(lambda x: x[wave.shard], actor)
        return chosen

    def host_wave(self, hyper: Hyper, state: EngineState, wave: Segments, data: HostData) -> EngineState:
        """Store a wave of segments that the host has rolled."""
        state = published(state)
        fetched = jax.vmap(partial(versions.fetch, state.ring))(wave.slot)

        def prepare(
            params: jax.Array, normalizers: Normalizers, actor: ActorState, data: HostData
        ) -> tuple[ActorState, Any, EpisodeStatistics]:
            trajectory, totals = with_totals(data.trajectory, actor.totals, hyper.gamma)
            fragment = Fragment(trajectory, params, normalizers, 0, data.carry)
            columns, window = self.data(hyper.gamma, fragment, actor.window)
            return actor._replace(totals=totals, window=window), columns, ended_episodes(trajectory, None)

        normalizers = self._normalizers(state, wave.slot)
        mapped = jax.vmap(prepare, in_axes=(0, self._seen_axes, 0, 0))
        actor, columns, episodes = mapped(fetched, normalizers, state.actor, data)
        return self._written(state, wave, data.carry, actor, columns, episodes)

    @property
    def _seen_axes(self) -> Normalizers | None:
        """Axes of `_normalizers` for slots `[A]`."""
        return Normalizers(0, None) if self.options.normalize_observation else None  # type: ignore[arg-type]

    def _written(
        self,
        state: EngineState,
        wave: Segments,
        carry: Carry,
        actor: ActorState,
        data: Collected,
        episodes: EpisodeStatistics,
    ) -> EngineState:
        """Write a wave's segments `[A, t, n, ...]` into the store; shards that roll nothing keep their state.

        Args:
          state: training state before.
          wave: the wave.
          carry: memory's states at the first observations.
          actor: states of the environments after it.
          data: data of the segments.
          episodes: statistics of the episodes that ended.
        """
        shape, kept = self.spec.collection, _store(state)
        assert shape is not None, "actors are not independent"
        version = state.version - versions.behind(state.ring, state.version, wave.slot)
        rolls = wave.row < shape.rows
        before = self._of_wave(state.actor, wave)
        actor = jax.tree.map(lambda new, old: jnp.where(as_rows(rolls, new), new, old), actor, before)
        if shape.width != shape.shards:
            actor = jax.tree.map(lambda all_, new: all_.at[wave.shard].set(new), state.actor, actor)
        fragment = Fragment(None, None, None, version, carry)  # type: ignore[arg-type]
        rolled, first = self._rolled(fragment, episodes, data), wave.segment * self.spec.segment_steps
        kept = store.write(kept, rolled, wave.row, first, wave.segment)
        return state._replace(actor=actor, store=self._measured(kept, rolled.data, wave.shard, rolls))

    def _normalizers(self, state: EngineState, slot: jax.Array) -> Normalizers:
        """Statistics that the version in a slot acts with; for slots `[A]`, those of observations have that axis."""
        ring = _store(state).statistics
        if ring is None:
            return state.normalizers
        return state.normalizers._replace(obs=jax.tree.map(lambda x: x[slot], ring))

    def form(
        self, hyper: Hyper, state: EngineState, rows: jax.Array, buffer: jax.Array, order: jax.Array
    ) -> tuple[EngineState, EpisodeStatistics]:
        """Form a batch of the fragments in rows `[A]`, with minibatches `[G, B]`; none if `buffer` is negative."""
        data, carry, version, episodes = store.batch(_store(state), rows, self.network.recurrent)
        samples, normalizers = self._samples(hyper, data, carry, state.normalizers)
        place = jnp.maximum(buffer, 0)
        loader = learner.with_key(state.loader, place, state.key)
        loader = learner.store(
            loader, place, samples._replace(version=version), order, version[0], self.spec.buffer_axis
        )
        formed = state._replace(loader=loader, normalizers=normalizers)
        if self.spec.seeds == 1:
            return formed, episodes
        # Seeds that form no batch at this place keep their state.
        chosen: EngineState = jax.tree.map(lambda new, old: jnp.where(buffer >= 0, new, old), formed, state)
        return chosen, jax.tree.map(lambda x: jnp.where(buffer >= 0, x, 0.0), episodes)

    def _samples(
        self, hyper: Hyper, data: Collected, carry: Carry, normalizers: Normalizers
    ) -> tuple[Samples, Normalizers]:
        """Samples `[T * N, ...]` of a batch, and the updated statistics."""
        if self.spec.buffer is not None:
            return replayed(data), normalizers
        return prepared(self.network, hyper, self.options, data, carry, normalizers, self.spec.recipe)


class HostData(NamedTuple):
    """Segments that the host has rolled, one for each shard; arrays `[A, ...]`.

    Attributes:
      trajectory: trajectories `[A, t, n, ...]` of t steps, without the totals of episodes.
      carry: memory's states at the first observations, `[A, n, ...]`; `None` without memory.
    """

    trajectory: Trajectory
    carry: Carry


class Segments(NamedTuple):
    """Segments of a collect wave of W places, `[W]`; see `stellaris_jax.timeline.collection.Collection`."""

    shard: Any
    slot: Any
    number: Any
    segment: Any
    row: Any


def published(state: EngineState) -> EngineState:
    """State whose ring holds the newest version."""
    return state._replace(ring=versions.publish(state.ring, state.version, state.params))


def with_totals(trajectory: Trajectory, start: jax.Array, gamma: Number) -> tuple[Trajectory, jax.Array]:
    """Trajectory from the host with its episode totals, and the totals after it `[N, 3]`; `start` are those before."""
    done, length = trajectory.terminated | trajectory.truncated, trajectory.valid.astype(jnp.float32)
    totals, carried = episode_totals(trajectory.reward, length, done, start, gamma)
    return trajectory._replace(totals=totals), carried


def _store(state: EngineState) -> store.Store:
    assert state.store is not None, "actors are not independent"
    return state.store


def dropped_episodes(state: EngineState, dropped: jax.Array) -> EpisodeStatistics:
    """Statistics of the episodes that ended in dropped fragments; `dropped` `[rows + 1]` counts them by row."""
    return EpisodeStatistics(*(dropped[:, None] * _store(state).episodes).sum(axis=0))
