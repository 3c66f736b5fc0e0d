"""`init_from`: a run starts from another run's policy, which is read as data; and a trainer's settings are fixed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stellaris_jax import ConfigError, Trainer, load_config, load_policy, train
from stellaris_jax.config.stored import from_yaml, to_yaml
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.envs import Discrete, make, register
from stellaris_jax.execute.run import open_run
from stellaris_jax.runs.start import _check_same

SMALL = ["env=gymnax/cartpole", "env.normalize_observation=true", "env.num_envs=4", "algorithm.rollout_length=8",
         "algorithm.epochs=1", "algorithm.minibatches=4", "network.hidden=[4]", "system.learners=4", "total_steps=64",
         "evaluation.episodes=2", "evaluation.points=1", "run.progress=false", "run.loggers=[]",
         "algorithm.anneal=false"]  # fmt: skip


def three() -> Any:
    """CartPole with one action more."""
    env: Any = make("gymnax/CartPole-v1", {})
    env.action_space, env.name = Discrete(3), "test/three"
    return env


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("source") / "run"
    train(load_config([*SMALL, f"run.dir={place}"]))
    return place


def started(source: Path, programs: ProgramCache, *others: str) -> Trainer:
    return Trainer(load_config([*SMALL, f"init_from={source}", *others]), programs=programs)


def test_policy_and_normaliser_are_those_of_the_run(source: Path, programs: ProgramCache) -> None:
    """With another learning rate, another task of the same spaces, and for as many seeds as one likes."""
    policy = load_policy(source)
    trainer = started(source, programs, "algorithm.learning_rate=1e-4", "seed=5", "num_seeds=2")
    params, normalizers = trainer.seed_states.learned
    for seed in range(2):
        np.testing.assert_array_equal(params[seed], policy.params)  # type: ignore[union-attr]
        for ours, theirs in zip(normalizers.obs, policy.normalizers.obs, strict=True):  # type: ignore[union-attr]
            np.testing.assert_array_equal(ours[seed], theirs)
    np.testing.assert_array_equal(trainer.state.ring[1, 3], params[1])
    assert trainer.round == 0 and not trainer.state.normalizers.reward.samples.any()
    fresh = Trainer(load_config([*SMALL, "seed=5", "num_seeds=2"]), programs=programs)
    np.testing.assert_array_equal(fresh.state.actor.obs, trainer.state.actor.obs)


def test_nothing_of_the_run_is_imported(source: Path, tmp_path: Path, programs: ProgramCache) -> None:
    sent = tmp_path / "sent"
    shutil.copytree(source, sent)
    config = from_yaml(sent / "config.yaml")
    (tmp_path / "evil.py").write_text("raise OSError('executed')")
    evil = {"plugins": (str(tmp_path / "evil.py"),), "env.name": "gymnasium/evil:Any-v0", "env.kwargs": {"x": 1}}
    (sent / "config.yaml").write_text(to_yaml(config.replace(evil)))
    np.testing.assert_array_equal(started(sent, programs).state.params[0], load_policy(source).params)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["network.hidden=[8]"], r"has network.hidden=\[4\], and this run \[8\]: they must be the same"),
        (["env.normalize_observation=false"], "has env.normalize_observation=True, and this run False"),
        (["env=gymnax/acrobot"], r"has observation_space=.*'shape': \[4\].*, and this run .*'shape': \[6\]"),
        (["env.name=test/three"], r"has action_space=.*'n': 2.*, and this run .*'n': 3.*: only bounds may differ"),
        (["init_from=nowhere"], "init_from=nowhere holds no run: there is no nowhere/config.yaml"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    overrides: list[str], sentence: str, source: Path, programs: ProgramCache
) -> None:
    from stellaris_jax.envs import Discrete, make

    class Three:
        def __new__(cls) -> object:
            env = make("gymnax/CartPole-v1", {})
            env.action_space, env.name = Discrete(3), "test/three"
            return env

    register("test/three", Three)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=sentence):
        started(source, programs, *overrides)


def test_the_option_that_differs_is_named() -> None:
    here, there = (load_config(["env=tokens/addition", f"network.options.layers={layers}"]) for layers in (1, 2))
    with pytest.raises(ConfigError, match=r"x has network.options.layers=2, and this run 1: they must be the same"):
        _check_same("x", there, here)


def test_damaged_checkpoints_are_no_start(source: Path, tmp_path: Path, programs: ProgramCache) -> None:
    sent = tmp_path / "sent"
    shutil.copytree(source, sent)
    for file in (sent / "checkpoints").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be started from: there is no intact checkpoint"):
        started(sent, programs)


def test_a_resumed_run_does_not_read_it_again(source: Path, tmp_path: Path) -> None:
    """Nor does anything else that opens the run; one without a checkpoint starts over, and so reads it."""
    other, run = tmp_path / "other", tmp_path / "run"
    shutil.copytree(source, other)
    train(load_config([*SMALL, f"init_from={other}", f"run.dir={run}"]))
    shutil.rmtree(other)
    open_run(run).close()
    assert train(load_config([f"resume={run}", "total_steps=128"]))["rounds"] == 4
    assert from_yaml(run / "config.yaml").init_from == str(other)
    with pytest.raises(ConfigError, match="init_from cannot change when a run is resumed"):
        load_config([f"resume={run}", f"init_from={source}"])


def test_settings_of_a_trainer_are_fixed(programs: ProgramCache) -> None:
    trainer = Trainer(load_config(SMALL), programs=programs)
    for name in ("config", "env", "network", "seeds", "spec"):
        with pytest.raises(
            AttributeError, match=f"Trainer.{name} cannot change: make another Trainer, whose init_from"
        ):
            setattr(trainer, name, getattr(trainer, name))
