"""Rounds of independent actors: steps of collection, forming batches, and waves of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.engine.prepare import EpisodeStatistics
from stellaris_jax.engine.shards import Segments, Shards, dropped_episodes, published
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.state import EngineState
from stellaris_jax.engine.store import publish_statistics
from stellaris_jax.engine.wave import RoundInputs, UpdateSums, WaveCarry
from stellaris_jax.timeline.plan import Plan

T = TypeVar("T")


def loop(bounds: jax.Array, body: Callable[[jax.Array, T], T], start: T, turns: int | None = None) -> T:
    """`jax.lax.fori_loop` from `bounds[0]` to before `bounds[1]`; with `turns`, of so many, -1 when over."""
    first, end = bounds
    if turns is None:
        result: T = jax.lax.fori_loop(first, end, body, start)
        return result

    def turn(k: jax.Array, so_far: T) -> T:
        return body(jnp.where(first + k < end, first + k, -1), so_far)

    counted: T = jax.lax.fori_loop(0, turns, turn, start)
    return counted


def counted_waves(spec: ProgramSpec) -> int | None:
    """Turns of a loop over a round's waves; `None` if it has as many turns as the round has waves.

    Accelerators wait for the host at every turn of a loop whose length is a value. If a round learns from one fragment,
    gradient by gradient, nearly all rounds have as many waves as the fragment has minibatches. With a replay buffer,
    many rounds may have none.
    """
    shape = spec.shape
    alike = shape.buffers == shape.wave_size == 1 and shape.collection is None and spec.buffer is None
    pays = jax.default_backend() != "cpu" and alike
    return shape.gradients if pays else None


class SoFar(NamedTuple):
    """State within a round of independent actors, and sums over its part so far.

    Attributes:
      state: training state.
      sums: sums over the round's gradients, as in `WaveCarry`, `[K]`.
      update_sums: sums over the round's updates.
      episodes: statistics of episodes in the data of the round's batches.
      dropped: statistics of episodes in dropped data.
    """

    state: EngineState
    sums: jax.Array
    update_sums: UpdateSums
    episodes: EpisodeStatistics
    dropped: EpisodeStatistics

    @classmethod
    def start(cls, state: EngineState, names: Sequence[str]) -> SoFar:
        """State at a round's begin, or where its last stretch has ended; `names` are those of the losses' metrics."""
        if state.partial is not None:
            sums, rest = state.partial[..., :-9], jnp.moveaxis(state.partial[..., -9:], -1, 0)
            episodes = (EpisodeStatistics(*rest[3:6]), EpisodeStatistics(*rest[6:]))
            return cls(state, sums, UpdateSums(*rest[:3]), *episodes)
        none = EpisodeStatistics(*[jnp.zeros(state.round.shape)] * len(EpisodeStatistics._fields))
        start = WaveCarry.start(state, names)
        return cls(state, start.sums, start.update_sums, none, none)

    @property
    def waves(self) -> WaveCarry:
        """Carry after the last wave of gradients."""
        return WaveCarry.resumed(self.state, self.sums, self.update_sums)

    def vector(self) -> jax.Array:
        """Sums as one vector `[..., K + 9]`."""
        rest = jnp.stack([*self.update_sums, *self.episodes, *self.dropped], axis=-1)
        return jnp.concatenate([self.sums, rest], axis=-1)


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

    def run(self, state: EngineState, round_: jax.Array) -> SoFar:
        """Execute a round's steps."""
        start = SoFar.start(state, self.shards.spec.metrics)
        done: SoFar = loop(self.plan.bounds[round_], partial(self._step, round_), start)
        return done

    def paused(self, before: SoFar, after: EngineState) -> EngineState:
        """State after a stretch: `after` the round if it ends the round, else `before` that, with the sums so far."""
        ends = self.plan.ends
        if ends is None:
            return after
        kept = jnp.where(ends, 0.0, before.vector())
        coefficient = jnp.where(ends, after.kl_coefficient, before.state.kl_coefficient)
        return after._replace(kl_coefficient=coefficient, round=before.state.round + ends, partial=kept)

    def _step(self, round_: jax.Array, k: jax.Array, so_far: SoFar) -> SoFar:
        state = so_far.state
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
        return self.learn(round_, k, so_far._replace(state=state))

    def learn(self, round_: jax.Array, k: jax.Array, so_far: SoFar) -> SoFar:
        """Execute what follows a step's collection: drop fragments, form batches, compute gradients."""
        state, sums, update_sums, kept, dropped = so_far
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
        return SoFar(state._replace(store=store), waves.sums, waves.update_sums, kept, dropped)
