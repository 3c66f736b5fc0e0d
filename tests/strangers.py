"""A run that somebody else sent, with code that opening it must not execute."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest

from stellaris_jax import load_config, train
from stellaris_jax.config import trust

SMALL = ["env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=8", "algorithm.epochs=1",
         "algorithm.minibatches=4", "network.hidden=[4]", "system.learners=4", "total_steps=64",
         "evaluation.episodes=2", "evaluation.points=1", "run.progress=false", "run.loggers=[]"]  # fmt: skip
MARK = "Path(__file__).with_name('executed').touch()"
CODE = f"from pathlib import Path\n{MARK}\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of our own, without any code of its own."""
    place = tmp_path_factory.mktemp("finished") / "run"
    train(load_config([*SMALL, f"run.dir={place}"]))
    return place


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has allowed nothing, in a folder of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)


class Stranger:
    """A run somebody else sent, and the code it would have executed."""

    def __init__(self, folder: Path, run: Path):
        folder.mkdir()
        self.run, self.plugin, self.mark = folder / "run", folder / "evil.py", folder / "executed"
        shutil.copytree(run, self.run)
        self.plugin.write_text(CODE)
        self.module = f"evil_{abs(hash(str(folder)))}"
        (folder / f"{self.module}.py").write_text(CODE)

    @property
    def executed(self) -> bool:
        return self.mark.exists()

    def edit(self, before: str, after: str) -> None:
        path = self.run / "config.yaml"
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after, 1))


@pytest.fixture
def stranger(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stranger:
    made = Stranger(tmp_path / "sent", finished)
    monkeypatch.syspath_prepend(str(made.plugin.parent))
    return made


def names_plugin(sent: Stranger) -> None:
    sent.edit("plugins: []", f"plugins: [{sent.plugin}]")


def names_module(sent: Stranger) -> None:
    sent.edit("plugins: []", f"plugins: [{sent.module}]")


def names_environment(sent: Stranger) -> None:
    sent.edit("gymnax/CartPole-v1", f"gymnasium/{sent.module}:Any-v0")


def names_environment_loosely(sent: Stranger) -> None:
    sent.edit("gymnax/CartPole-v1", f"GYM-nasium/{sent.module}:Any-v0")


def names_wrapper(sent: Stranger) -> None:
    sent.edit("gymnax/CartPole-v1", "gymnasium/CartPole-v1")
    sent.edit("  kwargs: {}", f"  kwargs: {{wrappers: [gymnasium.wrappers.FlattenObservation, {sent.module}.Any]}}")


NAMING = [names_wrapper, names_plugin, names_module, names_environment, names_environment_loosely]


def forget(sent: Stranger) -> None:
    """As a process that has imported nothing of it."""
    for name in [name for name in sys.modules if name.startswith("stellaris_jax_plugin_evil")]:
        del sys.modules[name]
    sent.mark.unlink()
    importlib.invalidate_caches()
