"""Aggregation rules: whom they wait for, what they let pass, and with which weight."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import (
    GRADIENTS,
    HEAVY,
    INSTANT,
    LEARNER,
    Scenario,
    advance,
    examples,
    mean,
    scenarios,
    simulate,
    used,
    watch,
)
from settings import delay

from stellaris_jax.base.registry import register
from stellaris_jax.config.sections import DelayConfig, PlatformConfig


@pytest.mark.parametrize("actors", ["barrier", "pipelined"])
@pytest.mark.parametrize("failure", [0.0, 0.3])
def test_allreduce_averages_all_learners_on_one_version(actors: str, failure: float) -> None:
    aggregate = delay("constant", 0.2)
    records = advance(simulate("allreduce", gradients=20, actors=actors, failure=failure, aggregate=aggregate), 8)
    for record in records:
        for group in record.groups:
            assert {g.staleness for g in group.gradients} == {0}
            assert len({g.learner for g in group.gradients}) == len(group.gradients)
            assert set(group.weights) == {1.0}
    if actors == "barrier":
        assert all([len(group.gradients) for group in record.groups] == [8, 8, 4] for record in records)


def test_central_is_sequential() -> None:
    records = advance(simulate("central", aggregate=delay("constant", 0.2), failure=0.2), 5)
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
        timeline = simulate("softsync", c=c, versions=200, gradients=50, aggregate=aggregate)
        return [[len(group.gradients) for group in record.groups] for record in advance(timeline, 10)]

    for *whole, tail in sizes(INSTANT):
        assert whole == [c] * (50 // c - (50 % c == 0)) and tail == (50 % c or c)
    # While an aggregation is under way more than c may gather, never fewer.
    slow = sizes(delay("constant", 0.6))
    assert all(size >= c for row in slow for size in row[:-1]) and max(max(row) for row in slow) > c


@pytest.mark.parametrize("s", [0, 1, 3])
def test_ssp_bounds_the_lead_over_the_slowest(s: int) -> None:
    def leads(rule: str) -> list[int]:
        """How many iterations ahead of the slowest each learner was when it started."""
        gradients = used(advance(simulate(rule, s=s, learner=HEAVY, gradients=40, versions=200), 6))
        result = []
        for gradient in gradients:
            done = Counter({learner: 0 for learner in range(8)})
            done.update(g.learner for g in gradients if g.end <= gradient.start)
            result.append(done[gradient.learner] - min(done.values()))
        return result

    assert max(leads("ssp")) == s
    assert max(leads("async")) > 3


SHARES = {
    1.0: {1: 1.0, 2: 1.0, 3: 1.0, 11: 1.0},
    0.96: {1: 0.96, 2: 0.9216, 3: 0.884736, 11: 0.6382393306},
    0.8: {1: 0.8, 2: 0.64, 3: 0.512, 11: 0.08589934592},
}
"""Gate in rounds 1, 2, 3 and 11 as a share of the largest staleness, by decay."""


@examples
@given(
    seed=st.integers(0, 1000),
    decay=st.sampled_from(list(SHARES)),
    learner=st.sampled_from([LEARNER, HEAVY]),
    aggregate=st.sampled_from([0.0, 0.2]),
)
def test_beta_k_is_delta_max_times_d_to_the_k(seed: int, decay: float, learner: DelayConfig, aggregate: float) -> None:
    """Eq. 3, delta_max being the largest staleness of round 0, which is ungated."""
    seconds = delay("constant", aggregate)
    records = advance(simulate("stellaris", seed=seed, decay=decay, learner=learner, aggregate=seconds), 12)
    delta_max = max(g.staleness for g in used(records[:1]))
    assert all(group.threshold is None and not group.escaped for group in records[0].groups)
    assert aggregate or all(len(group.gradients) == 1 for group in records[0].groups)
    for k, record in enumerate(records[1:], start=1):
        for group in record.groups:
            assert group.escaped == (mean(group.gradients) > group.threshold)
            if k in SHARES[decay]:
                assert group.threshold == pytest.approx(delta_max * SHARES[decay][k], rel=1e-9)


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
    rule = register.rule["artifact"]({"decay": 0.9})
    assert rule.threshold() is None
    rule.restore({"largest": 5})
    bounds = []
    for rule.round in range(20):
        bounds.append(rule.threshold())
    assert bounds == [5, 5, 5, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]


def test_artifact_bound_comes_from_the_mean_of_the_first_stale_round() -> None:
    timeline = simulate("artifact", decay=0.9)
    records = advance(timeline, 8)
    assert mean(used(records[:1])) == 5.25, "6 is the next integer"
    assert [{group.threshold for group in record.groups} for record in records] == [
        {None}, {6}, {5}, {5}, {4}, {4}, {4}, {3},
    ]  # fmt: skip
    for group in (group for record in records[1:] for group in record.groups):
        assert group.escaped == (mean(group.gradients) > group.threshold)


@pytest.mark.parametrize("decay", [0.9, 0.96])
def test_artifact_weights_are_identically_1(decay: float) -> None:
    records = advance(simulate("artifact", decay=decay, root=3), 10)
    assert max(g.staleness for g in used(records)) >= 4
    assert {w for record in records for group in record.groups for w in group.weights} == {1.0}


def test_artifact_weight_is_fed_a_count_of_stale_gradients() -> None:
    """Where the factor stays above d it shows that it is the count's root, not the staleness's."""
    rule = register.weight["artifact"]({"decay": 0.6, "root": 3})
    weights = [rule.weight(staleness) for staleness in (0, 7, 7, 0, 7, 7, 7, 7)]
    assert weights == pytest.approx([1.0, 1.0, 1.0, 0.7937005, 0.7937005, 0.6933613, 0.6299605, 1.0])


def test_weights_follow_equation_4() -> None:
    rule = register.weight["power"]({"root": 3})
    assert [rule.weight(s) for s in (0, 1, 2, 4, 8)] == pytest.approx([1.0, 1.0, 0.7937005, 0.6299605, 0.5])
    assert register.weight["power"]({"root": 1}).weight(5) == pytest.approx(0.2)
    assert register.weight["constant"]().weight(8) == 1.0


def test_a_weight_too_small_to_be_told_from_an_empty_place() -> None:
    """exp(-1000) is next to nothing in 32 bits, but the gradient was learned from and is counted."""
    timeline = simulate("async", weights="exponential", rate=1000.0, learner=HEAVY)
    weights = [weight for record in advance(timeline, 3) for group in record.groups for weight in group.weights]
    assert min(weights) == pytest.approx(1e-30) and max(weights) == 1.0


def test_a_coalescing_parameter_function_takes_all_that_came_meanwhile() -> None:
    """Four learners, 1 s a gradient, 1 s an aggregation: one gradient, three that waited, then four at a time."""
    settings = {"learners": 4, "gradients": 12, "learner": delay(seconds=1.0), "aggregate": delay(seconds=1.0)}
    (alone,) = advance(simulate("async", actor=delay(seconds=0.0), **settings), 1)
    (record,) = advance(simulate("async", actor=delay(seconds=0.0), coalesce=True, **settings), 1)
    assert [len(group.gradients) for group in alone.groups] == [1] * 12
    assert alone.usage.seconds == 13.0  # serialised: 1 s for the first gradient, then 12 aggregations
    assert [len(group.gradients) for group in record.groups] == [1, 3, 4, 4]
    assert [group.second for group in record.groups] == [1.0, 2.0, 3.0, 4.0]
    assert record.usage.seconds == 5.0 and record.usage.aggregate_busy == 4.0


def test_a_coalescing_parameter_function_that_keeps_up_is_plain_async() -> None:
    settings = {"learner": LEARNER, "aggregate": INSTANT}
    plain, coalesced = (advance(simulate("async", coalesce=on, **settings), 4) for on in (False, True))
    assert plain == coalesced


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_parameter_shards_divide_an_aggregation(shards: int) -> None:
    """They work at the same time, so its function-seconds stay, but for rounding up to whole nanoseconds."""
    platform = PlatformConfig(actors=1, parameter_shards=shards)
    timeline = simulate("central", gradients=4, actor=INSTANT, learner=INSTANT, aggregate=delay(seconds=0.6),
                        platform=platform)  # fmt: skip
    (record,) = advance(timeline, 1)
    assert record.usage.seconds == pytest.approx(4 * 0.6 / shards)
    assert record.usage.aggregate_busy == pytest.approx(4 * 0.6)
