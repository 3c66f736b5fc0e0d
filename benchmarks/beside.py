"""This program beside others, one job after the other, all programs in turn.

Every run is a process of its own, and every ratio is that of two runs with the same seed, one soon after the other.
Throughput is compared with cold compile caches. In the jobs of `return` every program in JAX keeps what it compiles on
disk, as ours does by default, from an empty directory on. So its first run of a job compiles what its later ones find.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import own
from benchmarks.peers.contract import GOALS, NOT_REACHED
from benchmarks.process import figures
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.telemetry.format import significant

Figures = dict[str, Any]

KINDS: dict[str, Collection[str]] = {"throughput": own.THROUGHPUT, "return": own.RETURN}
PLAIN = "plain loop"
OURS = "ours"
INSTALL = "bash benchmarks/peers/install.sh"


@dataclass(frozen=True)
class Program:
    """A program to compare: a command, to which a job and a seed are added, and the jobs that it knows."""

    command: list[str]
    jobs: Collection[str]


@dataclass(frozen=True)
class Peer:
    """Another program: the folder of its environment, what must be installed there, and the jobs that it knows."""

    environment: str
    modules: tuple[str, ...]
    jobs: tuple[str, ...]


OFF_POLICY = ("cartpole_dqn", "pendulum_sac", "cartpole_by_dqn", "acrobot_by_dqn", "pendulum_by_sac")
PEERS = {
    "rejax": Peer(
        "rejax",
        ("rejax", "gymnax", "brax"),
        (
            *("cartpole_small", "cartpole_large", "hopper_spring", "minatar_spaceinvaders"),
            *("cartpole", "acrobot", "asterix_minatar", "breakout_minatar", "breakout_by_dqn"),
            *("asterix_alike", "breakout_alike"),
            *("spaceinvaders_minatar", "freeway_minatar", "pendulum", "brax_hopper"),
            *OFF_POLICY,
        ),
    ),
    "brax": Peer("rejax", ("brax",), ("hopper_spring", "inverted_pendulum")),
    "sbx": Peer(
        "torch",
        ("sbx",),
        (
            *("cartpole_small", "cartpole_large", "cartpole", "acrobot", "hopper"),
            *(*OFF_POLICY, "hopper_by_sac"),
        ),
    ),
    "cleanrl": Peer(
        "torch",
        ("torch", "gym", "gymnasium", "envpool"),
        (
            *("cartpole_small", "cartpole_large", "hopper_envpool", "atari_spaceinvaders"),
            *("cartpole", "acrobot", "hopper"),
        ),
    ),
}
"""Other programs, by the name of their runner, `benchmarks/peers/<name>.py`."""
TRL = Peer("torch", ("trl",), ("tokens_addition",))
"""Hugging Face's trainer, which knows the job of token tasks alone."""


def programs(folder: Path, note: Callable[[str], None]) -> dict[str, Program]:
    """This program, and those peers whose environments are there.

    Args:
      folder: where `benchmarks/peers/install.sh` has made the environments.
      note: told of every peer that is left out.

    Raises:
      ConfigError: if there is no peer at all.
    """
    found = {OURS: Program([sys.executable, "-m", "benchmarks.own"], own.JOBS)}
    missing = []
    for name, peer in PEERS.items():
        python = folder.resolve() / peer.environment / "bin" / "python"
        if has(python, peer.modules):
            found[name] = Program([str(python), "-W", "ignore", "-m", f"benchmarks.peers.{name}"], peer.jobs)
        else:
            missing.append(f"{name} is left out: {python} is not a Python with {', '.join(peer.modules)}.")
    if len(found) == 1:
        raise ConfigError(f"--peers={folder} has no environment of a peer; `{INSTALL} {folder}` makes them.")
    for sentence in missing:
        note(sentence)
    return found


def on_tokens(folder: Path) -> dict[str, Program]:
    """This program, the plain loop of `peers/plain_grpo.py` in the same environment, and TRL if it is there.

    Args:
      folder: where `benchmarks/peers/install.sh` has made the environments.
    """
    found = {
        OURS: Program([sys.executable, "-m", "benchmarks.own"], own.TOKENS),
        PLAIN: Program([sys.executable, "-m", "benchmarks.peers.plain_grpo"], TRL.jobs),
    }
    if has(python := folder.resolve() / TRL.environment / "bin" / "python", TRL.modules):
        found["trl"] = Program([str(python), "-W", "ignore", "-m", "benchmarks.peers.trl"], TRL.jobs)
    return found


def has(python: Path, modules: tuple[str, ...]) -> bool:
    """Whether there is a Python here, and in it these modules."""
    script = f"import importlib.util as util, sys; sys.exit(not all(map(util.find_spec, {modules})))"
    return python.exists() and subprocess.run([python, "-c", script], capture_output=True).returncode == 0


