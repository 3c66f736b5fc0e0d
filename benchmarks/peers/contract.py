"""The contract of all compared programs: their arguments, their clocks and their answers.

A program is asked for one job and one seed, and answers with one JSON object on the last line of its output. It may
have any Python from 3.11, so that this module needs nothing but the standard library.

There are two kinds of jobs. In those of `throughput` the work is the same for all: networks, epochs, minibatches.
In those of `return` every program has its own best settings and trains until an evaluation reaches the job's target.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
LAST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Goal:
    """A return that a program trains for."""

    target: float  # mean return of an evaluation
    every: int  # env steps between evaluations, as nearly as a program's rounds allow
    episodes: int = 32  # of every evaluation
    limit: float = 60.0  # seconds of training after which a program that has not got there gives up


GOALS = {
    "cartpole": Goal(475, every=10_000),
    "acrobot": Goal(-85, every=10_000),
    "asterix_minatar": Goal(1.5, every=100_000, episodes=128),
    "breakout_minatar": Goal(5, every=100_000, episodes=128),
    "asterix_alike": Goal(1.5, every=100_000, episodes=128),
    "breakout_alike": Goal(5, every=100_000, episodes=128),
    "spaceinvaders_minatar": Goal(20, every=100_000, episodes=128),
    "freeway_minatar": Goal(20, every=50_000, episodes=16, limit=90),  # episodes of 2,500 steps
    "pendulum": Goal(-200, every=20_000, limit=90),
    "inverted_pendulum": Goal(900, every=50_000, limit=90),
    "brax_hopper": Goal(500, every=50_000, limit=90),
    "hopper": Goal(2000, every=20_000, episodes=10, limit=90),
    "cartpole_by_dqn": Goal(475, every=2_500, limit=90),
    "acrobot_by_dqn": Goal(-100, every=2_500, limit=90),
    "pendulum_by_sac": Goal(-200, every=1_000, limit=120),
    "breakout_by_dqn": Goal(1_000, every=25_000, episodes=128, limit=3_600),
    "hopper_by_sac": Goal(10_000, every=10_000, episodes=20, limit=3_600),
}
"""The jobs of `return`. The targets of MinAtar's games and the inverted pendulum were set after trial runs of this
program, those of Asterix and brax's hopper after one of rejax, too; the others before any. Breakout's for DQN and
Hopper's for SAC are beyond all, so that every program makes all of its steps."""


class Stopwatch:
    """The clocks of one run: of its compilation, of its training, and of when a goal was reached.

    `seconds` and `cpu_seconds` are those between `start` and `stop`. In a job of `return` they begin with the call that
    trains, so that compilation counts, as not every program can be compiled beforehand; `compile_seconds` is 0 where
    it cannot be told apart.
    """

    def __init__(self, goal: Goal | None = None):
        self.goal = goal
        self.compile_seconds = 0.0
        self.to_return: Figures = {} if goal is None else dict.fromkeys(NOT_REACHED)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Count what happens within as compilation."""
        begin = time.perf_counter()
        yield
        self.compile_seconds += time.perf_counter() - begin

    def start(self) -> None:
        """Training begins."""
        self.begin, self.cpu_begin = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """Training ends."""
        self.seconds = time.perf_counter() - self.begin
        self.cpu_seconds = time.process_time() - self.cpu_begin

    def evaluated(self, steps: int, mean: float) -> bool:
        """Take note of an evaluation; true if training may end: the target is reached, or time is up."""
        assert self.goal is not None
        seconds = time.perf_counter() - self.begin
        if mean >= self.goal.target and self.to_return["seconds_to_return"] is None:
            self.to_return = dict(zip(NOT_REACHED, (seconds, process_age(), steps), strict=True))
        return self.to_return["seconds_to_return"] is not None or seconds > self.goal.limit

    def figures(self, steps: int, return_mean: float) -> Figures:
        """A program's answer, less its names.

        Args:
          steps: env steps between `start` and `stop`.
          return_mean: mean return of the last evaluation.
        """
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return {
            "steps": steps,
            "seconds": self.seconds,
            "steps_per_second": steps / self.seconds,
            "compile_seconds": self.compile_seconds,
            "peak_memory_mb": peak / 2**20,
            "cores": self.cpu_seconds / self.seconds,
            "return_mean": return_mean,
            **self.to_return,
        }


NOT_REACHED = ("seconds_to_return", "command_seconds_to_return", "steps_to_return")
"""Figures that are null where a goal was not reached."""


def process_age() -> float:
    """Seconds since this process began; where there is no /proc, since this module was imported."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return time.perf_counter() - IMPORTED
    ticks = int(stat.read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


IMPORTED = time.perf_counter()


def main(peer: str, version: str, jobs: Iterable[str], run: Callable[[str, int, Goal | None], Figures]) -> None:
    """The whole program: read the command line, run one job, and print its figures.

    Args:
      peer: name of the program.
      version: its version.
      jobs: those it can run.
      run: runs a job with a seed; with its goal, if it is one of `return`.
    """
    parser = argparse.ArgumentParser(description=f"Times {peer} {version}; prints one JSON line.")
    parser.add_argument("job", choices=sorted(jobs))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, help="another return to train for than the job's")
    arguments = parser.parse_args()
    if not 0 <= arguments.seed <= LAST_SEED:
        parser.error(f"--seed={arguments.seed} must be from 0 to {LAST_SEED}")
    if arguments.target is not None and not math.isfinite(arguments.target):
        parser.error(f"--target={arguments.target} must be a finite number")
    goal = goal_of(arguments.job, arguments.target)
    figures = run(arguments.job, arguments.seed, goal)
    print(json.dumps({"job": arguments.job, "peer": peer, "version": version, "seed": arguments.seed, **figures}))


def goal_of(job: str, target: float | None) -> Goal | None:
    """The goal of a job, with another target if there is one; None for a job of `throughput`."""
    goal = GOALS.get(job)
    return goal if goal is None or target is None else replace(goal, target=target)
