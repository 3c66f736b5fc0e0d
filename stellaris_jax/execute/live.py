"""Executor of `executor=live`: actors and learners are processes, and rounds happen as these end."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from itertools import islice
from pathlib import Path

from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk import Chunk
from stellaris_jax.execute.executor import ExecutorInputs, about
from stellaris_jax.execute.schedule import Executed, Participants, Schedule
from stellaris_jax.live import pool
from stellaris_jax.live.actor_inputs import Width
from stellaris_jax.live.conductor import Conductor
from stellaris_jax.live.driver_steps import DriverSteps
from stellaris_jax.live.free_conductor import FreeConductor
from stellaris_jax.live.round_conductor import RoundConductor
from stellaris_jax.sources.live import LiveShardSource, LiveSource
from stellaris_jax.timeline import trace
from stellaris_jax.timeline.scaling.limits import is_scaled
from stellaris_jax.timeline.trace import Header

MakePool = Callable[[Config, int], pool.Pool]
"""Function of a configuration and a largest number of actors that makes the pool running the functions."""


class LiveExecutor:
    """Executor of one agent's rounds by processes that come and go; see `stellaris_jax.execute.executor.Executor`.

    Args:
      inputs: inputs of the trainer.
      make_pool: makes the pool that runs the functions, when it is needed; `live.pool` by default.
    """

    def __init__(self, inputs: ExecutorInputs, make_pool: MakePool | None = None):
        self.inputs = inputs
        self.conductor = _conductor_of(inputs)
        self.schedule = Schedule(inputs.config, inputs.spec, inputs.seeds, [self.conductor])
        self._make_pool: MakePool = make_pool or pool.make_pool
        self._is_warm = False
        self._written = 0

    @property
    def under_way(self) -> bool:
        return False

    @property
    def compiled(self) -> bool:
        """Whether the processes are up, with their functions compiled."""
        return self._is_warm

    def compile(self) -> float:
        """Start the processes and compile everything there and here; returns the seconds it took."""
        begin = time.perf_counter()
        schedule, conductor = self.schedule, self.conductor
        if conductor.pool is None:
            conductor.pool = self._make_pool(self.inputs.config, schedule.limits.maximum)
        for width in self._widths():
            conductor.warm(self.inputs.seed_states.states[0], width)
        conductor.restore(schedule.states[0])
        self._is_warm = True
        seconds = time.perf_counter() - begin
        self.inputs.engine.compile_seconds += seconds
        return seconds

    def about_next(self) -> str:
        begin = self.schedule.round
        return about(self.schedule, begin, begin + 1, self.schedule.participants().widths)

    def step(self, ahead: bool) -> Executed:
        """Run the next round, never ahead of the one before."""
        schedule, conductor, seed_states = self.schedule, self.conductor, self.inputs.seed_states
        begin, before, number = time.perf_counter(), schedule.usages, schedule.round
        participants, factor = schedule.participants(), schedule.learning_rate_factor(number)
        state, metrics, round_ = conductor.round(seed_states.states[0], number, _width(participants), factor)
        seed_states.state = state
        chunk = Chunk(
            begin=number,
            rounds=[[round_]],
            factors=[factor],
            envs=participants.envs,
            computed=[sum(len(group.gradients) for group in round_.groups) + len(round_.dropped)],
            timelines=[conductor.state()],
        )
        probes = self.inputs.measurements.take(chunk)
        schedule.advance(chunk)
        return Executed(chunk, metrics, before, time.perf_counter() - begin, probes)

    def restart(self) -> None:
        self.conductor.restore(deepcopy(self.schedule.states[0]))

    def write(self, run_dir: Path) -> None:
        """Append the rounds since the last call to the run's trace."""
        path, rounds = run_dir / trace.NAME, self.conductor.traced
        if not rounds:
            return
        first = rounds[0].record.index
        if first != self._written or not path.exists():
            header = Header(self.inputs.seeds[0], self.inputs.engine.network.size)
            kept = islice(trace.read(path).rounds, first) if first and path.exists() else ()
            trace.write(path, header, kept)
        trace.append(path, rounds)
        self._written = first + len(rounds)
        rounds.clear()

    def close(self) -> None:
        """End all processes."""
        if self.conductor.pool is not None:
            self.conductor.pool.close()

    def _widths(self) -> list[Width]:
        """Widths that rounds may have, except for the number of participating environments."""
        schedule = self.schedule
        if not is_scaled(self.inputs.config):
            return [_width(schedule.participants())]
        return [Width(n, n * schedule.limits.envs, schedule.width(n)) for n in schedule.limits.buckets]


def _conductor_of(inputs: ExecutorInputs) -> Conductor:
    """Conductor for `system.actors`."""
    config, seed = inputs.config, inputs.seeds[0]
    steps = DriverSteps(inputs.engine, inputs.seed_states.hyper)
    if config.actor_shards:
        positions = inputs.source.positions if isinstance(inputs.source, LiveShardSource) else None
        return FreeConductor(config, steps, seed, positions)
    position = inputs.source.position if isinstance(inputs.source, LiveSource) else None
    return RoundConductor(config, steps, seed, position)


def _width(participants: Participants) -> Width:
    """Width of the one seed's round."""
    return Width(participants.actors[0], participants.envs[0], participants.widths[0])
