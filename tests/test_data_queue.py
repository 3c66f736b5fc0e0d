"""Data queues of independent actors: stalls of learners, policies of plug-ins, and rounds without batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from settings import algorithm_of

from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.config.sections import DelayConfig, DelaysConfig, EnvConfig, PlatformConfig
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.config.validation import check_values
from stellaris_jax.execute.data_records import data_record
from stellaris_jax.timeline import Timeline, free_actors
from stellaris_jax.timeline.data_admission import DataAdmission, DataView
from stellaris_jax.timeline.records import Fragment

SHARDS = 2


def config_of(minibatches: int = 4, actor: float = 1.0, learner: float = 1.0, **system: object) -> Config:
    """Configuration of two shards, and two learners unless `system` has others."""
    settings = {"learners": 2, **system}
    return Config(
        env=EnvConfig(num_envs=4),
        algorithm=algorithm_of(rollout_length=4, epochs=1, minibatches=minibatches),
        system=SystemConfig(actors="independent", actor_shards=SHARDS, **settings),  # type: ignore[arg-type]
        platform=PlatformConfig(actors=SHARDS),
        delays=DelaysConfig(
            learner=DelayConfig("exponential", learner),
            actor=DelayConfig("exponential", actor),
            aggregate=DelayConfig(seconds=0.0),
        ),
    )


@pytest.mark.parametrize("data_admission", ["fifo", "newest", "bounded", "evict_stalest"])
def test_learners_that_may_not_start_do_not_wait_for_actors(
    data_admission: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule waits for a second gradient, and the admission refuses learners until there is a version."""
    refused = {"rule": "softsync", "rule_options": {"c": 2}, "admission": "waiting", "admission_options": {"bound": 0}}
    config = config_of(learners=3, data_admission=data_admission, **refused)
    check_values(config)
    timeline = Timeline.of(config, 0)
    monkeypatch.setattr(free_actors, "MOST_BEGUN", 100)
    rounds = [timeline.next_round() for _ in range(20)]
    assert sum(one.usage.unready for one in rounds) > 0, "no learner was refused"


class Twice(DataAdmission):
    """Eviction of the first waiting fragment, named twice."""

    def evicts(self, view: DataView) -> Sequence[Fragment]:
        return [*view.waiting[:1], *view.waiting[:1]]


class UnderWay(DataAdmission):
    """Eviction of fragments that are under way."""

    def evicts(self, view: DataView) -> Sequence[Fragment]:
        return list(view.rolling.values())


class Hoarding(DataAdmission):
    """Actors that never wait, although nothing is dropped."""

    blocks = False


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (Twice, "Twice.evicts must return different fragments of view.waiting."),
        (UnderWay, "UnderWay.evicts must return different fragments of view.waiting."),
        (Hoarding, "Hoarding.evicts must drop fragments while more than system.data_queue=2 wait"),
    ],
)
def test_a_policy_that_misbehaves_ends_the_run_with_a_sentence(
    policy: type[DataAdmission], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(actor=0.1)
    timeline = Timeline.of(config, 0)
    assert timeline.free is not None
    monkeypatch.setattr(timeline.free.queue, "admission", policy())
    with pytest.raises(RunError, match=sentence):
        for _ in range(20):
            timeline.next_round()


def test_a_round_that_forms_no_batch_has_no_age_of_data() -> None:
    """Zero would be the age of fresh data."""
    config = config_of(minibatches=1, actor=0.1, learners=2)
    timeline = Timeline.of(config, 0)
    rounds = [timeline.next_round() for _ in range(40)]
    empty = [one for one in rounds if not one.batches]
    assert empty, "every round forms a batch"
    for one in rounds:
        record = data_record(config, [one])
        assert (record["data_lag_batches"] is None) == (record["data_queue_seconds"] is None) == (not one.batches)


def test_the_number_of_batches_in_flight_is_named_where_it_counts() -> None:
    with pytest.raises(ConfigError, match=r"system\.batches_in_flight=3"):
        check_values(config_of(minibatches=1, learners=4, batches_in_flight=3))
