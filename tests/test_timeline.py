"""The simulated timeline: rules, staleness, delays, platform, and the plan laid out from it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris_jax.config import DelayConfig, DelaysConfig, PlatformConfig, SystemConfig
from stellaris_jax.timeline import RULES, Gradient, PlanShape, Round, Timeline, build_plan, minibatch_order, wave_count

GRADIENTS = 16
LEARNER = DelayConfig("lognormal", 0.3, 0.5)
HEAVY = DelayConfig("pareto", 0.3, alpha=1.1)
INSTANT = DelayConfig("constant", 0.0)
ACTOR = DelayConfig("lognormal", 2.0, 0.1)

examples = settings(deadline=None, max_examples=60)


def simulate(
    rule: str,
    *,
    gradients: int = GRADIENTS,
    seed: int = 0,
    learner: DelayConfig = LEARNER,
    actor: DelayConfig = ACTOR,
    aggregate: DelayConfig = INSTANT,
    failure: float = 0.0,
    platform: PlatformConfig | None = None,
    **system: Any,
) -> Timeline:
    """A timeline of one rule; `system` overrides fields of `SystemConfig`."""
    learners = 1 if rule == "central" else 8
    config = SystemConfig(rule=rule, **{"learners": learners, **system})
    delays = DelaysConfig(learner=learner, actor=actor, aggregate=aggregate, failure=failure)
    platform = platform or PlatformConfig(actors=2)
    return Timeline(config, platform, delays, gradients_per_round=gradients, seed=seed)


def advance(timeline: Timeline, rounds: int) -> list[Round]:
    return [timeline.next_round() for _ in range(rounds)]


def used(records: list[Round]) -> list[Gradient]:
    return [gradient for record in records for group in record.groups for gradient in group.gradients]


def mean(gradients: list[Gradient]) -> float:
    return sum(g.staleness for g in gradients) / len(gradients)


def watch(timeline: Timeline) -> list[tuple[int, list[int], bool]]:
    """Every verdict of the rule from now on: (round, staleness of the queue, whether it passed)."""
    verdicts: list[tuple[int, list[int], bool]] = []
    ready = timeline.rule.ready

    def watched(staleness: Any, timeline: Timeline) -> bool:
        passed = ready(staleness, timeline)
        verdicts.append((timeline.rule.round, list(staleness), passed))
        return passed

    timeline.rule.ready = watched
    return verdicts


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
        learner=DelayConfig("measured", table=[3.0, 1.0, 1.0]),
        actor=DelayConfig("constant", 1.0),
        aggregate=DelayConfig("constant", aggregate),
    )
    record = timeline.next_round()
    rows = [
        (g.minibatch, g.learner, g.version, g.staleness, g.peers, g.end, group.second)
        for group in record.groups
        for g in group.gradients
    ]
    assert rows == expected
    assert [group.weights for group in record.groups] == [[1.0], [1.0], [pytest.approx(2 ** (-1 / 3))]]
    assert timeline.clock == 3 and timeline.now == 4.0 + (2.5 if aggregate else 0.0)
    assert timeline.usage.learner_busy == 5.0 and timeline.usage.actor_busy == 2.0
    assert timeline.usage.aggregate_busy == 3 * aggregate and timeline.usage.invocations == 3


# What holds for every rule ----------------------------------------------------------------------------------------


@dataclass
class Scenario:
    rule: str
    options: dict[str, Any]
    rounds: int

    def build(self) -> Timeline:
        return simulate(self.rule, **self.options)


@st.composite
def scenarios(draw: st.DrawFn, rules: tuple[str, ...] = tuple(RULES)) -> Scenario:
    rule = draw(st.sampled_from(rules))
    learners = 1 if rule == "central" else draw(st.integers(1, 8))
    delays = [DelayConfig("constant", 0.3), LEARNER, HEAVY, DelayConfig("measured", table=[0.1, 0.7, 2.0])]
    keep_alive = draw(st.sampled_from([0.5, 600.0]))
    options = {
        "learners": learners,
        "softsync_c": draw(st.integers(1, learners)),
        "ssp_s": draw(st.integers(0, 3)),
        "decay": draw(st.sampled_from([1.0, 0.96, 0.5, 1e-9])),
        "versions": draw(st.sampled_from([2, 3, 5, 32])),
        "overflow": draw(st.sampled_from(["wait", "drop"])),
        "actors": draw(st.sampled_from(["barrier", "pipelined"])),
        "gradients": draw(st.integers(learners, 20)),
        "learner": draw(st.sampled_from(delays)),
        "actor": draw(st.sampled_from([ACTOR, INSTANT])),
        "aggregate": draw(st.sampled_from([INSTANT, DelayConfig("constant", 0.2)])),
        "failure": draw(st.sampled_from([0.0, 0.1, 0.6])),
        "seed": draw(st.integers(0, 1000)),
        "platform": PlatformConfig(actors=3, keep_alive=keep_alive, prewarm=draw(st.booleans())),
    }
    return Scenario(rule, options, rounds=draw(st.integers(2, 6)))


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
    flying = len(timeline.running) + len(timeline.queue) + len(timeline.pointers)
    assert len(seen) + flying == scenario.rounds * gradients
    delivered = len(seen) + len(timeline.queue)
    assert timeline.usage.invocations == delivered + timeline.usage.failures + len(timeline.running)

    # A round touches the newest fragments only: the engine keeps as many.
    assert all(r.index - timeline.depth < g.fragment <= r.index for r in records for g in [*used([r]), *r.dropped])

    # The clock counts aggregations: an aggregation still under way has not ticked.
    assert [group.clock for group in groups] == list(range(len(groups)))
    assert timeline.clock == len(groups) - timeline.aggregating
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
            stale = [g.staleness for g in group.gradients]
            assert group.weights == pytest.approx([s ** (-1 / 3) if s else 1.0 for s in stale])


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
    for rule in RULES:
        options: dict[str, Any] = {"actors": "pipelined", "actor": INSTANT, "learner": HEAVY, "failure": 0.1}
        options |= {"aggregate": DelayConfig("constant", 0.2), "gradients": 20, "decay": 0.5}
        timeline = simulate(rule, **options)
        for _ in range(8):
            state = json.loads(json.dumps(timeline.state()))
            flying |= {name for name in ("queue", "running", "pointers", "events", "aggregating") if state[name]}
            restored = simulate(rule, **options)
            restored.restore(state)
            assert restored.next_round() == timeline.next_round()
            assert restored.state() == timeline.state()
    assert flying == {"queue", "running", "pointers", "events", "aggregating"}


@pytest.mark.parametrize("rule", RULES)
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


# The rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actors", ["barrier", "pipelined"])
@pytest.mark.parametrize("failure", [0.0, 0.3])
def test_allreduce_averages_all_learners_on_one_version(actors: str, failure: float) -> None:
    aggregate = DelayConfig("constant", 0.2)
    records = advance(simulate("allreduce", gradients=20, actors=actors, failure=failure, aggregate=aggregate), 8)
    for record in records:
        for group in record.groups:
            assert {g.staleness for g in group.gradients} == {0}
            assert len({g.learner for g in group.gradients}) == len(group.gradients)
            assert set(group.weights) == {1.0}
    if actors == "barrier":
        assert all([len(group.gradients) for group in record.groups] == [8, 8, 4] for record in records)


def test_central_is_sequential() -> None:
    records = advance(simulate("central", aggregate=DelayConfig("constant", 0.2), failure=0.2), 5)
    for record in records:
        assert [g.minibatch for g in used([record])] == list(range(GRADIENTS))
        assert all(len(group.gradients) == 1 and group.weights == [1.0] for group in record.groups)
    assert {g.staleness for g in used(records)} == {0}


def test_more_learners_are_more_stale() -> None:
    """Between a fetch and its push the n - 1 other learners make one update each on average (Zhang et al. 2016)."""
    for learners in (1, 2, 4, 8):
        records = advance(simulate("async", learners=learners, gradients=2000, versions=500), 1)
        assert all(len(group.gradients) == 1 for group in records[0].groups)
        assert mean(used(records)) == pytest.approx(learners - 1, rel=0.02)


@pytest.mark.parametrize("c", [1, 3, 8])
def test_softsync_aggregates_every_c_gradients(c: int) -> None:
    def sizes(aggregate: DelayConfig) -> list[list[int]]:
        timeline = simulate("softsync", softsync_c=c, versions=200, gradients=50, aggregate=aggregate)
        return [[len(group.gradients) for group in record.groups] for record in advance(timeline, 10)]

    for *whole, tail in sizes(INSTANT):
        assert whole == [c] * (50 // c - (50 % c == 0)) and tail == (50 % c or c)
    # While an aggregation is under way more than c may gather, never fewer.
    slow = sizes(DelayConfig("constant", 0.6))
    assert all(size >= c for row in slow for size in row[:-1]) and max(max(row) for row in slow) > c


@pytest.mark.parametrize("s", [0, 1, 3])
def test_ssp_bounds_the_lead_over_the_slowest(s: int) -> None:
    def leads(rule: str) -> list[int]:
        """How many iterations ahead of the slowest each learner was when it started."""
        gradients = used(advance(simulate(rule, ssp_s=s, learner=HEAVY, gradients=40, versions=200), 6))
        result = []
        for gradient in gradients:
            done = Counter({learner: 0 for learner in range(8)})
            done.update(g.learner for g in gradients if g.end <= gradient.start)
            result.append(done[gradient.learner] - min(done.values()))
        return result

    assert max(leads("ssp")) == s
    assert max(leads("async")) > 3


@examples
@given(
    seed=st.integers(0, 1000),
    decay=st.sampled_from([1.0, 0.96, 0.8]),
    learner=st.sampled_from([LEARNER, HEAVY]),
    aggregate=st.sampled_from([0.0, 0.2]),
)
def test_beta_k_is_delta_max_times_d_to_the_k(seed: int, decay: float, learner: DelayConfig, aggregate: float) -> None:
    """Eq. 3, delta_max being the largest staleness of round 0, which is ungated."""
    delay = DelayConfig("constant", aggregate)
    records = advance(simulate("stellaris", seed=seed, decay=decay, learner=learner, aggregate=delay), 12)
    delta_max = max(g.staleness for g in used(records[:1]))
    assert all(group.threshold is None and not group.escaped for group in records[0].groups)
    assert aggregate or all(len(group.gradients) == 1 for group in records[0].groups)
    for k, record in enumerate(records[1:], start=1):
        for group in record.groups:
            assert group.threshold == pytest.approx(delta_max * decay**k, rel=1e-12)
            assert group.escaped == (mean(group.gradients) > group.threshold)


def test_d_1_refuses_only_what_is_staler_than_round_0() -> None:
    """The limit d = 1: the gate is delta_max for ever, so it seldom closes and Stellaris is nearly `async`."""
    refused = passed = 0
    for seed in range(10):
        timeline = simulate("stellaris", seed=seed, decay=1.0, learner=HEAVY, versions=200)
        delta_max = max(g.staleness for g in used(advance(timeline, 1)))
        verdicts = watch(timeline)
        advance(timeline, 10)
        for _, staleness, verdict in verdicts:
            assert verdict == (np.mean(staleness) <= delta_max)
        refused += sum(not verdict for _, _, verdict in verdicts)
        passed += sum(verdict for _, _, verdict in verdicts)
    assert 0 < refused < 0.1 * passed


@examples
@given(scenario=scenarios(rules=("stellaris",)))
def test_d_towards_0_is_synchronous_but_for_escapes(scenario: Scenario) -> None:
    """The limit d -> 0: after round 0 a group is all fresh, or an escape by at least n gradients, or a stalled tail."""
    scenario.options |= {"decay": 1e-9, "actors": "barrier"}
    timeline = scenario.build()
    for record in advance(timeline, scenario.rounds)[1:]:
        for group in record.groups:
            assert group.escaped == (mean(group.gradients) > 0)
            if group.escaped:
                assert len(group.gradients) >= timeline.system.learners or group is record.groups[-1]


def test_d_towards_0_passes_fresh_groups_and_counts_escapes() -> None:
    """Where aggregation takes no time the queue is escaped as soon as it holds as many gradients as learners, 8."""
    records = advance(simulate("stellaris", decay=1e-9), 10)[1:]
    fresh = [group for record in records for group in record.groups if not group.escaped]
    escapes = [group for record in records for group in record.groups[:-1] if group.escaped]
    assert fresh and mean([g for group in fresh for g in group.gradients]) == 0.0
    assert len(escapes) > 5 and {len(group.gradients) for group in escapes} == {8}


@examples
@given(scenario=scenarios(rules=("stellaris", "artifact")))
def test_the_gate_never_deadlocks_and_its_escapes_are_counted(scenario: Scenario) -> None:
    timeline = scenario.build()
    verdicts = watch(timeline)
    records = advance(timeline, 6)
    groups = [group for record in records for group in record.groups]
    assert len(used(records)) + timeline.usage.dropped >= (6 - timeline.depth + 1) * scenario.options["gradients"]
    passed = sum(verdict for _, _, verdict in verdicts)
    assert len(groups) == passed + sum(group.escaped for group in groups)
    # A refused queue that stays shorter than the number of learners is waited for, unless nothing is left to wait for.
    short = [group for group in groups if group.escaped and len(group.gradients) < timeline.system.learners]
    if timeline.depth == 1:
        assert all(any(group is record.groups[-1] for record in records) for group in short)


def test_artifact_bound_over_rounds() -> None:
    """The released code: max_stale 5 and d = 0.9 give 5 5 5 4 4 3 3 3 3 2 2 ... and 1 from round 17 (rounds from 1)."""
    rule = RULES["artifact"](SystemConfig(rule="artifact", decay=0.9))
    assert rule.threshold() is None
    rule.restore({"largest": 5})
    bounds = []
    for rule.round in range(20):
        bounds.append(rule.threshold())
    assert bounds == [5, 5, 5, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]


def test_artifact_bound_comes_from_the_mean_of_the_first_stale_round() -> None:
    timeline = simulate("artifact", decay=0.9)
    records = advance(timeline, 8)
    largest = int(mean(used(records[:1]))) + 1
    assert largest > 1
    assert all(group.threshold is None for group in records[0].groups)
    for r, record in enumerate(records[1:], start=1):
        for group in record.groups:
            assert group.threshold == min(int(largest * 0.9**r) + 1, largest)
            assert group.escaped == (mean(group.gradients) > group.threshold)


@pytest.mark.parametrize("decay", [0.9, 0.96])
def test_artifact_weights_are_identically_1(decay: float) -> None:
    records = advance(simulate("artifact", decay=decay, root=3), 10)
    assert max(g.staleness for g in used(records)) >= 4
    assert {w for record in records for group in record.groups for w in group.weights} == {1.0}


def test_artifact_weight_is_fed_a_count_of_stale_gradients() -> None:
    """Where the factor stays above d it shows that it is the count's root, not the staleness's."""
    rule = RULES["artifact"](SystemConfig(rule="artifact", decay=0.6, root=3))
    weights = [rule.weight(staleness) for staleness in (0, 7, 7, 0, 7, 7, 7, 7)]
    assert weights == pytest.approx([1.0, 1.0, 1.0, *(i ** (-1 / 3) for i in (2, 2, 3, 4)), 1.0])


def test_weights_follow_equation_4() -> None:
    rule = RULES["stellaris"](SystemConfig(root=3))
    assert [rule.weight(s) for s in (0, 1, 2, 4, 8)] == pytest.approx([1.0, 1.0, 0.7937005, 0.6299605, 0.5])
    assert RULES["stellaris"](SystemConfig(root=1)).weight(5) == pytest.approx(0.2)
    assert RULES["stellaris"](SystemConfig(weighting=False)).weight(8) == 1.0
    assert RULES["artifact"](SystemConfig(weighting=False, decay=1e-9)).weight(8) == 1.0


# Actors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["async", "allreduce", "stellaris"])
def test_a_barrier_and_a_pipeline_of_actors(rule: str) -> None:
    """Fragment r is collected with the version published at its start: all of r - 1 learned, or of r - 2."""
    for depth, actors in ((1, "barrier"), (2, "pipelined")):
        timeline = simulate(rule, actors=actors, aggregate=DelayConfig("constant", 0.05))
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


# The plan ---------------------------------------------------------------------------------------------------------


@examples
@given(
    options=st.lists(scenarios(rules=("async", "softsync", "allreduce", "stellaris")), min_size=1, max_size=3),
    width=st.sampled_from([1, 3, 4]),
    executed=st.integers(1, 3),
)
def test_the_plan_is_the_records(options: list[Scenario], width: int, executed: int) -> None:
    """Reading the waves back gives every gradient of every group once, in order, and nothing else."""
    shared = options[0].options
    scenarios_ = [
        Scenario(s.rule, s.options | {k: shared[k] for k in ("gradients", "versions", "actors")}, 3) for s in options
    ]
    for scenario in scenarios_:
        scenario.options["learners"] = min(scenario.options["learners"], shared["gradients"])
        scenario.options["softsync_c"] = min(scenario.options["softsync_c"], scenario.options["learners"])
    timelines = [scenario.build() for scenario in scenarios_]
    seeds, gradients, ring, buffers = len(timelines), shared["gradients"], shared["versions"], timelines[0].depth
    shape = PlanShape(3, seeds, width, 7, gradients, 2, ring, buffers)
    for timeline in timelines:
        timeline.next_round()  # chunks start anywhere
    records = [[timeline.next_round() for timeline in timelines] for _ in range(executed)]
    orders = [[minibatch_order(s, r, 1, gradients, 2 * gradients) for s in range(seeds)] for r in range(executed)]
    plan = build_plan(shape, records, orders, [1.0, 0.5, 0.25][:executed], target_interval=3)

    assert plan.weights.shape == (shape.capacity, seeds, width)
    begin = 0
    for r, row in enumerate(records):
        assert plan.bounds[r, 0] == begin
        begin = plan.bounds[r, 1]
        assert begin - plan.bounds[r, 0] == max(wave_count(record, width) for record in row)
        for s, record in enumerate(row):
            wave = plan.bounds[r, 0]
            for group in record.groups:
                left = list(zip(group.gradients, group.weights, strict=True))
                while left:
                    part, left = left[:width], left[width:]
                    assert plan.sizes[wave, s] == (0 if left else len(group.gradients))
                    # The target network is version 3, 6, 9, ...: the wave that publishes one of them says so.
                    assert plan.refresh[wave, s] == (not left and (group.clock + 1) % 3 == 0)
                    for lane, (gradient, weight) in enumerate(part):
                        assert plan.weights[wave, s, lane] == np.float32(weight)
                        buffer, minibatch, version = plan.slots[wave, s, lane]
                        assert (buffer, minibatch) == (gradient.fragment % buffers, gradient.minibatch)
                        assert version == gradient.version % ring
                        count, *peers = plan.peers[wave, s, lane]
                        assert peers[:count] == [v % ring for v in gradient.peers]
                    assert not np.any(plan.weights[wave, s, len(part) :])
                    wave += 1
            # A seed with fewer waves than another idles to the end of the round.
            assert not np.any(plan.weights[wave:begin, s]) and not np.any(plan.sizes[wave:begin, s])
            assert not np.any(plan.refresh[wave:begin, s])
            assert plan.behaviour[r, s] == record.behaviour_version % ring
            np.testing.assert_array_equal(plan.order[r, s], orders[r][s])
        assert plan.learning_rate[r] == [1.0, 0.5, 0.25][r]
    assert not np.any(plan.weights[begin:]) and not np.any(plan.sizes[begin:])
    assert not np.any(plan.bounds[executed:]) and not np.any(plan.learning_rate[executed:])


def test_the_data_loader_cuts_a_fresh_permutation_per_epoch() -> None:
    order = minibatch_order(seed=3, fragment=5, epochs=4, minibatches=8, samples=64)
    assert order.shape == (32, 8) and order.dtype == np.int32
    epochs = order.reshape(4, 64)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.broadcast_to(np.arange(64), (4, 64)))
    assert len({tuple(epoch) for epoch in epochs}) == 4
    np.testing.assert_array_equal(order, minibatch_order(3, 5, 4, 8, 64))
    others = [minibatch_order(seed, fragment, 4, 8, 64) for seed, fragment in ((2, 5), (3, 4), (5, 3))]
    assert not any(np.array_equal(order, other) for other in others)
