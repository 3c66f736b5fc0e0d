"""An accelerator: costs, rates, agreement with the CPU. Each job of `benchmarks.card` runs in its own process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.card import COMPARED, JOBS, LOOPS
from benchmarks.process import ROOT, figures
from stellaris_jax.base.errors import ConfigError, RunError

Figures = dict[str, Any]

COSTS, HERE = "costs", "here"
"""The job that measures kernels, launches and loops; and the name of this checkout."""
LOOPED = "here, loops in graphs"
NAMES = (COSTS, *(f"agreement, {name}" for name in COMPARED), *JOBS)


@dataclass(frozen=True)
class Variant:
    """A way to run jobs: the checkout whose package runs them, and variables of its processes."""

    checkout: Path = ROOT
    environment: dict[str, str] = field(default_factory=dict)
    jobs: Collection[str] = NAMES

    def run(self, job: str, references: Path | None) -> Figures:
        """The figures of a job, or `failed` with the reason."""
        command = [sys.executable, "-m", "benchmarks.card", job]
        reference = None if references is None else references / f"{job.removeprefix('agreement, ')}.npy"
        if job.startswith("agreement") and reference is not None and reference.exists():
            command += ["--reference", str(reference)]
        paths = [str(self.checkout), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        # Without PYTHONSAFEPATH the working directory, which is this checkout, would come first.
        here = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        try:
            return figures(command, {**self.environment, **here})
        except (ConfigError, RunError) as error:
            return {"failed": str(error)[-300:]}


def variants(beside: list[Path], looped: Collection[str], compared: Collection[str]) -> dict[str, Variant]:
    """Ways to run jobs, by name.

    Args:
      beside: other checkouts, whose package runs the jobs `compared`.
      looped: jobs that also run with loops in CUDA graphs.
      compared: jobs that other checkouts run, too.
    """
    flags = " ".join(filter(None, (os.environ.get("XLA_FLAGS"), LOOPS)))
    others = {path.name: Variant(path.resolve(), jobs=compared) for path in beside}
    return {HERE: Variant(), LOOPED: Variant(environment={"XLA_FLAGS": flags}, jobs=looped), **others}


def measure(
    jobs: Collection[str],
    ways: dict[str, Variant],
    repeats: int,
    kept: Path,
    references: Path | None,
    together: int,
    note: Callable[[str], None],
) -> list[Figures]:
    """Run jobs in turn, and keep each one's figures as a line of a file, so that a stop costs one run.

    Args:
      jobs: names in `NAMES`.
      ways: how to run them, by name.
      repeats: runs of each.
      kept: the file; what it has is not run again. Runs that fail are not kept.
      references: folder of a CPU's rounds, `<name>.npy`.
      together: so many jobs run at once beforehand, for what they compile; 0 to leave that out.
      note: told of every run.

    Returns: the figures of all runs.

    Raises ConfigError if the file is not one of runs.
    """
    runs = read(kept)
    asked = [(job, way) for job in jobs for way, variant in ways.items() if job in variant.jobs]
    if together:
        with ThreadPoolExecutor(together) as threads:
            done = threads.map(lambda pair: (pair, ways[pair[1]].run(pair[0], references)), asked)
            for (job, way), run in done:
                note(f"compiled: {job}, {way}: {json.dumps(run)}")
    for repeat in range(repeats):
        for job, way in asked:
            if any((run["job"], run["way"], run["repeat"]) == (job, way, repeat) for run in runs):
                continue
            run = {**ways[way].run(job, references), "job": job, "way": way, "repeat": repeat}
            note(json.dumps(run))
            if "failed" not in run:
                runs.append(run)
                with kept.open("a") as file:
                    file.write(json.dumps(run) + "\n")
    return runs


def read(kept: Path, keys: Collection[str] = ("job", "way", "repeat")) -> list[Figures]:
    """Runs of a file, none if there is no file. Raises ConfigError if a line is not a run, which has these keys."""
    runs = []
    for number, line in enumerate(kept.read_text().splitlines() if kept.exists() else [], 1):
        try:
            runs.append(json.loads(line))
            if not {*keys} <= {*runs[-1]}:
                raise ValueError
        except (ValueError, TypeError):
            raise ConfigError(f"--kept={kept}: line {number} is not a run; delete it, or name another file.") from None
    return runs


def rows(runs: list[Figures]) -> list[dict[str, str]]:
    """A row per job and way whose rate was measured: medians."""
    found: dict[tuple[str, str], list[Figures]] = defaultdict(list)
    for run in runs:
        if "steps_per_second" in run:
            found[run["job"], run["way"]].append(run)

    def median(each: list[Figures], key: str) -> float:
        return statistics.median(run[key] or 0.0 for run in each)

    return [
        {
            "job": job,
            "way": way,
            "runs": str(len(each)),
            "steps/s": f"{median(each, 'steps_per_second'):,.0f}",
            "gradients/s": f"{median(each, 'gradients_per_second'):,.0f}",
            "compile s": f"{median(each, 'compile_seconds'):.1f}",
            "device MB": f"{median(each, 'device_memory_mb'):,.0f}",
        }
        for (job, way), each in found.items()
    ]


def make_references(folder: Path) -> None:
    """Write a CPU's first rounds of `COMPARED` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COMPARED:
        command = [sys.executable, "-m", "benchmarks.card", f"agreement, {name}", "--out", str(folder / f"{name}.npy")]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "JAX_PLATFORMS": "cpu"})
