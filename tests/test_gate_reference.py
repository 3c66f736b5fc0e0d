"""The timeline of rule `stellaris` equals the gate written down from its definitions (`gate.py`), event by event."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import add

import numpy as np
import pytest
from gate import Diary
from settings import delay, system_of

from stellaris_jax.config.sections import DelayConfig, DelaysConfig, PlatformConfig
from stellaris_jax.timeline import Timeline


def random_delay(draw: np.random.Generator, typical: float) -> DelayConfig:
    """Constants are multiples of a quarter or of a tenth of a second: many things happen at the same moment."""
    kind = draw.choice(["constant", "lognormal", "pareto"], p=[0.2, 0.3, 0.5])
    if kind == "constant":
        return delay("constant", float(draw.integers(1, 9)) / (4 if draw.random() < 0.5 else 10))
    sigma, alpha = float(draw.choice([0.3, 1.5])), float(draw.choice([1.1, 2.0]))
    return delay(str(kind), typical, **({"sigma": sigma} if kind == "lognormal" else {"alpha": alpha}))


def compare(seed: int) -> Counter[str]:
    """One random system, as the package has it and by definition; how often each kind of event occurred."""
    draw = np.random.default_rng(seed)
    system = system_of(
        rule="stellaris",
        learners=int(draw.integers(1, 17)),
        decay=float(draw.choice([0.5, 0.8, 0.96, 1.0])),
        root=int(draw.integers(1, 5)),
        versions=int(draw.integers(2, 33) if draw.random() < 0.5 else draw.integers(2, 6)),
        overflow=str(draw.choice(["drop", "wait"])),
        actors=str(draw.choice(["barrier", "pipelined"])),
    )
    instant = delay("constant", 0.0)
    delays = DelaysConfig(
        learner=random_delay(draw, 0.3),
        actor=random_delay(draw, 2.0) if draw.random() < 0.7 else instant,
        aggregate=random_delay(draw, 0.05) if draw.random() < 0.5 else instant,
        failure=float(draw.choice([0.0, 0.1, 0.5])),
    )
    minibatches, actors, rounds = int(draw.integers(1, 25)), int(draw.integers(1, 5)), int(draw.integers(2, 13))
    platform = PlatformConfig(cold_start=0.0, actor_cold_start=0.0, actors=actors)
    timeline = Timeline(system, platform, delays, gradients_per_round=minibatches, seed=seed)
    diary = Diary(system, delays, actors, minibatches, seed)
    records = [timeline.next_round() for _ in range(rounds)]
    diary.live(rounds)

    begun = [(record.behaviour_version, record.start, record.arrived, record.complete) for record in records]
    assert begun == [(one.version, float(one.start), one.arrived, float(one.end)) for one in diary.rollouts]
    groups = [(record.index, group) for record in records for group in record.groups]
    for (index, group), one in zip(groups, diary.aggregations, strict=True):
        facts = (one.round, one.clock, float(one.start), one.escaped)
        assert (index, group.clock, group.second, group.escaped) == facts
        assert (group.threshold is None) == (one.threshold is None)
        assert one.threshold is None or group.threshold == pytest.approx(float(one.threshold), rel=1e-12)
        expected = [
            (
                *member.pointer,
                member.learner,
                member.version,
                one.clock - member.version,
                sorted(v for v in member.peers if v > one.clock - system.versions),
                float(member.start),
                float(member.end),
            )
            for member in one.members
        ]
        found = [
            (g.fragment, g.minibatch, g.learner, g.version, g.staleness, g.peers, g.start, g.end)
            for g in group.gradients
        ]
        assert found == expected
        assert group.weights == pytest.approx([diary.weight(one.clock - member.version) for member in one.members])
    lost = [(record.index, g.fragment, g.minibatch, g.version) for record in records for g in record.dropped]
    dropped = [one for one in diary.deliveries if one.dropped is not None]
    assert sorted(lost) == sorted((one.dropped, *one.pointer, one.version) for one in dropped)

    usage, invocations = timeline.usage, diary.invocations
    failed = [one for one in invocations if one.fails and one.over]
    assert (usage.invocations, usage.failures, usage.waits) == (len(invocations), len(failed), diary.waits)
    assert usage.updates == diary.clock and usage.seconds == float(diary.now)
    assert usage.learner_busy == float(sum(one.end - one.start for one in diary.deliveries))
    assert usage.learner_failed == float(sum(one.end - one.start for one in failed))
    escapes = sum(one.escaped for one in diary.aggregations)
    assert usage.escapes == escapes
    several = sum(len(one.members) > 1 and not one.escaped for one in diary.aggregations)
    return Counter(
        groups=len(groups), escapes=escapes, gathered=several, dropped=len(dropped), waits=diary.waits,
        failures=len(failed),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "count"), [(0, 120), pytest.param(1000, 1500, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_the_gate_is_what_its_definitions_say(first: int, count: int) -> None:
    occurred = reduce(add, (compare(seed) for seed in range(first, first + count)))
    print(occurred)
    assert occurred["groups"] > 30 * count
    assert all(occurred[kind] > count for kind in ("escapes", "gathered", "dropped", "waits", "failures"))
