"""Interface of executors, which carry out a trainer's rounds, and the parts that they are given."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk_cache import ChunkCache
from stellaris_jax.engine.program import Engine
from stellaris_jax.engine.seed_states import SeedStates
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.execute.measurements import Measurements
from stellaris_jax.execute.records import Counters
from stellaris_jax.execute.schedule import Executed, Schedule
from stellaris_jax.sources.source import Source


class ExecutorInputs(NamedTuple):
    """Parts of a trainer that its executor works with.

    Attributes:
      config: configuration of the run.
      spec: settings that shape the run's program.
      seeds: one per agent.
      engine: compiled program.
      seed_states: states of all seeds.
      source: source of fragments.
      measurements: measurements of the scaling rule.
      counters: totals of the run, which the executor adds to.
      chunks: cache of chunks, shared with other runs.
    """

    config: Config
    spec: ProgramSpec
    seeds: list[int]
    engine: Engine
    seed_states: SeedStates
    source: Source
    measurements: Measurements
    counters: Counters
    chunks: ChunkCache


class Executor(Protocol):
    """Part of a trainer that carries out rounds: simulated, live, or recorded ones.

    Attributes:
      schedule: schedule of the rounds, which the executor owns and advances.
    """

    schedule: Schedule

    @property
    def under_way(self) -> bool:
        """Whether the device has begun the next rounds."""
        ...

    @property
    def compiled(self) -> bool:
        """Whether the next rounds need no compilation."""
        ...

    def compile(self) -> float:
        """Compile all that the next rounds need; returns the seconds."""
        ...

    def about_next(self) -> str:
        """Text about the next rounds: their numbers, and the compiled number of actors if that can change."""
        ...

    def step(self, ahead: bool) -> Executed:
        """Execute the next rounds, which must be compiled, and advance the schedule.

        Args:
          ahead: start the rounds after them, unless these depend on what the caller does next.
        """
        ...

    def restart(self) -> None:
        """Continue from the schedule's restored state."""
        ...

    def write(self, run_dir: Path) -> None:
        """Write files about the rounds since the last call, if there are any."""
        ...

    def close(self) -> None:
        """Stop all processes that the executor started."""
        ...


def about(schedule: Schedule, begin: int, end: int, widths: list[int]) -> str:
    """Text about the rounds from `begin` to before `end`, compiled for `widths` environments."""
    rounds = f"round {end}" if end - begin == 1 else f"rounds {begin + 1} to {end}"
    if len(schedule.limits.buckets) == 1 or schedule.spec.host_fragments:
        return rounds
    return f"{rounds} (up to {max(widths) // schedule.limits.envs} actors)"
