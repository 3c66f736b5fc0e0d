"""Measurements that a scaling rule requests after every chunk, by its probe on the last fragment."""

from __future__ import annotations

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.engine.chunk import Chunk
from stellaris_jax.engine.probes import Probe
from stellaris_jax.engine.seed_states import SeedStates
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.execute.records import Counters


class Measurements:
    """Measurements of one run.

    Args:
      probe: probe of the scaling rule; `None` if it needs none.
      spec: settings that shape the run's program.
      seed_states: states of all seeds.
      counters: totals of the run, which the seconds of measurements are added to.
    """

    def __init__(self, probe: Probe | None, spec: ProgramSpec, seed_states: SeedStates, counters: Counters):
        self.probe, self.spec, self.seed_states, self.counters = probe, spec, seed_states, counters
        self._compiled = False

    def compile(self) -> float:
        """Compile the probe; returns the seconds it took, 0 if there is nothing to compile."""
        if self.probe is None or self._compiled:
            return 0.0
        self._compiled = True
        begin, states = time.perf_counter(), self.seed_states
        counts = jnp.zeros(self.spec.seeds, jnp.int32)
        jax.block_until_ready(self.probe(states.hyper, states.states[0], jnp.int32(0), counts))
        return time.perf_counter() - begin

    def take(self, chunk: Chunk) -> list[list[float]]:
        """Measurements `[S]` on each seed's last fragment, taken before the schedule advances; empty without a probe.

        If a measurement fails, the run has not moved past the chunk, so no checkpoint of it is written.
        """
        if self.probe is None:
            return []
        begin, states = time.perf_counter(), self.seed_states
        buffer = self.spec.shape.fragments.slot(chunk.rounds[0][0].index)
        counts = np.array([self.spec.minibatch_layout.count(n) for n in chunk.envs], np.int32)
        probe = partial(self.probe, states.hyper)
        values = jax.device_get(
            states.each(lambda state, count: probe(state, jnp.int32(buffer), count), states.blocks(counts))
        )
        self.counters.detection_seconds += time.perf_counter() - begin
        return np.concatenate(values).tolist()
