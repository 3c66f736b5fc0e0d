"""A sweep of 64 members, CartPole at 16 learning rates with 4 seeds each, in three ways: as one command of this
program, as rejax's own grid under `vmap`, and as a process for every member, two at a time."""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.own import CARTPOLE
from benchmarks.peers.contract import SWEEP, SWEEP_RATES, SWEEP_SEEDS
from benchmarks.process import ROOT, execute

Figures = dict[str, Any]

TRAIN = [sys.executable, str(ROOT / "scripts" / "train.py")]
JOB = [*CARTPOLE, "system=central", "evaluation.points=1", "run.progress=false"]
MEMBERS = [(rate, seed) for rate in SWEEP_RATES for seed in range(SWEEP_SEEDS)]
AT_ONCE = 2


def sweep(
    rejax: list[str] | None,
    processes: int,
    repeats: int,
    note: Callable[[str], None],
    overrides: list[str] | None = None,
) -> list[Figures]:
    """Seconds from command to end of every way, in turn; medians, and ratios to this program's.

    Args:
      rejax: its command, to which the job is added; None to leave it out.
      processes: how many members are trained in processes of their own; seconds are those of all, extrapolated.
      repeats: runs of every way.
      note: told of every run.
      overrides: configuration beside the job's, for this program.

    Raises:
      ConfigError, RunError: if a run fails.
    """
    job = [*JOB, *(overrides or [])]
    times: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory() as warm:
        ways: dict[str, Callable[[], float]] = {"one command": lambda: _command(job)}
        if rejax is not None:
            ways["rejax, vmap"] = lambda: _timed(lambda: execute([*rejax, SWEEP]))
        ways[f"processes, {AT_ONCE} at a time"] = lambda: _processes(job, MEMBERS[:processes], Path(warm))
        _processes(job, MEMBERS[:1], Path(warm))  # which fills the cache
        for repeat in range(repeats):
            for name, way in ways.items():
                before = _cpu_seconds()
                seconds = way()
                cores = (_cpu_seconds() - before) / seconds
                whole = seconds * (len(MEMBERS) / processes if name.startswith("processes") else 1)
                times.setdefault(name, []).append({"seconds": whole, "cores": cores})
                note(f"sweep {name} {repeat}: {whole:.1f} s")
    base = times["one command"]
    return [
        {
            "way": name,
            "members": len(MEMBERS),
            "measured": processes if name.startswith("processes") else len(MEMBERS),
            "seconds": statistics.median(run["seconds"] for run in runs),
            "cores": statistics.median(run["cores"] for run in runs),
            "ratio": statistics.median(a["seconds"] / b["seconds"] for a, b in zip(runs, base, strict=True)),
            "runs": runs,
        }
        for name, runs in times.items()
    ]


def _command(job: list[str]) -> float:
    """One command for all members, with an empty compile cache."""
    with tempfile.TemporaryDirectory() as folder:
        rates = ",".join(map(str, SWEEP_RATES))
        grid = [f"algorithm.learning_rate={rates}", f"num_seeds={SWEEP_SEEDS}", f"hydra.sweep.dir={folder}/sweep"]
        return _timed(lambda: execute([*TRAIN, "-m", *job, *grid], {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}))


def _processes(job: list[str], members: list[tuple[float, int]], cache: Path) -> float:
    """A command for each of these members."""
    with tempfile.TemporaryDirectory() as folder:

        def one(number: int) -> None:
            rate, seed = members[number]
            own = [f"algorithm.learning_rate={rate}", f"seed={seed}", f"run.dir={folder}/{number}"]
            execute([*TRAIN, *job, *own], {"JAX_COMPILATION_CACHE_DIR": str(cache)})

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return _timed(lambda: list(pool.map(one, range(len(members)))))


def _timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _cpu_seconds() -> float:
    """Of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows(table: list[Figures]) -> list[dict[str, str]]:
    """Rows of `sweep` as cells to be printed."""
    return [
        {
            "way": row["way"],
            "members": str(row["members"]),
            "seconds": f"{row['seconds']:.1f}",
            "of which measured": "all" if row["measured"] == row["members"] else f"{row['measured']} members",
            "it / ours": f"{row['ratio']:.2f}",
            "cores": f"{row['cores']:.2f}",
        }
        for row in table
    ]
