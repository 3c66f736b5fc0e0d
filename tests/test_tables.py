"""Tables on a terminal and in a pipe: names are never cut off, returns keep their digits."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from benchmarks import beside
from benchmarks.own import THROUGHPUT
from stellaris_jax.base.errors import RunError, printable
from stellaris_jax.cli import runs
from stellaris_jax.cli.working import working
from stellaris_jax.report.runs import Run
from stellaris_jax.report.table import print_sentence, print_table, wrapped
from stellaris_jax.runs.run_store import INCOMPLETE, StoredRun
from stellaris_jax.telemetry.jsonl import warn_on_stderr


def shown(show: Any, *given: Any, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, record=True)
    show(console, *given)
    return [line.rstrip() for line in console.export_text().splitlines()]


def show_throughput(console: Console, table: list[dict[str, Any]]) -> None:
    print_table(console, "throughput", beside.rows("throughput", table), names=("job", "program"))


@pytest.mark.parametrize("width", [80, 160])
def test_throughput_names_its_jobs_and_programs_in_full(width: int) -> None:
    figures = {"steps_per_second": 4.1e6, "return_mean": 0.958, "compile_seconds": 12.3, "peak_memory_mb": 12_345.0}
    row = {**figures, "cores": 1.5, "ratio": 0.97}
    names = (beside.OURS, *beside.PEERS)
    lines = shown(
        show_throughput, [{"job": job, "program": name, **row} for job in THROUGHPUT for name in names], width=width
    )
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for job in THROUGHPUT:
        assert words.count(job) == len(names)
    assert words.count("0.958") == words.count("4,100,000") == len(THROUGHPUT) * len(names)


@pytest.mark.parametrize("width", [80, 160])
def test_names_are_whole_in_narrow_terminals(width: int) -> None:
    name = "playground/BerkeleyHumanoidJoystickRoughTerrain x 9"
    speeds = dict.fromkeys(("suite alone", "adapter", "with policy", "training", "without overlap"), "1,000,000")
    lines = shown(print_table, "speeds", [{"environment": name, **speeds}], ("environment",), width=width)
    assert max(map(len, lines)) <= width
    assert any(name in line for line in lines)


def test_tables_go_on_below_or_rows_are_stacked() -> None:
    rows = [{"name": name, **{heading * 6: "1.0" for heading in "abcdef"}} for name in ("one", "two")]
    lines = shown(print_table, "rates", rows, ["name"], width=40)
    assert [line.split()[0] for line in lines if line] == ["rates", *["name", "one", "two"] * 2]
    lines = shown(print_table, "rates", rows, ["name"], width=17)
    assert lines[:4] == ["rates", "", "name    one", "aaaaaa  1.0"] and lines.count("name    two") == 1


SETTINGS = {
    "algorithm.learning_rate": "0.0003", "system": "stellaris", "env": "playground/BerkeleyHumanoidJoystick",
    "system.weight_options.smoothness": "3",
}  # fmt: skip
FIGURES = {
    "return": "1,234.5 ± 67.8 (iqm of 3 seeds, incomplete)", "seeds": "3", "IQM": "1,230.1", "area": "981.2",
    "staleness": "12.31 (max 1,024)", "steps/s": "1.2M", "simulated s": "12,345", "cost": "$1,234.50",
    "updates": "123,456",
}  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("title", ["rates", "2026-11-25_12-00-00-a_sweep_with_a_long_name of several words"])
def test_words_of_sweeps_are_whole(width: int, count: int, title: str) -> None:
    settings = dict(list(SETTINGS.items())[:count])
    rows = [{**settings, **FIGURES}, {**settings, **FIGURES, "return": "no result"}]
    lines = shown(print_table, title, rows, [*settings], width=width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert {word for row in rows for cell in row.values() for word in cell.split()} <= {*words}
    assert {word for heading in rows[0] for word in heading.split()} <= {*words}
    assert {*title.split()} <= {*words}


@pytest.mark.parametrize("width", [60, 80])
def test_runs_are_listed_in_narrow_terminals(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [_kept(Path("runs") / f"2026-11-25_12-00-0{n}-gymnasium-LunarLanderContinuous-v3", n) for n in range(3)]
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(runs, "wide_console", lambda: console)
    runs._list(kept)
    runs._compare(kept)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert words.count("incomplete") == 1 and "Adam" in words
    assert all(str(one.path) in words for one in kept)


def _kept(path: Path, number: int) -> StoredRun:
    config = {"system.name": f"stellaris-{number}", "algorithm.learning_rate": 1e-4 * number, "algorithm.gamma": 0.99}
    summary = {
        "eval_return_mean": 123456.5, "eval_return_ci95": 2345.6, "eval_return_per_seed": [1.0, 2.0, 3.0, 4.0],
        "env_steps": 1e9, "simulated_seconds": 12345.6, "cost_usd": 12345.6,
    }  # fmt: skip
    damage = [f"{path}/metrics.jsonl: line 12 is not as the run left it, and Adam is not to blame"] * (number == 2)
    return StoredRun(Run(path, config, summary, [], [], damage=tuple(damage)), INCOMPLETE if damage else "finished")


def test_words_are_kept_together() -> None:
    assert wrapped("", 10) == [""]
    assert wrapped("one two", 7) == ["one two"] and wrapped("one two", 6) == ["one", "two"]
    assert wrapped("runs/2026-a/sweep=1,2 is", 11) == ["runs/2026-", "a/sweep=1,2", "is"]
    assert wrapped("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
    assert wrapped("漢字漢字 漢字", 8) == ["漢字漢字", "漢字"]
    assert wrapped("漢字漢字漢字", 8) == ["漢字漢字", "漢字"] and wrapped("漢字", 1) == ["漢", "字"]


NAMES = {
    "long": "x" * 100, "wide": "漢字" * 50, "emoji": "🚀🏽" * 40, "TeX": r"$\frac{a}_b%", "markup": "[red]mark[/red]",
    "escape": "\x1b[31mred\x1b]0;title\x07", "line": "a\nb\tc", "blank": "   ", "empty": "", "zero": "\x00\x9b2J",
}  # fmt: skip


@pytest.mark.parametrize("name", list(NAMES))
@pytest.mark.parametrize("width", [20, 40, 80])
def test_any_name_fits_and_commands_no_terminal(name: str, width: int) -> None:
    """A name from somebody else's run is shown whole, in as many columns as there are, without escape sequences."""
    figures = {f"column {number}": "1.25" for number in range(6)}
    heading = NAMES[name] or "none"
    rows = [{"setting": setting, heading: "1", **figures} for setting in (NAMES[name], "other")]
    lines = shown(print_table, NAMES[name], rows, ("setting",), width=width)
    assert max(map(cell_len, lines)) <= width
    text = "".join(lines)
    assert text.isprintable()
    whole = printable(NAMES[name]).replace(" ", "")
    assert whole in text.replace(" ", "")


@pytest.mark.parametrize("terminal", [True, False])
def test_sentences_command_no_terminal(terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system=None)
    print_sentence(console, "run \x1b[2J is damaged")
    warn_on_stderr("run \x1b[2J is damaged")
    with working("reading \x1b[2J"):
        pass
    said = console.file.getvalue() + capsys.readouterr().err
    assert said == "run \\x1b[2J is damaged\n" * 2 + "reading \\x1b[2J\n"
    assert str(RunError("run \x1b[2J\nis damaged")) == "run \\x1b[2J is damaged"


def test_sentences_break_on_terminals_alone() -> None:
    for terminal in (True, False):
        console = Console(file=io.StringIO(), width=20, force_terminal=terminal, color_system=None)
        print_sentence(console, "ten words " * 5)
        assert (max(map(len, console.file.getvalue().splitlines())) <= 20) == terminal
