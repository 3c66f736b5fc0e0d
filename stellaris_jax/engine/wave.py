"""What goes into a wave of gradients, what it changes, and what a round of waves comes to."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.losses.common import LossMetrics
from stellaris_jax.engine.aggregator import StalenessWeightedState
from stellaris_jax.engine.prepare import EpisodeStatistics
from stellaris_jax.engine.state import EngineState
from stellaris_jax.timeline.plan import Invocation


class Sums(NamedTuple):
    """Sums over a round's gradients, carried from wave to wave as one vector `[K]`: so they take one operation."""

    loss: LossMetrics
    norm: jax.Array
    data_lag: jax.Array
    gradients: jax.Array

    @classmethod
    def of(cls, vector: jax.Array) -> Sums:
        """The sums in a vector `[K]`."""
        return jax.tree.unflatten(jax.tree.structure(SUMS), list(vector))

    def vector(self) -> jax.Array:
        """Sums `[...]` as vectors `[..., K]`."""
        return jnp.stack(jax.tree.leaves(self), axis=-1)


SUMS = Sums(LossMetrics(*[0] * len(LossMetrics._fields)), 0, 0, 0)  # type: ignore[arg-type]


class Wave(NamedTuple):
    """One wave of a plan: invocations and weights `[L]`, and the size of the group it completes (see `Plan`)."""

    invocations: Invocation
    weights: Any
    size: Any


class Moves(NamedTuple):
    """Sums over a round's updates. norm: of their lengths. cosine: of the angles between each and the one before.
    updates: how many."""

    norm: jax.Array
    cosine: jax.Array
    updates: jax.Array

    @classmethod
    def of(cls, step: jax.Array, before: jax.Array, counts: jax.Array) -> Moves:
        """Of an update `[P]` that follows on another; nothing unless it `counts`."""
        own, other = (jnp.sqrt(jnp.sum(jnp.square(x))) for x in (step, before))
        cosine = jnp.sum(step * before) / jnp.maximum(own * other, jnp.finfo(own.dtype).tiny)
        return cls(*(jnp.where(counts, x, 0.0) for x in (own, cosine, 1.0)))


class WaveCarry(NamedTuple):
    """What waves change: fields of `EngineState`, and the round's `Sums` so far as a vector `[K]`, and its `Moves`."""

    params: jax.Array
    version: jax.Array
    ring: jax.Array
    aggregator: StalenessWeightedState
    sums: jax.Array
    moves: Moves

    @classmethod
    def start(cls, state: EngineState) -> WaveCarry:
        """Before a round's first wave."""
        sums = jnp.zeros((*state.round.shape, len(jax.tree.leaves(SUMS))))
        moves = Moves(*[jnp.zeros(state.round.shape)] * len(Moves._fields))
        return cls(state.params, state.version, state.ring, state.aggregator, sums, moves)

    def end(self, state: EngineState) -> EngineState:
        """The state after the round's last wave."""
        return state._replace(params=self.params, version=self.version, ring=self.ring, aggregator=self.aggregator)


class RoundMetrics(NamedTuple):
    """One round, arrays `[R, S]`; means over the round's gradients, of `update_norm` and `update_cosine` over its
    updates; `rejected` counts over the run so far."""

    loss: LossMetrics
    gradient_norm: jax.Array
    data_lag: jax.Array
    update_norm: jax.Array
    update_cosine: jax.Array
    gradients: jax.Array
    rejected: jax.Array
    kl_coefficient: jax.Array
    episodes: EpisodeStatistics

    @classmethod
    def zeros(cls, shape: tuple[int, ...]) -> RoundMetrics:
        """Of rounds `[*shape]` that are yet to come."""
        zeros = jnp.zeros(shape)
        return cls(
            loss=LossMetrics(*[zeros] * len(LossMetrics._fields)),
            gradient_norm=zeros,
            data_lag=zeros,
            update_norm=zeros,
            update_cosine=zeros,
            gradients=zeros,
            rejected=jnp.zeros(shape, jnp.int32),
            kl_coefficient=zeros,
            episodes=EpisodeStatistics(zeros, zeros, zeros),
        )
