"""Waves of gradients: their inputs, the state that they change, and the metrics of a round of waves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import Metrics
from stellaris_jax.engine import versions
from stellaris_jax.engine.aggregator import StalenessWeightedState
from stellaris_jax.engine.learner import Cache, DataLoader
from stellaris_jax.engine.prepare import EpisodeStatistics
from stellaris_jax.engine.state import EngineState
from stellaris_jax.timeline.plan import Invocation, Plan


class GradientSums(NamedTuple):
    """Sums over a round's gradients, carried from wave to wave as one vector `[K]`, so that adding is one operation.

    Attributes:
      loss: sums of the losses' metrics.
      norm: sum of the gradients' norms.
      data_lag: sum of versions from the behaviour to the learner's policy.
      gradients: number of gradients.
    """

    loss: Metrics
    norm: jax.Array
    data_lag: jax.Array
    gradients: jax.Array

    @classmethod
    def of(cls, vector: jax.Array, names: Sequence[str]) -> GradientSums:
        """Sums from a vector `[K]`; `names` are those of the losses' metrics."""
        return jax.tree.unflatten(jax.tree.structure(cls.none(names)), list(vector))

    @classmethod
    def none(cls, names: Sequence[str]) -> GradientSums:
        """Sums over no gradients, as numbers."""
        return cls(dict.fromkeys(names, 0), 0, 0, 0)  # type: ignore[arg-type]

    def vector(self) -> jax.Array:
        """Sums `[...]` as vectors `[..., K]`."""
        return jnp.stack(jax.tree.leaves(self), axis=-1)


class Wave(NamedTuple):
    """One wave of a plan: invocations and weights `[L]`, and the size of the group that it completes (see `Plan`)."""

    invocations: Invocation
    weights: Any
    size: Any

    @classmethod
    def at(cls, plan: Plan, w: jax.Array, may_be_none: bool = False) -> Wave:
        """Wave `w` of a plan, with the seeds' axis. If it `may_be_none`, -1 is a wave that changes nothing."""
        wave: Wave = jax.tree.map(lambda x: x[w], cls(plan.invocations, plan.weights, plan.sizes))
        if not may_be_none:
            return wave
        weights, size = (jnp.where(w < 0, 0, x) for x in (wave.weights, wave.size))
        return wave._replace(weights=weights, size=size)


class RoundInputs(NamedTuple):
    """Inputs of a round's waves that waves do not change.

    Attributes:
      hyper: hyper-parameters.
      loader: fragments and their minibatches.
      kl_coefficient: weight of the KL penalty.
      step_scale: factor on the learning rate.
    """

    hyper: Hyper
    loader: DataLoader
    kl_coefficient: jax.Array
    step_scale: Number

    def cache(self, wave_state: WaveCarry) -> Cache:
        """Cache from which learners fetch, after the newest version has been published in the ring."""
        return Cache(wave_state.ring, wave_state.version, self.loader, self.kl_coefficient, wave_state.targets)


class UpdateSums(NamedTuple):
    """Sums over a round's updates.

    Attributes:
      norm: sum of the updates' norms.
      cosine: sum of the cosines of the angles between successive updates.
      updates: number of updates.
    """

    norm: jax.Array
    cosine: jax.Array
    updates: jax.Array

    @classmethod
    def of(cls, step: jax.Array, before: jax.Array, counts: jax.Array) -> UpdateSums:
        """Sums for one update `step` `[P]` after the update `before` `[P]`; zeros unless `counts`."""
        norm, previous = (jnp.sqrt(jnp.sum(jnp.square(x))) for x in (step, before))
        cosine = jnp.sum(step * before) / jnp.maximum(norm * previous, jnp.finfo(norm.dtype).tiny)
        return cls(*(jnp.where(counts, x, 0.0) for x in (norm, cosine, 1.0)))


CHANGED = ("params", "version", "ring", "aggregator", "targets")
"""Fields of `EngineState` that waves change."""


class WaveCarry(NamedTuple):
    """State that waves change: fields of `EngineState`, and sums over the round so far.

    Attributes:
      sums: the round's `GradientSums` as a vector `[K]`.
      update_sums: the round's `UpdateSums`.
    """

    params: jax.Array
    version: jax.Array
    ring: jax.Array
    aggregator: StalenessWeightedState
    sums: jax.Array
    update_sums: UpdateSums
    targets: versions.Targets | None = None

    @classmethod
    def start(cls, state: EngineState, names: Sequence[str]) -> WaveCarry:
        """Carry before a round's first wave; `names` are those of the losses' metrics."""
        sums = jnp.zeros((*state.round.shape, len(jax.tree.leaves(GradientSums.none(names)))))
        update_sums = UpdateSums(*[jnp.zeros(state.round.shape)] * len(UpdateSums._fields))
        return cls(state.params, state.version, state.ring, state.aggregator, sums, update_sums, state.targets)

    @classmethod
    def resumed(cls, state: EngineState, sums: jax.Array, update_sums: UpdateSums) -> WaveCarry:
        """Carry before the first wave of a later step of a round, with the sums so far."""
        return cls(state.params, state.version, state.ring, state.aggregator, sums, update_sums, state.targets)

    def published(self) -> WaveCarry:
        """State whose ring holds the newest version."""
        targets = None if self.targets is None else self.targets.published(self.version)
        return self._replace(ring=versions.publish(self.ring, self.version, self.params), targets=targets)

    def end(self, state: EngineState) -> EngineState:
        """State after the round's last wave."""
        changed = {name: getattr(self, name) for name in CHANGED}
        return state._replace(**changed)


class RoundMetrics(NamedTuple):
    """Metrics of rounds, arrays `[R, S]`.

    Attributes:
      loss: means of the losses' metrics over the round's gradients, by name.
      gradient_norm: mean norm of the round's gradients.
      data_lag: mean number of versions from the behaviour to the learner's policy.
      update_norm: mean norm of the round's updates.
      update_cosine: mean cosine of the angle between successive updates.
      gradients: number of gradients in the round.
      rejected: number of non-finite gradients since the run began.
      kl_coefficient: weight of the KL penalty after the round.
      episodes: statistics of the episodes that ended in the round's data.
      dropped_episodes: those of data that independent actors' data admission dropped; `None` with other actors.
    """

    loss: Metrics
    gradient_norm: jax.Array
    data_lag: jax.Array
    update_norm: jax.Array
    update_cosine: jax.Array
    gradients: jax.Array
    rejected: jax.Array
    kl_coefficient: jax.Array
    episodes: EpisodeStatistics
    dropped_episodes: EpisodeStatistics | None = None

    @classmethod
    def zeros(cls, shape: tuple[int, ...], names: Sequence[str], drops: bool = False) -> RoundMetrics:
        """Zero metrics, to be filled round by round.

        Args:
          shape: shape of each array.
          names: names of the losses' metrics.
          drops: with `dropped_episodes`.
        """
        zeros = jnp.zeros(shape)
        loss, none = dict.fromkeys(names, zeros), EpisodeStatistics(zeros, zeros, zeros)
        rest = dict.fromkeys(cls._fields[1:-2], zeros) | {"rejected": jnp.zeros(shape, jnp.int32)}
        return cls(loss=loss, episodes=none, dropped_episodes=none if drops else None, **rest)


Call = Callable[[], tuple[EngineState, RoundMetrics]]
"""Call of a program whose inputs are placed; returns the state afterwards and metrics `[R, S]`."""
