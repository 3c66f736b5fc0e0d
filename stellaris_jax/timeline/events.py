"""Events of a timeline: their kinds, their payloads, and their JSON form."""

from __future__ import annotations

from typing import Any

from stellaris_jax.timeline.records import Gradient
from stellaris_jax.timeline.ticks import SECOND

DATA, DELIVERY, FAILURE, PUBLISH, LOADED, BEGIN, COMPUTED = range(7)
"""Kinds of events, with their payloads in parentheses.

DATA: a fragment's rollout is complete (its number, number of its actors).
LOADED: a fragment is cut into minibatches (its number).
DELIVERY, FAILURE: an invocation has pushed its gradient, or died (gradient, start-up ticks, tick of its start).
PUBLISH: a group is aggregated (fragments of its gradients).

If computations slow each other down, every invocation has two more events.
BEGIN: it begins to compute (payload of DELIVERY, kind of its end, ticks from its computation's end to that end, ticks
of the computation alone).
COMPUTED: its computation is over (payload of BEGIN without the last entry).
"""

ENDS = (DELIVERY, FAILURE)
"""Kinds of events that end an invocation."""
WHOLE = (DATA, PUBLISH, LOADED)
"""Kinds of events of whole fragments and groups, whose payloads are plain numbers."""
Event = tuple[int, int, int, tuple[Any, ...]]
"""Event: its tick, its number in the order of scheduling, its kind and its payload."""


def saved(event: Event) -> list[Any]:
    """Event as JSON data."""
    tick, order, kind, payload = event
    if kind in WHOLE:
        return [tick, order, kind, list(payload)]
    gradient, *rest = payload
    return [tick, order, kind, [gradient.fragment, gradient.minibatch, gradient.learner, gradient.version, *rest]]


def restored(data: list[Any]) -> Event:
    """Event from the JSON data that `saved` returned."""
    tick, order, kind, payload = data
    if kind in WHOLE:
        return tick, order, kind, tuple(payload)
    fragment, minibatch, learner, version, startup, start, *rest = payload
    gradient = Gradient(fragment, minibatch, learner, version, start / SECOND)
    return tick, order, kind, (gradient, startup, start, *rest)
