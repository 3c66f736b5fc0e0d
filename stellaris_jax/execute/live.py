"""Trainer of `executor=live`: its rounds run in processes (`stellaris_jax.live`) instead of being planned."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk import Chunk
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.execute.footprint import live_actors
from stellaris_jax.execute.planner import Planner
from stellaris_jax.execute.records import Record
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.live.actors import Width
from stellaris_jax.live.broker import Broker
from stellaris_jax.live.conductor import Conductor
from stellaris_jax.live.driver_steps import DriverSteps
from stellaris_jax.live.pool import Pool
from stellaris_jax.sources.live import LiveSource
from stellaris_jax.timeline import trace
from stellaris_jax.timeline.plan import empty_plan
from stellaris_jax.timeline.scaling.limits import is_scaled
from stellaris_jax.timeline.trace import Header

MakePool = Callable[[Config, int], Pool]
"""Function of a configuration and a largest number of actors that makes the pool running the functions."""


def settled(config: Config, actors: int = 0) -> Config:
    """Configuration adjusted to live execution: as many actors as processes and one round per chunk.

    No rollout overlaps the learning of the round before, except as `system.actors` says.
    """
    config = config.replace({"engine.chunk_rounds": 1, "env.overlap": False})
    if is_scaled(config):
        return config
    actors = min(actors, config.env.num_envs) or live_actors(config)
    return config.replace({"platform.actors": actors})


class LivePlanner(Planner):
    """Planner that knows the next round's size in advance and its content once it is over.

    Args:
      conductor: runs the rounds.
      arguments: arguments of `Planner`.
    """

    def __init__(self, conductor: Conductor, *arguments: Any):
        self._conductor = conductor
        super().__init__(*arguments)

    def _timelines(self) -> Sequence[Any]:
        return [self._conductor]

    def plan(self, begin: int, size: int) -> Chunk:
        """Next round, as far as it is known before it runs."""
        _, envs, widths = self._allot(None)
        plan = empty_plan(self.shape)
        plan.learning_rate[0] = self._learning_rate_factor(begin)
        return Chunk(begin, [plan], widths, envs, rounds=[[]], computed=[0], timelines=[])

    def plan_ahead(self) -> None:
        """Do nothing: a round cannot be planned before the one before it is over."""

    @property
    def actors(self) -> int:
        """Number of actors in the next round."""
        return self._allot(None).actors[0]

    def lived(self, chunk: Chunk) -> None:
        """Replace the plan of the next round by the round as it ran."""
        self._chunks[0] = chunk


class LiveTrainer(Trainer):
    """Trainer of one agent whose learners and actors are processes that come and go.

    Args:
      config, stopping, programs: see `Trainer`.
      make_pool: makes the pool that runs the functions, when it is needed; processes on Ray by default.
    """

    executor = "live"
    planner: LivePlanner

    def __init__(
        self,
        config: Config,
        stopping: threading.Event | None = None,
        programs: ProgramCache | None = None,
        make_pool: MakePool | None = None,
    ):
        super().__init__(settled(config), stopping, programs)
        if self.spec.host_fragments and is_scaled(config):
            raise ConfigError(
                f"scaling={config.scaling.name} is not possible with executor=live and env={config.env.name}, a host "
                "environment, whose actors are always as many; scaling=fixed is, with live.actors of them."
            )
        self._make_pool = make_pool or Broker
        self._is_warm = False
        self._written = 0

    def _planner(self) -> Planner:
        parts = DriverSteps(self.engine, self.members.hyper)
        standing = self.source.standing if isinstance(self.source, LiveSource) else None
        self.conductor = Conductor(self.config, parts, self.seeds[0], standing)
        return LivePlanner(self.conductor, self.config, self.spec, self.seeds, self.source, self.accounts)

    @property
    def compiled(self) -> bool:
        """Whether the processes are up, with their functions compiled."""
        return self._is_warm

    def compile(self) -> float:
        """Start the processes and compile everything there and here; returns the seconds it took."""
        if self._is_warm:
            return 0.0
        begin = time.perf_counter()
        if self.conductor.pool is None:
            self.conductor.pool = self._make_pool(self.config, self.planner.limits.maximum)
        state = self.planner.states[0]
        for width in self._widths():
            self.conductor.warm(self.members.states[0], width)
        self.conductor.restore(state)
        self._is_warm = True
        seconds = time.perf_counter() - begin
        self.engine.compile_seconds += seconds
        return seconds + self._compile_probe()

    def _widths(self) -> list[Width]:
        """Widths that rounds may have, except for the number of participating environments."""
        if not is_scaled(self.config):
            return [self._width(self.planner.next)]
        limits = self.limits
        return [Width(n, n * limits.envs, self.source.width(n)) for n in limits.buckets]

    def _width(self, chunk: Chunk) -> Width:
        return Width(self.planner.actors, chunk.envs[0], chunk.widths[0])

    def step(self, ahead: bool = False) -> list[Record]:
        """Run the next round and return its record."""
        if self.finished:
            return []
        self.compile()
        chunk, before = self.planner.next, self.usages
        begin = time.perf_counter()
        scale = float(chunk.plans[0].learning_rate[0])
        state, metrics, round_ = self.conductor.round(self.members.states[0], chunk.begin, self._width(chunk), scale)
        self.members.state = state
        used = sum(len(group.gradients) for group in round_.groups) + len(round_.dropped)
        chunk = replace(chunk, rounds=[[round_]], computed=[used], timelines=[self.conductor.state()])
        self.planner.lived(chunk)
        probes = self._measure(chunk)
        self.planner.executed()
        return self._accounted(chunk, metrics, before, time.perf_counter() - begin, probes)

    def write(self, run_dir: Path) -> None:
        """Append the rounds since the last call to the run's trace."""
        path, rounds = run_dir / trace.NAME, self.conductor.traced
        if not rounds:
            return
        first = rounds[0].record.index
        if first != self._written or not path.exists():
            header = Header(self.seeds[0], self.network.size)
            kept = islice(trace.read(path).rounds, first) if first and path.exists() else ()
            trace.write(path, header, kept)
        trace.append(path, rounds)
        self._written = first + len(rounds)
        rounds.clear()

    def close(self) -> None:
        """End all processes."""
        if self.conductor.pool is not None:
            self.conductor.pool.close()
        super().close()
