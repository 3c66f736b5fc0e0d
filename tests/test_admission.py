"""Admission: starts of gradients, deliveries that join the queue or are dropped, and waits for the next version."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import HEAVY, LEARNER, advance, examples, mean, simulate, used
from settings import delay

from stellaris_jax import load_config
from stellaris_jax.timeline import Round, Timeline

RULES = ("async", "softsync", "ssp", "stellaris")
SERVICES = {"constant": delay("constant", 1.0), "exponential": delay("exponential", 1.0)}


def learned(records: list[Round], gradients: int) -> None:
    """Every minibatch of every round has been learned from once, or has been thrown away."""
    for number in range(len(records)):
        own = [g for record in records for group in record.groups for g in group.gradients if g.fragment == number]
        lost = [g for record in records for g in record.dropped if g.fragment == number]
        assert sorted(g.minibatch for g in own + lost) == list(range(gradients))


@examples
@given(
    rule=st.sampled_from(RULES), bound=st.integers(0, 6), seed=st.integers(0, 9), failure=st.sampled_from([0.0, 0.2])
)
def test_waiting_bounds_staleness_and_loses_nothing(rule: str, bound: int, seed: int, failure: float) -> None:
    timeline = simulate(rule, admission="waiting", bound=bound, learner=HEAVY, seed=seed, failure=failure)
    records = advance(timeline, 6)
    assert max(g.staleness for g in used(records)) <= bound
    assert not any(record.dropped for record in records)
    learned(records, 16)


def test_waiting_for_nobody_changes_nothing() -> None:
    free = advance(simulate("async", gradients=64, versions=500), 3)
    bound = max(g.staleness for g in used(free))
    for patient in (bound, 400):
        assert advance(simulate("async", gradients=64, versions=500, admission="waiting", bound=patient), 3) == free
    assert advance(simulate("async", gradients=64, versions=500, admission="waiting", bound=bound - 1), 3) != free


def test_a_ring_is_a_bound() -> None:
    """A version ring of H that is waited for bounds staleness by H - 1; so does the policy, in a longer ring."""
    ring = advance(simulate("async", gradients=64, learner=HEAVY, versions=5), 4)
    policy = advance(simulate("async", gradients=64, learner=HEAVY, versions=64, admission="waiting", bound=4), 4)

    def events(records: list[Round]) -> list[tuple]:
        return [(g.minibatch, g.learner, g.version, g.staleness, g.end) for g in used(records)]

    assert events(ring) == events(policy)
    dropped = advance(simulate("async", gradients=64, learner=HEAVY, versions=5, overflow="drop"), 4)
    bounded = advance(simulate("async", gradients=64, learner=HEAVY, versions=64, admission="bounded", bound=4), 4)
    assert events(dropped) == events(bounded) and [r.dropped for r in dropped] == [r.dropped for r in bounded]


@examples
@given(rule=st.sampled_from(RULES), eta=st.integers(0, 3), batch=st.integers(1, 4), seed=st.integers(0, 9))
def test_capacity_bounds_what_is_under_way(rule: str, eta: int, batch: int, seed: int) -> None:
    records = advance(simulate(rule, admission="capacity", eta=eta, batch=batch, c=batch, seed=seed, gradients=24), 4)
    gradients = sorted(used(records), key=lambda g: g.start)
    for start in (g.start for g in gradients):
        assert sum(g.start <= start < g.end for g in gradients) <= (eta + 1) * batch
    learned(records, 24)
    if rule == "softsync" and batch > 1:
        assert mean(gradients) <= eta


def test_capacity_without_slack_is_synchronous() -> None:
    records = advance(simulate("softsync", admission="capacity", eta=0, batch=4, c=4, learner=HEAVY), 5)
    assert {g.staleness for g in used(records)} == {0}
    assert all(len(group.gradients) == 4 for record in records for group in record.groups)


@examples
@given(rule=st.sampled_from(RULES), seed=st.integers(0, 9), failure=st.sampled_from([0.0, 0.3]))
def test_in_order(rule: str, seed: int, failure: float) -> None:
    records = advance(simulate(rule, admission="in_order", learner=HEAVY, seed=seed, failure=failure), 5)
    places = [(g.fragment, g.minibatch) for g in used(records)]
    assert places == sorted(places)
    learned(records, 16)


def test_a_wide_window_is_no_order() -> None:
    free = advance(simulate("async", learner=HEAVY), 4)
    assert advance(simulate("async", learner=HEAVY, admission="in_order", window=99), 4) == free
    narrow = advance(simulate("async", learner=HEAVY, admission="in_order", window=1), 4)
    places = [g.minibatch for g in used(narrow[:1])]
    assert max(sum(later < place for later in places[i:]) for i, place in enumerate(places)) == 1


@pytest.mark.parametrize("admission", ["waiting", "capacity", "in_order", "bounded", "all"])
@pytest.mark.parametrize("rule", RULES)
def test_saved_and_restored(rule: str, admission: str) -> None:
    """A timeline that goes on from its state, through JSON, is the same."""

    def timeline() -> object:
        return simulate(rule, admission=admission, learner=HEAVY, failure=0.2, actors="pipelined", bound=2, eta=2)

    whole, begun, resumed = timeline(), timeline(), timeline()
    expected = advance(whole, 8)  # type: ignore[arg-type]
    assert advance(begun, 3) == expected[:3]  # type: ignore[arg-type]
    resumed.restore(json.loads(json.dumps(begun.state())))  # type: ignore[attr-defined]
    assert advance(resumed, 5) == expected[3:]  # type: ignore[arg-type]


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("learners", [1, 3, 8])
def test_mean_staleness_has_a_closed_form(service: str, learners: int) -> None:
    """With an open gate, whatever the distribution of the service, the others publish n - 1 versions on average while a
    learner computes (Little's law); every learner is busy all the time."""
    timeline = simulate("async", learners=learners, gradients=6000, versions=9000, learner=SERVICES[service])
    (record,) = advance(timeline, 1)
    settled = [g.staleness for g in used([record])][100:-100]
    chunks = [sum(settled[i : i + 580]) / 580 for i in range(0, 5800, 580)]
    value = sum(chunks) / len(chunks)
    spread = (sum((c - value) ** 2 for c in chunks) / (len(chunks) - 1) / len(chunks)) ** 0.5
    assert abs(value - (learners - 1)) <= 4 * spread + 0.02
    seconds = record.usage.seconds - record.complete
    assert record.usage.learner_busy / (learners * seconds) == pytest.approx(1.0, abs=0.01)


def test_softsync_has_a_closed_form() -> None:
    """Gradients in the system, n that compute and (c - 1) / 2 in the queue, are throughput times the time that one
    spends there (Little's law)."""
    for c in (2, 4):
        timeline = simulate("softsync", c=c, gradients=8000, versions=9000, learner=SERVICES["exponential"])
        records = advance(timeline, 1)
        gradients = used(records)
        published = {group.clock: group.second for group in records[0].groups}
        spent = [published[g.version + g.staleness] - g.start for g in gradients]
        rate = len(gradients) / (records[0].usage.seconds - records[0].complete)
        assert rate * sum(spent) / len(spent) == pytest.approx(8 + (c - 1) / 2, rel=0.03)


def test_order_of_ends() -> None:
    """Without a policy gradients are aggregated as they are delivered."""
    records = advance(simulate("async", learner=LEARNER), 3)
    assert all(a.end <= b.end for a, b in pairwise(used(records)))


@examples
@given(seed=st.integers(0, 99), window=st.integers(0, 3), versions=st.integers(3, 6))
def test_gradients_that_wait_for_others_keep_their_version(seed: int, window: int, versions: int) -> None:
    """Failures let versions go by while a gradient waits for an earlier one: the ring waits for it."""
    own = {"admission": "in_order", "window": window, "versions": versions, "learner": HEAVY}
    records = advance(simulate("async", seed=seed, gradients=32, failure=0.4, **own), 5)
    assert max(g.staleness for g in used(records)) < versions
    learned(records, 32)


def test_the_gate_of_areal_on_gradients_is_not_softsync() -> None:
    """Its capacity binds; with AReaL's own eta, on gradients and 8 learners, it never does."""

    def events(*overrides: str) -> list[object]:
        timeline = Timeline.of(load_config(["delays=lognormal", *overrides]), 0)
        return [timeline.next_round() for _ in range(5)]

    softsync = events("system=softsync", "system.weights=constant")
    assert events("system=areal_gradients", "system.admission_options.eta=4") == softsync
    assert events("system=areal_gradients") != softsync
