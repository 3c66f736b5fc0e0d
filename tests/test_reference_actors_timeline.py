"""The planned timeline of independent actors has the events of the literal system (`reference_actors.py`)."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_actors import ActorSystem, Settings
from reference_systems import (
    CASES,
    NUM_ENVS,
    ROLLOUT_LENGTH,
    IndependentCase,
    about,
    constant_delays,
    constants,
    data_admissions,
    independent,
    usage,
)
from settings import algorithm_of

from stellaris_jax.base.errors import RunError
from stellaris_jax.config.sections import DelaysConfig, EnvConfig, PlatformConfig
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline import Timeline

BATCHES = 5


def config_of(case: IndependentCase, minibatches: int) -> Config:
    """Configuration of a case; a batch has so many minibatches."""
    return Config(
        env=EnvConfig(num_envs=NUM_ENVS),
        algorithm=algorithm_of(rollout_length=ROLLOUT_LENGTH, epochs=1, minibatches=minibatches),
        system=SystemConfig(**{"actors": "independent", **vars(case.settings)}),
        platform=case.platform,
        delays=DelaysConfig(**vars(case.delays)),
    )


def data(fragment: Any) -> tuple:
    """All that is known of a fragment, the package's or the reference's."""
    f = fragment
    return f.shard, f.number, f.order, [*f.versions], f.batch, float(f.begin), float(f.end)


def check_round(record: Any, literal: ActorSystem, r: int) -> None:
    """The package's round r equals the literal system's, which has just ended its round r."""
    log = literal.log
    batches = [
        (batch.index, float(batch.second), [*map(data, batch.fragments)]) for batch in log.batches if batch.round == r
    ]
    assert [(one.index, one.second, [*map(data, one.fragments)]) for one in record.batches] == batches
    dropped = [data(fragment) for round, fragment in log.dropped_fragments if round == r]
    assert [*map(data, record.dropped_fragments)] == dropped
    expected = [one for one in log.aggregations if one.round == r]
    for group, one in zip(record.groups, expected, strict=True):
        assert [about(g) for g in group.gradients] == [about(d) for d in one.deliveries]
        assert (group.clock, group.second, group.escaped) == (one.clock, float(one.second), one.escaped)
        assert group.weights == pytest.approx(one.weights)
        assert group.threshold == one.threshold
    assert [about(g) for g in record.dropped] == [about(d) for round, d in log.dropped if round == r]
    assert asdict(record.usage) == usage(literal)


def check_events(case: IndependentCase, minibatches: int, seed: int) -> None:
    """The timeline's rounds and usage equal the literal system's, exactly."""
    timeline = Timeline.of(config_of(case, minibatches), seed)
    literal = case.literal(minibatches, seed)
    records: list[Any] = []
    for r in range(BATCHES):
        literal.run(r + 1)
        records.append(record := timeline.next_round())
        check_round(record, literal, r)
    published = [group.published for record in records for group in record.groups]
    rounds = [one for one in literal.log.aggregations if one.round < BATCHES]
    assert published == [float(one.published) for one in rounds]


minibatches = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
"""Minibatches that divide a batch of 96 steps."""


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
