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
    """Sums over a round's gradients, carried from wave to wave as one vector `[8]`: so they take one operation."""

    loss: LossMetrics
    norm: jax.Array
    gradients: jax.Array

    @classmethod
    def of(cls, vector: jax.Array) -> Sums:
        """The sums in a vector `[8]`."""
        return jax.tree.unflatten(jax.tree.structure(SUMS), list(vector))

    def vector(self) -> jax.Array:
        """Sums `[...]` as vectors `[..., 8]`."""
        return jnp.stack(jax.tree.leaves(self), axis=-1)


SUMS = Sums(LossMetrics(*[0] * len(LossMetrics._fields)), 0, 0)  # type: ignore[arg-type]


class Wave(NamedTuple):
    """One wave of a plan: invocations and weights `[L]`, and the size of the group it completes (see `Plan`)."""

    invocations: Invocation
    weights: Any
    size: Any


class WaveCarry(NamedTuple):
    """What waves change: fields of `EngineState`, and the round's `Sums` so far as a vector `[8]`."""

    params: jax.Array
    version: jax.Array
    ring: jax.Array
    aggregator: StalenessWeightedState
    sums: jax.Array

    @classmethod
    def start(cls, state: EngineState) -> WaveCarry:
        """Before a round's first wave."""
        sums = jnp.zeros((*state.round.shape, len(jax.tree.leaves(SUMS))))
        return cls(state.params, state.version, state.ring, state.aggregator, sums)

    def end(self, state: EngineState) -> EngineState:
        """The state after the round's last wave."""
        return state._replace(params=self.params, version=self.version, ring=self.ring, aggregator=self.aggregator)


class RoundMetrics(NamedTuple):
    """One round, arrays `[R, S]`; means over the round's gradients, `rejected` counts over the run so far."""

    loss: LossMetrics
    gradient_norm: jax.Array
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
            gradients=zeros,
            rejected=jnp.zeros(shape, jnp.int32),
            kl_coefficient=zeros,
            episodes=EpisodeStatistics(zeros, zeros, zeros),
        )
