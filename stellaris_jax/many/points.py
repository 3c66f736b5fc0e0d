"""Queue of runs of one directory, trained by threads or by workers of a cluster, which share compiled programs."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk_cache import SHARED, ChunkCache
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.execute.footprint import max_concurrent_runs
from stellaris_jax.execute.run import train_within
from stellaris_jax.execute.session import Interrupted
from stellaris_jax.live.vitals import ClusterDied
from stellaris_jax.many.concurrency import Watch, WorkerLost, in_threads, to_the_end
from stellaris_jax.runs.run_dir import run_directory
from stellaris_jax.runs.signals import Signals
from stellaris_jax.telemetry.jsonl import warn_on_stderr
from stellaris_jax.telemetry.shared_display import PointDisplay, SharedDisplay

if TYPE_CHECKING:
    from stellaris_jax.many.cluster import Cluster, Remote, Resources

TRIES = 3
"""Number of lost workers after which a point has failed."""


@dataclass
class Outcome:
    """Outcome of a sweep.

    Attributes:
      failed: numbers of the points without a result.
      error: first unforeseen error.
      reasons: error of each point without a result.
    """

    failed: list[int] = field(default_factory=list)
    error: BaseException | None = None
    reasons: dict[int, BaseException] = field(default_factory=dict)

    def add(self, number: int, error: BaseException) -> None:
        """Record a failed point and report the reason."""
        self.failed.append(number)
        self.reasons[number] = error
        if isinstance(error, ConfigError | RunError):
            warn_on_stderr(f"error: {error}")
            return
        warn_on_stderr(f"error: point {number} failed: {type(error).__name__}: {error}")
        self.error = self.error or error


class PointQueue:
    """Queue of unfinished points, consumed by threads, each of which may have a worker.

    Points with equal programs run in succession and share them. Each point gets the same result as it would alone.

    Args:
      configs: configurations of all points, each with its directory.
      done: numbers of the points that are not trained.
      display: shows progress.
      signals: stop all points.
      cluster: cluster whose workers train the points; `None` uses threads of this process.
      watch_of: makes the watch of a point.
      may_start: whether another point may start now; false leaves the rest untrained.
      order: numbers in the order of their starts; by default points of equal programs follow one another.
      parallel: most concurrent points; by default as many as cores and memory, or the cluster, allow.

    Attributes:
      outcome: points without a result.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        done: Collection[int],
        display: SharedDisplay,
        signals: Signals,
        cluster: Cluster | None = None,
        watch_of: Callable[[int], Watch] = lambda number: to_the_end,
        may_start: Callable[[], bool] = lambda: True,
        order: Sequence[int] = (),
        parallel: int | None = None,
    ):
        self.configs, self.display, self.signals, self.cluster = configs, display, signals, cluster
        self.watch_of, self.may_start = watch_of, may_start
        self.outcome = Outcome()
        keys = [(config.env, config.network, ProgramSpec.of(config)) for config in configs]
        first = {key: keys.index(key) for key in set(keys)}
        self._groups = [first[key] for key in keys]
        by_program = sorted(range(len(configs)), key=lambda number: (self._groups[number], number))
        self._order = deque(number for number in order or by_program if number not in done)
        self._left = Counter(self._groups[number] for number in self._order)
        self._programs: dict[int, ProgramCache] = {}
        self._lost: Counter[int] = Counter()
        self._lock = threading.Lock()
        unfinished = [configs[number] for number in self._order]
        if any(config.engine.distributed for config in unfinished):
            raise ConfigError("engine.distributed=true trains one run at a time, and a sweep trains many.")
        self._devices = max((config.engine.devices for config in unfinished), default=1)
        self._resources: Resources | None = None
        if cluster:
            self._resources, places = cluster.places(unfinished)
        else:
            places = max_concurrent_runs(unfinished)
        self.width = min(places, len(unfinished), places if parallel is None else parallel)

    def through(self) -> None:
        """Train all points; raises only errors that end the process."""
        if self.width:
            in_threads(self.width, "points", self._remotely if self.cluster else lambda: self._points(self._train))
        while self._order and not self.signals.stopping.is_set() and self.may_start():
            self.outcome.add(self._order.popleft(), RunError("the cluster has no worker left."))

    def _points(self, train: Callable[[int], object]) -> None:
        """Train points until none are left."""
        while not self.signals.stopping.is_set():
            with self._lock:
                if not self._order or not self.may_start():
                    return
                number = self._order.popleft()
            try:
                train(number)
            except Interrupted:
                return
            except ClusterDied:
                raise
            except WorkerLost:
                if self._goes_on(number):
                    raise
            except (Exception, SystemExit) as error:
                with self._lock:
                    self.outcome.add(number, error)
            with self._lock:
                group = self._groups[number]
                self._left[group] -= 1
                if not self._left[group]:
                    self._programs.pop(group, None)  # no other point needs them
            self.display.finished(number)

    def _train(self, number: int) -> None:
        with self._lock:
            programs = self._programs.setdefault(self._groups[number], ProgramCache(ChunkCache(SHARED)))
        config = self.configs[number]
        with run_directory(config) as run_dir:
            train_within(run_dir, config, self._shown(number), self.signals, programs, watch=self.watch_of(number))

    def _shown(self, number: int) -> PointDisplay:
        config = self.configs[number]
        return PointDisplay(self.display, number, config.rounds, config.num_seeds)

    # On a cluster --------------------------------------------------------------------------------------------------

    def _remotely(self) -> None:
        """Train points on a worker; start a new worker when one is lost."""
        assert self.cluster is not None and self._resources is not None
        while self._order and not self.signals.stopping.is_set() and self.may_start():
            lost = sum(self._lost.values())
            try:
                with self.cluster.worker(self._resources, self._devices) as worker:
                    self._points(partial(self._train_by, worker))
            except WorkerLost:
                if sum(self._lost.values()) == lost:  # the worker never started
                    return

    def _train_by(self, worker: Remote, number: int) -> None:
        group, config = self._groups[number], self.configs[number]
        worker.train(group, config, self._shown(number), self.signals.stopping, self.watch_of(number))

    def _goes_on(self, number: int) -> bool:
        """Whether a point whose worker was lost gets another worker; otherwise it has failed."""
        with self._lock:
            self._lost[number] += 1
            goes_on = self._lost[number] < TRIES
            if goes_on:
                self._order.appendleft(number)
            else:
                self.outcome.add(number, RunError(f"its worker was lost {TRIES} times."))
        if goes_on:
            self.display.note(f"the worker of point {number} is gone; another one goes on with it")
        return goes_on
