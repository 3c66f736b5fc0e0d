"""Runs of the studies of actors, tokens and off-policy algorithms, whose files have the same columns."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from published.files import numbers, table

COLUMNS = ("question", "method", "level", "rate", "seed", "rounds", "returns", "seconds", "data_lag",
           "fragments_dropped_slowness", "fragments_dropped_return")  # fmt: skip
JUDGING = range(8, 16)
"""Seeds that judge a learning rate."""


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
      rounds: rounds before each evaluation.
      shares: returns of the evaluations, as shares of the way to solved.
      seconds: simulated seconds of these evaluations.
      line: its row of the file.
    """

    rounds: np.ndarray
    shares: np.ndarray
    seconds: np.ndarray
    line: dict[str, str]

    @property
    def area(self) -> float:
        """Learning-curve area over rounds, by trapezoids."""
        heights, widths = (self.shares[1:] + self.shares[:-1]) / 2, np.diff(self.rounds)
        return float((heights * widths).sum() / self.rounds[-1])

    @property
    def choosing(self) -> float:
        """Mean of 20 equal parts of the curve, of which those that lack are as the end."""
        parts = [*((self.shares[1:] + self.shares[:-1]) / 2), *[self.shares[-1]] * (21 - len(self.shares))]
        return float(np.mean(parts))

    @property
    def final(self) -> float:
        """Mean of the evaluations in the last fifth of the run."""
        return float(self.shares[5 * self.rounds > 4 * self.rounds[-1]].mean())

    def area_until(self, end: float) -> float:
        """Learning-curve area over the first seconds."""
        heights = np.interp(np.linspace(0, end, 201), self.seconds, self.shares)
        return float(np.mean((heights[1:] + heights[:-1]) / 2))

    def value(self, column: str) -> float:
        return float(self.line[column])


class Setting(NamedTuple):
    """A setting of a study.

    Attributes:
      file: the task's file of results, without its ending.
      way: returns at which the way to solved begins and ends.
      question: part of the study.
      method: the method.
      level: lag, bound, steps or learners.
    """

    file: str
    way: tuple[float, float]
    question: str
    method: str
    level: int


@functools.cache
def all_runs(file: str, way: tuple[float, float]) -> dict[tuple[str, str, int, str], dict[int, Run]]:
    """Runs by question, method, level and learning rate, and then by seed."""
    untrained, solved = way
    found: dict[tuple[str, str, int, str], dict[int, Run]] = defaultdict(dict)
    for line in table(f"{file}.csv.gz", *COLUMNS):
        shares = (numbers(line["returns"]) - untrained) / (solved - untrained)
        place = line["question"], line["method"], int(line["level"]), line["rate"]
        found[place][int(line["seed"])] = Run(numbers(line["rounds"]), shares, numbers(line["seconds"]), line)
    return found


def runs_at(setting: Setting, rate: str, seeds: Iterable[int] = JUDGING) -> list[Run]:
    """Runs of one learning rate."""
    by_seed = all_runs(setting.file, setting.way)[setting.question, setting.method, setting.level, rate]
    return [by_seed[seed] for seed in seeds]


@functools.cache
def rates_of(setting: Setting, seeds: range) -> tuple[str, ...]:
    """Learning rates of which all of these seeds were trained, the lowest first."""
    places = all_runs(setting.file, setting.way).items()
    found = [place[3] for place, by_seed in places if place[:3] == setting[2:] and all(s in by_seed for s in seeds)]
    return tuple(sorted(found, key=float))


def best_of(setting: Setting, rates: Iterable[str], tuning: range) -> str:
    """Learning rate that the tuning seeds prefer."""
    return max(rates, key=lambda rate: np.mean([run.choosing for run in runs_at(setting, rate, tuning)]))
