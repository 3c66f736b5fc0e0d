"""Executor of simulated rounds: plans them, and has the compiled engine carry the plans out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from stellaris_jax.engine.chunk import Chunk
from stellaris_jax.engine.seed_states import Running
from stellaris_jax.engine.state import EngineInputs
from stellaris_jax.execute.executor import Executor, Parts, about
from stellaris_jax.execute.planner import Planner
from stellaris_jax.execute.schedule import Executed, Schedule
from stellaris_jax.sources.actors import Received
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
      parts: parts of the trainer.
      schedule: schedule of the rounds, with timelines that can be simulated.
    """

    def __init__(self, parts: Parts, schedule: Schedule):
        self.parts, self.schedule = parts, schedule
        self.planner = Planner(schedule, parts.plans)
        self._can_run_ahead = not (parts.spec.host_fragments or schedule.adaptive)
        self._in_flight: ChunkInFlight | None = None

    @property
    def under_way(self) -> bool:
        return self._in_flight is not None

    @property
    def compiled(self) -> bool:
        return self.parts.engine.compiled_by_width.keys() >= set(self._next().widths)

    def compile(self) -> float:
        chunk, parts, seconds = self._next(), self.parts, 0.0
        state, example = parts.members.states[0], parts.source.example(parts.spec.seeds)
        for plan, width in zip(chunk.plans, chunk.widths, strict=True):
            seconds += parts.engine.compile(EngineInputs(state, parts.members.hyper, plan, example, width))
        return seconds

    def about_next(self) -> str:
        chunk = self._next()
        return about(self.schedule, chunk.begin, chunk.end, chunk.widths)

    def step(self, ahead: bool) -> Executed:
        current, self._in_flight = self._in_flight or self._begin(), None
        self._plan_ahead(current.running)
        metrics = self.parts.members.finish(current.running)
        now = time.perf_counter()
        self.planner.executed()
        schedule, received = self.schedule, current.received
        is_next_free = self._can_run_ahead and not schedule.finished and not schedule.is_due(schedule.round)
        if ahead and is_next_free and self.compiled:
            self._in_flight = self._begin(now)
        self.parts.source.on_learned(received, current.chunk)
        data_versions = None if received is None else received.versions
        return Executed(current.chunk, metrics, current.before, now - current.begun, data_versions)

    def restart(self) -> None:
        self.planner.restart()

    def write(self, run_dir: Path) -> None:
        pass

    def close(self) -> None:
        pass

    def _begin(self, now: float | None = None) -> ChunkInFlight:
        """Start the next chunk, at time `now`."""
        members, source, chunk = self.parts.members, self.parts.source, self._next()
        _ = members.states  # initial states are compiled here at the latest, which is no training
        begun = time.perf_counter() if now is None else now
        received = source.receive(members, chunk, self.schedule.following(chunk))
        running = members.start(chunk, None if received is None else received.fragment)
        return ChunkInFlight(chunk, received, running, self.schedule.usages, begun)

    def _next(self) -> Chunk:
        """Next chunk; if it has to be planned now, the device idles meanwhile."""
        begin = time.perf_counter()
        chunk = self.planner.next(self.parts.source.actors_in_flight)
        self.parts.counters.planning_seconds += time.perf_counter() - begin
        return chunk

    def _plan_ahead(self, running: Running) -> None:
        """Plan while the device is busy; if the device finishes first, the planning time counts as waiting."""
        begin = time.perf_counter()
        self.planner.plan_ahead(self.parts.source.actors_in_flight)
        if running.over:
            self.parts.counters.planning_seconds += time.perf_counter() - begin


def planner_of(executor: Executor) -> Planner:
    """Planner of an executor of simulated rounds. Raises TypeError for other executors."""
    if not isinstance(executor, SimulatedExecutor):
        raise TypeError(f"{type(executor).__name__} plans no rounds.")
    return executor.planner
