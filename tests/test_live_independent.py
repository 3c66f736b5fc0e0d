"""Live runs with independent actors: each rolls segments at its own pace, and the engine repeats what happened."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import jax
import live_runs
import numpy as np
import pytest
from live_runs import Chaos, config_of, live, params, replayed

from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.config.tree import Config
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.live import conductor
from stellaris_jax.live.pool import Call, Done
from stellaris_jax.timeline import trace
from stellaris_jax.timeline.collection import CollectionSizes, Step
from stellaris_jax.timeline.record_json import InvalidRecord
from stellaris_jax.timeline.records import Batch, Segment
from stellaris_jax.timeline.trace import RoundTrace

SHARDS = 2


def free(*overrides: str) -> Config:
    """Configuration of a small live run with independent actors."""
    return config_of("system.actors=independent", f"system.actor_shards={SHARDS}", "live.actors=0", *overrides)


@pytest.fixture
def left(tmp_path: Path) -> Any:
    """Writes down what a live run leaves, and gives its directory."""
    return partial(live_runs.left, directory=tmp_path)


def rounds_of(directory: Path) -> list[RoundTrace]:
    """Rounds of the trace in a directory."""
    return list(trace.read(directory / trace.NAME).rounds)


def check_rounds(rounds: list[RoundTrace], gradients: int, each: int = 16) -> None:
    """Every minibatch of every batch counts once, and every batch is of fragments that were rolled completely."""
    segments = [event for one in rounds for event in one.record.sequence if isinstance(event, Segment)]
    assert len({event[:3] for event in segments}) == len(segments), "no segment is rolled twice"
    versions = {event[:3]: event.version for event in segments}
    batches = [batch for one in rounds for batch in one.record.batches]
    assert [batch.index for batch in batches] == list(range(len(batches))) and len(batches) >= len(rounds)
    for batch in batches:
        for fragment in batch.fragments:
            assert fragment.versions == sorted(fragment.versions)
            for part, version in enumerate(fragment.versions):
                assert versions[fragment.shard, fragment.number, part] == version <= batch.clock
    used = [(g.fragment, g.minibatch) for one in rounds for group in one.record.groups for g in group.gradients]
    lost = [(g.fragment, g.minibatch) for one in rounds for g in one.record.dropped]
    assert len({*used, *lost}) == len(used) + len(lost) and len(used) == gradients
    wanted = {(index, minibatch) for index in range(len(rounds)) for minibatch in range(each)}
    assert wanted <= {*used, *lost}


CASES = {
    "segments": ("system.sync_steps=4", "system.publish_every=2", "system.publish_lag=1"),
    "memory": ("network.memory=gru", "network.memory_size=4", "algorithm.minibatches=4", "system.sync_steps=8"),
    "normalised": ("env.normalize_observation=true", "env.normalize_reward=true", "system.sync_steps=8"),
}
MORE = {
    "whole": (),
    "all-reduce": ("system=allreduce", "system.actors=independent", "system.data_admission=capacity"),
    "corrected": ("system=async", "system.actors=independent", "system.corrections=[kl_gate,delay_compensation]",
                  "algorithm.kl_coefficient=0.2"),
    "sequences": ("algorithm=impala", "algorithm.minibatches=4", "system.sync_steps=8"),
    "target": ("algorithm=impact", "algorithm.minibatches=4", "system=impact", "system.actors=independent",
               "system.learners=1"),
    "evicting": ("system.data_admission=evict_stalest", "system.batches_in_flight=1", "system.sync_steps=8"),
}  # fmt: skip


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE)])
def test_the_engine_repeats_a_live_run(case: str, left: Any) -> None:
    config = free(*(CASES | MORE)[case])
    trainer = live(config)
    records = trainer.run()
    directory = left(trainer, config)
    rounds = rounds_of(directory)
    check_rounds(rounds, trainer.usages[0].gradients, trainer.spec.shape.gradients)
    again = replayed(config, directory)
    assert [one.version for one in again.executor.deviations] == list(range(len(again.executor.deviations)))
    assert int(records[-1]["updates"]) == len(again.executor.deviations) - 1 > 4
    assert max(one.deviation for one in again.executor.deviations) < 1e-5
    np.testing.assert_allclose(params(again), params(trainer), atol=1e-5)
    assert again.usages == trainer.usages
    assert len(again.engine.compiled) == 1, "all recorded rounds are of one program"


def test_versions_are_fetched_within_fragments(left: Any) -> None:
    """Learners are often done while a shard rolls, so a fragment is of several versions, and samples have theirs."""
    config = free("system=async", "system.actors=independent", "system.sync_steps=4", "total_steps=640")
    trainer = live(config)
    records = trainer.run()
    rounds = rounds_of(left(trainer, config))
    fragments = [one for round_ in rounds for batch in round_.record.batches for one in batch.fragments]
    assert all(len(one.versions) == 4 for one in fragments)
    assert any(len(set(one.versions)) > 1 for one in fragments)
    samples = trainer.state.loader.fragments.version
    assert samples is not None and len(set(np.asarray(samples).ravel().tolist())) > 1
    assert records[-1]["data_lag_max"] > 0
    usage = trainer.usages[0]
    assert usage.actor_invocations >= len(fragments) and usage.actor_busy > 0.0


def in_force(config: Config, directory: Path) -> tuple[list[Batch], Trainer]:
    """Batches of a live run, whose minibatches were all learned from."""
    trainer = live(config)
    trainer.run()
    rounds = rounds_of(live_runs.left(trainer, config, directory))
    check_rounds(rounds, trainer.usages[0].gradients)
    return [batch for one in rounds for batch in one.record.batches], trainer


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_capacity_without_staleness_is_the_synchronous_trainer(seed: int, tmp_path: Path) -> None:
    """No fragment begins before the batch before it is learned from, so nothing is stale, for real or simulated."""
    overrides = ("system=allreduce", "system.actors=independent", "system.data_admission=capacity",
                 "system.data_admission_options.eta=0")  # fmt: skip
    config = free(*overrides, f"seed={seed}")
    batches, trainer = in_force(config, tmp_path)
    assert all(batch.age(fragment) == 0 for batch in batches for fragment in batch.fragments)
    compiled = Trainer(config.replace({"executor": "simulated"}))
    compiled.run()
    np.testing.assert_allclose(params(trainer), params(compiled), atol=1e-5)


def test_capacity_bounds_what_is_begun(tmp_path: Path) -> None:
    """With eta = 1 at most two batches are under way: A fragments begin ahead of those that are learned from."""
    options = ("system.data_admission=capacity", "system.data_admission_options.eta=1", "total_steps=640")
    _, trainer = in_force(free(*options), tmp_path)
    for one in rounds_of(tmp_path):
        formed = [batch.index for batch in one.record.batches]
        assert max(formed, default=0) <= one.record.index + 1
    queue = trainer.executor.conductor.queue
    assert queue.outstanding <= (1 + queue.completed + 1 - queue.formed) * SHARDS


def test_bounded_data_are_dropped(tmp_path: Path) -> None:
    options = ("system.data_admission=bounded", "system.data_admission_options.bound=0", "total_steps=960")
    batches, trainer = in_force(free(*options, "system=async", "system.actors=independent"), tmp_path)
    assert all(batch.age(fragment) <= 0 for batch in batches for fragment in batch.fragments)
    usage = trainer.usages[0]
    dropped = [fragment for one in rounds_of(tmp_path) for fragment in one.record.dropped_fragments]
    assert len(dropped) == usage.fragments_dropped > 0
    lost = sum(fragment.seconds for fragment in dropped)
    assert usage.actor_dropped == pytest.approx(lost) and lost > 0.0


def test_actors_never_wait_where_the_stalest_data_are_evicted(tmp_path: Path) -> None:
    options = ("system.data_admission=evict_stalest", "system.batches_in_flight=1", "total_steps=640")
    _, trainer = in_force(free(*options), tmp_path)
    queue = trainer.executor.conductor.queue
    assert len(queue.rolling) == SHARDS and len(queue.waiting) <= queue.capacity
    assert trainer.usages[0].fragments_dropped > 0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_dies_is_done_again_and_counted_once(seed: int, left: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment whose actor dies is rolled again with the same version: the trace has it once, and replays."""
    monkeypatch.setattr(conductor, "MOST_DEATHS", 1000)
    config = free("system.sync_steps=8")
    trainer = live(config, deaths=0.5, seed=seed)
    trainer.compile()
    pool = trainer.executor.conductor.pool
    assert isinstance(pool, Chaos)
    before = pool.died
    trainer.run()
    died = pool.died - before
    directory = left(trainer, config)
    rounds, usage = rounds_of(directory), trainer.usages[0]
    check_rounds(rounds, usage.gradients)
    failures = [failure for one in rounds for failure in one.failures]
    assert len(failures) == usage.failures + usage.actor_failures == died > 20
    assert usage.actor_failures == sum(failure.kind == "actor" for failure in failures) > 0
    assert usage.actor_failed > 0.0
    begun = [one for round_ in rounds for batch in round_.record.batches for one in batch.fragments]
    assert 0 < sum(one.attempts for one in begun) <= usage.actor_failures
    assert max(one.deviation for one in replayed(config, directory).executor.deviations) < 1e-5


