"""A small sweep, and what is left of runs and tables without what a clock has measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from stellaris_jax.execute.run import open_run
from stellaris_jax.runs.checkpoint import to_host
from stellaris_jax.telemetry.jsonl import read_rows

SMALL = [
    "env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=16", "network.hidden=[8]", "total_steps=256",
    "algorithm.anneal=false", "evaluation.points=2", "evaluation.episodes=4", "run.progress=false", "run.loggers=[]",
]  # fmt: skip
SWEPT = [*SMALL, "num_seeds=2", "algorithm.learning_rate=1e-3,1e-2,3e-2"]
CLOCKS = (
    "wall_seconds",
    "steps_per_second",
    "train_seconds",
    "compile_seconds",
    "detection_seconds",
    "planning_seconds",
    "integrity",  # digests of what clocks have measured, among the rest
)


def records(run_dir: Path) -> list[dict[str, object]]:
    """Records of a run, without times."""
    return [{k: v for k, v in record.items() if k not in CLOCKS} for record in read_rows(run_dir / "metrics.jsonl")]


def summary(run_dir: Path) -> dict[str, object]:
    """The summary of a run, without times."""
    values = json.loads((run_dir / "summary.json").read_text())
    return {key: value for key, value in values.items() if key not in CLOCKS}


def assert_same_run(one: Path, other: Path) -> None:
    assert records(one) == records(other)
    assert summary(one) == summary(other)
    states = [to_host(open_run(place).state) for place in (one, other)]
    assert all(np.array_equal(a, b) for a, b in zip(*states, strict=True))
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}


def table(directory: str) -> list[list[str]]:
    """The table of a sweep, without times."""
    lines = [line.split(",") for line in Path(directory, "table.csv").read_text().splitlines()]
    speed = lines[0].index("steps_per_second")
    return [[cell for i, cell in enumerate(line) if i != speed] for line in lines]
