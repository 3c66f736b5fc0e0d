"""Sweep points on a Ray cluster: each worker trains points one after the other in its own process.

A worker keeps its compiled programs from point to point. Workers write the run directories, so all nodes must share the
sweep's file system.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from rich.console import Console

from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.registry import extend_path, load_plugins
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk_cache import SHARED, ChunkCache
from stellaris_jax.engine.mesh import emulate
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.execute.footprint import needed
from stellaris_jax.execute.run import train_within
from stellaris_jax.execute.session import Interrupted
from stellaris_jax.live.accelerators import process_environment, take_memory_as_needed
from stellaris_jax.live.join import join, leave
from stellaris_jax.live.vitals import OUT_OF_REACH_SECONDS, ClusterDied, Vitals, Watch
from stellaris_jax.many.concurrency import Watch as RunWatch
from stellaris_jax.many.concurrency import WorkerLost
from stellaris_jax.runs.run_dir import run_directory
from stellaris_jax.runs.signals import Signals
from stellaris_jax.telemetry.shared_display import PointDisplay

STORE_BYTES = 2**27
"""Bytes that a local cluster reserves for objects; only progress passes through it."""
POLL_SECONDS = 0.5
START_SECONDS = 120.0
"""Seconds within which a worker must start; a cluster that has lost its nodes never starts one."""
SAVE_SECONDS = 20.0
"""Seconds that surviving workers get to save their points after a part of the cluster has died."""


class Progress(NamedTuple):
    """Progress of a worker since the last call.

    Attributes:
      steps: environment steps of its point.
      returns: evaluated returns.
      notes: messages.
    """

    steps: int
    returns: list[float]
    notes: list[str]


class Relay:
    """Buffer with the interface of the shared display: a worker's progress waits here until the driver fetches it."""

    def __init__(self) -> None:
        self.console = Console(quiet=True)
        self._steps, self._returns, self._notes = 0, list[float](), list[str]()
        self._lock = threading.Lock()

    def advanced(self, point: int, steps: int) -> None:
        self._steps = steps

    def evaluated(self, point: int, value: float | None) -> None:
        if value is not None:
            with self._lock:
                self._returns.append(value)

    def working(self, text: str, point: int) -> None: ...

    def note(self, text: str, point: int | None = None) -> None:
        with self._lock:
            self._notes.append(text)

    def fetch(self) -> Progress:
        """Return the progress since the last call."""
        with self._lock:
            news = Progress(self._steps, self._returns, self._notes)
            self._returns, self._notes = [], []
        return news


class Ended(NamedTuple):
    """Outcome of a point.

    Attributes:
      stopped: the point was stopped and saved.
      error: message of the error; "" without one.
      foreseen: False if the error is a bug; then `error` includes the trace.
    """

    stopped: bool = False
    error: str = ""
    foreseen: bool = True


class Worker:
    """Ray actor that trains points in a process of the cluster; it answers calls while a point is under way."""

    def __init__(self, directory: str, devices: int, path: Sequence[str]):
        with suppress(OSError):  # for plug-ins with relative paths; loading reports those it does not find
            os.chdir(directory)
        extend_path(path)
        emulate(devices)
        self._programs: dict[int, ProgramCache] = {}
        self._relay = Relay()
        self._signals = Signals(self._relay.note, lambda: None)

    def ready(self) -> bool:
        """Return True once the process is up."""
        return True

    def train(self, group: int, config: Config, watch: RunWatch) -> Ended:
        """Train a point in its directory until `watch` ends it; points of one group share compiled programs."""
        self._relay.advanced(0, 0)
        display = PointDisplay(self._relay, 0, config.rounds, config.num_seeds)
        programs = self._programs.get(group) or ProgramCache(ChunkCache(SHARED))
        self._programs = {group: programs}  # groups follow one another
        try:
            load_plugins(config.plugins)
            with run_directory(config) as run_dir:
                train_within(run_dir, config, display, self._signals, programs, watch=watch)
        except Interrupted:
            return Ended(stopped=True)
        except (ConfigError, RunError) as error:
            return Ended(error=str(error))
        except (Exception, SystemExit) as error:
            return Ended(error=f"{type(error).__name__}: {error}\n{traceback.format_exc()}", foreseen=False)
        return Ended()

    def progress(self) -> Progress:
        """Return the progress of the current point."""
        return self._relay.fetch()

    def stop(self) -> None:
        """Save the current point and stop it."""
        self._signals.stop()


class Resources(NamedTuple):
    """Resources of one worker.

    Attributes:
      cpus: CPU cores.
      gpus: GPUs.
      memory: bytes.
    """

    cpus: float
    gpus: float
    memory: int


