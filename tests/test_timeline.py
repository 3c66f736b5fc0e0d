"""The simulated timeline: a case worked by hand, what holds for every rule, and actors."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

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

from stellaris_jax.registry import register

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
