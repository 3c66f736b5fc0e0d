"""Executor of simulated rounds: plans them, and has the compiled engine carry the plans out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from stellaris_jax.engine.chunk import Chunk
from stellaris_jax.engine.seed_states import Running
from stellaris_jax.engine.state import EngineInputs
from stellaris_jax.execute.executor import Executor, ExecutorInputs, about
from stellaris_jax.execute.planner import Planner
from stellaris_jax.execute.schedule import Executed, Schedule
from stellaris_jax.sources.host_actors import Received
from stellaris_jax.timeline import Usage


class ChunkInFlight(NamedTuple):
    """Chunk that the device executes.

    Attributes:
      chunk: the chunk.
      received: fragments from the host; `None` if the program makes its own.
      running: its execution on the device.
      before: `[S]`, usage before the chunk.
      begun: start time, of `time.perf_counter`.
    """

    chunk: Chunk
    received: Received | None
    running: Running
    before: list[Usage]
    begun: float


class SimulatedExecutor:
    """Executor of the planner's chunks; see `stellaris_jax.execute.executor.Executor`.

    Args:
      inputs: inputs of the trainer.
      schedule: schedule of the rounds, with timelines that can be simulated.
    """

    def __init__(self, inputs: ExecutorInputs, schedule: Schedule):
        self.inputs, self.schedule = inputs, schedule
        self.planner = Planner(schedule, inputs.chunks)
        measures = inputs.measurements.probe is not None
        self._can_run_ahead = not (inputs.spec.host_fragments or schedule.adaptive or measures)
        self._in_flight: ChunkInFlight | None = None

    @property
    def under_way(self) -> bool:
        return self._in_flight is not None

    @property
    def compiled(self) -> bool:
        chunk, engine = self._next(), self.inputs.engine
        return engine.compiled.keys() >= set(map(engine.key, chunk.plans, chunk.widths))

    def compile(self) -> float:
        chunk, inputs, seconds = self._next(), self.inputs, 0.0
        state, example = inputs.seed_states.states[0], inputs.source.example(inputs.spec.seeds)
        for plan, width in zip(chunk.plans, chunk.widths, strict=True):
            seconds += inputs.engine.compile(EngineInputs(state, inputs.seed_states.hyper, plan, example, width))
        return seconds

    def about_next(self) -> str:
        chunk = self._next()
        return about(self.schedule, chunk.begin, chunk.end, chunk.widths)

    def step(self, ahead: bool) -> Executed:
        current, self._in_flight = self._in_flight or self._begin(), None
        self._plan_ahead(current.running)
        metrics = self.inputs.seed_states.finish(current.running)
        probes = self.inputs.measurements.take(current.chunk)
        now = time.perf_counter()
        self.planner.executed()
        schedule, received = self.schedule, current.received
        is_next_free = self._can_run_ahead and not schedule.finished and not schedule.is_due(schedule.round)
        if ahead and is_next_free and self.compiled:
            self._in_flight = self._begin(now)
        self.inputs.source.on_learned(received, current.chunk)
        data_versions = None if received is None else received.versions
        return Executed(current.chunk, metrics, current.before, now - current.begun, probes, data_versions)

    def restart(self) -> None:
        self.planner.restart()

    def write(self, run_dir: Path) -> None:
        pass

    def close(self) -> None:
        pass

    def _begin(self, now: float | None = None) -> ChunkInFlight:
        """Start the next chunk, at time `now`."""
        seed_states, source, chunk = self.inputs.seed_states, self.inputs.source, self._next()
        _ = seed_states.states  # initial states are compiled here at the latest, which is no training
        begun = time.perf_counter() if now is None else now
        received = source.receive(seed_states, chunk, self.schedule.following(chunk))
        running = seed_states.start(chunk, None if received is None else received.fragment)
        return ChunkInFlight(chunk, received, running, self.schedule.usages, begun)

    def _next(self) -> Chunk:
        """Next chunk; if it has to be planned now, the device idles meanwhile."""
        begin = time.perf_counter()
        chunk = self.planner.next(self.inputs.source.actors_in_flight)
        self.inputs.counters.planning_seconds += time.perf_counter() - begin
        return chunk

    def _plan_ahead(self, running: Running) -> None:
        """Plan while the device is busy; if the device finishes first, the planning time counts as waiting."""
        begin = time.perf_counter()
        self.planner.plan_ahead(self.inputs.source.actors_in_flight)
        if running.over:
            self.inputs.counters.planning_seconds += time.perf_counter() - begin


def planner_of(executor: Executor) -> Planner:
    """Planner of an executor of simulated rounds. Raises TypeError for other executors."""
    if not isinstance(executor, SimulatedExecutor):
        raise TypeError(f"{type(executor).__name__} plans no rounds.")
    return executor.planner
