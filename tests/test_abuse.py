"""Hostile arguments, broken pipes and broken environments: one sentence, and no round is lost."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from commands import SCRIPTS, python, refusal
from host_env import Clockwork, ClockworkPool
from settings import with_value
from training import clockwork, steps, tiny

from stellaris_jax import ConfigError, Trainer, load_config
from stellaris_jax.base.errors import RunError
from stellaris_jax.config.stored import from_yaml, to_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.envs.base import HostStep
from stellaris_jax.envs.registry import register
from stellaris_jax.execute.run import open_run, train
from stellaris_jax.report.runs import read_run
from stellaris_jax.runs.checkpoint import Checkpoints
from stellaris_jax.runs.run_dir import run_directory
from stellaris_jax.telemetry.jsonl import read_rows

pytestmark = pytest.mark.usefixtures("shared_programs")


class Pipe(io.StringIO):
    """An output whose reader goes away when a text comes by."""

    def __init__(self, last: str):
        super().__init__()
        self.last = last
        self.place = os.open(os.devnull, os.O_WRONLY)  # rich turns the output into another one

    def write(self, text: str) -> int:
        if self.last in text:
            raise BrokenPipeError
        return super().write(text)

    def fileno(self) -> int:
        return self.place


def test_a_run_that_nobody_reads_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stellaris_jax.telemetry.progress.LINE_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stdout", Pipe("round 3/4"))
    with pytest.raises(SystemExit):
        train(tiny(steps(4), "engine.chunk_rounds=1", f"run.dir={tmp_path}"))
    monkeypatch.undo()
    # The device had begun the fourth round by then: it is part of the run, and so are its figures.
    assert open_run(tmp_path).round == 4
    assert [r["round"] for r in read_rows(tmp_path / "metrics.jsonl") if r["kind"] == "round"] == [1, 2, 3, 4]


def test_aliases_are_refused(tmp_path: Path) -> None:
    """Ten lines of them stand for more than there is memory."""
    path = tmp_path / "config.yaml"
    path.write_text(f"{to_yaml(Config())}\nx: &a [1]\ny: [*a, *a]\n")
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be read .* has an alias, \*a\."):
        from_yaml(path)
    notes: list[str] = []
    assert read_run(tmp_path, notes.append).config == {}
    assert notes == [f"{path} is damaged and left out"]


def test_directories_too_deep_are_one_sentence() -> None:
    """Python makes the directories around one by calling itself."""
    chosen = with_value("run.dir", "/nowhere/" * 1500)
    with pytest.raises(ConfigError, match="cannot be made"), run_directory(chosen):
        pass


def test_what_goes_on_after_a_full_disk_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorStore's threads find Orbax's event loop closed; each printed a traceback of a hundred lines."""
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    assert checkpoints.rounds() == []  # opened by Orbax
    checkpoints.close()
    loop = asyncio.new_event_loop()
    loop.close()
    for call_, error in ((lambda: loop.call_soon_threadsafe(print), RuntimeError), (lambda: 1 / 0, ZeroDivisionError)):
        with pytest.raises(error) as caught:
            call_()
        sys.unraisablehook(SimpleNamespace(exc_value=caught.value, exc_traceback=caught.tb))
    assert [type(unraisable.exc_value) for unraisable in raised] == [ZeroDivisionError]


# Scripts -------------------------------------------------------------------------------------------------------------


REFUSALS: dict[str, tuple[str, str]] = {
    "a damaged start": ("train_scheduler.py --out TMP/x.npz --start TMP/file", "--start=TMP/file is not a scheduler"),
    "a sweep and a picture": ("plot.py --sweep TMP --out x.png", "--sweep takes no other argument"),
    "a sweep and a timeline": ("plot.py --sweep TMP --timeline 2", "--sweep takes no other argument"),
    "a sweep and a run": ("plot.py --sweep TMP runs/a", "--sweep takes no other argument"),
    "a scheduler in /proc": ("train_scheduler.py --out /proc/x.npz", "cannot be written"),
    "a scheduler with a long name": (f"train_scheduler.py --out {'x' * 300}", "cannot be written"),
    "a calibration with a long name": (f"benchmark.py calibrate --out {'x' * 300}", "cannot be written"),
    "runs below a file": (
        "reproduce.py stellaris --figure 6 --envs hopper --runs TMP/file/x --results TMP/results",
        "--runs=TMP/file/x cannot be written",
    ),
    "results below a file": (
        "reproduce.py stellaris --figure 6 --envs hopper --runs TMP/runs --results TMP/file/x",
        "--results=TMP/file/x cannot be written",
    ),
}
"""Commands and a part of their one line."""


@pytest.mark.parametrize("case", REFUSALS)
def test_commands_are_refused_before_they_compute(case: str, tmp_path: Path) -> None:
    """Root, too, can make no files in some directories."""
    command, message = (text.replace("TMP", str(tmp_path)) for text in REFUSALS[case])
    if "/proc" in command and not Path("/proc").is_dir():
        pytest.skip("there is no /proc here")
    (tmp_path / "file").write_bytes(b"no scheduler")
    assert message in refusal(*command.split())


# Environments --------------------------------------------------------------------------------------------------------


class Misshapen(Clockwork):
    """Returns a field in another shape than it should."""

    name = "test/misshapen"

    def __init__(self, field: str):
        super().__init__()
        self.field = field

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> ClockworkPool:
        return MisshapenPool(self, num_envs, seed)


class MisshapenPool(ClockworkPool):
    def recv(self) -> HostStep:
        step, field = super().recv(), self.env.field
        if self.count < 3:
            return step
        changed: Any = {
            "obs": step.obs[:, :1],
            "reward": np.float32(1.0),
            "terminated": step.terminated[:1],
            "truncated": False,
        }
        return step._replace(**{field: changed[field]})


@pytest.mark.parametrize("field", HostStep._fields)
def test_an_environment_that_returns_other_shapes_is_refused(field: str) -> None:
    """NumPy would stretch all of these to the shapes they should have."""
    register("test/misshapen", Misshapen)
    trainer = Trainer(clockwork("env.name=test/misshapen", f"env.kwargs.field={field}", rounds=2))
    with pytest.raises(RunError, match=f"test/misshapen returned {field} of shape"):
        trainer.run()
    trainer.close()


def test_a_program_that_gave_up_an_environment_ends_as_it_says(tmp_path: Path) -> None:
    """It comes back while Python ends, which would abort the process."""
    pytest.importorskip("envpool")
    job = ["env=envpool/hopper", "env.timeout=1e-9", "env.num_envs=8", "total_steps=65536"]
    job += ["algorithm.rollout_length=8192", "algorithm.minibatches=4", "system.learners=2", "network.hidden=[8]"]
    ended = python(SCRIPTS / "train.py", *job, f"run.dir={tmp_path / 'run'}", cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.startswith("error: envpool/Hopper-v4 has not answered") and ended.stderr.count("\n") == 1


def test_64_bits_are_refused() -> None:
    """Programs are made for 32: with 64 they fail at the first scan, in a traceback."""
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        with pytest.raises(ConfigError, match=r"JAX_ENABLE_X64 .* must be off"):
            load_config(["env=gymnax/cartpole"])
    finally:
        jax.config.update("jax_enable_x64", False)
    load_config(["env=gymnax/cartpole"])