def test_what_always_dies_ends_the_run() -> None:
    trainer = live(free(), deaths=1.0)
    with pytest.raises(RunError, match=r"(actor|learner) \d has died 11 times in a row, .*: killed"):
        trainer.run()


@pytest.mark.parametrize(
    "overrides",
    [
        ("system.sync_steps=4", "env.normalize_observation=true"),
        pytest.param(
            ("system.sync_steps=8", "network.memory=gru", "network.memory_size=4", "algorithm.minibatches=4"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_restored_run_goes_on_with_what_was_under_way(overrides: tuple[str, ...], left: Any, tmp_path: Path) -> None:
    """Segments under way begin again with the newest version; what was rolled and waits is in the checkpoint."""
    config = free(*overrides, "total_steps=960", "system.learners=6")
    first = live(config)
    first.step()
    while not all(
        (first.metadata()["timelines"][0]["learning"], first.metadata()["timelines"][0]["actors"]["queue"]["waiting"])
    ):
        first.step()
        assert first.round < config.rounds - 3, "something is under way and waits, sooner or later"
    directory = left(first, config)
    saved = json.loads(json.dumps(first.metadata()))
    assert saved["timelines"][0]["actors"]["queue"]["rolling"]
    state = jax.tree.map(lambda x: x.copy(), first.state)
    first.step()
    first.write(directory)  # a round that the checkpoint does not know

    second = live(config, seed=1)
    second.seed_states.state = state
    second.schedule.restore(saved)
    second.executor.restart()
    second.run()
    second.write(directory)
    rounds = rounds_of(directory)
    assert [one.record.index for one in rounds] == list(range(config.rounds))
    check_rounds(rounds, second.usages[0].gradients, second.spec.shape.gradients)
    assert max(one.deviation for one in replayed(config, directory).executor.deviations) < 1e-5


def test_threads(tmp_path: Path) -> None:
    """Independent actors are threads as well, each busy or blocked, and time is measured."""
    config = free("live.pool=threads", "system.sync_steps=8")
    with closing(Trainer(config)) as trainer:
        assert len(trainer.run()) == config.rounds
        usage = trainer.usages[0]
        assert 0.0 < usage.actor_busy + usage.actor_blocked <= 1.1 * SHARDS * usage.seconds
        directory = live_runs.left(trainer, config, tmp_path)
    check_rounds(rounds_of(directory), usage.gradients)
    rolls = [roll for one in rounds_of(directory) for roll in one.rolls]
    assert {roll.actor for roll in rolls} == set(range(SHARDS))
    assert all(0.0 <= roll.start <= roll.end <= usage.seconds for roll in rolls)


def test_every_shard_is_one_actor() -> None:
    """One actor for each shard, on any machine, so that a run can be resumed on another one."""
    config = config_of("system.actors=independent", "live.actors=0")
    assert live(config).config.actor_shards == live(config).config.platform.actors == 4
    assert live(free(f"live.actors={SHARDS}")).schedule.limits.maximum == SHARDS
    with pytest.raises(ConfigError, match=r"^live.actors=3 is not possible .* 2 shards .* give system.actor_shards=3"):
        free("live.actors=3")


def test_what_cannot_run_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        ConfigError, match=r"^delays.by=episodes is not possible with executor=live, whose durations are"
    ):
        free("delays.by=episodes")


def test_nothing_can_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data admission that never lets anything begin ends the run with its name."""
    trainer = live(free())
    trainer.compile()
    monkeypatch.setattr(trainer.executor.conductor.queue, "may_begin", lambda shard: False)
    with pytest.raises(RunError, match=r"^system.data_admission=fifo lets no actor begin and no batch be formed"):
        trainer.step()


def traced(left: Any) -> tuple[Config, Path, dict[str, Any]]:
    """A live run of few rounds: configuration, directory, and its second round as JSON data."""
    config = free("total_steps=192", "system.data_admission=evict_stalest", "system.batches_in_flight=1")
    trainer = live(config)
    trainer.run()
    directory = left(trainer, config)
    return config, directory, json.loads(rounds_of(directory)[1].line())


def test_a_trace_has_the_order_of_events(left: Any) -> None:
    config, directory, data = traced(left)
    one = RoundTrace.of(json.dumps(data))
    assert RoundTrace.of(one.line()).record.sequence == one.record.sequence
    assert set(data["order"]) <= set("sbdg") and data["order"].count("b") == len(data["batches"])
    assert data["order"].count("d") == len(data["dropped_fragments"])
    without = {key: value for key, value in data.items() if key not in ("segments", "order")}
    older = RoundTrace.of(json.dumps(without)).record
    assert older.sequence == older.groups, "traces of other actors name no order"
    for values, sentence in (
        ({"order": data["order"] + "s"}, "order does not name each event once"),
        ({"order": "x"}, "order does not name each event once"),
        ({"order": 3}, "order does not name each event once"),
        ({"segments": [[0, 0, 0, 0]]}, "segments are not lists of five numbers"),
        ({"segments": "s" * 5}, "segments are not lists of five numbers"),
        ({"segments": [[SHARDS, *one[1:]] for one in data["segments"]]}, "a segment is of a shard that no actor is"),
        ({"batches": [{**one, "fragments": []} for one in data["batches"]]}, "a batch has not one fragment for each"),
    ):
        with pytest.raises(InvalidRecord, match=sentence):
            RoundTrace.of(json.dumps({**data, **values}))
    with pytest.raises(ConfigError, match=r"^system.sync_steps=8 is not possible with trace=.*has system.sync_steps=0"):
        replayed(config, directory, **{"system.sync_steps": 8})
    with pytest.raises(ConfigError, match=r"^system.actors=barrier is not possible with trace="):
        replayed(config, directory, **{"system.actors": "barrier", "system.actor_shards": 0,
                                       "system.data_admission": "fifo"})  # fmt: skip


def test_capacities_of_recorded_rounds() -> None:
    """Capacities are powers of two that all rounds fit into."""
    step = Step(waves=[[None]] * 3, batches=[Batch(0, [], 0.0, 0)])
    assert CollectionSizes(1, 4, 1, 4).fit([step, step]) == CollectionSizes(1, 8, 2, 4)


class Slow(Chaos):
    """A pool whose actors of one shard end only once nothing else is under way."""

    def wait(self) -> list[Done]:
        if not self.under_way:
            return []

        def is_slow(one: tuple[Call, Any]) -> bool:
            return one[0].kind == "actor" and one[0].number == 0

        self.under_way.sort(key=is_slow)
        fast = [one for one in self.under_way if not is_slow(one)]
        call, arguments = self.under_way.pop(self.random.randrange(len(fast)) if fast else 0)
        value, seconds = self.functions.invoke(call.kind, *arguments)
        return [Done(call, value, seconds, seconds)]


def test_a_slow_actor_holds_nobody_up(left: Any) -> None:
    """Its fragment outlives the version ring: it is old, and the replay keeps as many versions as it needs."""
    config = free("system=async", "system.actors=independent", "system.versions=4", "total_steps=320")
    trainer = Trainer(config, make_pool=lambda config, actors: Slow(live_runs.functions_of(config)))
    trainer.run()
    directory = left(trainer, config)
    check_rounds(rounds_of(directory), trainer.usages[0].gradients)
    again = replayed(config, directory)
    assert again.config.system.versions > config.system.versions
    assert max(one.deviation for one in again.executor.deviations) < 1e-5
