"""Executor of `executor=replay`: the compiled engine repeats a live run from its trace and reports deviations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.execute.executor import ExecutorInputs
from stellaris_jax.execute.recording import Recording
from stellaris_jax.execute.schedule import Executed, Schedule
from stellaris_jax.execute.simulated import SimulatedExecutor
from stellaris_jax.sources.host import HostSource
from stellaris_jax.timeline.trace import Published

APART = 1e-3
"""Deviation, as a share of a version's norm, above which a replay counts as a different run."""
NAME = "replay.json"


class Deviation(NamedTuple):
    """Deviation of a replayed policy version from the recorded one.

    Attributes:
      version: number of the version.
      deviation: distance as a share of the recorded version's norm; 0 if they are equal to the bit.
    """

    version: int
    deviation: float


class ReplayExecutor:
    """Executor of one agent's recorded rounds; see `stellaris_jax.execute.executor.Executor`.

    `deviations` lists the deviations of its versions from the live run's.

    Args:
      inputs: inputs of the trainer.
      recording: the live run.
    """

    def __init__(self, inputs: ExecutorInputs, recording: Recording):
        self.inputs, self.trace = inputs, recording.trace
        rounds = recording.rounds(inputs.config)
        self.schedule = Schedule(inputs.config, inputs.spec, inputs.seeds, [rounds.timeline], rounds)
        self.planned = SimulatedExecutor(inputs, self.schedule)
        self.deviations: list[Deviation] = []

    @property
    def under_way(self) -> bool:
        return self.planned.under_way

    @property
    def compiled(self) -> bool:
        return self.planned.compiled

    def compile(self) -> float:
        return self.planned.compile()

    def about_next(self) -> str:
        return self.planned.about_next()

    def step(self, ahead: bool) -> Executed:
        """Repeat the next round, with its deviation among the metrics of its record."""
        recorded, source = self.trace.rounds[self.schedule.round], self.inputs.source
        if recorded.opened and isinstance(source, HostSource):
            source.begin_anew()
        done = self.planned.step(ahead=False)
        deviations = [self._deviation(version) for version in recorded.versions]
        self.deviations += deviations
        largest = max((deviation.deviation for deviation in deviations), default=0.0)
        return done._replace(values={"replay_deviation": largest})

    def restart(self) -> None:
        self.planned.restart()

    def write(self, run_dir: Path) -> None:
        """Write the deviations of the replay so far to `replay.json`."""
        apart = [deviation for deviation in self.deviations if not deviation.deviation <= APART]
        result = {
            "versions": len(self.deviations),
            "identical": sum(deviation.deviation == 0.0 for deviation in self.deviations),
            "largest_deviation": max((deviation.deviation for deviation in self.deviations), default=0.0),
            "apart_above": APART,
            "first_apart": apart[0]._asdict() if apart else None,
        }
        write_atomically(run_dir / NAME, json.dumps(result, indent=2) + "\n")

    def close(self) -> None:
        pass

    def _deviation(self, recorded: Published) -> Deviation:
        state, ring = self.inputs.seed_states.states[0], self.inputs.spec.shape.ring
        newest = int(state.version[0])
        row = state.params[0] if recorded.version == newest else state.ring[0, ring.slot(recorded.version)]
        return Deviation(recorded.version, recorded.deviation(np.asarray(jax.device_get(row))))
