"""Modules of the current folder: found by commands that name them, behind everything else, and by no other command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")

from commands import call, said

from stellaris_jax import load_config
from stellaris_jax.base.registry import search_folder
from stellaris_jax.config import trust
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.envs import make

MODULE = """
import gymnasium
from gymnasium import spaces
import numpy as np

class Walk(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action), False, False, {}

gymnasium.register("Walk-v0", Walk, max_episode_steps=5)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder, beside a false NumPy, for a user who has allowed nothing."""
    name = f"walk_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / "numpy.py").write_text("raise OSError('the wrong numpy')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield name
    sys.modules.pop(name, None)


def forget(name: str) -> None:
    """As in another process: the module is not imported, and the folder not searched."""
    sys.modules.pop(name, None)
    sys.path[:] = [path for path in sys.path if path != str(Path.cwd())]


def test_check_env_finds_it(module: str, tmp_path: Path) -> None:
    ended = call("check_env.py", f"gymnasium/{module}:Walk-v0")
    assert ended.returncode == 0, ended.stderr
    assert sys.path[-1] == str(tmp_path) and sys.path.count(str(tmp_path)) == 1


def test_processes_of_environments_find_it(module: str) -> None:
    search_folder([module])
    pool = make(f"gymnasium/{module}:Walk-v0", {"vectorization_mode": "async"}).open(1, seed=0)  # type: ignore[union-attr]
    pool.recv()
    pool.close()


def test_a_recorded_module_is_found_again(module: str) -> None:
    """It is the same in the same folder; another source, or another folder, needs consent."""
    search_folder([module])
    config = load_config([f"env=gymnasium/{module}:Walk-v0"])
    Path("run").mkdir()
    Path("run/config.yaml").write_text(to_yaml(config))
    assert trust.remember(to_yaml(config), config) is None

    def opened(*options: str) -> bool:
        forget(module)
        ended = call("evaluate.py", "run", "--episodes", "2", *options)
        assert ended.returncode and ("no intact checkpoint" in ended.stderr) != ("not allowed" in ended.stderr)
        assert (module in sys.modules) == ("no intact checkpoint" in ended.stderr)
        return module in sys.modules

    assert opened() and opened("--plugin", module) and opened("--trust")
    with Path(f"{module}.py").open("a") as file:
        file.write("\n")  # another source: the record does not hold for it
    assert not opened("--plugin", "another")


def test_a_plug_in_by_its_module(module: str) -> None:
    ended = call("train.py", f"plugins=[{module}]", "env=gymnax/cartpole", "--help")
    assert ended.returncode == 0 and module in sys.modules


def test_the_message_says_what_was_tried(module: str, tmp_path: Path) -> None:
    for command, line in (("check_env.py", "gymnasium/no_lab:A-v0"), ("train.py", "plugins=[no_lab]")):
        ended = call(command, line)
        assert ended.returncode == 2 and len(said(ended.stderr)) == 1
        assert f"tried: installed packages and PYTHONPATH, then the current folder {tmp_path}" in ended.stderr


def test_other_commands_leave_the_folder_alone(module: str, tmp_path: Path) -> None:
    """A name that something else holds, a plug-in's file, and an environment without a module."""
    (tmp_path / "plug.py").write_text("")
    for line in (["plugins=[gym_lab]"], ["plugins=[plug.py]"], ["env=gymnasium/CartPole-v1"]):
        assert call("train.py", *line, "--help").returncode == 0
    assert str(tmp_path) not in sys.path
