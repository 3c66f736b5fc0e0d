"""Fragments that end with their episodes: the planned timeline has the events of the literal system."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_actors import Lengths, Settings
from reference_events_of_actors import BATCHES, check_round, config_of, minibatches
from reference_systems import (
    CASES,
    ROLLOUT_LENGTH,
    IndependentCase,
    constant_delays,
    constants,
    data_admissions,
    independent,
)

from stellaris_jax.config.sections import PlatformConfig
from stellaris_jax.timeline import Round, Timeline


def lengths_of(chance: float, steps: int, luck: int) -> Lengths:
    """Lengths of segments of so many steps: with a chance, every environment has ended an episode in one."""

    def lengths(shard: int, number: int, segment: int) -> tuple[int, bool]:
        generator = np.random.default_rng([luck, shard, number, segment])
        ended = bool(generator.random() < chance)
        return (int(generator.integers(1, steps + 1)) if ended else steps), ended

    return lengths


def measured_by(timeline: Timeline, lengths: Lengths) -> Callable[[Round, list[int]], list[tuple[int, bool]]]:
    """Function for `Timeline.measure` that gives these lengths."""
    free = timeline.free
    assert free is not None

    def measure(round_: Round, shards: list[int]) -> list[tuple[int, bool]]:
        fragments = [free.queue.rolling[shard] for shard in shards]
        begun = {(one.shard, one.number, one.part) for one in round_.sequence if hasattr(one, "part")}
        keys = [(one.shard, one.number, len(one.versions) - 1) for one in fragments]
        assert begun >= set(keys), "the engine cannot roll what is not recorded"
        return [lengths(*key) for key in keys]

    return measure


def followed(case: IndependentCase, minibatches: int, seed: int, lengths: Lengths) -> Timeline:
    """Timeline of a case whose durations follow episodes of these lengths."""
    config = config_of(case, minibatches)
    timeline = Timeline.of(replace(config, delays=replace(config.delays, by="episodes")), seed)
    timeline.measure = measured_by(timeline, lengths)
    return timeline


def segment_steps(case: IndependentCase) -> int:
    return case.settings.sync_steps or ROLLOUT_LENGTH


def check_events(case: IndependentCase, minibatches: int, seed: int, chance: float) -> None:
    """The timeline's rounds and usage equal the literal system's, exactly."""
    lengths = lengths_of(chance, segment_steps(case), seed)
    timeline, literal = followed(case, minibatches, seed, lengths), case.literal(minibatches, seed, lengths)
    records: list[Any] = []
    for r in range(BATCHES):
        literal.run(r + 1)
        records.append(record := timeline.next_round())
        check_round(record, literal, r)
    published = [group.published for record in records for group in record.groups]
    rounds = [one for one in literal.log.aggregations if one.round < BATCHES]
    assert published == [float(one.published) for one in rounds]
    for batch in literal.log.batches:
        for fragment in batch.fragments:
            assert len(fragment.versions) == literal.segments or fragment.steps < ROLLOUT_LENGTH


chances = st.sampled_from([0.0, 0.2, 0.5, 1.0])
"""Chances that every environment has ended an episode in a segment."""


@pytest.mark.parametrize("admission", data_admissions)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), minibatches=minibatches, seed=st.integers(0, 99), chance=chances)
def test_timeline_equals_literal_system_by_admission(
    admission: str, data: st.DataObject, minibatches: int, seed: int, chance: float
) -> None:
    check_events(data.draw(independent(admission=admission)), minibatches, seed, chance)


@pytest.mark.parametrize(("rule", "learners"), CASES)
@settings(max_examples=4, deadline=None)
@given(data=st.data(), minibatches=minibatches, seed=st.integers(0, 99), chance=chances)
def test_timeline_equals_literal_system_by_rule(
    rule: str, learners: int, data: st.DataObject, minibatches: int, seed: int, chance: float
) -> None:
    check_events(data.draw(independent(rule, learners)), minibatches, seed, chance)


@pytest.mark.parametrize("admission", data_admissions)
@settings(max_examples=10, deadline=None)
@given(data=st.data(), minibatches=minibatches, chance=chances)
def test_constant_delays_tie_as_in_the_literal_system(
    admission: str, data: st.DataObject, minibatches: int, chance: float
) -> None:
    """Events of a segment are scheduled after those of learners that start at the same moment."""
    check_events(data.draw(independent(admission=admission, durations=constants)), minibatches, 0, chance)


@settings(max_examples=15, deadline=None)
@given(independent(), minibatches, st.integers(0, BATCHES), chances)
def test_timeline_continues_from_its_state(case: IndependentCase, minibatches: int, pause: int, chance: float) -> None:
    lengths = lengths_of(chance, segment_steps(case), 0)
    whole, first, second = (followed(case, minibatches, 0, lengths) for _ in range(3))
    rounds = [whole.next_round() for _ in range(BATCHES)]
    for _ in range(pause):
        first.next_round()
    state = json.dumps(first.state())
    second.restore(json.loads(state))
    assert json.dumps(second.state()) == state
    assert [second.next_round() for _ in range(pause, BATCHES)] == rounds[pause:]
    assert second.state() == whole.state()


@pytest.mark.parametrize("seed", range(3))
def test_lengths_that_are_not_measured_are_whole(seed: int) -> None:
    """Without an engine no episode ends: the records are those of `delays.by=steps`."""
    case = IndependentCase(*plain_case(), constant_delays([2.0, 9.0, 4.0]))
    by_episodes = followed(case, 4, seed, lengths_of(0.0, 2, 0))
    by_episodes.measure = None
    by_steps = Timeline.of(config_of(case, 4), seed)
    for _ in range(BATCHES):
        one, other = by_episodes.next_round(), by_steps.next_round()
        assert asdict(one.usage) == asdict(other.usage)


def plain_case() -> tuple[Settings, PlatformConfig]:
    """Two shards that fetch after every second step."""
    return Settings(actor_shards=2, sync_steps=2), PlatformConfig(actors=2, cache=0.25)


def test_times_by_hand() -> None:
    """One shard of one actor: 8 s for 8 steps, 0.25 s to pass a policy, episodes of three steps."""
    system, platform = plain_case()
    system.actor_shards = 1
    case = IndependentCase(system, replace(platform, actors=1), constant_delays([8.0]))

    def lengths(shard: int, number: int, segment: int) -> tuple[int, bool]:
        return (2, False) if segment == 0 else (1, True)

    timeline = followed(case, 1, 0, lengths)
    first = timeline.next_round().batches[0].fragments[0]
    # Three passes (two fetches and a push) and three of eight steps.
    assert (first.begin, first.end, len(first.versions)) == (0.0, 3 * 0.25 + 3.0, 2)
    assert first.seconds == 3.75


def test_a_start_up_takes_as_long_for_a_short_fragment() -> None:
    """Two actors, 8 and 2 s for 8 steps, with containers that take 1 s to start, and cool down after each fragment."""
    system, platform = plain_case()
    system.actor_shards = 1
    platform = replace(platform, actor_cold_start=1.0, keep_alive=0.0, prewarm=False)
    case = IndependentCase(system, platform, constant_delays([8.0]))

    def lengths(shard: int, number: int, segment: int) -> tuple[int, bool]:
        return (2, False) if segment == 0 else (1, True)

    timeline, literal = followed(case, 1, 0, lengths), case.literal(1, 0, lengths)
    first = timeline.next_round().batches[0].fragments[0]
    literal.run(1)
    # Three passes, a start-up, and three of eight steps.
    assert (first.begin, first.end) == (0.0, 3 * 0.25 + 1.0 + 3.0)
    assert float(literal.log.batches[0].fragments[0].end) == first.end
    assert (timeline.usage.actor_startup, first.seconds) == (2.0, 2 * (3 * 0.25 + 3.0))
