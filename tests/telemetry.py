"""Made-up records of a run, and readers of its files."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

from rich.console import Console
from tensorboardX.proto.event_pb2 import Event

from stellaris_jax.telemetry.jsonl import read_rows
from stellaris_jax.telemetry.outputs import Telemetry
from stellaris_jax.telemetry.progress import make_display


def round_record(number: int, **changes: Any) -> dict[str, Any]:
    record = {
        "kind": "round",
        "round": number,
        "env_steps": 2048 * number,
        "updates": 8 * number,
        "wall_seconds": 0.1 * number,
        "steps_per_second": 283_456.0,
        "staleness_mean": 3.1,
        "staleness_max": 8,
        "staleness_counts": [12, 3, 0, 1],
        "gate": 2.31,
        "gate_escapes": 4,
        "gate_groups": 32,
        "group_size": 2.1,
        "learning_rate": 9e-4,
        "simulated_seconds": 4000.0,
        "cost_usd": 0.21,
        "occupancy": 0.95,
        "nonfinite_gradients": 0,
        "dropped": 0,
        "failed": 0,
        "train_return": 112.0,
        "policy_loss": -0.01,
        "per_seed": {"train_return": [110.0, 114.0], "simulated_seconds": [3999.0, 4001.0]},
    }
    return {**record, **changes}


def evaluation_record(number: int, **changes: Any) -> dict[str, Any]:
    record = {
        "kind": "evaluation",
        "round": number,
        "env_steps": 2048 * number,
        "wall_seconds": 0.1 * number,
        "eval_return_mean": 312.4,
        "eval_return_ci95": 20.1,
        "simulated_seconds": 4000.0,
        "cost_usd": 0.21,
        "per_seed": {"eval_return_mean": [300.0, 324.8], "simulated_seconds": [3999.0, 4001.0]},
    }
    return {**record, **changes}


def open_telemetry(run_dir: Path, terminal: bool = False, **arguments: Any) -> tuple[Telemetry, Console]:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=110, record=True)
    arguments = {"total_rounds": 40, "title": "stellaris [CartPole]", "progress": True, **arguments}
    resume_round, config = arguments.pop("resume_round", None), arguments.pop("config", None)
    run_dir.mkdir(exist_ok=True)
    return Telemetry(run_dir, make_display(console, **arguments), resume_round, config), console


def rounds_in(run_dir: Path) -> list[int]:
    return [record["round"] for record in read_rows(run_dir / "metrics.jsonl")]


def read_events(file: Path) -> list[Event]:
    """The events of a TensorBoard file: length, checksum, payload, checksum, and so on."""
    data, events, position = file.read_bytes(), [], 0
    while position < len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        events.append(Event.FromString(data[position + 12 : position + 12 + length]))
        position += 16 + length
    return events
