"""Pool of threads in the driver's process: live runs without Ray."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from stellaris_jax.base import watch
from stellaris_jax.base.registry import register
from stellaris_jax.config.tree import Config
from stellaris_jax.live.functions import Functions
from stellaris_jax.live.hosts import Timed
from stellaris_jax.live.pool import Call, Done, Pool, function_error


class Submitted(NamedTuple):
    """Invocation for a thread.

    Attributes:
      call: the invocation.
      arguments: arguments of its function.
      started: time of `submit`, of `time.monotonic`.
    """

    call: Call
    arguments: tuple[Any, ...]
    started: float


class Ended(NamedTuple):
    """Invocation that a thread has ended.

    Attributes:
      submitted: the invocation.
      result: value of its function, or its exception.
      cold: whether its function was compiled meanwhile.
    """

    submitted: Submitted
    result: Timed | BaseException
    cold: bool


class Thread(NamedTuple):
    """Thread of a learner or actor, with its queue of invocations, which `None` ends."""

    worker: watch.Worker
    queue: SimpleQueue[Submitted | None]


@register.pool("threads")
class Threads(Pool):
    """Pool of threads of this process, one for each learner and actor, which share the same functions.

    A thread cannot be killed, so `live.timeout` has no effect. A host environment that does not answer for
    `env.timeout` seconds ends the run, and its thread is abandoned.
    """

    def __init__(self, config: Config, actors: int):
        self._functions = Functions(config)
        self._env = config.env
        self._threads: dict[tuple[str, int], Thread] = {}
        self._ended: SimpleQueue[Ended] = SimpleQueue()
        self._under_way = 0
        self._over = threading.Event()

    def submit(self, call: Call, *arguments: Any) -> None:
        if self._over.is_set():
            raise RuntimeError("this pool of threads is closed")
        thread = self._threads.get((call.kind, call.number))
        if thread is None:
            queue: SimpleQueue[Submitted | None] = SimpleQueue()
            name = f"live {call.kind} {call.number}"
            # Daemon: a blocked environment must not keep the interpreter from exiting.
            thread = Thread(watch.Worker(target=self._serve, args=(queue,), name=name, daemon=True), queue)
            self._threads[call.kind, call.number] = thread
            thread.worker.start()
        self._under_way += 1
        thread.queue.put(Submitted(call, arguments, time.monotonic()))

    def _serve(self, queue: SimpleQueue[Submitted | None]) -> None:
        """Body of a thread."""
        while (submitted := queue.get()) is not None and not self._over.is_set():
            result: Timed | BaseException
            try:
                result = self._functions.invoke(submitted.call.kind, *submitted.arguments)
            except BaseException as error:  # SystemExit, too, must reach the waiting thread
                result = error
            self._ended.put(Ended(submitted, result, self._functions.compiled))
            del submitted, result  # which hold arrays

    def wait(self) -> list[Done]:
        if not self._under_way:
            return []
        ended = [self._next()]
        with suppress(Empty):
            while True:
                ended.append(self._ended.get_nowait())
        self._under_way -= len(ended)
        done = []
        for (call, _, started), result, cold in sorted(ended, key=lambda one: one.submitted.call.stamp):
            if isinstance(result, BaseException):
                raise function_error(call, result) from result
            done.append(Done(call, result.value, result.seconds, time.monotonic() - started, cold=cold))
        return done

    def _next(self) -> Ended:
        """Wait for an invocation to end. Raises EnvStalled if an environment does not answer."""
        while True:
            with suppress(Empty):
                return self._ended.get(timeout=watch.POLL_SECONDS)
            silent = max(self._functions.silent().values(), default=0.0)
            if silent > self._env.timeout:
                raise watch.stalled(self._env.name, silent, self._env.timeout)

    def close(self) -> None:
        """End all threads after their current invocations; those that wait for a silent environment are abandoned."""
        self._over.set()
        limit = min(self._env.timeout, watch.GRACE_SECONDS)
        for thread in self._threads.values():
            thread.queue.put(None)
        for worker, _ in self._threads.values():
            while worker.is_alive() and self._functions.silent().get(worker.ident or 0, 0.0) <= limit:
                worker.join(watch.POLL_SECONDS)
        self._threads.clear()
        self._functions.close()
