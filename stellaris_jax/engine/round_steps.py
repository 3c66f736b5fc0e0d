"""Rounds of independent actors: steps of collection, forming batches, and waves of gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.engine.prepare import EpisodeStatistics
from stellaris_jax.engine.shards import Segments, Shards, dropped_episodes, published
from stellaris_jax.engine.state import EngineState
from stellaris_jax.engine.store import publish_statistics
from stellaris_jax.engine.wave import RoundInputs, UpdateSums, WaveCarry
from stellaris_jax.timeline.plan import Plan

T = TypeVar("T")


def loop(bounds: jax.Array, body: Callable[[jax.Array, T], T], start: T) -> T:
    """`jax.lax.fori_loop` from `bounds[0]` to before `bounds[1]`."""
    first, end = bounds
    result: T = jax.lax.fori_loop(first, end, body, start)
    return result


class Sums(NamedTuple):
    """Sums over a round, or a part of it.

    Attributes:
      gradients: `GradientSums` as a vector `[K]`.
      updates: sums over updates.
      kept: statistics of the episodes in used data.
      dropped: statistics of the episodes in dropped data.
    """

    gradients: jax.Array
    updates: UpdateSums
    kept: EpisodeStatistics
    dropped: EpisodeStatistics

    @classmethod
    def zeros(cls, state: EngineState) -> Sums:
        """Sums over nothing."""
        none = EpisodeStatistics(*[jnp.zeros(state.round.shape)] * len(EpisodeStatistics._fields))
        start = WaveCarry.start(state)
        return cls(start.sums, start.update_sums, none, none)

    @classmethod
    def of(cls, vector: jax.Array) -> Sums:
        """Sums from a vector `[..., K + 9]`."""
        gradients, rest = vector[..., :-9], jnp.moveaxis(vector[..., -9:], -1, 0)
        return cls(gradients, UpdateSums(*rest[:3]), EpisodeStatistics(*rest[3:6]), EpisodeStatistics(*rest[6:]))

    def vector(self) -> jax.Array:
        """Sums as one vector `[..., K + 9]`."""
        rest = jnp.stack([*self.updates, *self.kept, *self.dropped], axis=-1)
        return jnp.concatenate([self.gradients, rest], axis=-1)


class RoundSteps(NamedTuple):
    """Program of independent actors' rounds.

    Attributes:
      shards: program parts of actors.
      over_seeds: `jax.vmap` over seeds, or nothing for one seed.
      hyper: hyper-parameters.
      plan: plan of the chunk.
      wave: wave of gradients: (inputs, its number, state) -> state.
    """

    shards: Shards
    over_seeds: Callable[..., Any]
    hyper: Hyper
    plan: Plan
    wave: Callable[[RoundInputs, jax.Array, WaveCarry], WaveCarry]

    def run(self, state: EngineState, round_: jax.Array) -> tuple[EngineState, Sums]:
        """Execute a round's steps; returns the state and the sums over the round."""
        start = Sums.zeros(state) if state.partial is None else Sums.of(state.partial)
        result: tuple[EngineState, Sums] = loop(self.plan.bounds[round_], partial(self._step, round_), (state, start))
        return result

    def paused(self, before: EngineState, after: EngineState, sums: Sums) -> EngineState:
        """State after a stretch: `after` the round if it ends the round, else `before` that, with the sums so far."""
        ends = self.plan.ends
        if ends is None:
            return after
        kept = jnp.where(ends, 0.0, sums.vector())
        coefficient = jnp.where(ends, after.kl_coefficient, before.kl_coefficient)
        return after._replace(kl_coefficient=coefficient, round=before.round + ends, partial=kept)

    def _step(self, round_: jax.Array, k: jax.Array, so_far: tuple[EngineState, Sums]) -> tuple[EngineState, Sums]:
        state, sums = so_far
        collection, bounds, seeds = self.plan.collection, self.plan.steps, self.over_seeds
        assert collection is not None, "actors are not independent"
        assert bounds is not None, "actors are not independent"

        def whole(i: jax.Array, state: EngineState) -> EngineState:
            chosen = (collection.whole_slot[i], collection.whole_number[i], collection.whole_rows[i])
            rolled: EngineState = seeds(self.shards.whole_wave)(self.hyper, state, *chosen)
            return rolled

        def wave(i: jax.Array, state: EngineState) -> EngineState:
            segments = Segments(*(getattr(collection, name)[i] for name in Segments._fields))
            rolled: EngineState = seeds(self.shards.wave)(self.hyper, state, segments)
            return rolled

        state = seeds(published)(state)
        state = loop(bounds.whole[k], whole, state)
        state = loop(bounds.waves[k], wave, state)
        return self.learn(round_, k, (state, sums))

    def learn(self, round_: jax.Array, k: jax.Array, so_far: tuple[EngineState, Sums]) -> tuple[EngineState, Sums]:
        """Execute what follows a step's collection: drop fragments, form batches, compute gradients."""
        state, (sums, update_sums, kept, dropped) = so_far
        collection, bounds, seeds = self.plan.collection, self.plan.steps, self.over_seeds
        assert collection is not None, "actors are not independent"
        assert bounds is not None, "actors are not independent"

        def form(i: jax.Array, so_far: tuple[EngineState, EpisodeStatistics]) -> tuple[EngineState, EpisodeStatistics]:
            state, kept = so_far
            chosen = (collection.rows[i], collection.buffer[i], collection.order[i])
            state, episodes = seeds(self.shards.form)(self.hyper, state, *chosen)
            return state, jax.tree.map(jnp.add, kept, episodes)

        dropped = jax.tree.map(jnp.add, dropped, seeds(dropped_episodes)(state, collection.dropped[k]))
        state, kept = loop(bounds.batches[k], form, (state, kept))
        inputs = RoundInputs(self.hyper, state.loader, state.kl_coefficient, self.plan.learning_rate[round_])
        before = state.version
        carry = WaveCarry.resumed(state, sums, update_sums)
        waves = loop(bounds.gradients[k], partial(self.wave, inputs), carry)
        state = waves.end(state)
        store = seeds(publish_statistics)(state.store, state.normalizers.obs, state.version, before)
        return state._replace(store=store), Sums(waves.sums, waves.update_sums, kept, dropped)
