"""Live runs of independent actors that hold host environments: they are brought back, resumed and repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_runs import fickle, left, live, lived, opened, params, replayed, shared_parts
from settings import complaint

from stellaris_jax import load_config
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.tree import Config
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.live import conductor
from stellaris_jax.live.hosts import EnvPosition
from stellaris_jax.runs.checkpoint import Checkpoints
from stellaris_jax.sources.live import LiveShardSource

__all__ = ["fickle", "shared_parts"]
pytestmark = pytest.mark.usefixtures("shared_programs")
T, N, ROUNDS = 16, 4, 6
SMALL = (
    "env=gymnasium/CartPole-v1",
    "system=stellaris",
    "algorithm.minibatches=8",
    f"env.num_envs={N}",
    "env.normalize_observation=true",
    f"algorithm.rollout_length={T}",
    "network.hidden=[8]",
    "algorithm.epochs=2",
    f"total_steps={ROUNDS * T * N}",
    "executor=live",
    "live.actors=0",
    "system.learners=3",
    "system.actors=independent",
    "system.actor_shards=2",
    "system.sync_steps=4",
    "evaluation.points=0",
)
IN_ORDER = (
    "system=central",
    "system.learners=1",
    "system.actors=independent",
    "system.actor_shards=1",
    "system.sync_steps=4",
    "system.data_admission=capacity",
    "system.data_admission_options.eta=0",
)
"""One learner and one shard in turn, so that everything happens in the same order whatever dies."""
HOPPER = ("env=envpool/Hopper-v4", "env.kwargs.max_episode_steps=9", "env.normalize_reward=true")
MEMORY = ("network.memory=gru", "network.memory_size=4", "algorithm.minibatches=4")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch, shared_parts: None) -> None:
    monkeypatch.setattr(conductor, "MOST_DEATHS", 1000)


def config_of(*overrides: str) -> Config:
    return load_config([*SMALL, *overrides])


def positions(trainer: Trainer) -> list[EnvPosition]:
    assert isinstance(trainer.source, LiveShardSource)
    return trainer.source.positions


@pytest.mark.parametrize(
    "overrides", [pytest.param((), id="cartpole"), pytest.param(HOPPER, id="hopper"), pytest.param(MEMORY, id="memory")]
)
def test_the_engine_repeats_a_live_run(overrides: tuple[str, ...], tmp_path: Path) -> None:
    if overrides is HOPPER:
        pytest.importorskip("envpool")
    config = config_of(*overrides)
    trainer = live(config, deaths=0.3)
    records = trainer.run()
    trainer.close()
    assert sum(record["episodes"] for record in records) > 3
    assert trainer.usages[0].actor_failures > 3
    directory = left(trainer, config, tmp_path / "run")
    assert not opened(directory)
    again = replayed(config, directory)
    assert len(again.executor.deviations) - 1 == int(records[-1]["updates"]) > 5
    assert max(one.deviation for one in again.executor.deviations) < 1e-5
    np.testing.assert_allclose(params(again), params(trainer), atol=1e-5)
    assert again.usages == trainer.usages


@pytest.mark.parametrize("overrides", [(), MEMORY], ids=["cartpole", "memory"])
def test_who_dies_is_brought_back(overrides: tuple[str, ...]) -> None:
    """To the bit: what environments were given, what they observe and remember, and what is learned."""
    config = config_of(*IN_ORDER, *overrides)
    whole, killed = lived(config), lived(config, deaths=0.5)
    assert killed.usages[0].actor_failures > 10
    for one, other in zip(positions(whole), positions(killed), strict=True):
        assert (one.opened, one.fragments, one.digest) == (other.opened, other.fragments, other.digest)
        np.testing.assert_array_equal(one.since(0, N), other.since(0, N))
    np.testing.assert_array_equal(params(whole), params(killed))


def test_without_staleness_it_is_the_compiled_engines(tmp_path: Path) -> None:
    config = config_of(*IN_ORDER)
    trainer = lived(config)
    compiled = Trainer(config.replace({"executor": "simulated", "engine.chunk_rounds": 1}))
    compiled.run()
    compiled.close()
    np.testing.assert_allclose(params(trainer), params(compiled), atol=1e-5)


@pytest.mark.parametrize("reason", ["long", "fickle"])
def test_lost_environments_begin_new_episodes(reason: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Too many actions to repeat, or environments that do not repeat themselves."""
    if reason == "fickle":
        request.getfixturevalue("fickle")
    config = config_of(*((f"checkpoint.replay={T * N}",) if reason == "long" else ()))
    trainer = live(config, deaths=0.3)
    records = trainer.run()
    trainer.close()
    directory = left(trainer, config, tmp_path / "run")
    assert opened(directory) and all(position.opened > 0 for position in positions(trainer))
    # Every step pays 1: what is lost of an episode is in neither of them.
    ended = [record for record in records if record["episodes"]]
    assert ended and all(record["train_return"] == record["episode_length"] for record in ended)
    if reason == "long":
        with pytest.raises(ConfigError, match=f"cannot be replayed: in round {opened(directory)[0]} environments"):
            replayed(config, directory)


@pytest.mark.parametrize("overrides", [(), MEMORY], ids=["cartpole", "memory"])
def test_a_resumed_run_goes_on_to_the_bit(overrides: tuple[str, ...], tmp_path: Path) -> None:
    config = config_of(*IN_ORDER, *overrides)
    whole = lived(config)
    first = live(config)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    for _ in range(3):
        first.step()
        first.save(checkpoints)
    checkpoints.wait()
    first.step()  # lost
    first.close()
    notes: list[str] = []
    second = live(config, deaths=0.3)
    assert second.restore(checkpoints, notes.append) == 3
    steps = positions(second)[0].fragments * 4 * N
    assert notes == [f"actors bring environments to where they stood: {steps} env steps are replayed at most"]
    second.run()
    second.save(checkpoints)
    second.close()
    assert positions(second)[0].digest == positions(whole)[0].digest
    np.testing.assert_array_equal(params(second), params(whole))
    longer = live(config.replace({"total_steps": (ROUNDS + 2) * T * N}))
    assert longer.restore(checkpoints) == ROUNDS
    longer.run()
    longer.close()
    assert positions(longer)[0].opened == 0
    checkpoints.close()


def test_a_resumed_run_that_lost_its_environments_goes_on(tmp_path: Path) -> None:
    config = config_of("checkpoint.replay=50")
    first = live(config)
    for _ in range(3):
        first.step()
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    first.save(checkpoints)
    checkpoints.wait()
    first.close()
    notes: list[str] = []
    second = live(config)
    second.restore(checkpoints, notes.append)
    assert "begin new episodes" in notes[0]
    second.run()
    second.close()
    checkpoints.close()
    assert [position.opened for position in positions(second)] == [3, 3]


def test_a_failed_round_leaves_positions_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(*IN_ORDER)
    trainer = live(config)
    trainer.step()
    before = [(one.fragments, one.digest) for one in positions(trainer)]

    def broken(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trainer.executor.conductor, "_merge", broken)
        with pytest.raises(KeyboardInterrupt):
            trainer.step()
    assert [(one.fragments, one.digest) for one in positions(trainer)] == before
    trainer.executor.restart()
    trainer.run()
    trainer.close()
    np.testing.assert_array_equal(params(trainer), params(lived(config)))


def test_episodes_are_refused_in_a_sentence() -> None:
    assert "delays.by=episodes" in complaint(*SMALL, "delays.by=episodes")
