"""Sweeps on disk and their training: concurrent points share compiled programs, and every point can be resumed.

The directory of a sweep holds `sweep.yaml` and one directory per point, named by its number. Every point's
`config.yaml` is written before any point starts, so a stopped sweep still knows all its points.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf
from rich.console import Console

from stellaris_jax.base.commands import argument, command
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.outputs import refuse_links, write_atomically
from stellaris_jax.config.schema import flatten, plain
from stellaris_jax.config.stored import read_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk_cache import SHARED, ChunkCache
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.execute.footprint import max_concurrent_runs
from stellaris_jax.execute.run import train_within
from stellaris_jax.execute.session import Interrupted
from stellaris_jax.live.vitals import ClusterDied
from stellaris_jax.many.concurrency import WorkerLost, in_threads, stoppable
from stellaris_jax.report.results import ABOUT, points, settings_of
from stellaris_jax.report.runs import read_run
from stellaris_jax.runs.run_dir import run_directory, store, writing
from stellaris_jax.runs.signals import Signals
from stellaris_jax.telemetry.jsonl import warn_on_stderr
from stellaris_jax.telemetry.shared_display import PointDisplay, SharedDisplay

if TYPE_CHECKING:
    from stellaris_jax.many.cluster import Cluster, Remote, Resources

TRIES = 3
"""Number of lost workers after which a point has failed."""


def lay_out(directory: Path, configs: Sequence[Config], overrides: Sequence[str]) -> list[Config]:
    """Make the directories of a sweep's points.

    Args:
      directory: directory of the sweep.
      configs: one for each point.
      overrides: command-line overrides of the sweep.

    Returns:
      The configurations, each with its directory.

    Raises:
      ConfigError: the directory is not empty.
      RunError: the directory cannot be written.
    """
    if directory.is_dir() and any(directory.iterdir()):
        resume_advice = f", or continue the sweep with -m {argument('resume', directory)}"
        advice = resume_advice if (directory / ABOUT).is_file() else ""
        raise ConfigError(f"hydra.sweep.dir={directory} is not empty; name another directory{advice}.")
    laid = []
    with writing(directory):
        for number, config in enumerate(configs):
            place = directory / str(number)
            place.mkdir(parents=True)
            store(config, place)
            laid.append(config.replace({"resume": str(place), "run.dir": str(place)}))
        settings = settings_of([flatten(plain(config)) for config in configs])
        about = {"overrides": list(overrides), "points": len(configs), "settings": settings}
        write_atomically(directory / ABOUT, OmegaConf.to_yaml(OmegaConf.create(about)))
    return laid


def laid_out(directory: Path) -> list[Path]:
    """Directories of the points of a sweep to resume. Raises ConfigError, and RunError if one of them is a link."""
    path = directory / ABOUT
    if not path.is_file():
        raise ConfigError(f"resume={directory} holds no sweep: there is no {path}.")
    count, places = read_yaml(path).get("points"), points(directory)
    if count != len(places):
        raise ConfigError(f"resume={directory} should hold {count} points, says {path}, and holds {len(places)}.")
    with writing(directory):
        refuse_links(*places)
    return places


def is_done(config: Config) -> bool:
    """Whether the run of a point is over, with or without a result, and no file is damaged."""
    run = read_run(Path(config.run.dir), lambda message: None)
    if run.failure is not None:
        return True
    if run.summary is None or run.damage:
        return False
    try:
        return bool(run.summary["ended_early"] or run.summary["rounds"] >= config.rounds)
    except (KeyError, TypeError):
        return False


@dataclass
class Outcome:
    """Outcome of a sweep.

    Attributes:
      failed: numbers of the points without a result.
      error: first unforeseen error.
    """

    failed: list[int] = field(default_factory=list)
    error: BaseException | None = None

    def add(self, number: int, error: BaseException) -> None:
        """Record a failed point and report the reason."""
        self.failed.append(number)
        if isinstance(error, ConfigError | RunError):
            warn_on_stderr(f"error: {error}")
            return
        warn_on_stderr(f"error: point {number} failed: {type(error).__name__}: {error}")
        self.error = self.error or error


def train_points(directory: Path, configs: Sequence[Config], cluster: Cluster | None = None) -> Outcome:
    """Train the unfinished points of a sweep, as many at a time as cores and memory allow.

    Points with equal programs run in succession and share them. Each point gets the same result as it would alone.

    Args:
      directory: directory of the sweep.
      configs: configurations of all points, each with its directory (`lay_out`).
      cluster: cluster whose workers train the points; `None` uses threads of this process.

    Raises:
      Interrupted: a signal arrived and everything was saved; Abandoned after a second one.
      ClusterDied: the cluster died; the sweep can be resumed.
    """
    done = {number for number, config in enumerate(configs) if is_done(config)}
    steps = [config.total_steps * config.num_seeds for config in configs]
    progress = all(config.run.progress for config in configs)
    with closing(SharedDisplay(Console(), steps, done, progress)) as display:

        def farewell() -> str:
            if not directory.is_dir():
                return f"stopped; {directory} was moved or removed while the sweep was trained"
            resume = f"{command('train')} -m {argument('resume', directory)}"
            return f"stopped; {len(display.done)} of {len(configs)} points are done; continue with: {resume}"

        with stoppable(display, directory, farewell) as signals:
            work = _Work(configs, done, display, signals, cluster)
            work.through()
    return work.outcome


class _Work:
    """Queue of a sweep's unfinished points, consumed by threads, each of which may have a worker."""

    def __init__(
        self,
        configs: Sequence[Config],
        done: set[int],
        display: SharedDisplay,
        signals: Signals,
        cluster: Cluster | None,
    ):
        self.configs, self.display, self.signals, self.cluster = configs, display, signals, cluster
        self.outcome = Outcome()
        keys = [(config.env, config.network, ProgramSpec.of(config)) for config in configs]
        first = {key: keys.index(key) for key in set(keys)}
        self._groups = [first[key] for key in keys]
        self._order = deque(sorted(set(range(len(configs))) - done, key=lambda number: (self._groups[number], number)))
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
        self.width = min(places, len(unfinished))

    def through(self) -> None:
        """Train all points; raises only errors that end the process."""
        if self.width:
            in_threads(self.width, "points", self._remotely if self.cluster else lambda: self._points(self._train))
        while self._order and not self.signals.stopping.is_set():
            self.outcome.add(self._order.popleft(), RunError("the cluster has no worker left."))

    def _points(self, train: Callable[[int], object]) -> None:
        """Train points until none are left."""
        while not self.signals.stopping.is_set():
            with self._lock:
                if not self._order:
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
            train_within(run_dir, config, self._shown(number), self.signals, programs)

    def _shown(self, number: int) -> PointDisplay:
        config = self.configs[number]
        return PointDisplay(self.display, number, config.rounds, config.num_seeds)

    # On a cluster --------------------------------------------------------------------------------------------------

    def _remotely(self) -> None:
        """Train points on a worker; start a new worker when one is lost."""
        assert self.cluster is not None and self._resources is not None
        while self._order and not self.signals.stopping.is_set():
            lost = sum(self._lost.values())
            try:
                with self.cluster.worker(self._resources, self._devices) as worker:
                    self._points(partial(self._train_by, worker))
            except WorkerLost:
                if sum(self._lost.values()) == lost:  # the worker never started
                    return

    def _train_by(self, worker: Remote, number: int) -> None:
        worker.train(self._groups[number], self.configs[number], self._shown(number), self.signals.stopping)

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
