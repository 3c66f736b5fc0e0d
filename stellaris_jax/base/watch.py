"""Worker thread with a watchdog: it is abandoned when its work makes no progress.

Host environments are third-party code. Callers wait for them in Python, where signals are handled, and only as long as
they answer.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from stellaris_jax.base.errors import RunError

POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0
"""Seconds that a step may still take once the run is stopping."""


class ActorError(RuntimeError):
    """Error: the thread is gone without an exception."""


class EnvStalled(RunError):
    """Error: a host environment does not answer; the message names it."""


def stalled(env: str, silent: float, timeout: float) -> EnvStalled:
    """Error for an environment that has been silent for too many seconds."""
    return EnvStalled(f"{env} has not answered for {silent:.0f} s (env.timeout={timeout:g}); the run cannot go on.")


class Silence:
    """Time without a sign of life while somebody waits for one, which means: asks every `POLL_SECONDS`.

    So the time in which this process itself stood still, as after Ctrl-Z or SIGSTOP, does not count.
    """

    def __init__(self) -> None:
        self._looked = self._heard = time.monotonic()

    def beat(self) -> None:
        """Hear a sign of life; may be called on another thread."""
        self._heard = time.monotonic()

    def seconds(self) -> float:
        """Seconds of waiting since the last sign of life."""
        now = time.monotonic()
        self._heard += max(now - max(self._looked, self._heard) - 2 * POLL_SECONDS, 0.0)
        self._looked = now
        return now - self._heard


class Worker(threading.Thread):
    """Thread that steps host environments, such as that of a `Watchdog`."""


def at_work() -> set[Worker]:
    """Worker threads that have not ended, abandoned ones included."""
    return {thread for thread in threading.enumerate() if isinstance(thread, Worker)}


class Watchdog:
    """Queue of calls that run one after the other on a daemon thread, which starts with the first.

    Args:
      name: name of the thread.
      env: name of the environment, for the message when it stalls.
      timeout: seconds that a call may go without a `beat` while its result is waited for.
      stopping: event that stops the run; a silent call is then abandoned after `GRACE_SECONDS`.
    """

    def __init__(self, name: str, env: str, timeout: float, stopping: threading.Event):
        self.name, self.env, self.timeout, self.stopping = name, env, timeout, stopping
        self._stalled = False
        self._renew()

    def _renew(self) -> None:
        self._thread: Worker | None = None
        self._silence = Silence()
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def beat(self) -> None:
        """Report progress; called by the work."""
        self._silence.beat()

    def submit(self, call: Callable[[], Any]) -> None:
        """Queue a call after those submitted before; `result` returns its result."""
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
            except BaseException as error:  # SystemExit, too, must reach the waiting thread
                results.put((None, error))

    def result(self) -> Any:
        """Wait for the oldest submitted call; returns its result or raises its exception.

        Raises:
          EnvStalled: the call has gone without a beat for too long; its thread is abandoned.
          ActorError: the thread is gone without an exception.
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
        silent = self._silence.seconds()
        limit = min(self.timeout, GRACE_SECONDS) if self.stopping.is_set() else self.timeout
        if silent > limit:
            self._stalled = True
            self._renew()
            raise stalled(self.env, silent, self.timeout)

    def call(self, call: Callable[[], Any]) -> Any:
        """Submit a call and wait for its result."""
        self.submit(call)
        return self.result()

    def close(self) -> bool:
        """End the thread after its current call. False if this or an earlier thread was abandoned instead."""
        thread = self._thread
        if thread is not None:
            self._calls.put(None)
            try:
                while thread.is_alive():
                    thread.join(POLL_SECONDS)
                    if thread.is_alive():
                        self._check()
            except EnvStalled:
                pass  # closing needs no error
        ended, self._stalled = not self._stalled, False
        self._renew()
        return ended


def leak(anything: Any) -> None:
    """Keep an object forever: objects used by a stalled thread must not be destroyed, not even as the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(anything))
