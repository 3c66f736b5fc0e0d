"""A pool of processes on Ray: one per learner and actor, started when it is first invoked, replaced when it dies."""

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

from stellaris_jax.config.schema import ConfigError, RunError
from stellaris_jax.config.tree import Config
from stellaris_jax.live.accelerators import process_environment
from stellaris_jax.live.functions import Functions
from stellaris_jax.live.join import LOCAL, join, leave
from stellaris_jax.live.pool import LEARNER, Call, Done
from stellaris_jax.registry import extend_path

STORE_BYTES = 2**29
"""Memory for versions, fragments and gradients on a machine of one's own."""
START_SECONDS = 300.0
"""How long a process may take to start and to compile, beside what an invocation may take."""
POLL_SECONDS = 0.2
ANYWHERE = 1e-3
"""CPU cores that a process asks for which takes its share of whatever there is."""


class FunctionProcess:
    """Runs functions in a process of its own.

    Args:
      config: the run's.
      directory: where the driver runs, for plug-ins named by relative paths.
      path: folders in which the driver looks for modules.
    """

    def __init__(self, config: Config, directory: str, path: Sequence[str]):
        with suppress(OSError):
            os.chdir(directory)
        extend_path(path)
        self._functions = Functions(config)

    def learn(self, *arguments: Any) -> tuple[Any, float]:
        """See `Functions.learn`."""
        return tuple(self._functions.learn(*arguments))

    def roll(self, *arguments: Any) -> tuple[Any, float]:
        """See `Functions.roll`."""
        return tuple(self._functions.roll(*arguments))


@dataclass
class Process:
    """A process of the pool. used: when its last invocation ended; `None` before the first."""

    actor: Any
    used: float | None = None


@dataclass
class UnderWay:
    """An invocation under way: by whom, and since when."""

    call: Call
    process: Process
    asked: float


class Processes:
    """See `stellaris_jax.live.pool.Pool`.

    Args:
      config: the run's.
      actors: the most there are.
      beat: called again and again while something is waited for.

    Raises:
      ConfigError: the cluster cannot be joined, or has not what is asked for.
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
        """Raise ConfigError if processes ask for more than the cluster has."""
        live, learners = self._config.live, self._config.system.learners
        there_is = ray.cluster_resources()
        for kind, learner, actor in (
            ("CPU", live.learner_cpus, live.actor_cpus),
            ("GPU", live.learner_gpus, live.actor_gpus),
        ):
            needed, has = learners * learner + actors * actor, there_is.get(kind, 0.0)
            if needed > has:
                low = kind.lower()
                raise ConfigError(
                    f"live.learner_{low}s={learner:g} for {learners} learners and live.actor_{low}s={actor:g} for "
                    f"{actors} actors are {needed:g} {kind}s, while the cluster has {has:g}."
                )

    def put(self, value: Any) -> Any:
        """What stands for a value in calls: it travels to every node once."""
        return ray.put(value)

    def get(self, handle: Any) -> Any:
        """The value that stands behind it."""
        return ray.get(handle)

    def submit(self, call: Call, *arguments: Any) -> None:
        """Have a learner's or an actor's process called, which is started if it is not there."""
        key = (call.kind, call.number)
        process = self._processes.get(key)
        if process is None:
            process = self._processes[key] = Process(self._start(call))
        method = process.actor.learn if call.kind == LEARNER else process.actor.roll
        self._under_way[method.remote(*arguments)] = UnderWay(call, process, time.monotonic())

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
        """What has ended, at least one invocation; nothing if none is under way."""
        while self._under_way:
            self._beat()
            ready, _ = ray.wait(list(self._under_way), timeout=POLL_SECONDS)
            if ready:  # and whatever else is there already
                ready, _ = ray.wait(list(self._under_way), num_returns=len(self._under_way), timeout=0)
            done = [self._ended(reference) for reference in ready]
            done += self._overdue()
            self._let_go()
            if done:
                return sorted(done, key=lambda one: one.call.stamp)
        return []

    def _ended(self, reference: Any) -> Done:
        """An invocation of which something is known."""
        one = self._under_way.pop(reference)
        try:
            value, seconds = ray.get(reference)
        except RayTaskError as error:
            self._fail(one.call, error)
        except RayError as error:
            self._replace(one)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            return Done(one.call, None, 0.0, time.monotonic() - one.asked, f"{type(error).__name__}: {reason}")
        cold, one.process.used = one.process.used is None, time.monotonic()
        return Done(one.call, value, seconds, one.process.used - one.asked, cold=cold)

    def _fail(self, call: Call, error: RayTaskError) -> None:
        """Raise what a function has raised: it would do so again."""
        cause = error.cause if isinstance(error.cause, Exception) else error
        last = (str(cause).strip() or type(cause).__name__).splitlines()[-1]
        raise RunError(f"{call.kind} {call.number} cannot go on: {type(cause).__name__}: {last}") from error

    def _overdue(self) -> list[Done]:
        """Invocations that take too long, whose processes are ended."""
        now, found = time.monotonic(), []
        for reference, one in list(self._under_way.items()):
            patience = self._config.live.timeout + one.call.grace
            patience += START_SECONDS if one.process.used is None else 0.0
            if now - one.asked > patience:
                del self._under_way[reference]
                self._replace(one)
                found.append(Done(one.call, None, 0.0, now - one.asked, f"nothing was heard for {patience:g} seconds"))
        return found

    def _replace(self, one: UnderWay) -> None:
        """Another process takes the place of one that is dead, or as good as that."""
        key = (one.call.kind, one.call.number)
        if self._processes.get(key) is one.process:
            del self._processes[key]
        ray.kill(one.process.actor)

    def _let_go(self) -> None:
        """End what has been idle for too long."""
        busy = {id(one.process) for one in self._under_way.values()}
        now, patience = time.monotonic(), self._config.platform.keep_alive
        for key, process in list(self._processes.items()):
            if id(process) not in busy and process.used is not None and now - process.used > patience:
                del self._processes[key]
                ray.kill(process.actor)

    def cool(self) -> None:
        """End whatever is idle."""
        busy = {id(one.process) for one in self._under_way.values()}
        for key, process in list(self._processes.items()):
            if id(process) not in busy:
                del self._processes[key]
                ray.kill(process.actor)

    def close(self) -> None:
        """End all processes, and the cluster if it is our own."""
        for process in getattr(self, "_processes", {}).values():
            with suppress(Exception):
                ray.kill(process.actor)
        if self.vitals is not None:
            leave()
