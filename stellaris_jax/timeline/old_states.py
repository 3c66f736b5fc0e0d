"""Conversion of timeline states that earlier versions saved: in float seconds, or with numbers for kinds of events."""

from __future__ import annotations

from typing import Any

from stellaris_jax.timeline.records import DURATIONS
from stellaris_jax.timeline.sharing import PARAMETER_FUNCTION
from stellaris_jax.timeline.ticks import SECOND, ticks

DATA, DELIVERY, FAILURE, PUBLISH, LOADED, BEGIN, COMPUTED = range(7)
"""Numbers for kinds of events in earlier versions."""


def converted(state: dict[str, Any]) -> dict[str, Any]:
    """State of this version, converted from a state of any version."""
    if "tick" not in state:
        state = _in_ticks(state)
    return {**state, "events": [[*event[:2], *_named(*event[2:])] for event in state["events"]]}


def _named(kind: int | str, payload: Any) -> tuple[str, dict[str, Any]]:
    """Name and fields of an event, whose kind was a number and whose payload was a list."""
    if isinstance(kind, str):
        return kind, payload
    if kind == DATA:
        return "RolloutEnded", {"fragment": payload[0], "actors": payload[1]}
    if kind == LOADED:
        return "FragmentLoaded", {"fragment": payload[0]}
    if kind == PUBLISH:
        return "GroupAggregated", {"fragments": payload[0]}
    fragment, minibatch, learner, version, startup, start, *rest = payload
    gradient = {"fragment": fragment, "minibatch": minibatch, "learner": learner, "version": version}
    ended_as = rest.pop(0) if rest else kind
    end = {"gradient": gradient | {"start": start / SECOND}, "startup": startup, "start": start}
    end["died"] = ended_as == FAILURE
    if kind == BEGIN:
        return "ComputationBegun", {"end": end, "passing": rest[0], "work": rest[1]}
    return ("ComputationEnded", {"end": end, "passing": rest[0]}) if kind == COMPUTED else ("InvocationEnded", end)


def _in_ticks(state: dict[str, Any]) -> dict[str, Any]:
    """State in ticks, converted from a state in seconds.

    Every time is rounded to ticks. If computations slow each other down, an invocation under way keeps its drawn
    schedule: all its data passes before its computation.
    """
    usage = dict.fromkeys(DURATIONS, 0.0) | state["usage"]
    spent = {name: ticks(value) if name in DURATIONS else value for name, value in usage.items()}
    shared = {order: (learner, since, left) for learner, since, left, order, _ in state.get("company") or []}
    slowdowns = {order: slowdown for *_, order, slowdown in state.get("company") or []}
    tick, events, company = ticks(state["now"]), [], []
    for time, order, kind, payload in state["events"]:
        due = ticks(time)
        if kind in (DELIVERY, FAILURE):
            *gradient, start, startup = payload
            payload = [*gradient, ticks(startup), ticks(start)]
        if order in shared:
            learner, since, left = shared[order]
            begin, work = ticks(since), ticks(left)
            if learner != PARAMETER_FUNCTION:
                payload = [*payload, kind, 0]
                kind = COMPUTED
            if begin > tick:
                due, kind, payload = begin, BEGIN, [*payload, work]
            else:
                company.append([learner, begin, work, order, ticks(slowdowns[order])])
        events.append([due, order, kind, payload])
    return {
        **state,
        "tick": tick,
        "spent": spent,
        "forming": None,
        "events": sorted(events),
        "company": company,
        **{name: _last_used(state[name]) for name in ("containers", "actor_containers")},
    }


def _last_used(seconds: list[float | None]) -> list[int | None]:
    return [None if second is None else ticks(second) for second in seconds]
