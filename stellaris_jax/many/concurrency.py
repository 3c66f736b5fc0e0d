"""Concurrent runs in one program: their threads, and how a signal ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from stellaris_jax.execute.records import Record
from stellaris_jax.execute.session import Interrupted
from stellaris_jax.live.vitals import ClusterDied
from stellaris_jax.runs.signals import Abandoned, Signals
from stellaris_jax.telemetry.shared_display import SharedDisplay

Watch = Callable[[Record], bool]
"""Function called with every evaluation's record; true ends the run. It is pickled for workers of a cluster."""


def to_the_end(record: Record) -> bool:
    """Watch that ends no run."""
    return False


class WorkerLost(Exception):
    """Error: the process that trained a run is gone; the run can be resumed."""


@contextmanager
def stoppable(display: SharedDisplay, directory: Path, farewell: Callable[[], str]) -> Iterator[Signals]:
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
