"""Pools that run functions: the interface for the conductor, and a pool of threads in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Protocol

from stellaris_jax.live.functions import Functions

LEARNER, ACTOR = "learner", "actor"


class Call(NamedTuple):
    """Invocation of a function.

    Attributes:
      kind: `LEARNER` or `ACTOR`.
      number: number of the learner or actor.
      stamp: unique number of the invocation.
      grace: seconds in addition to the usual timeout.
    """

    kind: str
    number: int
    stamp: int
    grace: float = 0.0


class Done(NamedTuple):
    """Invocation that has ended.

    Attributes:
      call: the invocation.
      value: returned value; None if it died or timed out.
      seconds: seconds of computation.
      elapsed: seconds since the call.
      reason: reason of the failure, if there was one.
      cold: its process had to be started, and its function compiled.
    """

    call: Call
    value: Any
    seconds: float
    elapsed: float
    reason: str = ""
    cold: bool = False


class Pool(Protocol):
    """Pool that runs functions."""

    def put(self, value: Any) -> Any:
        """Store a value; returns its handle for calls, so that the value is sent once."""
        ...

    def get(self, handle: Any) -> Any:
        """Value of a handle."""
        ...

    def submit(self, call: Call, *arguments: Any) -> None:
        """Call a function: a learner's `learn` or an actor's `roll`."""
        ...

    def wait(self) -> list[Done]:
        """Wait for at least one invocation to end; returns those that ended, or nothing if none is under way."""
        ...

    def cool(self) -> None:
        """End all idle processes, so that they have to be started again."""
        ...

    def close(self) -> None:
        """End all processes."""
        ...


class Threads:
    """Pool of threads of this process, which share the same functions.

    Args:
      functions: functions of actors and learners.
      size: number of threads.
      clock: time in seconds.
    """

    def __init__(self, functions: Functions, size: int, clock: Callable[[], float] = time.monotonic):
        self._functions, self._clock = functions, clock
        self._threads = ThreadPoolExecutor(size, "live")
        self._under_way: dict[Future[Any], tuple[Call, float]] = {}

    def put(self, value: Any) -> Any:
        return value

    def get(self, handle: Any) -> Any:
        return handle

    def cool(self) -> None:
        pass

    def submit(self, call: Call, *arguments: Any) -> None:
        function = self._functions.learn if call.kind == LEARNER else self._functions.roll
        self._under_way[self._threads.submit(function, *arguments)] = (call, self._clock())

    def wait(self) -> list[Done]:
        ended, _ = wait(self._under_way, return_when=FIRST_COMPLETED) if self._under_way else (set(), set())
        done = []
        for future in sorted(ended, key=lambda future: self._under_way[future][0].stamp):
            call, started = self._under_way.pop(future)
            value, seconds = future.result()
            done.append(Done(call, value, seconds, self._clock() - started))
        return done

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._functions.close()
