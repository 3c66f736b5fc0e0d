"""Events of a simulated timeline, and their JSON form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from stellaris_jax.timeline.record_json import as_data, record_of
from stellaris_jax.timeline.records import Gradient


@dataclass(slots=True)
class RolloutEnded:
    """Fragment whose rollout is complete.

    Attributes:
      fragment: index of the fragment.
      actors: number of its actors.
    """

    fragment: int
    actors: int


@dataclass(slots=True)
class FragmentLoaded:
    """Fragment that the data loader has turned into minibatches."""

    fragment: int


@dataclass(slots=True)
class SegmentBegun:
    """Next segment of the fragment that a shard of independent actors rolls."""

    shard: int


@dataclass(slots=True)
class FragmentEnded:
    """End of the fragment that a shard of independent actors rolls."""

    shard: int


@dataclass(slots=True)
class ActorDied:
    """Death of a shard of independent actors."""

    shard: int


@dataclass(slots=True)
class InvocationEnded:
    """Invocation of a learner that has pushed its gradient, or died.

    Attributes:
      gradient: its gradient.
      startup: ticks of the start of its container.
      start: tick of its start.
      died: whether it died.
    """

    gradient: Gradient
    startup: int
    start: int
    died: bool = False


@dataclass(slots=True)
class ComputationBegun:
    """Invocation that begins to compute, on a platform where computations slow each other down.

    Attributes:
      end: end of the invocation.
      passing: ticks from the computation's end to that end.
      work: ticks of the computation alone.
    """

    end: InvocationEnded
    passing: int
    work: int


@dataclass(slots=True)
class ComputationEnded:
    """Invocation whose computation is over; see `ComputationBegun`."""

    end: InvocationEnded
    passing: int


@dataclass(slots=True)
class GroupAggregated:
    """Group whose aggregation is complete.

    Attributes:
      fragments: fragments of its gradients.
    """

    fragments: list[int]


Event = (
    RolloutEnded
    | FragmentLoaded
    | SegmentBegun
    | FragmentEnded
    | ActorDied
    | InvocationEnded
    | ComputationBegun
    | ComputationEnded
    | GroupAggregated
)
"""Event of a timeline."""
Scheduled = tuple[int, int, Event]
"""Tick of an event, its number in the order of scheduling, and the event."""
KINDS: dict[str, Callable[..., Event]] = {kind.__name__: kind for kind in get_args(Event)}


def saved(scheduled: Scheduled) -> list[Any]:
    """Scheduled event as JSON data."""
    tick, order, event = scheduled
    return [tick, order, type(event).__name__, as_data(event)]


def restored(data: list[Any]) -> Scheduled:
    """Scheduled event from the JSON data that `saved` returned."""
    tick, order, kind, values = data
    return tick, order, record_of(KINDS[kind], values)