def places(nodes: Sequence[dict[str, float]], memory: int) -> tuple[Resources, int]:
    """Resources of each worker and number of workers: one per GPU if there are any, else one per core.

    Args:
      nodes: resources of each node, as Ray counts them.
      memory: bytes that a worker needs.

    >>> places([{"CPU": 4, "memory": 8e9}, {"CPU": 2, "memory": 1.5e9}], memory=10**9)
    (Resources(cpus=1.0, gpus=0.0, memory=1000000000), 5)
    """
    gpus = any(node.get("GPU", 0) >= 1 for node in nodes)
    slots = [node.get("GPU" if gpus else "CPU", 0) for node in nodes]
    room = [node.get("memory", 0) // max(1, memory) for node in nodes]
    return Resources(1.0, float(gpus), memory), sum(int(min(pair)) for pair in zip(slots, room, strict=True))


class Remote:
    """Driver-side handle of a worker."""

    def __init__(self, actor: Any, cluster: Cluster):
        self.actor, self._cluster = actor, cluster
        self._news: Any = None  # pending request for progress

    def train(
        self, group: int, config: Config, display: PointDisplay, stopping: threading.Event, watch: RunWatch
    ) -> None:
        """Train a point on the worker and show its progress here.

        Args:
          group: number shared by points that share compiled programs.
          config: configuration of the point.
          display: shows progress.
          stopping: once it is set, the point is saved and stopped.
          watch: called with every evaluation's record on the worker; true ends the point.

        Raises:
          Interrupted: the point was stopped.
          RunError: the point has no result; RuntimeError for an unforeseen reason.
          WorkerLost: the worker's process is gone.
          ClusterDied: a part of the cluster is gone; the point was saved if its process survived.
        """
        under_way: Any = self.actor.train.remote(group, config, watch)
        stop_sent = False
        try:
            while not ray.wait([under_way], timeout=POLL_SECONDS)[0]:
                if self._cluster.died:
                    self.actor.stop.remote()
                    ray.wait([under_way], timeout=SAVE_SECONDS)
                    self._cluster.check()
                self._show(display)
                if stopping.is_set() and not stop_sent:
                    self.actor.stop.remote()
                    stop_sent = True
            ended: Ended = ray.get(under_way)
            if self._news is not None:
                self._show(display, SAVE_SECONDS)
            self._show(display, SAVE_SECONDS)
        except RayActorError as error:
            self._cluster.check()
            raise WorkerLost(str(error)) from None
        if ended.stopped:
            raise Interrupted(signal.SIGTERM, Path(config.run.dir))
        if ended.error:
            raise RunError(ended.error) if ended.foreseen else RuntimeError(ended.error)

    def _show(self, display: PointDisplay, timeout: float = POLL_SECONDS) -> None:
        """Show the worker's progress; a reply later than `timeout` seconds is shown by a later call."""
        if self._news is None:
            self._news = self.actor.progress.remote()
        if ray.wait([self._news], timeout=timeout)[0]:
            news, self._news = self._news, None
            _show(ray.get(news), display)


class Cluster:
    """Connection of this process to a cluster, with a thread that watches it.

    Args:
      vitals: parts that the cluster cannot lose; `None` for a cluster that is not watched.

    `died` names the part that has died, as the beginning of a sentence; it is empty while all parts live.
    """

    def __init__(self, vitals: Vitals | None):
        self._vitals = vitals or Vitals()
        self.died = ""
        self._over = threading.Event()
        threading.Thread(target=self._watch_parts, name="cluster", daemon=True).start()

    def _watch_parts(self) -> None:
        watch = Watch(self._vitals, OUT_OF_REACH_SECONDS)
        while not (self.died or self._over.wait(POLL_SECONDS)):
            self.died = watch.died()

    def check(self) -> None:
        """Raise ClusterDied if a part of the cluster has died."""
        if not self.died:
            time.sleep(2 * POLL_SECONDS)  # the caller may have noticed before `_watch_parts`
        if self.died:
            raise ClusterDied(f"{self.died}{self._vitals.about_logs}.")

    def close(self) -> None:
        """Stop watching the cluster."""
        self._over.set()

    def places(self, configs: Sequence[Config]) -> tuple[Resources, int]:
        """Resources of each worker and number of workers, for these runs."""
        return places([node["Resources"] for node in ray.nodes() if node["Alive"]], needed(configs))

    @contextmanager
    def worker(self, resources: Resources, devices: int) -> Iterator[Remote]:
        """Worker whose JAX sees `devices` devices, until the context ends. Raises WorkerLost if there is none."""
        options = {
            "num_cpus": resources.cpus,
            "num_gpus": resources.gpus,
            "memory": resources.memory,
            "runtime_env": {"env_vars": process_environment(resources.gpus)},
        }
        remote: Any = ray.remote(Worker)
        actor = remote.options(max_concurrency=2, **options).remote(os.getcwd(), devices, sys.path)
        try:
            self._wait_for(actor.ready.remote())
            yield Remote(actor, self)
        except (GetTimeoutError, RayActorError) as error:
            self.check()
            raise WorkerLost(str(error)) from None
        finally:
            if not self.died:  # Ray would wait for a dead cluster
                ray.kill(actor)

    def _wait_for(self, ready: Any) -> None:
        """Wait for a worker to start. Raises GetTimeoutError after `START_SECONDS`, ClusterDied if it never will."""
        deadline = time.monotonic() + START_SECONDS
        while not ray.wait([ready], timeout=POLL_SECONDS)[0]:
            if self.died:
                self.check()
            if time.monotonic() > deadline:
                raise GetTimeoutError("no worker has started")
        ray.get(ready)


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connection to the cluster at an address, or to a `local` one that ends with the context.

    Raises ConfigError.
    """
    take_memory_as_needed()
    vitals = join("sweep.ray", address, STORE_BYTES)
    cluster = Cluster(vitals)
    try:
        yield cluster
    finally:
        cluster.close()
        if vitals is not None:
            leave(died=bool(cluster.died))


def _show(news: Progress, display: PointDisplay) -> None:
    if news.steps:
        display.shared.advanced(display.point, news.steps)
    for value in news.returns:
        display.shared.evaluated(display.point, value)
    for text in news.notes:
        display.note(text)
