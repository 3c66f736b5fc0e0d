"""Tables on a terminal and in a pipe: names are never cut off, returns keep their digits."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from benchmarks import main as benchmark
from benchmarks.throughput import JOBS, PEERS, SYSTEMS


def shown(show: Any, *given: Any, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, record=True)
    show(console, *given)
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize("width", [80, 160])
def test_throughput_names_its_jobs_and_systems_in_full(width: int) -> None:
    row = {"steps_per_second": 4.1e6, "return_mean": 0.958, "compile_seconds": 12.3, "peak_memory_mb": 12_345.0}
    rows = [{"job": job, "what": system, f"ratio_to_{PEERS[job]}": 0.97, **row} for job in JOBS for system in SYSTEMS]
    lines = shown(benchmark.show_throughput, rows, PEERS, width=width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for job in JOBS:
        assert words.count(job) == len(SYSTEMS)
    assert words.count("0.958") == words.count("4,100,000") == len(rows)
    assert words.count("truncation") == len(JOBS)


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
