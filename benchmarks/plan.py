"""How fast runs are planned: gradients per second of one core, and where the time goes.

As a script, it measures one job of the checkout that PYTHONPATH names.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.execute import planner as planning
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.planner import Planner
from stellaris_jax.execute.schedule import Schedule
from stellaris_jax.timeline import Timeline

Figures = dict[str, Any]


SYSTEMS = ("stellaris", "artifact", "async", "softsync", "ssp", "allreduce", "msrl", "srl", "rllib", "central")
ROOM = ["platform.slots_per_gpu=128", "prices.learner_vms=64", "algorithm.minibatches=64"]
"""Overrides for 256 learners: as many slots, and minibatches for all of them."""

JOBS: dict[str, list[str]] = {
    **{f"system={system}": [f"system={system}"] for system in SYSTEMS},
    **{
        f"system={system}, {learners} learners": [*ROOM, f"system={system}", f"system.learners={learners}"]
        for system in ("stellaris", "async", "ssp", "allreduce")
        for learners in (1, 8, 64, 256)
    },
    **{f"{members} members": [f"num_seeds={members}"] for members in (8, 64, 256)},
    "128 minibatches of 2048": ["env.num_envs=512", "algorithm.minibatches=32"],
    "experiment=stellaris/hopper": ["experiment=stellaris/hopper"],
}
"""`system=stellaris` is the default job: CartPole, 8 learners, one member."""

PARTS = {"simulate": (Timeline, "next_round"), "orders": (planning, "minibatch_order"), "state": (Timeline, "state")}
"""Parts that are timed within the whole; the rest, mostly `build_plan`, is `plan`."""


class Stopwatch:
    """Seconds of this thread, by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            begin = time.thread_time()
            result = function(*arguments, **options)
            self.seconds[part] += time.thread_time() - begin
            return result

        return timed


def measure(job: str, seconds: float) -> Figures:
    """Plan chunk after chunk of a job for so many seconds; medians over chunks, after the first.

    Time is that of the thread, so that it counts little what else this machine does.
    """
    config = load_config([*JOBS[job], "total_steps=1e12", "evaluation.points=0", "checkpoint.interval=1_000_000"])
    spec = ProgramSpec.of(config)
    seeds = list(range(config.num_seeds))
    planner = Planner(Schedule(config, spec, seeds, [Timeline.of(config, seed) for seed in seeds]))
    watch = Stopwatch()
    chunks: list[dict[str, float]] = []
    with ExitStack() as patches:
        for part, (owner, name) in PARTS.items():
            patches.enter_context(mock.patch.object(owner, name, watch.around(part, getattr(owner, name))))
        begun = time.perf_counter()
        while len(chunks) < 4 or time.perf_counter() - begun < seconds:
            watch.seconds = dict.fromkeys(PARTS, 0.0)
            begin = time.thread_time()
            planner.plan(len(chunks) * spec.chunk_rounds, spec.chunk_rounds)
            chunks.append({"whole": time.thread_time() - begin, **watch.seconds})
    gradients = spec.chunk_rounds * spec.shape.gradients * len(seeds)
    whole, *parts = (statistics.median(chunk[part] for chunk in chunks[1:]) / gradients for part in chunks[0])
    named = {part: 1e6 * spent for part, spent in zip(PARTS, parts, strict=True)}
    named["plan"] = 1e6 * whole - sum(named.values())
    return {"job": job, "gradients_per_second": 1 / whole, "microseconds": named}


def plan(
    jobs: list[str], checkouts: list[Path], repeats: int, seconds: float, note: Callable[[str], None]
) -> list[Figures]:
    """Medians of every job, planned by all checkouts in turn, each time in a process of its own; the last of them is
    compared with the others, pair by pair."""
    table = []
    for job in jobs:
        runs: dict[Path, list[Figures]] = {checkout: [] for checkout in checkouts}
        for _ in range(repeats):
            for checkout in checkouts:
                runs[checkout].append(_in_own_process(checkout, job, seconds))
        own = runs[checkouts[-1]]
        row: Figures = {
            "job": job,
            "gradients_per_second": statistics.median(run["gradients_per_second"] for run in own),
            "microseconds": {
                part: statistics.median(run["microseconds"][part] for run in own) for part in own[0]["microseconds"]
            },
        }
        for checkout in checkouts[:-1]:
            pairs = zip(own, runs[checkout], strict=True)
            ratios = [ours["gradients_per_second"] / theirs["gradients_per_second"] for ours, theirs in pairs]
            row[f"ratio_to_{checkout.name}"] = statistics.median(ratios)
        note(f"{job}: {row['gradients_per_second']:,.0f} gradients/s")
        table.append(row)
    return table


def _in_own_process(checkout: Path, job: str, seconds: float) -> Figures:
    environment = {"PYTHONPATH": str(checkout), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(Path(__file__).resolve()), job, str(seconds)]
    # Imported here, for as a script this file runs beside the modules of another checkout.
    from benchmarks.process import figures

    return figures(command, environment)


def rows(table: list[Figures]) -> list[dict[str, str]]:
    """A table to be printed or written as CSV."""
    return [
        {
            "job": row["job"],
            "gradients/s": f"{row['gradients_per_second']:.0f}",
            **{f"{part} µs": f"{spent:.2f}" for part, spent in row["microseconds"].items()},
            **{name.replace("_", " "): f"{ratio:.2f}" for name, ratio in row.items() if name.startswith("ratio_to_")},
        }
        for row in table
    ]


def write_csv(table: list[Figures], path: Path) -> None:
    """The table as CSV."""
    lines = rows(table)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], float(sys.argv[2]))))
