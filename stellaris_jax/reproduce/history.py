"""How runs went: returns of every seed against env steps, simulated seconds and dollars.

Time and money follow from the timeline alone (`stellaris_jax.timeline`), never from what was learned. So systems that
differ in nothing but what they pay for share their training, and each is billed here by its own rule.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stellaris_jax.billing import bill, common_bill
from stellaris_jax.config import Config
from stellaris_jax.report.runs import Run
from stellaris_jax.timeline import Timeline

LAST = 0.2
"""Share of a run's evaluations, the last ones, whose mean is its final return: one evaluation alone is noisy."""


@dataclass(frozen=True)
class History:
    """The evaluations of one seed in order, each array `[points]`; dollars by the own rule and at the common price."""

    seed: int
    env_steps: np.ndarray
    seconds: np.ndarray
    dollars: np.ndarray
    common_dollars: np.ndarray
    returns: np.ndarray

    @property
    def final_return(self) -> float:
        return float(last(self.returns).mean())


def last(values: np.ndarray) -> np.ndarray:
    """The last values of a curve [points], at least one."""
    return values[-max(1, round(LAST * len(values))) :]


def final_returns(found: Sequence[Run]) -> np.ndarray:
    """Final return of every seed of some runs."""
    curves = [np.array(list(column)) for run in found for column in zip(*_evaluated(run), strict=True)]
    return np.array([last(curve).mean() for curve in curves])


def _evaluated(run: Run) -> list[list[float]]:
    """Returns `[points][seeds]`."""
    return [record["per_seed"]["eval_return_mean"] for record in run.evaluations]


def histories(found: Sequence[Run], billed: Config) -> list[History]:
    """The histories of all seeds of some runs, their time and money as `billed` has it.

    `billed` is the configuration of the runs, but for how it is billed.
    """
    result = []
    for run in found:
        rounds = [record["round"] for record in run.evaluations]
        steps = np.array([record["env_steps"] for record in run.evaluations])
        for i, returns in enumerate(zip(*_evaluated(run), strict=True)):
            seed = run.config["seed"] + i
            result.append(History(seed, steps, *_money(billed, seed, rounds), np.array(returns)))
    return result


def _money(config: Config, seed: int, rounds: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Simulated seconds and dollars by either rule, since the run began, at the end of these rounds."""
    algorithm = config.algorithm
    timeline = Timeline(
        config.system,
        config.platform,
        config.delays,
        gradients_per_round=algorithm.epochs * algorithm.minibatches,
        seed=seed,
    )
    usages = [timeline.next_round().usage for _ in range(rounds[-1])]
    usages = [usages[round_ - 1] for round_ in rounds]
    seconds = np.array([usage.seconds for usage in usages])
    own, common = (
        np.array([rule(config.system, config.prices, usage, config.platform.actors).total for usage in usages])
        for rule in (bill, common_bill)
    )
    return seconds, own, common


COLUMNS = ("series", "seed", "env_steps", "simulated_seconds", "cost_usd", "cost_common_usd", "return")


def write_csv(series: Mapping[str, Iterable[History]], path: Path) -> None:
    """One line per series, seed and evaluation."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for label, members in series.items():
            for history in members:
                columns = (history.seconds, history.dollars, history.common_dollars, history.returns)
                for steps, *values in zip(history.env_steps, *columns, strict=True):
                    writer.writerow([label, history.seed, int(steps), *(f"{value:.5g}" for value in values)])
