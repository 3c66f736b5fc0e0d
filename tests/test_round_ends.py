"""Ends of rounds of independent actors: the policy after a round has as many updates as the round's record says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import live_runs
import numpy as np
import pytest
from live_runs import config_of, live, replayed
from training import steps, tiny

from stellaris_jax import Trainer, load_config
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline import Round, Timeline, trace

pytestmark = pytest.mark.usefixtures("shared_programs")

FREE = ("system.actors=independent", "delays=pareto", "algorithm.minibatches=8")
CASES = {
    "async": ("system=async",),
    "softsync": ("system=softsync",),
    "stellaris": ("system=stellaris",),
    "drop": ("system=async", "system.overflow=drop", "system.versions=4"),
    "late ones dropped": ("system=async", "system.admission=bounded", "system.admission_options.bound=1"),
    "slowed": ("system=stellaris", "platform.interference=0.5", "platform.contention=0.3"),
    "evicting": ("system=stellaris", "system.data_admission=evict_stalest", "delays.loader.seconds=0.2"),
    "instant": ("system=stellaris", "delays.aggregate.kind=constant", "delays.aggregate.seconds=0"),
}
"""Rules and admissions under which gradients of later batches may wait when a batch is complete."""
SEEDS = 4


def check_usage(rounds: Sequence[Round]) -> None:
    """The usage of each round counts what the rounds so far have aggregated, and nothing else."""
    groups, gradients, staleness = 0, 0, list[int]()
    for one in rounds:
        groups += len(one.groups)
        gradients += sum(len(group.gradients) for group in one.groups)
        staleness += one.staleness()
        usage = one.usage
        assert (usage.updates, usage.gradients) == (groups, gradients)
        assert (usage.staleness_total, usage.staleness_max) == (sum(staleness), max(staleness, default=0))
        assert all(one.start <= group.published <= usage.seconds for group in one.groups)
        assert [event for event in one.sequence if event in one.groups] == one.groups


@pytest.mark.parametrize("case", CASES)
def test_a_simulated_round_counts_its_own_updates(case: str) -> None:
    left = 0
    for seed in range(SEEDS):
        timeline = Timeline.of(load_config([*FREE, *CASES[case]]), seed)
        rounds = []
        for _ in range(40):
            rounds.append(timeline.next_round())
            assert timeline.usage == rounds[-1].usage
            left += bool(timeline.state()["aggregating"])
        check_usage(rounds)
        assert all(one.start <= group.second for one in rounds for group in one.groups)
        clocks = [group.clock for one in rounds for group in one.groups]
        assert clocks == list(range(len(clocks))), "no update is missing, and none comes twice"
    if case in ("stellaris", "slowed"):
        assert left > 10, "many rounds end as an update of later batches begins"
    if case == "instant":
        assert left == 0, "an update without duration is over in the instant in which it begins"


@pytest.mark.parametrize("case", ["stellaris", "slowed"])
def test_what_begins_as_a_round_ends_is_saved(case: str) -> None:
    """A timeline goes on after every round from its state, as JSON."""
    config = load_config([*FREE, *CASES[case]])
    whole, other = Timeline.of(config, 0), Timeline.of(config, 0)
    for _ in range(30):
        state = json.loads(json.dumps(other.state()))
        other = Timeline.of(config, 0)
        other.restore(state)
        assert other.next_round() == whole.next_round() and other.state() == whole.state()
        assert Timeline.usage_of(state).updates == state["clock"]


def counts(trainer: Trainer) -> set[int]:
    """Numbers of updates that the state of the only seed has had: its version, and the optimizer's counts."""
    paths = jax.tree_util.tree_leaves_with_path(trainer.state.aggregator)
    adam = {int(leaf[0]) for path, leaf in paths if jax.tree_util.keystr(path).endswith("count")}
    assert adam, "Adam counts its steps"
    return {int(trainer.state.version[0]), *adam}


@pytest.mark.parametrize("by", ["steps", "episodes"])
def test_the_engine_executes_as_many_updates_as_a_round_counts(by: str) -> None:
    """Every round is a chunk, so that the state after it is seen."""
    late = 0
    for seed in range(3):
        settings = ("system=stellaris", f"delays.by={by}", "engine.chunk_rounds=1", "num_seeds=1", f"seed={seed}")
        trainer = Trainer(tiny(steps(8), *FREE[:2], *settings, "system.learners=6", "env.normalize_observation=true"))
        while not trainer.finished:
            (record,) = trainer.step()
            assert counts(trainer) == {int(record["updates"])} == {trainer.usages[0].updates}
            late += bool(trainer.metadata()["timelines"][0]["aggregating"])
    assert late > 0, "no round has ended as an update of a later batch began"


def free(*overrides: str) -> Config:
    """Configuration of a live run with gradients of several batches under way."""
    actors = ("system.actors=independent", "system.actor_shards=2", "live.actors=0", "system.batches_in_flight=3")
    return config_of(*actors, "system.learners=6", "total_steps=960", *overrides)


def rounds_of(directory: Path) -> list[Round]:
    return [one.record for one in trace.read(directory / trace.NAME).rounds]


BACKLOGS = {
    "in order": ("system.admission=in_order",),
    "few versions": ("system.versions=4",),
    "dropped": ("system.versions=3", "system.overflow=drop"),
}
"""Settings under which several gradients wait at once, although a live driver aggregates without delay."""


@pytest.mark.parametrize(
    "case", ["in order", *(pytest.param(case, marks=pytest.mark.slow) for case in [*BACKLOGS][1:])]
)
def test_a_live_round_counts_its_own_updates(case: str, tmp_path: Path) -> None:
    config = free("system=async", "system.actors=independent", "env.normalize_observation=true", *BACKLOGS[case])
    trainer, left = live(config), 0
    while not trainer.finished:
        (record,) = trainer.step()
        assert counts(trainer) == {int(record["updates"])} == {trainer.usages[0].updates}
        left += bool(trainer.metadata()["timelines"][0]["aggregating"])
    assert left > 0 or case == "dropped", "no round has ended as an update of a later batch began"
    directory = live_runs.left(trainer, config, tmp_path)
    check_usage(rounds_of(directory))
    assert max(one.deviation for one in replayed(config, directory).executor.deviations) < 1e-5


def test_a_restored_live_run_begins_with_the_update_that_was_left(tmp_path: Path) -> None:
    config = free("system=async", "system.actors=independent", "env.normalize_observation=true", *BACKLOGS["in order"])
    first = live(config)
    first.step()
    while not first.metadata()["timelines"][0]["aggregating"]:
        first.step()
        assert first.round < config.rounds - 1, "a round ends as an update of a later batch begins, sooner or later"
    directory = live_runs.left(first, config, tmp_path)
    saved: Any = json.loads(json.dumps(first.metadata()))
    second = live(config, seed=1)
    second.seed_states.state = jax.tree.map(lambda x: x.copy(), first.state)
    second.schedule.restore(saved)
    second.executor.restart()
    second.run()
    second.write(directory)
    rounds = rounds_of(directory)
    check_usage(rounds)
    assert rounds[first.round].groups[0].second <= rounds[first.round].start
    deviations = np.array([one.deviation for one in replayed(config, directory).executor.deviations])
    assert deviations.max() < 1e-5
