"""Where functions run: a pool of processes as the conductor sees it, and one of threads, for one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Protocol

from stellaris_jax.live.functions import Functions

LEARNER, ACTOR = "learner", "actor"


class Call(NamedTuple):
    """An invocation. kind: of a learner or of an actor. number: which one. stamp: number of the invocation; nothing is
    taken twice that has the same. grace: seconds that it may take beyond what any may."""

    kind: str
    number: int
    stamp: int
    grace: float = 0.0


class Done(NamedTuple):
    """An invocation that has ended. value: what it returned; None if it died or was given up, for this `reason`.
    seconds: it has computed. elapsed: since it was asked for. cold: its process had to be started, and its function to
    be compiled."""

    call: Call
    value: Any
    seconds: float
    elapsed: float
    reason: str = ""
    cold: bool = False


class Pool(Protocol):
    """Runs functions somewhere."""

    def put(self, value: Any) -> Any:
        """What stands for a value in calls, so that it travels once."""
        ...

    def get(self, handle: Any) -> Any:
        """The value that stands behind it."""
        ...

    def submit(self, call: Call, *arguments: Any) -> None:
        """Have a function called: a learner's `learn`, an actor's `roll`."""
        ...

    def wait(self) -> list[Done]:
        """What has ended, at least one invocation; nothing if none is under way."""
        ...

    def cool(self) -> None:
        """End whatever is idle, so that it has to be started again."""
        ...

    def close(self) -> None:
        """End all of it."""
        ...


class Threads:
    """A pool of threads of this process, which all call the same functions.

    Args:
      functions: both.
      clock: seconds.
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
        found = []
        for future in sorted(ended, key=lambda future: self._under_way[future][0].stamp):
            call, asked = self._under_way.pop(future)
            value, seconds = future.result()
            found.append(Done(call, value, seconds, self._clock() - asked))
        return found

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._functions.close()
