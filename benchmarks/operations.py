"""What XLA executes for a job on a CPU, operation by operation, from its own trace.

An operation of the program is a product, a reduction, one that moves data, or arithmetic on every element. Being traced
takes time of its own, so that a chunk of small operations is two to four times as slow as another; both are told.
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import jax

from benchmarks.own import THROUGHPUT
from stellaris_jax.engine import mesh
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer

Figures = dict[str, Any]

TRACED: dict[str, str | bool] = {"xla_cpu_enable_xprof_traceme": True}
"""The compiler's option that has every operation of a program in traces."""
KINDS = {
    "products": ("dot", "ynn", "convolution", "matmul", "cholesky", "triangular"),
    "reductions": ("reduce",),
    "moving data": (
        "gather",
        "scatter",
        "slice",
        "copy",
        "concatenate",
        "pad",
        "transpose",
        "broadcast",
        "iota",
        "stack",
    ),
}
"""Kinds of operations, by what their names have in them; the first that fits. All others are `elementwise`."""
LONGEST = 20
"""Operations of a job that are told of one by one."""
LOOPS = ("while", "conditional", "cond", "call")
"""Operations that others are within."""


def operations(jobs: list[str], systems: list[str], rounds: int, note: Callable[[str], None]) -> list[Figures]:
    """For every job under every system, what its operations take.

    Args:
      jobs, systems: names in `benchmarks.own.THROUGHPUT`, and of systems.
      rounds: of the chunk that is traced.
      note: told of every job.

    Returns: rows with seconds of a chunk, untraced and traced, how many gradients it has, for each of its `kinds` the
    operations per gradient and their share of the time of all, and the `LONGEST` of its `operations`: of each the kind,
    how often it was executed, the median microseconds, and its share.
    """
    rows = []
    for job in jobs:
        for system in systems:
            overrides = [*THROUGHPUT[job], f"system={system}", f"engine.chunk_rounds={rounds}"]
            rows.append({"job": job, "system": system, **trace(overrides)})
            row = rows[-1]
            note(f"{job} {system}: {row['seconds']:.3g} s a chunk, {row['traced_seconds']:.3g} s traced")
    return rows


def trace(overrides: list[str]) -> Figures:
    """A job's figures; see `operations`."""
    endless = ["evaluation.points=0", "total_steps=1e12"]
    plain = _ready([*overrides, *endless])
    with _options(TRACED):
        traced = _ready([*overrides, *endless])
    (program,) = traced.engine.compiled_by_width.values()
    names = set(re.findall(r"^\s*(?:ROOT )?%?([\w.\-]+) = ", program.as_text() or "", re.MULTILINE))
    seconds = min(_seconds(plain) for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            traced_seconds = _seconds(traced)
        (file,) = Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    for trainer in (plain, traced):
        trainer.close()
    gradients, found = traced.spec.shape.rounds * traced.spec.shape.gradients, summarise(events, names)
    return {
        "seconds": seconds,
        "traced_seconds": traced_seconds,
        "gradients": gradients,
        "kinds": kinds_of(found, gradients),
        "operations": found[:LONGEST],
    }


def _ready(overrides: list[str]) -> Trainer:
    """A trainer with one chunk behind it, so that all is compiled and there are data."""
    trainer = Trainer(load_config(overrides))
    trainer.step()
    return trainer


def _seconds(trainer: Trainer) -> float:
    begin = time.perf_counter()
    trainer.step()
    return time.perf_counter() - begin


@contextmanager
def _options(further: Mapping[str, str | bool]) -> Iterator[None]:
    """Further options of the compiler, for what is compiled meanwhile."""
    before = dict(mesh.CPU_OPTIONS)
    mesh.CPU_OPTIONS.update(further)
    try:
        yield
    finally:
        mesh.CPU_OPTIONS.clear()
        mesh.CPU_OPTIONS.update(before)


def summarise(events: Iterable[Mapping[str, Any]], names: set[str]) -> list[Figures]:
    """The operations of these names in the events of a trace, those that take most first."""
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        name = event.get("name", "")
        if event.get("ph") == "X" and name in names and name.partition(".")[0] not in LOOPS:
            times[name].append(event["dur"])
    whole = sum(map(sum, times.values()))
    rows = [
        {
            "operation": name,
            "kind": kind_of(name),
            "times": len(each),
            "microseconds": median(each),
            "share": sum(each) / whole,
        }
        for name, each in times.items()
    ]
    return sorted(rows, key=lambda row: row["share"], reverse=True)


def kind_of(name: str) -> str:
    """Which of `KINDS` an operation is."""
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "elementwise")


def kinds_of(found: list[Figures], gradients: int) -> dict[str, Figures]:
    """For each kind of operations, how many there are for a gradient, and their share of the time."""
    kinds = {}
    for name in (*KINDS, "elementwise"):
        own = [one for one in found if one["kind"] == name]
        kinds[name] = {
            "per_gradient": sum(one["times"] for one in own) / gradients,
            "share": sum(one["share"] for one in own),
        }
    return kinds


def rows(table: list[Figures]) -> list[dict[str, str]]:
    """For each job its time by kind of operation, as cells to be printed."""
    return [
        {
            "job": row["job"],
            "system": row["system"],
            "kind": name,
            "per gradient": f"{figures['per_gradient']:.1f}",
            "share": f"{figures['share']:.0%}",
            "the longest": ", ".join(
                f"{one['operation']} {one['microseconds']:.1f}"
                for one in [one for one in row["operations"] if one["kind"] == name][:3]
            ),
        }
        for row in table
        for name, figures in row["kinds"].items()
    ]
