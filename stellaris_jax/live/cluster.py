"""Pool of processes on Ray: one per learner and actor, started at its first invocation, replaced when it dies."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import extend_path
from stellaris_jax.config.tree import Config
from stellaris_jax.live.accelerators import process_environment
from stellaris_jax.live.functions import Functions
from stellaris_jax.live.join import LOCAL, join, leave
from stellaris_jax.live.pool import LEARNER, Call, Done, function_error

STORE_BYTES = 2**29
"""Memory for versions, fragments and gradients of a local cluster, in bytes."""
START_SECONDS = 300.0
"""Seconds that a process may take to start and compile, in addition to the timeout of an invocation."""
POLL_SECONDS = 0.2
ANYWHERE = 1e-3
"""CPU cores requested by a process that shares the available ones."""


class FunctionProcess:
    """Ray actor that runs functions in a separate process.

    Args:
      config: configuration of the run.
      directory: the driver's working directory, for plug-ins with relative paths.
      path: the driver's module search path.
    """

    def __init__(self, config: Config, directory: str, path: Sequence[str]):
        with suppress(OSError):
            os.chdir(directory)
        extend_path(path)
        self._functions = Functions(config)

    def invoke(self, kind: str, *arguments: Any) -> tuple[Any, float]:
        """Call a function; see `Functions.invoke`."""
        return tuple(self._functions.invoke(kind, *arguments))


@dataclass
class Process:
    """Process of the pool.

    Attributes:
      actor: Ray's handle of the process.
      used: end of its last invocation, of `time.monotonic`; `None` before the first.
    """

    actor: Any
    used: float | None = None


@dataclass
class UnderWay:
    """Invocation under way.

    Attributes:
      call: the invocation.
      process: process that computes it.
      started: start time, of `time.monotonic`.
    """

    call: Call
    process: Process
    started: float


class Processes:
    """Pool of processes on Ray; see `stellaris_jax.live.pool.Pool`.

    Args:
      config: configuration of the run.
      actors: largest number of actors.
      beat: called repeatedly during a wait.

    Raises:
      ConfigError: the cluster cannot be joined, or lacks the requested resources.
    """

    def __init__(self, config: Config, actors: int, beat: Callable[[], None] = lambda: None):
        self._config, self._beat = config, beat
        self.vitals = join("live.address", config.live.address or LOCAL, STORE_BYTES)
        try:
            self._check(actors)
        except ConfigError:
            self.close()
            raise
        self._remote: Any = ray.remote(FunctionProcess)
        self._shared = ray.put(config)
        self._processes: dict[tuple[str, int], Process] = {}
        self._under_way: dict[Any, UnderWay] = {}

    def _check(self, actors: int) -> None:
        """Raise ConfigError if processes request more than the cluster has."""
        live, learners = self._config.live, self._config.system.learners
        resources = ray.cluster_resources()
        for kind, learner, actor in (
            ("CPU", live.learner_cpus, live.actor_cpus),
            ("GPU", live.learner_gpus, live.actor_gpus),
        ):
            needed, has = learners * learner + actors * actor, resources.get(kind, 0.0)
            if needed > has:
                low = kind.lower()
                raise ConfigError(
                    f"live.learner_{low}s={learner:g} for {learners} learners and live.actor_{low}s={actor:g} for "
                    f"{actors} actors are {needed:g} {kind}s, while the cluster has {has:g}."
                )

    def put(self, value: Any) -> Any:
        """Store a value in the cluster; returns its handle for calls. The value is sent to every node once."""
        return ray.put(value)

    def get(self, handle: Any) -> Any:
        """Value of a handle."""
        return ray.get(handle)

    def submit(self, call: Call, *arguments: Any) -> None:
        """Call a learner's or an actor's process; the process is started if necessary."""
        key = (call.kind, call.number)
        process = self._processes.get(key)
        if process is None:
            process = self._processes[key] = Process(self._start(call))
        invocation = process.actor.invoke.remote(call.kind, *arguments)
        self._under_way[invocation] = UnderWay(call, process, time.monotonic())

    def _start(self, call: Call) -> Any:
        live = self._config.live
        cpus, gpus = (
            (live.learner_cpus, live.learner_gpus) if call.kind == LEARNER else (live.actor_cpus, live.actor_gpus)
        )
        variables = {"env_vars": process_environment(gpus)}
        options = self._remote.options(
            num_cpus=cpus or ANYWHERE, num_gpus=gpus, scheduling_strategy="SPREAD", runtime_env=variables
        )
        return options.remote(self._shared, os.getcwd(), sys.path)

    def wait(self) -> list[Done]:
        """Wait for at least one invocation to end; returns those that ended, or nothing if none is under way."""
        while self._under_way:
            self._beat()
            ready, _ = ray.wait(list(self._under_way), timeout=POLL_SECONDS)
            if ready:  # also take all others that have ended
                ready, _ = ray.wait(list(self._under_way), num_returns=len(self._under_way), timeout=0)
            done = [self._ended(reference) for reference in ready]
            done += self._overdue()
            self._end_idle()
            if done:
                return sorted(done, key=lambda ended: ended.call.stamp)
        return []

    def _ended(self, reference: Any) -> Done:
        """Result of an invocation that has ended, by success or failure."""
        invocation = self._under_way.pop(reference)
        try:
            value, seconds = ray.get(reference)
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise function_error(invocation.call, cause) from error
        except RayError as error:
            self._replace(invocation)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            return Done(
                invocation.call, None, 0.0, time.monotonic() - invocation.started, f"{type(error).__name__}: {reason}"
            )
        cold, invocation.process.used = invocation.process.used is None, time.monotonic()
        return Done(invocation.call, value, seconds, invocation.process.used - invocation.started, cold=cold)

    def _overdue(self) -> list[Done]:
        """Kill the processes of invocations that exceed their timeout; returns these."""
        now, overdue = time.monotonic(), []
        for reference, invocation in list(self._under_way.items()):
            patience = self._config.live.timeout + invocation.call.grace
            patience += START_SECONDS if invocation.process.used is None else 0.0
            if now - invocation.started > patience:
                del self._under_way[reference]
                self._replace(invocation)
                overdue.append(
                    Done(
                        invocation.call,
                        None,
                        0.0,
                        now - invocation.started,
                        f"nothing was heard for {patience:g} seconds",
                    )
                )
        return overdue

    def _replace(self, invocation: UnderWay) -> None:
        """Kill a dead or stuck process; its next invocation starts a new one."""
        key = (invocation.call.kind, invocation.call.number)
        if self._processes.get(key) is invocation.process:
            del self._processes[key]
        ray.kill(invocation.process.actor)

    def _end_idle(self) -> None:
        """End processes that have been idle for too long."""
        busy = {id(invocation.process) for invocation in self._under_way.values()}
        now, patience = time.monotonic(), self._config.platform.keep_alive
        for key, process in list(self._processes.items()):
            if id(process) not in busy and process.used is not None and now - process.used > patience:
                del self._processes[key]
                ray.kill(process.actor)

    def cool(self) -> None:
        """End all idle processes."""
        busy = {id(invocation.process) for invocation in self._under_way.values()}
        for key, process in list(self._processes.items()):
            if id(process) not in busy:
                del self._processes[key]
                ray.kill(process.actor)

    def close(self) -> None:
        """End all processes, and the cluster if this process started it."""
        for process in getattr(self, "_processes", {}).values():
            with suppress(Exception):
                ray.kill(process.actor)
        if self.vitals is not None:
            leave()
