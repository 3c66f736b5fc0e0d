"""The simulated timeline: a case worked by hand, what holds for every rule, and actors."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import (
    GRADIENTS,
    HEAVY,
    INSTANT,
    Scenario,
    advance,
    examples,
    scenarios,
    simulate,
    used,
)
from settings import delay

from stellaris_jax.base.registry import register
from stellaris_jax.config.sections import PlatformConfig
from stellaris_jax.timeline.events import KINDS, Event, restored, saved

# A hand-worked case -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        # (minibatch, learner, version, staleness, peers, pushed at, aggregated at)
        (0.0, [(1, 1, 0, 0, [], 2.0, 2.0), (2, 1, 1, 0, [0], 3.0, 3.0), (0, 0, 0, 2, [], 4.0, 4.0)]),
        # Publishing takes 1.5 s, so learner 1 starts anew on version 0, and its push waits for the aggregator.
        (1.5, [(1, 1, 0, 0, [], 2.0, 2.0), (2, 1, 0, 1, [], 3.0, 3.5), (0, 0, 0, 2, [], 4.0, 5.0)]),
    ],
)
def test_a_round_worked_by_hand(aggregate: float, expected: list[tuple[Any, ...]]) -> None:
    """Data at 1 s; learner 0 needs 3 s for minibatch 0, learner 1 needs 1 s for each of minibatches 1 and 2."""
    timeline = simulate(
        "async",
        learners=2,
        gradients=3,
        learner=delay("measured", table=[3.0, 1.0, 1.0]),
        actor=delay("constant", 1.0),
        aggregate=delay("constant", aggregate),
    )
    record = timeline.next_round()
    rows = [
        (g.minibatch, g.learner, g.version, g.staleness, g.peers, g.end, group.second)
        for group in record.groups
        for g in group.gradients
    ]
    assert rows == expected
    assert [group.weights for group in record.groups] == [[1.0], [1.0], [pytest.approx(2 ** (-1 / 3))]]
    assert timeline.coordinator.clock == 3 and timeline.now == 4.0 + (2.5 if aggregate else 0.0)
    assert timeline.usage.learner_busy == 5.0 and timeline.usage.actor_busy == 2.0
    assert timeline.usage.aggregate_busy == 3 * aggregate and timeline.usage.invocations == 3
    assert timeline.usage.dropped == 0 and timeline.usage.learner_dropped == 0.0


def test_dropped_seconds_worked_by_hand() -> None:
    """As above, but gradients may be one version old: the one that learner 0 has computed for 3 s is two versions old.

    The second fragment has the same learners and durations of 1 s, and drops nothing.
    """
    timeline = simulate(
        "async",
        learners=2,
        gradients=3,
        learner=delay("measured", table=[3.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        actor=delay("constant", 1.0),
        admission="bounded",
        bound=1,
    )
    first, second = advance(timeline, 2)
    assert [(g.minibatch, g.start, g.end) for g in first.dropped] == [(0, 1.0, 4.0)] and second.dropped == []
    assert (first.usage.dropped, first.usage.learner_dropped, first.usage.learner_busy) == (1, 3.0, 5.0)
    assert (second.usage.dropped, second.usage.learner_dropped, second.usage.learner_busy) == (1, 3.0, 8.0)


# Ties ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["async", "ssp"])
def test_a_steady_state_does_not_depend_on_the_second(rule: str) -> None:
    """The durations of `delays=constant`, of which 6 aggregations take as long as a learner: all rounds are alike.

    The paths of 0.3 and 6 x 0.05 s end together, and what was scheduled first happens first.
    """
    timeline = simulate(
        rule,
        gradients=32,
        learner=delay("constant", 0.3),
        actor=delay("constant", 3.6),
        aggregate=delay("constant", 0.05),
        platform=PlatformConfig(rpc=0.007, cache=0.13),
    )
    records = advance(timeline, 220)
    means = {sum(record.staleness()) / 32 for record in records[1:]}
    seconds = {round(record.usage.seconds - record.start, 9) for record in records[1:]}
    assert means == {11.25} and len(seconds) == 1
    assert [r.staleness() for r in records[20:120]] == [r.staleness() for r in records[120:]]


def test_durations_are_rounded_to_nanoseconds_once() -> None:
    timeline = simulate("central", gradients=3, learner=delay("constant", 0.1), actor=delay("constant", 1 / 3))
    records = advance(timeline, 3)
    assert [record.start for record in records] == [0.0, 0.633333333, 1.266666666]
    assert timeline.usage.learner_busy == 0.9  # where nine times 0.1 are less, added up as floats
    assert timeline.now == records[-1].usage.seconds == 1.899999999


@pytest.mark.parametrize("seconds", [1e-12, 1e30, 1e300])
def test_extreme_durations(seconds: float) -> None:
    timeline = simulate("central", gradients=1, learner=delay("constant", seconds), actor=delay("constant", 1.0))
    advance(timeline, 2)
    assert timeline.now == pytest.approx(2 * (1.0 + seconds)) and math.isfinite(timeline.usage.learner_busy)


# What holds for every rule ----------------------------------------------------------------------------------------


@examples
@given(scenario=scenarios())
def test_every_minibatch_is_used_exactly_once_or_counted_as_dropped(scenario: Scenario) -> None:
    timeline, gradients = scenario.build(), scenario.options["gradients"]
    records = advance(timeline, scenario.rounds)
    groups = [group for record in records for group in record.groups]
    dropped = [gradient for record in records for gradient in record.dropped]
    seen = Counter((g.fragment, g.minibatch) for g in [*used(records), *dropped])
    assert set(seen.values()) == {1}
    complete = scenario.rounds - (timeline.depth - 1)
    assert {(f, m) for f in range(complete) for m in range(gradients)} <= set(seen)
    assert max(seen) < (scenario.rounds, 0) and max(m for _, m in seen) < gradients

    assert timeline.usage.dropped == len(dropped)
    if scenario.options["overflow"] == "wait":
        assert not dropped
    flying = len(timeline.coordinator.running) + len(timeline.coordinator.queue) + len(timeline.coordinator.pointers)
    assert len(seen) + flying == scenario.rounds * gradients
    delivered = len(seen) + len(timeline.coordinator.queue)
    assert timeline.usage.invocations == delivered + timeline.usage.failures + len(timeline.coordinator.running)

    # A round touches the newest fragments only: the engine keeps as many.
    assert all(r.index - timeline.depth < g.fragment <= r.index for r in records for g in [*used([r]), *r.dropped])

    # The clock counts aggregations: an aggregation still under way has not ticked.
    assert [group.clock for group in groups] == list(range(len(groups)))
    assert timeline.coordinator.clock == len(groups) - timeline.coordinator.aggregating
    for group in groups:
        assert len(group.weights) == len(group.gradients) > 0
        for gradient in group.gradients:
            assert gradient.staleness == group.clock - gradient.version
            assert 0 <= gradient.staleness <= timeline.system.versions - 1
            assert gradient.start <= gradient.end <= group.second
            assert len(gradient.peers) == len(set(gradient.peers)) < timeline.system.learners
            oldest = group.clock - (timeline.system.versions - 1)
            assert all(oldest <= v <= group.clock and v != gradient.version for v in gradient.peers)
        if scenario.rule != "artifact":
            # With v = 3 the cube of a weight is one over the staleness.
            stale = [max(1, g.staleness) for g in group.gradients]
            assert [weight**-3 for weight in group.weights] == pytest.approx(stale)


@examples
@given(scenario=scenarios(), data=st.data())
def test_a_restored_timeline_goes_on_as_if_nothing_had_happened(scenario: Scenario, data: st.DataObject) -> None:
    timeline = scenario.build()
    advance(timeline, data.draw(st.integers(0, scenario.rounds)))
    restored = scenario.build()
    restored.restore(json.loads(json.dumps(timeline.state())))
    assert [asdict(r) for r in advance(restored, 3)] == [asdict(r) for r in advance(timeline, 3)]
    assert restored.state() == timeline.state()


def test_the_group_that_is_forming_is_restored() -> None:
    """An aggregation under way at the end of a round is slowed down by learners in the next: published later."""
    platform = PlatformConfig(actors=1, gpus=1, interference=1.0, shared_memory=1.0)
    options: dict[str, Any] = {"learners": 2, "gradients": 4, "actors": "pipelined", "platform": platform}
    options |= {"learner": delay("lognormal", 0.2, sigma=0.5), "actor": delay(), "aggregate": delay()}
    timeline, late = simulate("async", **options), 0
    for _ in range(20):
        timeline.next_round()
        forming = timeline.forming
        restored = simulate("async", **options)
        restored.restore(json.loads(json.dumps(timeline.state())))
        assert restored.forming == forming
        before, found = forming and forming.published, restored.forming
        assert restored.next_round() == timeline.next_round() and restored.usage == timeline.usage
        assert found == forming and restored.state() == timeline.state()
        late += forming is not None and forming.published > before
    assert late > 5


EARLIER: dict[str, Any] = {
    "clock": 3, "fragment": 2, "collecting": False, "queue": [], "early": [], "computing": [], "admission": {},
    "remaining": [[1, 3]], "weights": {},
}  # fmt: skip
"""State of two learners after two rounds, as version 0.2 saved it: in seconds."""
EARLIER_USAGE = {
    "seconds": 1.7, "learner_busy": 1.2000000000000002, "learner_failed": 0.008353593403687132, "learner_startup": 0.0,
    "actor_busy": 1.4, "actor_startup": 0.0, "aggregate_busy": 0.6000000000000001, "scaling_busy": 0.0,
    "actor_invocations": 2, "invocations": 6, "failures": 1, "updates": 3, "gradients": 3, "dropped": 0, "waits": 0,
    "escapes": 0, "staleness_total": 3, "staleness_max": 2,
}  # fmt: skip
EARLIER_PLAIN = EARLIER | {
    "now": 1.7, "_order": 11, "aggregating": False, "iterations": [2, 1], "running": [[1, 1], [0, 1]],
    "pointers": [[1, 2]], "rule": {"round": 0},
    "events": [[1.808353593403687, 9, 1, [1, 0, 1, 1, 1.408353593403687, 0.0]],
               [1.9, 10, 1, [1, 1, 0, 1, 1.5, 0.0]]],
    "usage": EARLIER_USAGE, "company": None, "containers": [1.5, 1.408353593403687], "actor_containers": [1.4],
    "streams": {"learner": 6, "actor": 2, "aggregate": 3, "failure": 12, "scaling": 0, "loader": 2},
}  # fmt: skip
EARLIER_SHARED = EARLIER | {
    "now": 2.09, "_order": 30, "aggregating": True, "iterations": [2, 2], "running": [[0, 2], [1, 2]],
    "pointers": [], "rule": {"round": 1},
    "events": [[2.34, 30, 3, [[1]]], [2.6480524896932613, 28, 1, [1, 2, 1, 2, 2.0230524896932613, 0.0]],
               [2.4650000000000003, 25, 1, [1, 1, 0, 2, 1.84, 0.0]]],
    "usage": EARLIER_USAGE | {"seconds": 2.09},
    "company": [[0, 1.9400000000000002, 0.3, 25, 1.75], [1, 2.1230524896932614, 0.3, 28, 1.75],
                [-1, 2.09, 0.2, 30, 1.25]],
    "containers": [1.84, 2.0230524896932613], "actor_containers": [1.4],
    "streams": {"learner": 7, "actor": 2, "aggregate": 4, "failure": 14, "scaling": 0, "loader": 2},
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "sharing", "ends"),
    [
        (EARLIER_PLAIN, {}, [1.808353593, 1.9, 2.208353593, 2.8, 3.055757781, 3.2]),
        (EARLIER_SHARED, {"contention": 0.5, "interference": 0.25}, [2.447142857, 2.577894635]),
    ],
)
def test_a_state_in_seconds_is_restored(state: dict[str, Any], sharing: dict[str, float], ends: list[float]) -> None:
    constants = {"learner": delay("constant", 0.3), "actor": delay("constant", 0.7)}
    platform = PlatformConfig(actors=1, gpus=1, shared_memory=0.05, **sharing)
    options: dict[str, Any] = {"learners": 2, "gradients": 3, "actors": "pipelined", "failure": 0.2, **constants}
    timeline = simulate("async", aggregate=delay("constant", 0.2), platform=platform, **options)
    timeline.restore(json.loads(json.dumps(state)))
    assert timeline.now == state["now"]
    assert timeline.usage.learner_busy == 1.2 and timeline.usage.learner_failed == 0.008353593
    records = advance(timeline, 2)
    assert [g.end for g in used(records)][: len(ends)] == pytest.approx(ends, abs=5e-9)  # as version 0.2 went on
    assert all(type(event[0]) is int for event in timeline.state()["events"])


SAVED_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"actor": INSTANT, "learner": HEAVY, "admission": "in_order"},
    "shared": {
        "actor": delay("constant", 0.7),
        "loader": delay("constant", 0.3),
        "platform": PlatformConfig(actors=1, gpus=1, shared_memory=0.05, contention=0.5, interference=0.25),
    },
}
SAVED: dict[str, list[tuple[int, dict[str, Any]]]] = json.loads(
    Path(__file__).with_name("timeline_states.json").read_text()
)
"""States after a number of rounds, as version 0.3 saved them: numbers are the kinds of their events."""


@pytest.mark.parametrize("name", SAVED_OPTIONS)
def test_a_state_with_numbered_events_is_restored(name: str) -> None:
    kinds = set()
    options = SAVED_OPTIONS[name] | {"gradients": 6, "learners": 3, "actors": "pipelined", "failure": 0.3}
    for rounds, state in SAVED[name]:
        whole, restored = (simulate("async", aggregate=delay("constant", 0.2), **options) for _ in range(2))
        advance(whole, rounds)
        restored.restore(state)
        kinds |= {event[2] for event in restored.state()["events"]}
        assert restored.state() == whole.state() and advance(restored, 3) == advance(whole, 3)
    computing = {"ComputationBegun", "ComputationEnded"} if name == "shared" else set()
    assert kinds == {"InvocationEnded", "GroupAggregated", *computing}


VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0),
    float: st.floats(0, 1e9),
    bool: st.booleans(),
    list[int]: st.lists(st.integers(0)),
    float | None: st.none() | st.floats(0, 10),
}


def records(kind: Any) -> st.SearchStrategy[Any]:
    """Records with a value for each field, defaults or not."""
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: VALUES[hint] if hint in VALUES else records(hint) for name, hint in hints.items()})


@given(st.sampled_from([*KINDS.values()]).flatmap(records))
def test_every_field_of_an_event_is_saved(event: Event) -> None:
    """A field that a gradient has before its delivery survives a checkpoint."""
    assert restored(json.loads(json.dumps(saved((3, 7, event))))) == (3, 7, event)


def test_what_is_in_flight_between_rounds_is_restored() -> None:
    flying: set[str] = set()
    for rule in register.rule:
        options: dict[str, Any] = {"actors": "pipelined", "actor": INSTANT, "learner": HEAVY, "failure": 0.1}
        options |= {"aggregate": delay("constant", 0.2), "gradients": 20, "decay": 0.5}
        timeline = simulate(rule, **options)
        for _ in range(8):
            state = json.loads(json.dumps(timeline.state()))
            flying |= {name for name in ("queue", "running", "pointers", "events", "aggregating") if state[name]}
            restored = simulate(rule, **options)
            restored.restore(state)
            assert restored.next_round() == timeline.next_round()
            assert restored.state() == timeline.state()
    assert flying == {"queue", "running", "pointers", "events", "aggregating"}


@pytest.mark.parametrize("rule", list(register.rule))
def test_a_timeline_is_a_function_of_its_seed(rule: str) -> None:
    first, again, other = (advance(simulate(rule, seed=seed, failure=0.1), 4) for seed in (0, 0, 1))
    assert first == again != other


def test_the_version_ring_waits_or_drops() -> None:
    """With 3 versions and 8 learners on heavy tails the ring must overflow, in the way that was asked for."""
    waiting = simulate("async", versions=3, learner=HEAVY, overflow="wait")
    records = advance(waiting, 10)
    assert waiting.usage.waits > 0 and waiting.usage.dropped == 0
    assert len(used(records)) == 10 * GRADIENTS
    dropping = simulate("async", versions=3, learner=HEAVY, overflow="drop")
    records = advance(dropping, 10)
    assert dropping.usage.waits == 0 and dropping.usage.dropped == sum(len(r.dropped) for r in records) > 0
    assert len(used(records)) == 10 * GRADIENTS - dropping.usage.dropped
    roomy = simulate("async", versions=200, learner=HEAVY, overflow="wait")
    assert max(g.staleness for g in used(advance(roomy, 10))) > 2 and roomy.usage.waits == 0


# Actors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["async", "allreduce", "stellaris"])
def test_a_barrier_and_a_pipeline_of_actors(rule: str) -> None:
    """Fragment r is collected with the version published at its start: all of r - 1 learned, or of r - 2."""
    for depth, actors in ((1, "barrier"), (2, "pipelined")):
        timeline = simulate(rule, actors=actors, aggregate=delay("constant", 0.05))
        assert timeline.depth == depth
        records = advance(timeline, 12)
        published = 0
        for record in records:
            before = [g for r in records[: record.index + 1] for g in r.groups if g.published <= record.start]
            assert record.behaviour_version == len(before)
            assert record.behaviour_version == published or depth == 2
            earlier = [g for r in records[: record.index] for g in used([r])]
            finished = Counter(g.fragment for g in earlier)
            assert all(finished[f] == GRADIENTS for f in range(record.index - depth + 1))
            assert all(g.fragment <= record.index for g in earlier)
            published += len(record.groups)
        late = [record for record in records if any(g.fragment < record.index for g in used([record]))]
        assert len(late) > 8 if depth == 2 else not late
        seconds = timeline.now
        if depth == 1:
            barrier_seconds = seconds
    assert seconds < 0.9 * barrier_seconds
