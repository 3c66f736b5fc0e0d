"""Tables on a terminal and in a pipe: names are never cut off, returns keep their digits."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from benchmarks import beside
from benchmarks import main as benchmark
from benchmarks.own import THROUGHPUT
from stellaris_jax.report.table import print_table


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


def test_what_has_no_room_goes_on_below() -> None:
    speeds = dict.fromkeys(("suite", "adapter", "policy", "training", "training, no overlap"), 1e6)
    name, seconds = "playground/BerkeleyHumanoidJoystickRoughTerrain", {"training": 100.0}
    row = {"env": name, "num_envs": 9, "steps_per_second": speeds, "adapter_to_suite": 1.0, "compile_seconds": seconds}
    assert any(f"{name} x 9" in line for line in shown(benchmark.show_envs, [row], width=160))
    lines = shown(benchmark.show_envs, [row], width=80)
    assert max(map(len, lines)) <= 80
    width = next(len(line.split()[0]) for line in lines if line.startswith("play"))
    parts = [line[:width].strip() for line in lines]
    assert name in "".join(parts[next(i for i, part in enumerate(parts) if part.startswith("play")) :])
