"""From the command to the first training step: what a user waits for, with compiled programs on disk already."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

JOB = ["total_steps=65_536", "engine.chunk_rounds=1", "evaluation.points=1", "run.progress=false"]
"""A command whose first step is soon told of; further overrides come after it."""


def seconds_to_first_step(checkout: Path, overrides: list[str], bytecode: Path) -> float:
    """Seconds from the start of the command, in a process of its own, until its first round is in metrics.jsonl.

    Python keeps its bytecode in the folder `bytecode`, as it does beside an installed package.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(checkout / "scripts" / "train.py"), *JOB, *overrides, f"run.dir={folder}/run"]
        begin = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONPYCACHEPREFIX": str(bytecode)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        metrics = Path(folder, "run", "metrics.jsonl")
        while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
            time.sleep(0.005)
        seconds = time.perf_counter() - begin
        failed = process.poll()
        process.kill()
        _, told = process.communicate()
        if failed:
            raise RuntimeError(f"{' '.join(command)} failed:\n{told.decode()[-2000:]}")
        return seconds


def startup(
    checkouts: list[Path], repeats: int, overrides: list[str], note: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Medians over `repeats` commands of each checkout, in turn, after one of each that fills the caches."""
    times: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
    with tempfile.TemporaryDirectory() as bytecode:
        for repeat in range(repeats + 1):
            for checkout in checkouts:
                seconds = seconds_to_first_step(checkout, overrides, Path(bytecode))
                note(f"{checkout.name} {'first' if repeat == 0 else repeat}: {seconds:.2f} s")
                if repeat:
                    times[checkout].append(seconds)
    return [
        {"checkout": checkout.name, "seconds": statistics.median(seconds), "all": seconds}
        for checkout, seconds in times.items()
    ]
