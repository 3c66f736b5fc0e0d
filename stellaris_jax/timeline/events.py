"""Events of a timeline: what is due at which tick, and how that is saved."""

from __future__ import annotations

from typing import Any

from stellaris_jax.timeline.records import Gradient
from stellaris_jax.timeline.ticks import SECOND

DATA, DELIVERY, FAILURE, PUBLISH, LOADED, BEGIN, COMPUTED = range(7)
"""Kinds of events, and what comes with them.

DATA: a fragment is rolled; its number, and how many actors rolled it. LOADED: it is minibatches now; its number.
DELIVERY, FAILURE: an invocation has pushed its gradient, or died; the gradient, ticks of its start-up, and the tick of
its start.
PUBLISH: a group is aggregated; the fragments of its gradients.

Where computations slow each other down there are two more of every invocation. BEGIN: it begins to compute; as
DELIVERY, and the kind of its end, ticks from the end of its computation to that, and ticks of the computation alone.
COMPUTED: its computation is over; as BEGIN but for the last.
"""

ENDS = (DELIVERY, FAILURE)
"""Ends of an invocation."""
WHOLE = (DATA, PUBLISH, LOADED)
"""Events of whole fragments and groups: they come with plain numbers."""
Event = tuple[int, int, int, tuple[Any, ...]]
"""An event: its tick, its number in the order of scheduling, its kind, and what comes with it."""


def saved(event: Event) -> list[Any]:
    """The event as JSON data."""
    tick, order, kind, payload = event
    if kind in WHOLE:
        return [tick, order, kind, list(payload)]
    gradient, *rest = payload
    return [tick, order, kind, [gradient.fragment, gradient.minibatch, gradient.learner, gradient.version, *rest]]


def restored(data: list[Any]) -> Event:
    """The event that `saved` returned."""
    tick, order, kind, payload = data
    if kind in WHOLE:
        return tick, order, kind, tuple(payload)
    fragment, minibatch, learner, version, startup, start, *rest = payload
    gradient = Gradient(fragment, minibatch, learner, version, start / SECOND)
    return tick, order, kind, (gradient, startup, start, *rest)
