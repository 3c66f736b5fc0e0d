"""Logs of jobs for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMALL = (
    "env=gymnax/cartpole",
    "env.num_envs=4",
    "algorithm.rollout_length=16",
    "network.hidden=[8]",
    "total_steps=640",
)
"""Settings of a run that takes no time."""


def log_of(path: Path, *rows: dict[str, Any]) -> Path:
    """A log with a line of JSON for each of the jobs."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def learner(start: float, end: float, **columns: Any) -> dict[str, Any]:
    return {"kind": "learner", "start": start, "end": end, **columns}


def actor(**columns: Any) -> dict[str, Any]:
    return {"kind": "actor", "start": 0, "end": 1, **columns}


def aggregate(start: float, end: float, **columns: Any) -> dict[str, Any]:
    return {"kind": "aggregate", "start": start, "end": end, **columns}
