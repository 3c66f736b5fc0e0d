"""The clock and the records of the literal system (`reference.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count
from math import ceil, floor

NANOSECOND = Fraction(1, 10**9)


def exactly(seconds: float) -> Fraction:
    """The duration in whole nanoseconds."""
    return round(seconds * 1e9) * NANOSECOND


class Clock:
    """Simulated seconds, exactly. What is due at the same moment happens in the order in which it was arranged."""

    def __init__(self) -> None:
        self.now = Fraction(0)
        self._agenda: list[tuple[Fraction, int, Callable[[], None]]] = []
        self._tickets = count()

    def after(self, seconds: Fraction, action: Callable[[], None]) -> int:
        """Arrange something; returns its ticket."""
        ticket = next(self._tickets)
        heappush(self._agenda, (self.now + seconds, ticket, action))
        return ticket

    def cancel(self, ticket: int) -> None:
        self._agenda = sorted(entry for entry in self._agenda if entry[1] != ticket)

    def advance(self) -> bool:
        """Let the next thing happen; false if nothing is arranged."""
        if not self._agenda:
            return False
        self.now, _, action = heappop(self._agenda)
        action()
        return True


@dataclass
class Delivery:
    """A gradient in the parameter function's queue."""

    fragment: int
    minibatch: int
    learner: int
    version: int
    start: Fraction
    end: Fraction
    peers: list[int]
    staleness: int = 0


@dataclass
class Aggregation:
    """Deliveries that together made version `clock + 1`, while fragment `round` was the newest."""

    round: int
    clock: int
    second: Fraction
    deliveries: list[Delivery]
    weights: list[float]
    escaped: bool
    threshold: float | None
    unready: bool = False
    published: Fraction = Fraction(0)


@dataclass
class Work:
    """A computation under way: from which second on, how many seconds of it are left at full speed, and at which share
    of it it goes on. Whenever who computes beside it changes, so does that, and its end is arranged anew."""

    since: Fraction
    left: Fraction
    ticket: int
    end: Callable[[], None]
    slower: Fraction = Fraction(1)

    def go_on(self, clock: Clock, slower: Fraction) -> Fraction | None:
        """Go on so many times slower; the second in which it ends if that has changed.

        A nanosecond of work counts once it is done, and the end is the nanosecond in which all of it is.
        """
        if slower == self.slower:
            return None
        self.left -= floor((clock.now - self.since) / self.slower / NANOSECOND) * NANOSECOND
        self.since, self.slower = clock.now, slower
        clock.cancel(self.ticket)
        seconds = ceil(self.left * slower / NANOSECOND) * NANOSECOND
        self.ticket = clock.after(seconds, self.end)
        return clock.now + seconds


@dataclass
class Learner:
    """A learner function's slot; `holds` is the version it fetched, `None` while it is idle; `work` its computation,
    `None` while it does not compute."""

    number: int
    last_used: Fraction | None
    holds: int | None = None
    iterations: int = 0
    work: Work | None = None


@dataclass
class Log:
    """Events: starts of fragments `(version, second)`, aggregations, lost gradients, and the meter readings."""

    fragments: list[tuple[int, Fraction]] = field(default_factory=list)
    aggregations: list[Aggregation] = field(default_factory=list)
    dropped: list[tuple[int, Delivery]] = field(default_factory=list)
    learner_busy: Fraction = Fraction(0)
    learner_failed: Fraction = Fraction(0)
    learner_startup: Fraction = Fraction(0)
    actor_busy: Fraction = Fraction(0)
    actor_invocations: int = 0
    actor_startup: Fraction = Fraction(0)
    aggregate_busy: Fraction = Fraction(0)
    invocations: int = 0
    failures: int = 0
    waits: int = 0
