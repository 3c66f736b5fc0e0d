"""What a timeline writes down: gradients, groups, rounds, and what has been used."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from stellaris_jax.timeline.ticks import SECOND


@dataclass(slots=True)
class Gradient:
    """One minibatch gradient, from its invocation to its aggregation.

    `version` is the policy it is computed on, from second `start` to `end`; `peers` the other versions that learners in
    flight held when it was delivered, oldest first; `in_flight` = clock at delivery - version, and `staleness` = clock
    at aggregation - version: the rest of it was spent in the queue. `kl_coefficient` is the weight of the KL penalty
    that its learner had fetched, in live runs: elsewhere it is that of the round of its aggregation.
    """

    fragment: int
    minibatch: int
    learner: int
    version: int
    start: float = 0.0
    end: float = 0.0
    peers: list[int] = field(default_factory=list)
    staleness: int = 0
    in_flight: int = 0
    kl_coefficient: float | None = None


@dataclass(slots=True)
class Group:
    """Gradients aggregated together into version `clock + 1`, from `second` until it is `published`. `escaped`: the
    rule's gate had said no."""

    gradients: list[Gradient]
    weights: list[float]
    clock: int
    second: float
    escaped: bool
    threshold: float | None
    published: float = 0.0

    @classmethod
    def of(cls, data: dict[str, Any]) -> Group:
        """The group whose fields are `data`, as plain JSON data."""
        return cls(**{**data, "gradients": [Gradient(**gradient) for gradient in data["gradients"]]})


@dataclass(slots=True)
class Usage:
    """What has happened since the run began, in simulated seconds and counts; the bill is computed from it.

    seconds: wall-clock. *_busy: function-seconds of useful work, passing data included; learner_failed: of invocations
    that died; learner_dropped: the part of learner_busy spent on dropped gradients; *_startup: of containers starting.
    updates: versions published. gradients: aggregated. dropped: not admitted, or too old for the version ring. waits:
    evaluations of the rule put off because of the ring. escapes: of the rule's gate. unready: groups that were formed
    though the rule was not ready.
    scaling_busy: of choosing the next round's actors. actor_invocations: fragments rolled, one per actor and round.
    """

    seconds: float = 0.0
    learner_busy: float = 0.0
    learner_failed: float = 0.0
    learner_dropped: float = 0.0
    learner_startup: float = 0.0
    actor_busy: float = 0.0
    actor_startup: float = 0.0
    aggregate_busy: float = 0.0
    scaling_busy: float = 0.0
    actor_invocations: int = 0
    invocations: int = 0
    failures: int = 0
    updates: int = 0
    gradients: int = 0
    dropped: int = 0
    waits: int = 0
    escapes: int = 0
    unready: int = 0
    staleness_total: int = 0
    staleness_max: int = 0

    def copy(self) -> Usage:
        return Usage(*_VALUES(self))

    def in_seconds(self) -> Usage:
        """A copy in seconds of a usage in ticks."""
        copy = self.copy()
        for name in DURATIONS:
            setattr(copy, name, getattr(copy, name) / SECOND)
        return copy


DURATIONS = tuple(entry.name for entry in fields(Usage) if isinstance(entry.default, float))
"""Fields of `Usage` that are seconds; the others are counts."""


_VALUES = attrgetter(*(entry.name for entry in fields(Usage)))


@dataclass
class Round:
    """All that happened from the start of collecting fragment `index` to the start of collecting the next.

    `behaviour_version` is the policy the fragment was rolled with, `arrived` the newest one when it was complete, at
    second `complete`. `actors` is how many rolled it, in `actor_seconds` each, on average. `usage` is the total since
    the run began, at the round's end.
    """

    index: int
    behaviour_version: int
    start: float
    actors: int
    actor_seconds: float = 0.0
    arrived: int = 0
    complete: float = 0.0
    groups: list[Group] = field(default_factory=list)
    dropped: list[Gradient] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    def staleness(self) -> list[int]:
        """Staleness of every gradient aggregated in the round."""
        return [gradient.staleness for group in self.groups for gradient in group.gradients]
