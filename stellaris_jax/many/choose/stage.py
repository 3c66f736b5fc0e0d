"""Training of a choice's runs: each until its watch ends it, as many at a time as cores and memory allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console

from stellaris_jax.config.tree import Config
from stellaris_jax.many.choose.files import Decisions, Options
from stellaris_jax.many.choose.objective import Goal, Reached
from stellaris_jax.many.concurrency import stoppable
from stellaris_jax.many.points import PointQueue
from stellaris_jax.report.runs import read_run
from stellaris_jax.telemetry.format import duration
from stellaris_jax.telemetry.shared_display import SharedDisplay


def evaluations(config: Config) -> list[dict[str, Any]]:
    """Records of the evaluations of a run so far."""
    return read_run(Path(config.run.dir), lambda message: None).evaluations


def is_over(config: Config, goal: Goal) -> bool:
    """Whether a run has reached the target with every seed, or its end."""
    watch = Reached(config.rounds, math.inf if goal.target is None else goal.target, every_seed=True)
    return any([watch(row) for row in evaluations(config)])


class Pace(NamedTuple):
    """Real seconds that runs take, one at a time.

    Attributes:
      start: seconds until the first evaluation is done: building, compiling, and the first rounds.
      each: seconds for a round of one seed, once everything is compiled.
    """

    start: float
    each: float


def pace(configs: Sequence[Config]) -> Pace:
    """Median pace of runs, from the records of their evaluations; rounds that compiled something count little."""
    starts, rounds = [0.0], [0.0]
    for config in configs:
        rows = evaluations(config)
        starts += [row["wall_seconds"] for row in rows[:1]]
        rounds += [
            (late["wall_seconds"] - early["wall_seconds"]) / (late["round"] - early["round"]) / config.num_seeds
            for early, late in pairwise(rows)
        ]
    return Pace(median(starts[1:] or starts), median(rounds[1:] or rounds))


class Stage:
    """Training of runs within the budget of a choice.

    Args:
      directory: directory of the choice.
      options: options of the choice.
      decisions: count the real seconds.
      resume: command that continues it.
    """

    def __init__(self, directory: Path, options: Options, decisions: Decisions, resume: str):
        self.directory, self.options, self.decisions, self.resume = directory, options, decisions, resume

    def to_target(self, configs: Sequence[Config], goal: Goal, unit: str) -> None:
        """Train runs until every seed has reached the target, or to the end, whatever the budget says."""
        missing = [config for config in configs if not is_over(config, goal)]
        target = math.inf if goal.target is None else goal.target
        self.train(missing, [Reached(config.rounds, target, every_seed=True) for config in missing], math.inf, unit)

    def train(self, configs: Sequence[Config], watches: Sequence[Reached], share: float, unit: str) -> None:
        """Train runs, each until its watch ends it.

        Args:
          configs: configurations of the runs, each with its directory.
          watches: watch of each run.
          share: share of the budget after which no run starts.
          unit: noun for the runs, in the plural.

        Raises:
          Interrupted: a signal arrived and everything was saved; Abandoned after a second one.
        """
        if not configs:
            return
        sizes = [config.env.num_envs * config.algorithm.rollout_length * config.num_seeds for config in configs]
        steps = [size * watch.round for size, watch in zip(sizes, watches, strict=True)]
        deadline = share * self.options.budget

        def farewell() -> str:
            return f"stopped after {duration(self.decisions.seconds)}; continue with: {self.resume}"

        with (
            closing(SharedDisplay(Console(), steps, set(), unit=unit)) as display,
            stoppable(display, self.directory, farewell) as signals,
        ):
            queue = PointQueue(
                configs,
                set(),
                display,
                signals,
                watch_of=lambda number: watches[number],
                may_start=lambda: self.decisions.seconds < deadline,
                order=range(len(configs)),
                parallel=self.options.parallel,
            )
            queue.through()
        self.decisions.save()
        if queue.outcome.error is not None:
            raise queue.outcome.error
