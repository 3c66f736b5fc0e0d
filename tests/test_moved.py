"""Run directories that are moved or removed while a run is trained: one true sentence, and nothing made again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import call
from sweeps import SMALL

from stellaris_jax.base.registry import register

pytestmark = pytest.mark.usefixtures("shared_programs")
LOGGERS = "run.loggers=[csv,tensorboard]"
ACTION: list[Callable[[int], object]] = []
"""Callback after every round, by its number."""


@register.callback("move-directory")
def move(number: int, record: dict[str, Any], trainer: Any) -> None:
    for action in ACTION:
        action(number)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ACTION.clear()


def trained(action: Callable[[], object], at: int = 3, *overrides: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a run to whose directory something happens after a round."""
    ACTION.append(lambda number: action() if number == at else None)
    arguments = [*SMALL, "checkpoint.interval=1", LOGGERS, "run.callbacks=[move-directory]", "run.dir=parent/run"]
    done = call("train.py", *arguments, *overrides)
    return done.returncode, done.stdout, done.stderr


def removed(path: str) -> None:
    """Remove a directory in which a checkpoint may be being written."""
    while Path(path).exists():
        shutil.rmtree(path, ignore_errors=True)


def sentence(done: tuple[int, str, str]) -> str:
    """The only thing that is said of the end."""
    code, out, message = done
    assert code == 1 and message.count("\n") == 1 and message.startswith("error: "), message
    assert "saved; continue" not in out and "stopped" not in out and "failed" not in out, out
    return message


def test_a_directory_that_was_moved() -> None:
    message = sentence(trained(lambda: os.rename("parent/run", "elsewhere")))
    assert (
        message.startswith("error: parent/run was moved to ") and "round 2 is saved there; continue with: " in message
    )
    assert os.listdir("parent") == []
    ACTION.clear()
    assert call("train.py", f"resume={Path('elsewhere').absolute()}").returncode == 0


def test_a_directory_that_was_removed() -> None:
    message = sentence(trained(lambda: removed("parent/run")))
    assert message.startswith("error: parent/run was removed while it was trained; nothing of the run is left")
    assert os.listdir("parent") == []


def test_a_parent_that_was_moved() -> None:
    message = sentence(trained(lambda: os.rename("parent", "elsewhere")))
    assert "moved to" in message and "elsewhere/run" in message and not Path("parent").exists()


def test_checkpoints_that_were_moved() -> None:
    message = sentence(trained(lambda: os.rename("parent/run/checkpoints", "kept")))
    assert message.startswith("error: parent/run/checkpoints was moved to ") and "move it back" in message
    assert not Path("parent/run/checkpoints").exists()


def test_checkpoints_that_were_removed() -> None:
    message = sentence(trained(lambda: removed("parent/run/checkpoints")))
    assert message.startswith("error: parent/run/checkpoints was removed while")
    assert not Path("parent/run/checkpoints").exists()


def test_another_directory_of_the_same_name() -> None:
    def replace() -> None:
        os.rename("parent/run", "elsewhere")
        os.mkdir("parent/run")
        Path("parent/run/mine.txt").write_text("mine")

    assert "was moved to" in sentence(trained(replace))
    assert os.listdir("parent/run") == ["mine.txt"]


@pytest.mark.parametrize("last", [1, 4])
def test_at_the_beginning_and_at_the_end(last: int) -> None:
    assert "was removed" in sentence(trained(lambda: removed("parent/run"), last))
    assert os.listdir("parent") == []


def test_the_farewell_after_a_signal() -> None:
    def stop() -> None:
        signal.raise_signal(signal.SIGINT)
        os.rename("parent/run", "elsewhere")

    code, out, message = trained(stop)
    assert "round 3 is saved; continue" not in out
    assert code in (1, 130) and "was moved to" in out + message and os.listdir("parent") == []


def test_the_other_points_of_a_sweep_go_on() -> None:
    ACTION.append(lambda number: number == 2 and Path("s/1").exists() and os.rename("s/1", "elsewhere"))
    done = call("train.py", "-m", *SMALL, LOGGERS, "run.callbacks=[move-directory]", "seed=0,1,2", "hydra.sweep.dir=s")
    assert done.returncode == 1 and "s/1 was moved to" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not Path("s/1").exists()
    assert [Path(f"s/{number}/summary.json").is_file() for number in (0, 2)] == [True, True]


def test_a_whole_sweep_that_was_moved() -> None:
    ACTION.append(lambda number: number == 2 and Path("s").exists() and os.rename("s", "elsewhere"))
    done = call("train.py", "-m", *SMALL, "run.callbacks=[move-directory]", "seed=0,1,2", "hydra.sweep.dir=s")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert not Path("s").exists()
