"""Training in a notebook: one output of a cell, and advice in Python's words."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console
from telemetry import evaluation_record, round_record

from stellaris_jax import ConfigError, load_config
from stellaris_jax.base.commands import resume_command
from stellaris_jax.runs.run_dir import run_directory
from stellaris_jax.telemetry.progress import make_display


class Cell:
    """Outputs of a cell, as IPython keeps them."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []
        self.drawn = 0

    def display(self, data: dict[str, str], raw: bool, display_id: bool) -> Cell:
        assert raw and display_id
        self.outputs.append(data)
        return self

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.outputs[-1] = data
        self.drawn += 1

    @property
    def text(self) -> str:
        return self.outputs[-1]["text/plain"]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell, module = Cell(), ModuleType("IPython.display")
    module.display = cell.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return cell


def test_training_is_one_output(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    display = make_display(Console(force_jupyter=True), "stellaris [CartPole]", 40, progress=True)
    assert "stellaris [CartPole]" in cell.text
    display.working("compiling round 1")
    assert "compiling round 1" in cell.text
    display.note("resumed at round 3 of 40")
    for number in range(1, 21):
        display.rounds([round_record(number)])
    drawn = cell.drawn
    display.evaluation(evaluation_record(20))
    assert drawn < 20 and "round 20/40" in cell.text and "eval 312" in cell.text and "resumed at" in cell.text
    display.finished({"env": "CartPole", "total_steps": 64, "updates": 1960}, Path("runs/a"), [1.0, 2.0])
    display.close()
    assert len(cell.outputs) == 1 and capsys.readouterr() == ("", "")
    assert "1,960" in cell.text and "resumed at" in cell.text and "round 20/40" not in cell.text
    assert "\x1b" not in cell.text and "<span" in cell.outputs[-1]["text/html"]


def test_what_is_stopped_says_how_to_go_on(cell: Cell) -> None:
    display = make_display(Console(force_jupyter=True), "stellaris", 40, progress=True)
    display.farewell = lambda: "stopped; nothing has been saved yet"
    display.leave()
    assert cell.text.splitlines()[0].strip() == "stopped; nothing has been saved yet" and len(cell.outputs) == 1


def test_lines_are_one_stream(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    display = make_display(Console(force_jupyter=True), "stellaris", 40, progress=False)
    display.working("compiling round 1")
    assert capsys.readouterr().out.splitlines() == ["stellaris", "compiling round 1"] and cell.outputs == []


def test_a_cell_that_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "config.yaml").write_text("seed: 0")
    config = load_config(["run.dir=first"])
    monkeypatch.chdir(tmp_path)
    command = r"run.dir=first is not empty; name another directory, or continue the run with resume=first\.$"
    with pytest.raises(ConfigError, match=command), run_directory(config):
        pass
    monkeypatch.setattr(builtins, "get_ipython", lambda: None, raising=False)
    call = r"name another directory to train anew, or continue the run with train\(load_config\(\['resume=first'"
    with pytest.raises(ConfigError, match=call), run_directory(config):
        pass
    assert resume_command(Path("a b"), "total_steps=64") == """train(load_config(['resume=a b', 'total_steps=64']))"""
