"""Independent actors: without staleness synchronous to the bit; runs resume; seeds and devices agree.

`test_reference_actors_engine.py` compares the engine with the literal system.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from settings import complaint
from training import OPTION, again, assert_close, assert_identical, check_population, leaves, steps, tiny

from stellaris_jax import Trainer, load_config, load_policy
from stellaris_jax.execute.run import open_run, train
from stellaris_jax.execute.simulated import planner_of
from stellaris_jax.runs.checkpoint import Checkpoints

pytestmark = pytest.mark.usefixtures("shared_programs")

FREE = ("system.actors=independent", "delays=pareto", "system.sync_steps=4", "engine.chunk_rounds=3")
"""Actors of different speeds that fetch policies within fragments."""
FRESH = {
    "capacity": ("system.data_admission=capacity", f"{OPTION}.eta=0"),
    "ready_first": ("system.data_admission=ready_first", f"{OPTION}.eta=0"),
    "bounded": ("system.data_admission=bounded", f"{OPTION}.bound=0", f"{OPTION}.by=wait"),
    "window": ("system.data_admission=window", f"{OPTION}.bound=0"),
    "fixed": ("system.data_admission=fixed", f"{OPTION}.lag=0"),
}
"""Data admissions under which data are never behind."""
ACTORS = ("system.sync_steps", "system.actor_shards", "system.publish")
"""Beginnings of overrides that are for independent actors."""
ROUNDS = 4


def free(*overrides: str, rounds: int = 7) -> Trainer:
    return Trainer(tiny(steps(rounds), *FREE, *overrides))


# Without staleness ----------------------------------------------------------------------------------------------------


def check_synchronous(admission: str, *overrides: str) -> None:
    """Parameters, optimizer, environments, statistics and seconds equal those of barrier actors.

    On several devices and for seeds side by side, sums over a fragment are rounded in another order.
    """
    shared = [one for one in overrides if not one.startswith(ACTORS)]
    barrier = Trainer(tiny(steps(ROUNDS), "system.actors=barrier", *shared))
    fresh = Trainer(tiny(steps(ROUNDS), "system.actors=independent", *FRESH[admission], *overrides))
    records = [[record["simulated_seconds"] for record in trainer.run()] for trainer in (barrier, fresh)]
    assert records[0] == records[1]
    exact = not {"engine.devices=2", "engine.members=together"} & {*overrides}
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-4, "atol": 2e-6}
    for name in ("params", "version", "ring", "aggregator", "normalizers", "kl_coefficient", "round"):
        for one, other in zip(*(jax.tree.leaves(getattr(x.state, name)) for x in (barrier, fresh)), strict=True):
            np.testing.assert_allclose(one, other, **tolerance, err_msg=name)
    for one, other in zip(*(jax.tree.leaves(x.state.actor._replace(env=None)) for x in (barrier, fresh)), strict=True):
        np.testing.assert_allclose(one, other.reshape(one.shape), **tolerance)
    assert fresh.state.version[0] > 1


@pytest.mark.parametrize("admission", FRESH)
@pytest.mark.parametrize("sync", [0, 4])
def test_fresh_data_are_synchronous_to_the_bit(admission: str, sync: int) -> None:
    check_synchronous(admission, f"system.sync_steps={sync}", "delays=pareto", "platform.cache=0")


@pytest.mark.parametrize(
    "overrides",
    [
        ("system=allreduce", "system.learners=3"),
        ("system=softsync", "system.learners=4"),
        ("system=ssp", "system.learners=3", "algorithm=impact", "algorithm.options.target_interval=3"),
        ("network.memory=gru", "network.memory_size=4", "system.actor_shards=2"),
        ("env=gymnax/pendulum", "env.normalize_reward=true", "system.aggregation=fractional"),
        ("engine.devices=2", "engine.lanes=2", "system.actor_shards=4"),
        ("num_seeds=2", "engine.members=together"),
        ("platform.actors=3", "system.actor_shards=2", "delays.loader.seconds=0.2"),
    ],
    ids=lambda overrides: overrides[0],
)
def test_fresh_data_are_synchronous_in_every_setting(overrides: tuple[str, ...]) -> None:
    check_synchronous("capacity", *overrides)


# Interruptions --------------------------------------------------------------------------------------------------------

STALE = {
    "fifo": ("delays.actor_failure=0.2",),
    "newest": ("system.data_admission=newest", f"{OPTION}.bound=1", "num_seeds=2"),
    "evict_stalest": ("system.data_admission=evict_stalest", "delays.actor.seconds=0.2", "delays.learner.seconds=2"),
    "capacity": ("system.data_admission=capacity", f"{OPTION}.eta=3", "network.memory=gru", "system.publish_lag=2"),
    "in_order": ("system.data_admission=in_order", "num_seeds=2", "engine.members=together"),
}
"""Data admissions under which data are old, or dropped."""


@pytest.mark.parametrize("name", STALE)
def test_a_run_may_stop_after_any_round(name: str, tmp_path: Path) -> None:
    """Chunks of three rounds; every save begins other chunks."""
    whole = free(*STALE[name])
    whole.run()
    for stop in (1, 2, 4):
        first, second = again(whole), again(whole)
        checkpoints = Checkpoints(tmp_path / str(stop), keep=1)
        while first.round < stop:
            run_rounds(first, 1)
        first.save(checkpoints)
        checkpoints.wait()
        assert second.restore(checkpoints) == stop
        second.run()
        assert_identical(whole, second)
        checkpoints.close()


def run_rounds(trainer: Trainer, rounds: int) -> None:
    """Train a chunk of exactly so many rounds."""
    size = trainer.schedule.size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.schedule, "size", lambda begin: min(rounds, size(begin)))
        trainer.executor.restart()
        trainer.step()
    trainer.executor.restart()


def test_a_planner_may_begin_again_before_the_first_round() -> None:
    whole, other = free(), free()
    whole.run()
    planner_of(other.executor).next()
    other.executor.restart()
    other.run()
    assert_identical(whole, other)


def test_a_run_directory_resumes_to_the_bit(tmp_path: Path) -> None:
    """A checkpoint in the middle of a chunk, by another process's state: all through files."""
    settings = (*FREE, *STALE["newest"], "checkpoint.interval=2")
    train(tiny(steps(4), *settings, f"run.dir={tmp_path / 'run'}"))
    train(load_config([f"resume={tmp_path / 'run'}", steps(7)]))
    whole = Trainer(tiny(steps(7), *settings))
    whole.run()
    assert_identical(open_run(tmp_path / "run"), whole)


