"""A thread that works for another one, and is given up when it no longer gets anywhere.

Host environments are other people's code. Whoever waits for them waits in Python, where signals are heard, and only as
long as they answer.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from stellaris_jax.config.schema import RunError

POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0
"""How long a step may still take once the run is to stop."""


class ActorError(RuntimeError):
    """The thread is gone without having said why."""


class EnvStalled(RunError):
    """A host environment does not answer; the message names it."""


class Worker(threading.Thread):
    """The thread of a `Watch`."""


def at_work() -> set[Worker]:
    """All that have not ended, those that were left to themselves among them."""
    return {thread for thread in threading.enumerate() if isinstance(thread, Worker)}


class Watch:
    """Runs calls one after the other on a daemon thread, which starts with the first.

    Args:
      name: of the thread.
      env: the environment's name, for the message when it stalls.
      timeout: seconds a call may go without a `beat`.
      stopping: set when the run is to stop; a call that is silent then is given up after `GRACE_SECONDS`.
    """

    def __init__(self, name: str, env: str, timeout: float, stopping: threading.Event):
        self.name, self.env, self.timeout, self.stopping = name, env, timeout, stopping
        self._stalled = False
        self._renew()

    def _renew(self) -> None:
        self._thread: Worker | None = None
        self._beat = time.monotonic()
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def beat(self) -> None:
        """Told by the work that it got somewhere."""
        self._beat = time.monotonic()

    def submit(self, call: Callable[[], Any]) -> None:
        """Have `call` made after those submitted before; `result` hands over what came of it."""
        if self._thread is None:
            calls, results = self._calls, self._results
            self._thread = Worker(target=self._serve, args=(calls, results), name=self.name, daemon=True)
            self._thread.start()
        self._calls.put(call)

    def _serve(self, calls: Any, results: Any) -> None:
        while (call := calls.get()) is not None:
            self.beat()
            try:
                results.put((call(), None))
            except BaseException as error:  # SystemExit, too, must reach whoever waits
                results.put((None, error))

    def result(self) -> Any:
        """What the oldest call submitted returned; what it raised is raised here.

        Raises:
          EnvStalled: the call has gone without a beat for too long; its thread is left to itself.
          ActorError: the thread is gone and left no exception.
        """
        assert self._thread is not None, "nothing was submitted"
        while True:
            try:
                value, error = self._results.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if not self._thread.is_alive() and self._results.empty():
                    raise ActorError(f"the {self.name} thread died without an exception") from None
                self._check()
                continue
            if error is not None:
                raise error
            return value

    def _check(self) -> None:
        silent = time.monotonic() - self._beat
        limit = min(self.timeout, GRACE_SECONDS) if self.stopping.is_set() else self.timeout
        if silent > limit:
            self._stalled = True
            self._renew()
            raise EnvStalled(
                f"{self.env} has not answered for {silent:.0f} s (env.timeout={self.timeout:g}); the run cannot go on."
            )

    def call(self, call: Callable[[], Any]) -> Any:
        """`submit` and `result` in one."""
        self.submit(call)
        return self.result()

    def close(self) -> bool:
        """Let the thread end after what it is at. False if it, or one before it, was left to itself instead."""
        thread = self._thread
        if thread is not None:
            self._calls.put(None)
            try:
                while thread.is_alive():
                    thread.join(POLL_SECONDS)
                    if thread.is_alive():
                        self._check()
            except EnvStalled:
                pass  # who closes does not want to know
        ended, self._stalled = not self._stalled, False
        self._renew()
        return ended


def leak(anything: Any) -> None:
    """Keep an object for ever: what a stalled thread still uses must not be destroyed, not even as the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(anything))
