"""Several runs under way in one program: their threads, and how a signal ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from stellaris_jax.live.vitals import ClusterDied
from stellaris_jax.report.telemetry.shared_display import SharedDisplay
from stellaris_jax.training.session import Interrupted
from stellaris_jax.training.signals import Abandoned, Signals


class WorkerLost(Exception):
    """The process that trained a run is gone; the run can be gone on with."""


@contextmanager
def stoppable(display: SharedDisplay, directory: Path, farewell: Callable[[], str]) -> Iterator[Signals]:
    """Within, a signal stops the runs that share the `Signals`, and `farewell` tells how to go on with them.

    Raises:
      Interrupted: after a signal, with everything saved, at the end; Abandoned after a second one.
      ClusterDied: as it is raised within.
    """

    def leave() -> None:
        for end in (lambda: display.note(farewell()), display.close):
            with suppress(OSError, SystemExit):  # of a terminal that is gone
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
    """Call `worker` in so many threads, until all have returned; nobody waits for them after an exception."""
    threads = ThreadPoolExecutor(width, name)
    try:
        for future in [threads.submit(worker) for _ in range(width)]:
            future.result()
    finally:
        threads.shutdown(wait=False)
