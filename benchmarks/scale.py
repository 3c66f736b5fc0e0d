"""How cost grows with the size of a job: time and peak memory along one axis at a time, the rest as in the default job.

Every size is measured in a process of its own, which this file is as a script, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.own import share, waiting
from benchmarks.process import ROOT, figures
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import check_directory
from stellaris_jax.cli import program
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.report.curves import BLUE, TEXT, VERMILION, save, tidy, titled
from stellaris_jax.report.style import drawing
from stellaris_jax.telemetry.format import compact, significant

Figures = dict[str, Any]

ROOM = 1.6
"""Factor by which a logarithmic axis goes beyond its points on either side, so that it has a tick or more."""
STEP, GRADIENT = "env step", "gradient"
ENOUGH = 8.0
"""Seconds after which no further chunk of a size is begun."""


class Axis(NamedTuple):
    """What grows: in words, the override that sets it, its sizes, and what time is told of.

    room: overrides for all its sizes, which the largest needs.
    """

    words: str
    override: str
    sizes: tuple[int, ...]
    unit: str
    room: tuple[str, ...] = ()


AXES = {
    "environments": Axis("environments", "env.num_envs={}", (1, 2, 8, 32, 128, 512, 2048, 8192), STEP),
    "learners": Axis(
        "learners in flight",
        "system.learners={}",
        (1, 2, 4, 8, 16, 32, 64),
        GRADIENT,
        # slots and minibatches for all of them
        ("platform.slots_per_gpu=32", "prices.learner_vms=16", "algorithm.minibatches=16"),
    ),
    "members": Axis("seeds in one process", "num_seeds={}", (1, 4, 16, 64, 256), STEP),
    "width": Axis("units in each hidden layer", "network.hidden=[{0},{0}]", (16, 64, 256, 1024), STEP),
    "ring": Axis("policy versions in the ring", "system.versions={}", (2, 8, 32, 128, 512, 2048), GRADIENT),
}


def overrides(axis: str, size: int) -> list[str]:
    """The job of a size of an axis: it goes on for ever and evaluates nothing."""
    about = AXES[axis]
    return [*about.room, about.override.format(size), "total_steps=1e12", "evaluation.points=0"]


def measure(axis: str, size: int, repeats: int) -> Figures:
    """Microseconds of a chunk per env step of all members, or per gradient, and the peak memory of this process in MB.

    The former is the median of `repeats` chunks, or of fewer where they take long; the latter includes compilation.
    """
    trainer = Trainer(load_config(overrides(axis, size)))
    compile_seconds = trainer.compile()
    trainer.step()  # what happens once
    times: list[float] = []
    while len(times) < repeats and sum(times) < ENOUGH:
        begin = time.perf_counter()
        trainer.step()
        times.append(time.perf_counter() - begin)
    trainer.close()
    each = trainer.steps_per_round if AXES[axis].unit == STEP else trainer.spec.shape.gradients
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "microseconds": 1e6 * statistics.median(times) / (trainer.spec.shape.rounds * each * len(trainer.seeds)),
        "peak_memory_mb": peak / 2**20,
        "compile_seconds": compile_seconds,
        "chunks": len(times),
        **waiting(trainer.summary(None)),
    }


def scale(
    axes: list[str], most: int | None, repeats: int, out: Path | None, note: Callable[[str], None]
) -> list[Figures]:
    """Measure sizes of these axes: a row for each.

    A size that is refused, for the memory it takes, has the sentence instead of figures, and no place in the plot.

    Args:
      axes: names in `AXES`.
      most: the largest size; `None` has all.
      repeats: chunks of each size, of which medians are taken.
      out: directory for a plot of every axis, <axis>.png; `None` draws none.
      note: told of every size.

    Raises ConfigError, before anything is measured, where `most` leaves nothing of an axis or `out` cannot be written.
    """
    sizes = {axis: [size for size in AXES[axis].sizes if most is None or size <= most] for axis in axes}
    for axis, left in sizes.items():
        if not left:
            raise ConfigError(f"--most={most} leaves nothing of axis {axis}, which begins at {AXES[axis].sizes[0]}.")
    if out is not None:
        check_directory("--out", out)
    table = []
    for axis, left in sizes.items():
        for size in left:
            row = {"axis": axis, "size": size, "per": AXES[axis].unit, **_in_own_process(axis, size, repeats)}
            note(f"{axis} {size}: " + (row.get("refused") or f"{significant(row['microseconds'])} µs per {row['per']}"))
            table.append(row)
        measured = [row for row in table if row["axis"] == axis and "refused" not in row]
        if out is not None and measured:
            draw(axis, measured, out / f"{axis}.png")
    return table


def _in_own_process(axis: str, size: int, repeats: int) -> Figures:
    command = [sys.executable, "-m", "benchmarks.scale", axis, str(size), str(repeats)]
    try:
        return figures(command, {"PYTHONPATH": str(ROOT)})
    except ConfigError as error:
        return {"refused": str(error)}


def rows(table: list[Figures]) -> list[dict[str, str]]:
    """A table to be printed."""
    return [
        {
            "axis": row["axis"],
            "size": f"{row['size']:,}",
            "per": row["per"],
            "µs": significant(row.get("microseconds")),
            "peak MB": significant(row.get("peak_memory_mb")),
            "compile s": significant(row.get("compile_seconds")),
            "waits for plans": share(row.get("planning_share")),
            "refused": row.get("refused", ""),
        }
        for row in table
    ]


@drawing()
def draw(axis: str, table: list[Figures], path: Path) -> None:
    """Time, on a logarithmic axis, and memory over the sizes of an axis, all of which were measured."""
    about, sizes = AXES[axis], [row["size"] for row in table]
    figure = titled(", ".join([f"Cost by {about.words}: the default job (CartPole)", *about.room]), height=3.2)
    panels = figure.subplots(1, 2)
    shown = [("microseconds", f"µs per {about.unit}", BLUE), ("peak_memory_mb", "peak memory (MB)", VERMILION)]
    for axes, (name, label, colour) in zip(panels, shown, strict=True):
        axes.plot(sizes, [row[name] for row in table], color=colour, marker="o", linewidth=1.8, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(about.words, fontsize=TEXT)
        axes.set_ylabel(label, fontsize=TEXT)
        tidy(axes)
    time_axes, memory_axes = panels
    times = [row["microseconds"] for row in table]
    time_axes.set_yscale("log")
    time_axes.set_ylim(min(times) / ROOM, max(times) * ROOM)
    time_axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    time_axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    time_axes.yaxis.set_minor_locator(NullLocator())
    memory_axes.set_ylim(0, 1.1 * max(row["peak_memory_mb"] for row in table))
    save(figure, path)


if __name__ == "__main__":
    program.run(lambda: print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
