"""Concurrent runs in one program: their threads, and how a signal ends them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from stellaris_jax.base.errors import RunError
from stellaris_jax.execute.records import Record
from stellaris_jax.execute.session import Interrupted
from stellaris_jax.live.vitals import ClusterDied
from stellaris_jax.runs.checkpoint import CheckpointError
from stellaris_jax.runs.signals import Abandoned, Signals

Watch = Callable[[Record], bool]
"""Function called with every evaluation's record; true ends the run. It is pickled for workers of a cluster."""


class Notes(Protocol):
    """Place of messages, such as a `SharedDisplay`."""

    def note(self, text: str) -> None:
        """Show a message."""

    def close(self) -> None:
        """End the display; a second call does nothing."""


def to_the_end(record: Record) -> bool:
    """Watch that ends no run."""
    return False


class WorkerLost(Exception):
    """Error: the process that trained a run is gone; the run can be resumed."""


@contextmanager
def stoppable(display: Notes, directory: Path, farewell: Callable[[], str]) -> Iterator[Signals]:
    """Context in which a signal stops the runs that share the `Signals`.

    Args:
      display: shows messages.
      directory: directory of the runs, for the exception.
      farewell: makes the sentence on how to continue.

    Raises:
      Interrupted: a signal arrived and all runs were saved; raised at the end of the context.
      Abandoned: a second signal arrived.
      ClusterDied: raised within the context.
    """

    def leave() -> None:
        for end in (lambda: display.note(farewell()), display.close):
            with suppress(OSError, SystemExit):  # the terminal may be gone
                end()

    with Signals(display.note, leave) as signals:
        try:
            yield signals
        except (Abandoned, ClusterDied):
            leave()
            raise
        if signals.caught:
            leave()
            raise Interrupted(signals.caught[0], directory)


def is_of_disk(error: BaseException) -> bool:
    """Whether an error comes from writing files, which would hit other runs as well."""
    if isinstance(error, CheckpointError):
        return error.__cause__ is not None  # without a cause, no checkpoint could be read
    if isinstance(error, RunError):
        return isinstance(error.__cause__, OSError)
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def in_threads(width: int, name: str, worker: Callable[[], None]) -> None:
    """Call `worker` in several threads until all have returned; an exception ends the wait.

    Args:
      width: number of threads.
      name: prefix of their names.
      worker: function to call.
    """
    threads = ThreadPoolExecutor(width, name)
    try:
        for future in [threads.submit(worker) for _ in range(width)]:
            future.result()
    finally:
        threads.shutdown(wait=False)
