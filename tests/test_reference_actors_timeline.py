"""The planned timeline of independent actors has the events of the literal system (`reference_actors.py`)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_actors import Settings
from reference_events_of_actors import BATCHES, check_events, config_of, minibatches
from reference_systems import (
    CASES,
    IndependentCase,
    constant_delays,
    constants,
    data_admissions,
    independent,
)

from stellaris_jax.base.errors import RunError
from stellaris_jax.config.sections import PlatformConfig
from stellaris_jax.timeline import Timeline


@pytest.mark.parametrize("admission", data_admissions)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), minibatches=minibatches, seed=st.integers(0, 99))
def test_timeline_equals_literal_system_by_admission(
    admission: str, data: st.DataObject, minibatches: int, seed: int
) -> None:
    check_events(data.draw(independent(admission=admission)), minibatches, seed)


@pytest.mark.parametrize(("rule", "learners"), CASES)
@settings(max_examples=15, deadline=None)
@given(data=st.data(), minibatches=minibatches, seed=st.integers(0, 99))
def test_timeline_equals_literal_system_by_rule(
    rule: str, learners: int, data: st.DataObject, minibatches: int, seed: int
) -> None:
    check_events(data.draw(independent(rule, learners)), minibatches, seed)


@pytest.mark.parametrize("admission", data_admissions)
@settings(max_examples=30, deadline=None)
@given(data=st.data(), minibatches=minibatches)
def test_constant_delays_tie_as_in_the_literal_system(admission: str, data: st.DataObject, minibatches: int) -> None:
    """Many things happen at the same moment: those that were scheduled first come first."""
    check_events(data.draw(independent(admission=admission, durations=constants)), minibatches, seed=0)


@settings(max_examples=60, deadline=None)
@given(independent(), minibatches, st.integers(0, BATCHES))
def test_timeline_continues_from_its_state(case: IndependentCase, minibatches: int, pause: int) -> None:
    config = config_of(case, minibatches)
    whole, first, second = (Timeline.of(config, 0) for _ in range(3))
    rounds = [whole.next_round() for _ in range(BATCHES)]
    for _ in range(pause):
        first.next_round()
    state = json.dumps(first.state())
    second.restore(json.loads(state))
    assert json.dumps(second.state()) == state
    assert [second.next_round() for _ in range(pause, BATCHES)] == rounds[pause:]
    assert second.state() == whole.state()


def test_run_ends_if_nothing_can_ever_happen() -> None:
    """The last shard's fragment b + lag needs room for (lag + 1) A - 1 fragments that wait."""
    case = independent_fixed(room=5)
    with pytest.raises(AssertionError, match="nothing can ever happen"):
        case.literal(1, 0).run(BATCHES)
    timeline = Timeline.of(config_of(case, 1), 0)
    with pytest.raises(RunError):
        for _ in range(BATCHES):
            timeline.next_round()
    check_events(independent_fixed(room=6), 1, 0)


def independent_fixed(room: int) -> IndependentCase:
    """Two shards of 2 s and 9 s under a lag of two batches, with room for so many fragments."""
    options = {"lag": 2}
    settings = Settings(actor_shards=2, data_queue=room, data_admission="fixed", data_admission_options=options)
    return IndependentCase(settings, PlatformConfig(actors=2), constant_delays([2.0, 9.0]))
