"""Files that a run writes (metrics.jsonl, TensorBoard events) and its displays (live panel, lines, final table)."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text
from telemetry import evaluation_record, open_telemetry, read_events, round_record, rounds_in

from stellaris_jax.telemetry.format import (
    basis,
    clock,
    compact,
    dollars,
    duration,
    interval,
    over_seeds,
    significant,
    sparkline,
)
from stellaris_jax.telemetry.jsonl import read_rows
from stellaris_jax.telemetry.progress import make_display
from stellaris_jax.telemetry.shared_display import SharedDisplay
from stellaris_jax.telemetry.summary import print_summary, summary_rows

# metrics.jsonl


def test_every_round_is_one_line_on_disk_at_once(tmp_path: Path) -> None:
    telemetry, _ = open_telemetry(tmp_path)
    telemetry.rounds([round_record(1), round_record(2)])
    telemetry.evaluation(evaluation_record(2))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record.pop("check").partition("-")[0] for record in records] == ["1", "2", "3"]
    assert records == [round_record(1), round_record(2), evaluation_record(2)]
    telemetry.close()


def test_values_that_json_lacks(tmp_path: Path) -> None:
    telemetry, _ = open_telemetry(tmp_path)
    seeds = {"train_return": np.array([1.5, np.nan], dtype=np.float32)}
    telemetry.rounds(
        [round_record(1, policy_loss=math.nan, grad_norm=np.float32(np.inf), updates=np.int64(7), per_seed=seeds)]
    )
    telemetry.close()
    (record,) = read_rows(tmp_path / "metrics.jsonl")
    assert record["policy_loss"] is None
    assert record["grad_norm"] is None
    assert record["updates"] == 7
    assert record["per_seed"] == {"train_return": [1.5, None]}


def test_resume_drops_later_rounds(tmp_path: Path) -> None:
    telemetry, _ = open_telemetry(tmp_path)
    for number in range(1, 7):
        telemetry.rounds([round_record(number)])
        telemetry.evaluation(evaluation_record(number))
    telemetry.close()
    telemetry, _ = open_telemetry(tmp_path, resume_round=4)
    telemetry.rounds([round_record(5)])
    telemetry.close()
    assert rounds_in(tmp_path) == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("torn", ['{"kind":"round","round":3,"env_', '{"round":3,"title":"\N{GREEK SMALL LETTER BETA}'])
def test_resume_after_a_kill_in_the_middle_of_a_line(tmp_path: Path, torn: str) -> None:
    telemetry, _ = open_telemetry(tmp_path)
    telemetry.rounds([round_record(1), round_record(2)])
    telemetry.close()
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(torn.encode()[:-1])
    assert rounds_in(tmp_path) == [1, 2]
    telemetry, _ = open_telemetry(tmp_path, resume_round=2)
    telemetry.rounds([round_record(3)])
    telemetry.close()
    assert rounds_in(tmp_path) == [1, 2, 3]


def test_a_fresh_run_starts_empty(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind":"round","round":1,"env_steps":8}\n')
    open_telemetry(tmp_path)[0].close()
    assert rounds_in(tmp_path) == []


# TensorBoard


def test_tensorboard_events(tmp_path: Path) -> None:
    telemetry, _ = open_telemetry(tmp_path)
    telemetry.rounds([round_record(1, train_return=None), round_record(2)])
    telemetry.evaluation(evaluation_record(2))
    telemetry.close()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    scalars: dict[tuple[str, int], Any] = {}
    histograms: dict[tuple[str, int], Any] = {}
    for event in read_events(file):
        for value in event.summary.value:
            (histograms if value.HasField("histo") else scalars)[value.tag, event.step] = value
    assert scalars["charts/episodic_return", 4096].simple_value == 112.0
    assert ("charts/episodic_return", 2048) not in scalars
    assert scalars["staleness/gate", 2048].simple_value == pytest.approx(2.31)
    assert scalars["simulated/cost_usd", 4096].simple_value == pytest.approx(0.21)
    assert scalars["eval/episodic_return", 4096].simple_value == pytest.approx(312.4)
    assert scalars["eval/episodic_return_seed_1", 4096].simple_value == pytest.approx(324.8)
    assert {tag.count("/") for tag, _ in scalars} == {1}
    histogram = histograms["staleness/distribution", 4096].histo
    assert (histogram.min, histogram.max, histogram.num) == (0, 3, 32)
    assert (histogram.sum, histogram.sum_squares) == (12, 24)
    assert list(histogram.bucket) == [24, 6, 0, 2]


def test_resume_tells_tensorboard_what_to_forget(tmp_path: Path) -> None:
    telemetry, _ = open_telemetry(tmp_path)
    telemetry.rounds([round_record(1), round_record(2), round_record(3)])
    telemetry.close()
    telemetry, _ = open_telemetry(tmp_path, resume_round=2)
    telemetry.close()
    first, second = sorted(tmp_path.glob("events.out.tfevents.*"), key=lambda path: len(path.name))
    assert any(event.step == 3 * 2048 for event in read_events(first)), "the first process's events are kept"
    (start,) = [event for event in read_events(second) if event.HasField("session_log")]
    assert start.step == 2 * 2048 + 1


# The display


def test_lines_in_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("stellaris_jax.telemetry.progress.time.monotonic", lambda: now)
    telemetry, console = open_telemetry(tmp_path)
    for number in range(1, 21):
        now += 1.0
        telemetry.rounds([round_record(number, train_return=112.0 if number == 1 else None)])
    telemetry.evaluation(evaluation_record(20))
    telemetry.note("checkpoint saved at round 20")
    telemetry.close()
    lines = console.export_text().splitlines()
    assert lines[0] == "stellaris [CartPole]"
    assert [line.split()[1] for line in lines if line.startswith("round")] == ["1/40", "11/40"]
    assert lines[2] == (
        "round 11/40  22,528 steps  283k steps/s  return 112  staleness 3.1 (max 8)  gate 2.31 "
        " escaped 4 of 32 groups  "
        "simulated 1:06:40  $0.21  ETA 0:00:29"
    )
    assert lines[3] == "evaluation at 40,960 steps: return 312 (300 to 325)  simulated 1:06:40  $0.21"
    assert lines[4:] == ["checkpoint saved at round 20"]


@pytest.mark.parametrize("progress", [False, True])
def test_gates_and_data_lag_are_shown_where_there_are_some(progress: bool) -> None:
    """A rule without a gate has none to show; only data of independent actors have several ages."""
    shown = []
    none: dict[str, Any] = {"gate": None, "gate_escapes": None, "gate_groups": None, "data_lag": 15.5}
    for changes in (none, {"data_lag": 39.4, "data_lag_max": 52}):
        console = Console(file=io.StringIO(), record=True, width=160, force_terminal=True)
        display = make_display(console, "run", 40, progress)
        display.rounds([round_record(1, **changes)])
        display.close()
        shown.append(console.export_text())
    assert "gate" not in shown[0] and "escaped" not in shown[0] and "data lag" not in shown[0]
    assert "escaped 4 of 32 groups" in shown[1] and "data lag" in shown[1] and "52" in shown[1]
    assert "gate escapes" not in dict(summary_rows({"updates": 8}))


@pytest.mark.parametrize("progress", [False, True])
def test_seconds_that_have_been_measured_are_not_called_simulated(progress: bool) -> None:
    console = Console(file=io.StringIO(), record=True, width=120, force_terminal=True)
    display = make_display(console, "live", 40, progress, clock("live"))
    display.rounds([round_record(1)])
    display.finished({"executor": "live", "simulated_seconds": 60.0}, Path("run"))
    shown = console.export_text()
    assert "measured" in shown and "measured time" in shown and "simulated" not in shown


def test_progress_can_be_turned_off_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    telemetry, console = open_telemetry(tmp_path, terminal=True, progress=False)
    telemetry.rounds([round_record(1)])
    telemetry.close()
    assert "round 1/40  2,048 steps" in console.export_text()


def test_live_panel_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    telemetry, console = open_telemetry(tmp_path, terminal=True)
    with telemetry:
        telemetry.note("no checkpoint [yet]")
        telemetry.rounds([round_record(1, gate=None)])
        telemetry.evaluation(evaluation_record(1, eval_return_mean=20.0))
        telemetry.rounds([round_record(2, train_return=None, failed=3)])
        telemetry.evaluation(evaluation_record(2))
    telemetry.close()
    frames = console.export_text()
    assert "no checkpoint [yet]" in frames
    panel = frames[frames.rindex("stellaris [CartPole]") :]
    for shown in (
        "round 2/40",
        "ETA 0:0",
        "train 112 ",
        "eval 312 (300 to 325)",
        "▁█",
        "283k env steps/s",
        "4,096 env steps",
        "mean 3.10",
        "max 8",
        "β 2.31",
        "escaped 4 of 32 groups",
        "time 1:06:40",
        "cost $0.21",
        "failed 3",
    ):
        assert shown in panel
    assert "non-finite" not in panel


def test_live_panel_before_the_first_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=io.StringIO(), force_terminal=True, width=110, record=True)
    display = make_display(console, "stellaris", total_rounds=40, progress=True)
    display.working("compiling rounds 1 to 8")
    display.close()
    assert "compiling rounds 1 to 8  0:00:0" in console.export_text()


def test_final_table(tmp_path: Path) -> None:
    telemetry, console = open_telemetry(tmp_path / "a run")
    summary = {
        "system": "stellaris",
        "env": "gymnax/CartPole-v1",
        "num_seeds": 2,
        "env_steps": 501_760,
        "updates": 1960,
        "eval_return_mean": 498.25,
        "eval_return_ci95": math.nan,
        "eval_episodes": 128,
        "wall_seconds": 61.23,
        "total_steps": 501_760,
        "compile_seconds": 12.0,
        "steps_per_second": 8194.0,
        "staleness_mean": 2.5,
        "staleness_max": 9,
        "gate_escapes": 3,
        "gate_groups": 1960,
        "actors": 128,
        "num_envs": 16,
        "occupancy": 0.954,
        "simulated_seconds": 3723.4,
        "cost_usd": 12.3,
        "nonfinite_gradients": 0,
    }
    telemetry.finish(summary)
    telemetry.close()
    shown = console.export_text()
    assert "stellaris · gymnax/CartPole-v1 · 2 seeds" in shown
    values = {row[1].strip(): row[2].strip() for line in shown.splitlines() if len(row := line.split("│")) == 4}
    assert values == {
        "eval return": "498, 2 seeds, 128 episodes",
        "env steps": "501,760",
        "wall time": "61.2 s",
        "compile time": "12.0 s",
        "speed": "8.19k env steps/s",
        "updates": "1,960",
        "staleness": "mean 2.50  max 9",
        "gate escapes": "3 of 1,960 groups (0 %)",
        "occupancy": "95 %",
        "simulated time": "1:02:03",
        "cost": "$12.30",
        "billed actors": "128 (platform.actors) for 16 environments, as VMs",
        "non-finite gradients": "0",
    }
    assert f"python scripts/evaluate.py '{tmp_path}/a run'" in shown
    assert f"python scripts/train.py resume='{tmp_path}/a run' total_steps=1003520" in shown
    both = summary_rows({**summary, "eval_return_ci95": 2.0, "eval_actions": "greedy", "train_return": 310.0})
    assert both[:2] == [("eval return", "498 ± 2.0, 2 seeds, 128 episodes, greedy actions"),
                        ("train return", "310, sampled actions")]  # fmt: skip
    same = summary_rows({**summary, "eval_return_ci95": 2.0, "eval_actions": "greedy", "train_return": 497.0})
    assert same[1][0] == "env steps"
    lost = {**summary, "dropped_gradients": 12, "dropped_share": 0.031, "dropped_seconds": 45.24}
    assert ("dropped gradients", "12 (3 % of all), 45.2 simulated s of learners") in summary_rows(lost)
    assert ("dropped gradients", "12") in summary_rows({**summary, "dropped_gradients": 12}), "of an earlier version"
    ended = Console(file=io.StringIO(), record=True, width=200)
    print_summary(ended, {**summary, "ended_early": True}, tmp_path)
    assert "resume=" not in ended.export_text()  # there is nothing to go on with
    for returns, fell in ([400.0, 498.0], False), ([503.0, 498.0], True):
        console = Console(file=io.StringIO(), record=True, width=200)
        print_summary(console, {**summary, "eval_return_ci95": 2.0}, tmp_path, returns)
        assert ("--round best" in console.export_text()) == fell


def test_final_table_has_the_return_over_the_run(tmp_path: Path) -> None:
    """Evaluations of a resumed run too; of many evaluations some."""
    telemetry, _ = open_telemetry(tmp_path)
    telemetry.evaluation(evaluation_record(1, eval_return_mean=0.0))
    telemetry.close()
    telemetry, console = open_telemetry(tmp_path, resume_round=1)
    for number in range(2, 101):
        telemetry.evaluation(evaluation_record(number, eval_return_mean=None if number == 50 else float(number)))
    telemetry.finish({"env": "a", "env_steps": 1})
    (line,) = [line for line in console.export_text().splitlines() if "over the run" in line]
    bars = line.split("│")[2].split()[-1]
    assert "0 to 100" in line and len(bars) == 24 and (bars[0], bars[-1]) == ("▁", "█") and sorted(bars) == list(bars)


def test_sixty_columns_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut off: neither of the panel, nor of a sweep's line, nor of the final table."""
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=io.StringIO(), force_terminal=True, width=60, record=True)
    display = make_display(console, "stellaris", total_rounds=40, progress=True)
    display.rounds([round_record(1, env_steps=20_480_000, updates=1_234_567, group_size=12.5)])
    display.evaluation(evaluation_record(1))
    display.close()
    with console.capture() as capture:
        console.print(display.panel())  # type: ignore[attr-defined]
    panel = Text.from_ansi(capture.get()).plain
    for shown in ("312 (300 to 325)", "1,234,567 updates", "20,480,000 env steps", "4 of 32 groups", "occupancy 95 %"):
        assert shown in panel
    line = SharedDisplay(console, [10**6] * 40, {1, 2})
    line.advanced(3, 250_000)
    line.advanced(3, 500_000)
    line.evaluated(3, 1234.5)
    shown = line.line().plain
    line.close()
    assert len(shown) <= 60 and "best 1,234 (point 3)" in shown and "ETA" in shown
    assert max(map(len, panel.splitlines())) <= 60 and "…" not in panel


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (duration(59.6), "0:01:00"),
        (duration(360_000), "100:00:00"),
        (dollars(0), "$0"),
        (dollars(0.00213), "$0.00213"),
        (dollars(0.8), "$0.80"),
        (dollars(0.3591), "$0.359"),
        (dollars(1234.5), "$1,234.50"),
        (compact(999.4), "999"),
        (compact(1_500_000), "1.5M"),
        (interval(None, None), "-"),
        (interval(1.0, None), "1.00"),
        (interval(0.958, 0.0123), "0.958 ± 0.012"),
        (interval(-78.71, 4.8), "-78.7 ± 4.8"),
        (interval(2778.3, 616.0), "2,778 ± 616"),
        (interval(500.0, 0.0), "500 ± 0"),
        (interval(99.96, math.nan), "100"),
        (significant(0.00000958), "9.58e-06"),
        (over_seeds(435.2, 467.7, [398.4, 472.0]), "435 (398 to 472)"),
        (over_seeds(435.2, 12.34, [420.0, 430.0, 440.0, 450.0, 436.0]), "435 ± 12"),
        (over_seeds(0.958, 0.02, [0.958]), "0.958 ± 0.020"),
        (basis(1, 128), "95 % over 128 episodes"),
        (basis(2, 256), "2 seeds, 256 episodes"),
        (basis(5, 640), "95 % over 5 seeds, 640 episodes"),
        (sparkline([1.0, 1.0]), "▅▅"),
        (sparkline([0.0, 7.0, 3.0]), "▁█▄"),
    ],
)
def test_numbers_as_text(shown: str, expected: str) -> None:
    assert shown == expected
