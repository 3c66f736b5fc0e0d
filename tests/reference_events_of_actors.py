"""Comparison of the package's timeline of independent actors with the literal system, event by event."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import strategies as st
from reference_actors import ActorSystem
from reference_systems import (
    NUM_ENVS,
    ROLLOUT_LENGTH,
    IndependentCase,
    about,
    usage,
)
from settings import algorithm_of

from stellaris_jax.config.sections import DelaysConfig, EnvConfig
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
    assert record.usage.updates == len(literal.updates), "all updates of the rounds so far are published"


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
