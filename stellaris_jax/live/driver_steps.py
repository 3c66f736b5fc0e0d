"""Computations of a live run's driver: it uses the engine's parts to make samples and new versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import Metrics, Samples
from stellaris_jax.engine import store
from stellaris_jax.engine.learner import DataLoader
from stellaris_jax.engine.prepare import EpisodeStatistics
from stellaris_jax.engine.program import Engine
from stellaris_jax.engine.rollout import ActorState, Fragment
from stellaris_jax.engine.shards import Shards
from stellaris_jax.engine.state import EngineState
from stellaris_jax.engine.wave import CHANGED, RoundInputs, RoundMetrics, Wave, WaveCarry
from stellaris_jax.timeline.plan import Invocation
from stellaris_jax.timeline.records import Gradient, Group
from stellaris_jax.timeline.shapes import PlanShape

Delivered = tuple[np.ndarray, Metrics]
"""Gradient `[P]` and the metrics of its loss."""


class StoredGradient(NamedTuple):
    """Delivered gradient that waits for its aggregation.

    Attributes:
      delivered: the learner's result.
      peers: versions of other learners at its invocation.
    """

    delivered: Delivered
    peers: list[int]


class StoredFragment(NamedTuple):
    """Training data of a fragment.

    Attributes:
      data: samples and order of the minibatches, as a handle of the pool.
      version: version of the policy that acted; of several the oldest.
    """

    data: Any
    version: int


class DriverSteps:
    """Compiled parts of the engine for one seed.

    Args:
      engine: the engine.
      hyper: hyper-parameters, arrays `[1]`.
    """

    def __init__(self, engine: Engine, hyper: Hyper):
        self.engine, self.spec = engine, engine.spec
        self.hyper: Hyper = jax.tree.map(lambda x: jnp.asarray(x[0]), hyper)
        self.open = jax.jit(self._open)  # not donated: if a round fails, the state before it stays valid
        self.collect = jax.jit(self._collect, donate_argnums=1, static_argnums=0)
        self.aggregate = jax.jit(self._aggregate, donate_argnums=1)
        self.finish = jax.jit(self._finish)
        # Of independent actors.
        self.write = jax.jit(store.write, donate_argnums=0)
        self.form = jax.jit(self._form, donate_argnums=0)
        self.publish_statistics = jax.jit(store.publish_statistics, donate_argnums=0)

    def _open(self, state: EngineState) -> tuple[EngineState, WaveCarry]:
        """Begin a round: take the one seed's state apart into an unchanging rest and the part that gradients change."""
        state = jax.tree.map(lambda x: x[0], state)
        without: dict[str, Any] = dict.fromkeys(CHANGED)
        return state._replace(**without), WaveCarry.start(state, self.spec.metrics)

    def _collect(
        self, width: int, state: EngineState, actor: ActorState, envs: jax.Array, order: jax.Array, fragment: Fragment
    ) -> tuple[EngineState, EpisodeStatistics, Samples]:
        """`Engine.collect` of a fragment that actors have rolled, with their state; also returns samples `[M, ...]`."""
        state = state._replace(actor=actor)
        return self.engine.store(self.hyper, state, fragment, order, self.engine.present(width, envs))

    def _form(
        self, state: EngineState, rows: jax.Array, buffer: jax.Array, order: jax.Array
    ) -> tuple[EngineState, EpisodeStatistics, Samples]:
        """Form a batch of the fragments in the store's rows `[A]`, with minibatches `[G, B]`; also returns its samples.

        Args:
          state: state without the fields that gradients change.
          rows: rows of the batch's fragments.
          buffer: the data loader's buffer for the batch.
          order: minibatches of the batch.
        """
        engine = self.engine
        shards = Shards(engine.env, engine.network, engine.options, self.spec)  # type: ignore[arg-type]
        state, episodes = shards.form(self.hyper, state, rows, buffer, order)
        return state, episodes, state.loader.samples(buffer)

    def _aggregate(
        self,
        context: tuple[DataLoader, jax.Array, jax.Array],
        wave_state: WaveCarry,
        wave: Wave,
        gradients: jax.Array,
        metrics: Metrics,
    ) -> WaveCarry:
        """Add a wave's gradients `[L, P]` to the group; `context` is data, KL penalty coefficient, and step scale."""
        return self.engine.aggregate(RoundInputs(self.hyper, *context), wave_state, wave, gradients, metrics)

    def _finish(
        self, state: EngineState, wave_state: WaveCarry, episodes: EpisodeStatistics
    ) -> tuple[EngineState, RoundMetrics]:
        """State after the round, again with an axis `[1]` of seeds, and the round's metrics `[1, 1]`."""
        state, metrics = self.engine.finish(self.hyper, state, wave_state, episodes)
        return jax.tree.map(lambda x: x[None], state), jax.tree.map(lambda x: x[None, None], metrics)


def waves(shape: PlanShape, group: Group, delivered: Sequence[Delivered]) -> list[tuple[Wave, np.ndarray, Metrics]]:
    """Split a group's gradients into waves of `[L]` places; empty places have weight 0.

    Args:
      shape: shape of plans.
      group: gradients and their weights.
      delivered: the learners' results, in the order of the group.
    """
    result, places = [], shape.wave_size
    for first in range(0, len(group.gradients), places):
        gradients = group.gradients[first : first + places]
        part = delivered[first : first + places]
        empty = places - len(gradients)
        filled = [*part, *[jax.tree.map(np.zeros_like, part[0])] * empty]
        last = first + places >= len(group.gradients)
        result.append(
            (
                Wave(
                    _invocations(shape, gradients, empty),
                    np.array([*group.weights[first : first + places], *[0.0] * empty], np.float32),
                    np.int32(len(group.gradients) if last else 0),
                ),
                np.stack([gradient for gradient, _ in filled]),
                jax.tree.map(lambda *x: np.stack(x), *[metrics for _, metrics in filled]),
            )
        )
    return result


def _invocations(shape: PlanShape, gradients: Sequence[Gradient], empty: int) -> Invocation:
    def column(values: Sequence[int]) -> np.ndarray:
        return np.array([*values, *[0] * empty], np.int32)

    return Invocation(
        buffer=column([shape.fragments.slot(gradient.fragment) for gradient in gradients]),
        minibatch=column([gradient.minibatch for gradient in gradients]),
        slot=column([shape.ring.slot(gradient.version) for gradient in gradients]),
        target_slot=column([shape.ring.slot(shape.target(gradient.version)) for gradient in gradients]),
        peers=None,  # learners have used them already
    )
