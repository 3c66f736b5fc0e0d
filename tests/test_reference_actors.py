"""The literal system with independent actors (`reference_actors.py`) against timelines and formulas worked out by hand.

`test_reference_actors_laws.py` has its invariants, `test_reference_actors_timeline.py` compares the package with it.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from reference_actors import ActorSystem, Settings, number_of_shards
from reference_admissions import EvictStalest, Fragment
from reference_systems import constant, constant_delays

from stellaris_jax.config.sections import PlatformConfig


def diary(system: ActorSystem, until: float) -> list[str]:
    """Everything that happens to data up to a second."""
    while system.time.now <= until:
        system.step()
    return [line for line in system.log.diary if float(line.split(":")[0]) <= until]


# Two shards, 0 and 1, with fragments 0.0, 0.1, ... and 1.0, 1.1, ...; one learner; a batch is one minibatch.
# "end" is the end of a rollout, "begin ... v1" a begin that finds version 1. A version is published in the moment in
# which a learner is done: n seconds after the batch was formed, or after the learner was done with the one before.
BY_HAND: dict[str, tuple[list[float], float, dict[str, Any], str]] = {
    # The learner (4 s) is slower than the shards (2 s and 3 s): the queue fills, and batch 2 is two of shard 0.
    # At 6 s, 1.1 ends before 0.2, since it was scheduled before. The learner is done at 7, 11 and 15 s, and only then
    # is the next batch formed.
    "fifo": ([2.0, 3.0], 4.0, {}, """
        0: begin 0.0 v0 | 0: begin 1.0 v0 | 2: end 0.0 | 2: begin 0.1 v0
        3: end 1.0 | 3: batch 0 0.0 1.0 | 3: begin 1.1 v0 | 4: end 0.1 | 4: begin 0.2 v0
        6: end 1.1 | 6: end 0.2 | 7: batch 1 0.1 1.1 | 7: begin 0.3 v1 | 7: begin 1.2 v1
        9: end 0.3 | 10: end 1.2 | 11: batch 2 0.2 0.3 | 11: begin 0.4 v2 | 11: begin 1.3 v2 | 13: end 0.4
    """),
    # No fragment is begun beyond the batch that is learned from: as barrier actors, a batch in every 3 + 4 s.
    "capacity": ([2.0, 3.0], 4.0, {"data_admission_options": {"eta": 0}}, """
        0: begin 0.0 v0 | 0: begin 1.0 v0 | 2: end 0.0 | 3: end 1.0 | 3: batch 0 0.0 1.0
        7: begin 0.1 v1 | 7: begin 1.1 v1 | 9: end 0.1 | 10: end 1.1 | 10: batch 1 0.1 1.1
        14: begin 0.2 v2 | 14: begin 1.2 v2
    """),
    # As pipelined actors: fragments b + 1 are begun before batch b is formed. The learner is done at 7 and 11 s.
    "fixed": ([2.0, 3.0], 4.0, {"data_queue": 4}, """
        0: begin 0.0 v0 | 0: begin 1.0 v0 | 2: end 0.0 | 2: begin 0.1 v0
        3: end 1.0 | 3: begin 1.1 v0 | 3: batch 0 0.0 1.0 | 4: end 0.1 | 6: end 1.1
        7: begin 0.2 v1 | 7: begin 1.2 v1 | 7: batch 1 0.1 1.1 | 9: end 0.2 | 10: end 1.2
        11: begin 0.3 v2 | 11: begin 1.3 v2 | 11: batch 2 0.2 1.2
    """),
    # The learner is done at 14 s. At 18 s, 1.1 is of version 0 and has waited for less long than 0.7 of version 1.
    "evict_stalest": ([2.0, 9.0], 10.0, {"batches_in_flight": 1}, """
        0: begin 0.0 v0 | 0: begin 1.0 v0 | 2: end 0.0 | 2: begin 0.1 v0
        4: end 0.1 | 4: batch 0 0.0 0.1 | 4: begin 0.2 v0 | 6: end 0.2 | 6: begin 0.3 v0 | 8: end 0.3 | 8: begin 0.4 v0
        9: end 1.0 | 9: drop 0.2 | 9: begin 1.1 v0 | 10: end 0.4 | 10: drop 0.3 | 10: begin 0.5 v0
        12: end 0.5 | 12: drop 1.0 | 12: begin 0.6 v0 | 14: batch 1 0.4 0.5 | 14: end 0.6 | 14: begin 0.7 v1
        16: end 0.7 | 16: begin 0.8 v1 | 18: end 1.1 | 18: drop 0.6 | 18: begin 1.2 v1
        18: end 0.8 | 18: drop 1.1 | 18: begin 0.9 v1
    """),
    # Fragments begun while no batch was completed are dropped as soon as two are formed. At 6 s, three wait: no shard
    # begins. The learner is done at 7 and 11 s. At 11 s, 0.4 (begun with one batch completed, three formed) is too old.
    "bounded": ([2.0, 3.0], 4.0, {"batches_in_flight": 1}, """
        0: begin 0.0 v0 | 0: begin 1.0 v0 | 2: end 0.0 | 2: begin 0.1 v0
        3: end 1.0 | 3: batch 0 0.0 1.0 | 3: begin 1.1 v0 | 4: end 0.1 | 4: begin 0.2 v0 | 6: end 1.1 | 6: end 0.2
        7: batch 1 0.1 1.1 | 7: begin 0.3 v1 | 7: begin 1.2 v1 | 7: drop 0.2 | 9: end 0.3 | 9: begin 0.4 v1
        10: end 1.2 | 11: batch 2 0.3 1.2 | 11: begin 1.3 v2 | 11: end 0.4 | 11: drop 0.4 | 11: begin 0.5 v2
    """),
    # At 8 s, batch 1 waits for 1.0. At 9 s, (1 + 1 + 1) 2 - (2 2 + 1) = 1 fragment more may be begun; at 10 s, with two
    # batches completed, there is room for another one.
    "bounded, wait": ([2.0, 9.0], 1.0, {"data_admission_options": {"by": "wait"}}, """
        0: begin 0.0 v0 | 0: begin 1.0 v0 | 2: end 0.0 | 2: begin 0.1 v0 | 4: end 0.1 | 4: batch 0 0.0 0.1
        4: begin 0.2 v0 | 6: end 0.2 | 6: begin 0.3 v1 | 8: end 0.3 | 9: end 1.0 | 9: batch 1 0.2 1.0
        9: begin 0.4 v1 | 10: begin 1.1 v2 | 11: end 0.4 | 11: batch 2 0.3 0.4 | 11: begin 0.5 v2
    """),
    # As fifo up to 6 s. At 7 s the two begun last are taken, and 0.1 is left over; three batches have been formed since
    # it was begun once batch 2 is, at 11 s.
    "newest": ([2.0, 3.0], 4.0, {}, """
        0: begin 0.0 v0 | 0: begin 1.0 v0 | 2: end 0.0 | 2: begin 0.1 v0
        3: end 1.0 | 3: batch 0 0.0 1.0 | 3: begin 1.1 v0 | 4: end 0.1 | 4: begin 0.2 v0
        6: end 1.1 | 6: end 0.2 | 7: batch 1 0.2 1.1 | 7: begin 0.3 v1 | 7: begin 1.2 v1
        9: end 0.3 | 10: end 1.2 | 11: batch 2 0.3 1.2 | 11: begin 0.4 v2 | 11: begin 1.3 v2
        11: drop 0.1 | 13: end 0.4 | 13: begin 0.5 v2
    """),
    # Five wait when the learner is done at 13 s. The two that were begun last are taken.
    "newest, of many": ([2.0, 3.0], 10.0, {"batches_in_flight": 1, "data_queue": 4}, """
        0: begin 0.0 v0 | 0: begin 1.0 v0 | 2: end 0.0 | 2: begin 0.1 v0
        3: end 1.0 | 3: batch 0 0.0 1.0 | 3: begin 1.1 v0 | 4: end 0.1 | 4: begin 0.2 v0
        6: end 1.1 | 6: begin 1.2 v0 | 6: end 0.2 | 6: begin 0.3 v0 | 8: end 0.3 | 9: end 1.2
        13: batch 1 0.3 1.2 | 13: begin 0.4 v1 | 13: begin 1.3 v1
    """),
    # 0.1 (the third begin) may not be taken before 1.0 (the second), which ends at 9 s: all of them wait for it.
    "in_order": ([2.0, 9.0], 1.0, {"data_queue": 3}, """
        0: begin 0.0 v0 | 0: begin 1.0 v0 | 2: end 0.0 | 2: begin 0.1 v0 | 4: end 0.1 | 4: begin 0.2 v0
        6: end 0.2 | 9: end 1.0 | 9: batch 0 0.0 1.0 | 9: begin 0.3 v0 | 9: begin 1.1 v0
        10: batch 1 0.1 0.2
    """),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_timeline_by_hand(name: str) -> None:
    shards, learner, system, expected = BY_HAND[name]
    events = [event.strip() for line in expected.strip().splitlines() for event in line.split("|")]
    literal = constant(shards, learner, data_admission=name.split(",")[0], **system)
    until = float(events[-1].split(":")[0])
    assert diary(literal, until)[: len(events)] == events


def test_segments_fetch_the_newest_version() -> None:
    """A fetch before each of four segments and a push: with 0.5 s each, segment s begins s (0.5 + 6 / 4) s later."""
    platform = PlatformConfig(cache=0.5, prewarm=False, actor_cold_start=1.0)
    system = constant([5.0], 1.0, 2, platform, loader=0.25, sync_steps=2)
    begins = diary(system, 30)
    assert begins[:6] == ["0: begin 0.0 v0", "2: fetch 0.0 v0", "4: fetch 0.0 v0", "6: fetch 0.0 v0",
                          "8.5: end 0.0", "8.5: batch 0 0.0"]  # fmt: skip
    # The learner is cold for 1.5 s; its gradients arrive at 8.75 + 1.5 + 1 and one second later. The actor is warm now.
    fetches = ["8.5: begin 0.1 v0", "10.25: fetch 0.1 v0", "12: fetch 0.1 v1", "13.75: fetch 0.1 v2", "16: end 0.1"]
    assert begins[6:11] == fetches
    assert system.log.actor_busy == 7.5 * system.log.actor_invocations > 0
    assert system.log.actor_startup == 1


def test_segments_begin_at_whole_nanoseconds() -> None:
    system = constant([1.0], 1.0, sync_steps=1, rollout_length=3)
    system.settle()
    moments = [system.time.now * 10**9 for _ in range(3) if system.time.advance()]
    assert moments == [333_333_333, 666_666_666, 10**9]


@pytest.mark.parametrize(
    ("every", "lag", "expected"), [(1, 0, 5), (2, 0, 4), (1, 2, 3), (2, 2, 2), (4, 0, 4), (3, 6, 0)]
)
def test_visible_version(every: int, lag: int, expected: int) -> None:
    system = constant([1.0], 1.0, publish_every=every, publish_lag=lag)
    system.parameter_function.clock = 5
    assert system.visible_version() == expected


def test_shards_share_the_actors_out() -> None:
    """Three shards of eight actors: 0-1, 2-4 and 5-7. Each is as slow as its slowest actor, by the draws in order."""
    seconds = [float(n) for n in range(1, 17)]
    system = ActorSystem(
        Settings(actor_shards=3, data_queue=9), PlatformConfig(), constant_delays(seconds), 1, 0, total_actors=8
    )
    assert [[*shard.actors] for shard in system.shards] == [[0, 1], [2, 3, 4], [5, 6, 7]]
    events = diary(system, 12)
    assert events == ["0: begin 0.0 v0", "0: begin 1.0 v0", "0: begin 2.0 v0", "2: end 0.0", "2: begin 0.1 v0",
                      "5: end 1.0", "5: begin 1.1 v0", "8: end 2.0", "8: batch 0 0.0 1.0 2.0", "8: begin 2.1 v0",
                      "12: end 0.1", "12: begin 0.2 v1"]  # fmt: skip


@pytest.mark.parametrize(
    ("envs", "actors", "shards"), [(16, 128, 8), (12, 128, 6), (16, 6, 4), (7, 128, 7), (11, 9, 1)]
)
def test_default_number_of_shards(envs: int, actors: int, shards: int) -> None:
    assert number_of_shards(Settings(), envs, actors) == shards


def test_attempts_die_and_are_repeated() -> None:
    """Deaths are drawn from entity 6 of the seed: one number decides, the next one says when."""
    delays = constant_delays([4.0])
    delays.actor_failure = 0.6
    system = ActorSystem(Settings(actor_shards=1), PlatformConfig(), delays, 1, 5, total_actors=1)
    luck = np.random.Generator(np.random.Philox(np.random.SeedSequence([5, 6, 0]))).random(1024)
    system.run(20)
    assert 10 < system.log.actor_failures < 60
    failed, number = Fraction(0), 0
    for place, attempt in enumerate(system.log.begins[:-1]):
        assert (attempt.order, attempt.number, attempt.fate == "dead") == (place, number, luck[2 * place] < 0.6)
        if attempt.fate == "dead":
            seconds = attempt.end - attempt.begin
            assert float(seconds) == round(float(luck[2 * place + 1]) * 4e9) / 1e9
            failed += seconds
            assert system.log.begins[place + 1].begin == attempt.end
        else:
            assert attempt.end - attempt.begin == 4
            number += 1
    assert system.log.actor_failed == failed


def test_dying_attempts_fetch_only_before_their_death() -> None:
    delays = constant_delays([8.0])
    delays.actor_failure = 0.5
    config = Settings(actor_shards=1, sync_steps=2)
    system = ActorSystem(config, PlatformConfig(), delays, 1, 0, total_actors=1, rollout_length=8)
    system.run(20)
    dead = [attempt for attempt in system.log.begins if attempt.fate == "dead"]
    assert {len(attempt.versions) for attempt in dead} >= {1, 2, 3}
    for attempt in dead:
        assert len(attempt.versions) == 1 + sum(attempt.begin + 2 * s < attempt.end for s in (1, 2, 3))


def with_deaths(system: ActorSystem, *drawn: float) -> ActorSystem:
    """The same system, where attempts die below 0.5, by these numbers; later ones live."""
    system.actor_failure, system.actor_luck = 0.5, chain(drawn, repeat(0.9))
    return system


def test_dead_attempts_are_repeated_even_if_the_queue_is_full() -> None:
    """1.0 dies at 17 / 18 of its 9 s, when as many wait as there is room for; its repetition is the sixth begin."""
    system = constant([2.0, 9.0], 100.0, batches_in_flight=1)
    events = diary(with_deaths(system, 0.9, 0.9, 0.1, 17 / 18), 18)
    assert events[-5:] == ["6: begin 0.3 v0", "8: end 0.3", "8.5: dead 1.0", "8.5: begin 1.0 v0", "17.5: end 1.0"]
    attempts = [(attempt.order, attempt.fate) for attempt in system.log.begins if attempt.name == (1, 0)]
    assert attempts == [(1, "dead"), (5, "waiting")]
    assert (system.log.actor_failures, system.log.actor_failed) == (1, 8.5)


def test_segments_due_at_the_death_do_not_happen() -> None:
    system = constant([8.0], 1.0, sync_steps=2)
    events = diary(with_deaths(system, 0.1, 0.5), 5)
    assert events == ["0: begin 0.0 v0", "2: fetch 0.0 v0", "4: dead 0.0", "4: begin 0.0 v0"]


def test_stalest_are_evicted_by_their_first_version_then_by_all() -> None:
    versions = [[3, 3], [2, 9], [2, 8], [2, 8], [1, 30]]
    waiting = [Fragment(0, n, n, 0, Fraction(0), own) for n, own in enumerate(versions)]
    data: Any = SimpleNamespace(waiting=waiting, room=0)
    assert [fragment.number for fragment in EvictStalest({}, data).evicted()] == [4, 2, 3, 1, 0]
    data.room = 3
    assert [fragment.number for fragment in EvictStalest({}, data).evicted()] == [4, 2]


def test_fixed_lag_needs_room_for_every_fragment_before_the_batch() -> None:
    """The last shard begins fragment b + lag when up to (lag + 1) A - 1 wait; with less room, nothing ever happens."""
    system: dict[str, Any] = {"data_admission": "fixed", "data_admission_options": {"lag": 2}}
    constant([2.0, 9.0], 1.0, data_queue=6, **system).run(5)
    with pytest.raises(AssertionError, match="nothing can ever happen"):
        constant([2.0, 9.0], 1.0, data_queue=5, **system).run(5)
