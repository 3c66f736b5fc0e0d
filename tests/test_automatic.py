"""Settings by the spaces of environments without a file in `configs/env`: normalised observations, rescaled actions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("gymnasium")

from commands import said
from wide_env import Wide

from stellaris_jax import ConfigError, load_config, load_policy, train
from stellaris_jax.cli import check_env as cli
from stellaris_jax.config.shipped import untuned
from stellaris_jax.config.stored import from_yaml, to_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.envs import Box, check_env, make, register
from stellaris_jax.envs.registry import from_config
from stellaris_jax.policies.export.writing import export_policy

WIDE = "gymnasium/wide_env:Wide-v0"
BOTH = {"normalize_observation": True, "rescale_action": True}
NEITHER = {"normalize_observation": False, "rescale_action": False}


@pytest.fixture(autouse=True)
def registered() -> None:
    register("test/wide", Wide)


def decided(*overrides: str) -> dict[str, bool | None]:
    env = load_config(overrides).env
    return {key: getattr(env, key) for key in BOTH}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([f"env={WIDE}"], BOTH),
        (["env=test/wide"], BOTH),
        ([f"env.name={WIDE}"], BOTH),
        (["env=gymnax/acrobot", "env.name=test/wide"], BOTH),
        ([f"env.name={WIDE}", "env.rescale_action=false"], BOTH | {"rescale_action": False}),
        (["env.name=gymnax/Acrobot-v1"], NEITHER),
        (["env.name=diagnostic/action_reward"], NEITHER),
        ([f"env={WIDE}", "env.normalize_observation=false"], BOTH | {"normalize_observation": False}),
        ([f"env={WIDE}", "env.rescale_action=false"], BOTH | {"rescale_action": False}),
        (["env=gymnasium/gym_lab:Drift-v0", "env.kwargs.action=box"], BOTH | {"rescale_action": False}),
        (["env=gymnasium/gym_lab:Drift-v0", "env.kwargs.observation=discrete"], NEITHER),
        (["env=gymnasium/gym_lab:Drift-v0", "env.kwargs.observation=bytes"], NEITHER),
        (["env=gymnax/mountaincarcontinuous"], BOTH | {"rescale_action": False}),
        (["env=gymnax/acrobot"], NEITHER),
        (["env=gymnax/Reacher-misc"], NEITHER),
        (["env=diagnostic/action_reward"], NEITHER),
    ],
    ids=str,
)
def test_spaces_decide_and_words_win(overrides: list[str], expected: dict[str, bool]) -> None:
    """Shipped files, and suites that have them, stay as they are."""
    assert decided(*overrides) == expected


def test_a_name_alone_keeps_the_rest_of_the_preset() -> None:
    named, chosen = (load_config([f"{key}={WIDE}"]) for key in ("env.name", "env"))
    assert (named.algorithm.epochs, chosen.algorithm.epochs) == (4, 10)  # CartPole's, and those of untuned.yaml


def test_suites_without_files_get_general_values() -> None:
    config = load_config([f"env={WIDE}"])
    algorithm = config.algorithm
    assert (algorithm.epochs, algorithm.minibatches, algorithm.learning_rate) == (10, 16, 3e-4)
    assert config.env.normalize_reward and not config.env.overlap and config.system.name == "central"
    assert load_config([f"env={WIDE}", "system=async"]).system.name == "async"
    changed = load_config([f"env={WIDE}", "algorithm.epochs=3", "env.normalize_reward=false"])
    assert (changed.algorithm.epochs, changed.env.normalize_reward) == (3, False)
    off_policy = load_config([f"env={WIDE}", "algorithm=sac"])
    assert (off_policy.algorithm.epochs, off_policy.env.normalize_reward) == (1, False)
    assert load_config(["env=gymnax/Reacher-misc"]).algorithm.epochs == 4


@pytest.mark.parametrize(
    ("env", "says"), [("test/wide", True), ("gymnax/Reacher-misc", True), ("gymnax/cartpole", False),
                      ("gymnax/CartPole-v1", False), ("diagnostic/truncation", False)],
)  # fmt: skip
def test_a_run_says_that_nothing_was_tuned(env: str, says: bool) -> None:
    assert bool(untuned(Config().replace({"env.name": env}))) == says


def test_a_stored_run_says_what_was_in_force(tmp_path: Path) -> None:
    config = load_config([f"env={WIDE}"])
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert from_yaml(path) == config
    before = "".join(line for line in to_yaml(config).splitlines(keepends=True) if "rescale_action" not in line)
    path.write_text(before)  # of an earlier version
    assert from_yaml(path).env.rescale_action is False


@pytest.mark.parametrize("name", [WIDE, "test/wide"])
def test_bounds_are_reached_by_actions_of_one(name: str) -> None:
    """Beyond them as well; the last observation is the action that the environment was given."""
    env: Any = make(name, {}, rescale_action=True)
    assert env.action_space == Box((2,), (-1.0,) * 2, (1.0,) * 2)
    actions = np.array([[-1.0, -1.0], [0.0, 0.0], [3.0, 3.0]], np.float32)
    if name == WIDE:
        pool = env.open(3, seed=0)
        pool.recv()
        pool.send(np.clip(actions, -1, 1))
        obs = pool.recv().obs
        pool.close()
    else:
        keys = jax.random.split(jax.random.key(0), 3)
        state, _ = env.reset(keys)
        obs = env.step(keys, state, actions, env.starts(keys[0]))[1].final_obs
    np.testing.assert_array_equal(obs, [[-1000.0, 0.0], [0.0, 2.0], [1000.0, 4.0]])


def test_bounds_must_be_finite() -> None:
    sentence = "env.rescale_action=true is not possible: .* has no Box of actions between finite bounds"
    with pytest.raises(ConfigError, match=sentence):
        from_config(load_config(["env=gymnax/cartpole", "env.rescale_action=true"]).env)


def test_check_env_measures_and_says_what_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    register("test/wide", Wide)
    cli.main(["test/wide"])
    out, err = capsys.readouterr()
    assert not said(err)
    assert re.search(r"^observations from -9\d\d.* to 9\d\d.*: normalised .env.normalize_observation=true.$", out, re.M)
    assert re.search(r"^rewards from -1\d.* to -\d.*: normalised .env.normalize_reward=true.$", out, re.M)
    assert "actions from -1000 to 1000, reached by a policy's -1 to 1 (env.rescale_action=true)" in out
    cli.main(["test/wide", "env.normalize_observation=false", "env.rescale_action=false"])
    out, err = capsys.readouterr()
    assert "has actions from -1000 to 1000, which noise of deviation 1 explores badly; set env.rescale_action" in err
    assert "large for a network; set env.normalize_observation=true" in out
    found = check_env("gymnasium/CartPole-v1")  # a name, too
    assert found.reward == (1.0, 1.0) and -5 < found.observation[0] < 0 < found.observation[1] < 5


@pytest.mark.parametrize("name", [WIDE, "test/wide"])
def test_a_run_acts_in_the_units_of_the_environment(name: str, tmp_path: Path) -> None:
    """Its policy, and the one exported from it, within the bounds; trained, evaluated, and stored with the settings."""
    small = ["env.num_envs=4", "algorithm.rollout_length=4", "algorithm.epochs=1", "algorithm.minibatches=2",
             "network.hidden=[4]", "system=stellaris", "system.learners=2", "total_steps=32", "evaluation.episodes=2",
             "evaluation.points=1", "run.progress=false", "run.loggers=[]"]  # fmt: skip
    run = tmp_path / "run"
    train(load_config([f"env={name}", *small, f"run.dir={run}"]))
    assert "rescale_action: true" in (run / "config.yaml").read_text()
    policy, carried = load_policy(run), load_policy(export_policy(run, "flax"))
    obs = np.zeros((3, 2), np.float32)
    actions = np.asarray(policy(obs))
    np.testing.assert_allclose(carried(obs), actions, rtol=1e-5)
    assert 1 < actions[0, 1] < 3  # about the middle of 0 and 4
    drawn = np.asarray(policy(np.zeros((200, 2), np.float32), jax.random.key(0)))
    assert drawn[:, 0].min() == -1000 and drawn[:, 0].max() == 1000


def test_what_a_run_without_tuned_settings_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that it names works: it has the plug-in, and a search space."""
    monkeypatch.chdir(tmp_path)
    source = Path(__file__).resolve().parents[1] / "examples" / "plugins" / "jax_environments.py"
    Path("own.py").write_text(source.read_text())
    config = load_config(["plugins=[own.py]", "env=mine/corridor", "system=async", "algorithm.learning_rate=1e-3"])
    search, rate = untuned(config)
    assert search.startswith("mine/corridor has no tuned settings; ") and "env=mine/corridor" in search
    assert re.search(r"'?plugins=\[.*own\.py\]'? system=async --space learning_rate ", search)
    assert rate.endswith("try algorithm.learning_rate=0.0001") and rate.startswith("8 asynchronous learners")
    assert len(untuned(config.replace({"system.learners": 1}))) == 1
    assert untuned(load_config(["env=gymnax/cartpole"])) == []
    assert len(untuned(load_config(["plugins=[own.py]", "env=mine/corridor", "system=allreduce"]))) == 1