def compare(
    jobs: Collection[str], contestants: Mapping[str, Program], repeats: int, note: Callable[[str], None]
) -> list[Figures]:
    """Run jobs of one kind; returns a row for each job and program, `OURS` first.

    Args:
      jobs: jobs of one of `KINDS`, or of `own.TOKENS`.
      contestants: programs by name, one of them `OURS`. Another one that fails is left out of the job, and told of.
      repeats: runs of each, with seeds 0, 1, ...
      note: told of every run.

    Raises:
      ConfigError, RunError: if a run of `OURS` fails.
    """
    rows = []
    for job in jobs:
        runs: dict[str, list[Figures]] = {name: [] for name, one in contestants.items() if job in one.jobs}
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(repeats):
                for name in list(runs):
                    cache = {"JAX_COMPILATION_CACHE_DIR": f"{folder}/{name}"} if job in GOALS else {}
                    try:
                        run = _checked([*contestants[name].command, job, "--seed", str(seed)], cache, job)
                    except (ConfigError, RunError) as error:
                        if name == OURS:
                            raise
                        note(f"{job}: {name} is left out: {error}")
                        del runs[name]
                        continue
                    runs[name].append(run)
                    note(f"{job} {name} seed {seed}: {_told(run)}")
        rows += summarise(job, runs)
    return rows


def _checked(command: list[str], environment: dict[str, str], job: str) -> Figures:
    """The figures of a run. Raises RunError if some are missing."""
    run = figures(command, environment)
    asked = ["steps_per_second", "compile_seconds", "cores", "peak_memory_mb", "return_mean"]
    missing = [key for key in (*asked, *(NOT_REACHED if job in GOALS else ())) if key not in run]
    if missing:
        raise RunError(f"{' '.join(command)} says nothing of {', '.join(missing)}.")
    return run


def _told(run: Figures) -> str:
    """A run in words."""
    words = [f"{run['steps_per_second']:,.0f} steps/s", f"return {significant(run['return_mean'])}"]
    if "command_seconds_to_return" in run:
        seconds = run["command_seconds_to_return"]
        words.append("target not reached" if seconds is None else f"target in {seconds:.1f} s")
    return ", ".join(words)


def summarise(job: str, runs: Mapping[str, list[Figures]]) -> list[Figures]:
    """Medians of a job's runs by program, each pair's ratio, and all single figures.

    The ratio of another program is how many times as fast as it `OURS` is. The ratio of `OURS` is how many times as
    fast it is as the best of the others in the same turn. Ratios are of steps per second, or of seconds from the start
    of the command to the target. A ratio is None where neither got there, or where only `OURS` did.
    """
    rates = {name: [_rate(job, run) for run in each] for name, each in runs.items()}
    others = [each for name, each in rates.items() if name != OURS]
    rows = []
    for name, each in runs.items():
        row: Figures = {"job": job, "program": name}
        for key in ("steps_per_second", "compile_seconds", "cores", "peak_memory_mb"):
            row[key] = statistics.median(run[key] for run in each)
        row["return_mean"] = statistics.mean(run["return_mean"] for run in each)
        if all("planning_share" in run for run in each):
            row["planning_share"] = statistics.median(run["planning_share"] for run in each)
        if job in GOALS:
            row["target"] = GOALS[job].target
            row["reached"] = sum(run["seconds_to_return"] is not None for run in each)
            for key in NOT_REACHED:
                row[key] = _finite(statistics.median(math.inf if run[key] is None else run[key] for run in each))
        best = [max(turn) for turn in zip(*others, strict=True)] if name == OURS else rates[name]
        pairs = [_ratio(ours, theirs) for ours, theirs in zip(rates[OURS], best, strict=False)]
        compared = [ratio for ratio in pairs if not math.isnan(ratio)]
        row["ratio"] = _finite(statistics.median(compared)) if compared else None
        rows.append(row | {"ratios": [_finite(ratio) for ratio in pairs], "runs": each})
    return rows


def _rate(job: str, run: Figures) -> float:
    """How fast a run was; 0 where it did not reach its target."""
    if job not in GOALS:
        return float(run["steps_per_second"])
    seconds = run["command_seconds_to_return"]
    return 0.0 if seconds is None else 1 / seconds


def _ratio(ours: float, theirs: float) -> float:
    return ours / theirs if theirs else math.inf if ours else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def rows(kind: str, table: list[Figures]) -> list[dict[str, str]]:
    """Rows of `compare` as cells to be printed."""
    return [
        {
            "job": row["job"],
            "program": row["program"],
            **(_cells_of_return(row) if kind == "return" else _cells_of_throughput(row)),
            "ours / it": "" if row["ratio"] is None else f"{row['ratio']:.2f}",
            "cores": f"{row['cores']:.2f}",
            "peak MB": f"{row['peak_memory_mb']:.0f}",
            "return": significant(row["return_mean"]),
        }
        for row in table
    ]


def _cells_of_throughput(row: Figures) -> dict[str, str]:
    return {"steps/s": f"{row['steps_per_second']:,.0f}", "compile s": f"{row['compile_seconds']:.1f}"}


def _cells_of_return(row: Figures) -> dict[str, str]:
    seconds = {"of the command": "command_seconds_to_return", "of training": "seconds_to_return"}
    return {
        "target": significant(row["target"]),
        "reached": f"{row['reached']} of {len(row['runs'])}",
        **{f"s {since}": "" if row[key] is None else f"{row[key]:.1f}" for since, key in seconds.items()},
        "steps": "" if row["steps_to_return"] is None else f"{row['steps_to_return']:,.0f}",
    }
