"""Training of a choice's runs: each until its watch ends it, as many at a time as cores and memory allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

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


class Stage:
    """Training of runs within the budget of a choice.

    Args:
      directory: directory of the choice.
      options: options of the choice.
      decisions: count the real seconds.
      resume: command that continues it.

    Attributes:
      pace: real seconds for a round of one seed, measured in the last stage; 0 before any.
    """

    def __init__(self, directory: Path, options: Options, decisions: Decisions, resume: str):
        self.directory, self.options, self.decisions, self.resume = directory, options, decisions, resume
        self.pace = 0.0

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
        deadline, begin = share * self.options.budget, self.decisions.seconds
        before = sum(_done(config) for config in configs)

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
        if trained := sum(_done(config) for config in configs) - before:
            self.pace = (self.decisions.seconds - begin) / trained
        if queue.outcome.error is not None:
            raise queue.outcome.error


def _done(config: Config) -> int:
    """Rounds times seeds that a run has trained, to its last evaluation."""
    rows = evaluations(config)
    return rows[-1]["round"] * config.num_seeds if rows else 0