def test_a_start_from_a_policy_has_its_statistics(tmp_path: Path) -> None:
    """Version 0 acts with the observation statistics of the run that it comes from."""
    run_dir = tmp_path / "run"
    train(tiny(steps(3), *FREE, f"run.dir={run_dir}"))
    policy: Any = load_policy(run_dir)
    fresh = ("system.actors=independent", *FRESH["capacity"], f"init_from={run_dir}")
    trainer, barrier = (Trainer(tiny(steps(2), *own)) for own in (fresh, ("system.actors=barrier", fresh[-1])))
    statistics = trainer.state.store.statistics
    for kept, own in zip(statistics, policy.normalizers.obs, strict=True):
        np.testing.assert_array_equal(kept, np.broadcast_to(own, kept.shape))
    trainer.run()
    barrier.run()
    np.testing.assert_array_equal(trainer.state.params, barrier.state.params)


# Seeds and devices ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fifo", "newest", "capacity"])
def test_seeds_together_equal_seeds_alone(name: str) -> None:
    """Seeds whose rounds have different steps: those without a step at a place keep their state."""
    apart, together = (free(*STALE[name], "num_seeds=3", f"engine.members={way}") for way in ("apart", "together"))
    apart.run(3)
    together.run(3)
    assert_close(together, apart)
    alone = free(*STALE[name], "num_seeds=1", "seed=1")
    alone.run(3)
    for mine, own in zip(leaves(apart), leaves(alone), strict=True):
        np.testing.assert_array_equal(mine[1], own[0])


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", ["fifo", "capacity"])
def test_devices_change_nothing_but_rounding(name: str, devices: int) -> None:
    shards = "system.actor_shards=2"
    one, several = (free(*STALE[name], shards, f"engine.devices={n}") for n in (1, devices))
    one.run(3)
    several.run(3)
    assert_close(several, one)


def test_the_number_of_shards_does_not_depend_on_devices() -> None:
    """A run may continue on another number of devices, with the same shards."""
    settings = ("system.actors=independent", "env.num_envs=16")
    assert load_config(settings).actor_shards == load_config([*settings, "engine.devices=2"]).actor_shards == 8
    message = complaint(*settings, "engine.devices=4")
    assert "system.actor_shards=8 times engine.devices=4 must divide env.num_envs=16" in message
    assert "give one that divides 4" in message


@pytest.mark.parametrize("way", ["apart", "together"])
def test_seeds_that_reach_the_target_stop(way: str) -> None:
    """The others go on, as they do alone."""
    settings = ("scaling.target=19", "scaling.ends=true", f"engine.members={way}")
    trainer, finished = free(*settings, "num_seeds=2", rounds=12), set()
    while not trainer.finished:
        trainer.step()
        finished.add(tuple(scaling.finished for scaling in trainer.schedule.scalings))
    assert any(len(set(row)) > 1 for row in finished)
    for seed in range(2):
        alone = free(*settings, f"seed={seed}", rounds=12)
        alone.run()
        np.testing.assert_allclose(trainer.state.params[seed], alone.state.params[0], rtol=2e-3, atol=2e-4)
        assert trainer.usages[seed] == alone.usages[0]


# Many runs ------------------------------------------------------------------------------------------------------------


def test_runs_of_a_population_are_what_they_are_alone() -> None:
    configs = [
        tiny(steps(4), *FREE, *STALE["fifo"]),
        tiny(steps(4), *FREE, *STALE["fifo"], "algorithm.learning_rate=0.001"),
        tiny(steps(4), *FREE, *STALE["newest"]),
        tiny(steps(4), "system.actors=barrier"),
    ]
    check_population(configs)
