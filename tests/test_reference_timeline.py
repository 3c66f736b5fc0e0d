"""The planned timeline has the events of the literal system (`reference.py`)."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import System
from reference_systems import CASES, about, constants, delays, platforms, systems, usage

from stellaris_jax.config.system import SystemConfig
from stellaris_jax.config.tree import DelaysConfig, PlatformConfig
from stellaris_jax.timeline import Timeline

ROUNDS = 5


@pytest.mark.parametrize(("rule", "learners"), CASES)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), platform=platforms, delays=delays, minibatches=st.integers(1, 12), seed=st.integers(0, 99))
def test_timeline_equals_literal_system(
    rule: str,
    learners: int,
    data: st.DataObject,
    platform: PlatformConfig,
    delays: DelaysConfig,
    minibatches: int,
    seed: int,
) -> None:
    check_events(data.draw(systems(rule, learners)), platform, delays, minibatches, seed)


def check_events(
    system: SystemConfig, platform: PlatformConfig, delays: DelaysConfig, minibatches: int, seed: int
) -> None:
    """The timeline's rounds and usage equal the literal system's, exactly."""
    timeline = Timeline(system, platform, delays, gradients_per_round=minibatches, seed=seed)
    literal = System(system, platform, delays, minibatches, seed)
    records = []
    for r in range(ROUNDS):
        records.append(record := timeline.next_round())
        literal.run(r + 1)
        version, second = literal.log.fragments[r]
        assert (record.behaviour_version, record.start) == (version, float(second))
        expected = [one for one in literal.log.aggregations if one.round == r]
        for group, one in zip(record.groups, expected, strict=True):
            assert [about(g) for g in group.gradients] == [about(d) for d in one.deliveries]
            assert (group.clock, group.second, group.escaped) == (one.clock, float(one.second), one.escaped)
            assert group.weights == pytest.approx(one.weights)
            assert group.threshold == one.threshold
        assert [about(g) for g in record.dropped] == [about(d) for round, d in literal.log.dropped if round == r]
        assert asdict(record.usage) == usage(literal)
    published = [group.published for record in records for group in record.groups]
    assert published == [float(one.published) for one in literal.log.aggregations]


@pytest.mark.parametrize(("rule", "learners"), [("async", 8), ("stellaris", 8), ("ssp", 3), ("allreduce", 8)])
@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    platform=platforms,
    delays=st.builds(DelaysConfig, learner=constants, actor=constants, aggregate=constants, loader=constants),
    minibatches=st.integers(1, 24),
)
def test_constant_delays_tie_as_in_the_literal_system(
    rule: str,
    learners: int,
    data: st.DataObject,
    platform: PlatformConfig,
    delays: DelaysConfig,
    minibatches: int,
) -> None:
    """Sums of 0.05, 0.1, 0.3 and 0.7 s are equal where they are equal in decimals: first in, first out."""
    check_events(data.draw(systems(rule, learners)), platform, delays, minibatches, seed=0)


@settings(max_examples=100, deadline=None)
@given(systems(), platforms, delays, st.integers(1, 12), st.integers(0, ROUNDS))
def test_timeline_continues_from_its_state(
    system: SystemConfig, platform: PlatformConfig, delays: DelaysConfig, minibatches: int, pause: int
) -> None:
    def timeline() -> Timeline:
        return Timeline(system, platform, delays, gradients_per_round=minibatches, seed=0)

    whole, first, second = timeline(), timeline(), timeline()
    rounds = [whole.next_round() for _ in range(ROUNDS)]
    for _ in range(pause):
        first.next_round()
    state = json.dumps(first.state())
    second.restore(json.loads(state))
    assert json.dumps(second.state()) == state
    assert [second.next_round() for _ in range(pause, ROUNDS)] == rounds[pause:]
    assert second.state() == whole.state()
