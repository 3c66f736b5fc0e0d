"""Speed of this machine, so that runs that are compared are of a machine that was equally fast."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

from stellaris_jax.base.errors import RunError
from stellaris_jax.base.machine import cores

T = TypeVar("T")

BLOCK = bytes(2**24)
TIMES = 9
STEADY = 0.1
"""Largest deviation of the machine's speed from the usual one, as a share."""
MOST_TRIES = 8
PAUSE = 30.0
"""Seconds until a machine that was not steady is tried again."""


def seconds_of_machine() -> float:
    """Seconds in which every core hashes 16 MiB, all at once: the median of nine times. Nothing of JAX is in it."""
    times = []
    with ThreadPoolExecutor(cores()) as threads:
        for _ in range(TIMES):
            begin = time.perf_counter()
            list(threads.map(lambda _: hashlib.sha256(BLOCK).digest(), range(cores())))
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


class Steady(NamedTuple, Generic[T]):
    """Result of a run during which the machine was steady.

    Attributes:
      result: the result.
      seconds: `seconds_of_machine` before the run.
      repeated: number of runs that were thrown away, because the machine was not steady.
    """

    result: T
    seconds: float
    repeated: int


def steadily(
    run: Callable[[], T],
    usual: float | None,
    note: Callable[[str], None],
    measure: Callable[[], float] = seconds_of_machine,
    pause: float = PAUSE,
) -> Steady[T]:
    """Run before and after which the machine is as fast as usual; others are thrown away, whatever their result.

    Args:
      run: the run.
      usual: `seconds_of_machine` to compare with; `None` for those before the run.
      note: told of every run that is thrown away.
      measure: measures `seconds_of_machine`.
      pause: seconds to wait before another try.

    Raises:
      RunError: the machine was not steady in any of `MOST_TRIES` tries.
    """
    for repeated in range(MOST_TRIES):
        before = measure()
        expected = before if usual is None else usual
        if _steady(before, expected):
            result, after = run(), measure()
            if _steady(after, expected):
                return Steady(result, before, repeated)
            note(f"thrown away: the machine took {after / expected:.2f} times as long after the run")
        else:
            note(f"waiting: the machine takes {before / expected:.2f} times as long as usual")
        time.sleep(pause)
    raise RunError(
        f"The machine's speed differed by more than {STEADY:.0%} from the usual one in {MOST_TRIES} tries; repeat the "
        "command when it is idle, with the same --runs."
    )


def _steady(seconds: float, usual: float) -> bool:
    return abs(seconds / usual - 1.0) <= STEADY
