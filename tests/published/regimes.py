"""Numbers of the simulated timelines."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from published.case import Case
from published.files import numbers, table
from published.texts import row, significant, significant_span

FRONT, FINDINGS, PAGE = "README.md", "results/README.md", "results/regimes/README.md"
COLUMNS = ("ratio", "tail", "failure", "start", "learners", "rule", "actors", "seconds")
SYSTEMS = {
    "pipelined actors": ("all-reduce", "pipelined"),
    "asynchronous actors": ("all-reduce", "independent"),
    "asynchronous learners": ("async", "barrier"),
    "both": ("async", "independent"),
    "one fast learner": ("one fast learner", "barrier"),
    "one fast learner, asynchronous actors": ("one fast learner", "independent"),
}
"""Rule of aggregation and way of actors of each column."""
RATIOS = (1 / 64, 1 / 16, 1 / 4, 1.0)
"""Seconds of a rollout, as shares of what one learner takes to learn from a batch."""
LEARNERS = (1, 2, 4, 8, 16, 32, 64)
FEW_AND_MANY = (8, 32)
VARYING = ("exponential", "Pareto")


class Timeline(NamedTuple):
    """One simulated setting, by the columns of the file."""

    ratio: float
    tail: str
    failure: float
    start: str
    learners: int
    rule: str
    actors: str


@functools.cache
def seconds() -> dict[Timeline, np.ndarray]:
    """Seconds of every setting, by seed."""
    found = {}
    for line in table("regimes/timelines.csv.gz", *COLUMNS):
        place = Timeline(
            float(line["ratio"]), line["tail"], float(line["failure"]), line["start"], int(line["learners"]),
            line["rule"], line["actors"],
        )  # fmt: skip
        found[place] = numbers(line["seconds"])
    return found


def speeds(tail: str, learners: int, system: str, failure: float = 0.0, start: str = "warm") -> list[float]:
    """Times as fast as all-reduce with actors that wait, means over seeds, one for each length of rollouts."""
    found = []
    for ratio in RATIOS:
        slow = seconds()[Timeline(ratio, tail, failure, start, learners, "all-reduce", "barrier")]
        fast = seconds()[Timeline(ratio, tail, failure, start, learners, *SYSTEMS[system])]
        found.append(float((slow / fast).mean()))
    return found


def speeds_of_both(tails: Iterable[str], failure: float = 0.0, start: str = "warm") -> list[float]:
    """Speeds of asynchronous actors and learners, with 8 and with 32 learners."""
    return [each for tail in tails for number in FEW_AND_MANY for each in speeds(tail, number, "both", failure, start)]


def row_of_speeds(tail: str, learners: int) -> str:
    return row(*(significant_span(speeds(tail, learners, system)) for system in SYSTEMS))


def alone(system: str) -> str:
    """The highest speed of one of both, with durations that vary."""
    return significant(max(max(speeds(tail, number, system)) for tail in VARYING for number in LEARNERS), 2)


def raised_by_failures() -> str:
    names = {"first": VARYING, "second": ("constant",)}
    raised = [name for name, tails in names.items() if max(speeds_of_both(tails, 0.05)) > max(speeds_of_both(tails))]
    return f"Failures raise the {' and the '.join(raised)} alone"


CASES = [
    Case(FINDINGS, "On equal hardware it wins", "2.1 to 3.5 times as many gradients a second",
         lambda: f"{significant_span(speeds_of_both(VARYING))} times as many gradients a second"),
    Case(FINDINGS, "On equal hardware it wins", "0.97 to 1.6 with constant ones",
         lambda: f"{significant_span(speeds_of_both(['constant']))} with constant ones"),
    Case(PAGE, "both wait for nobody are", "2.1 to 3.5 times as fast",
         lambda: f"{significant_span(speeds_of_both(VARYING))} times as fast"),
    Case(FRONT, "**When does asynchrony win, and by what?**", "2.1 to 3.5 times as fast",
         lambda: f"{significant_span(speeds_of_both(VARYING))} times as fast"),
    Case(FRONT, "**When does asynchrony win, and by what?**", "at most 1.6 times as fast",
         lambda: f"at most {significant(max(speeds_of_both(['constant'])), 2)} times as fast"),
    Case(FRONT, "**When does asynchrony win, and by what?**",
         "Cold starts raise the first figure to 6.1 at most and the second to 2.1",
         lambda: "Cold starts raise the first figure to {} at most and the second to {}".format(
             *(significant(max(speeds_of_both(tails, start="cold")), 2) for tails in (VARYING, ["constant"])))),
    Case(FRONT, "**When does asynchrony win, and by what?**", "Failures raise the second alone", raised_by_failures),
    *(Case(PAGE, f"| {tail} | {learners} |", printed, partial(row_of_speeds, tail, learners))
      for tail, learners, printed in (
        ("constant", 8, "1.1 to 1.5 | 1.1 to 1.5 | 1.0 to 1.0 | 1.1 to 1.6 | 0.77 to 0.96 | 0.84 to 1.5"),
        ("constant", 32, "1.0 to 1.5 | 1.0 to 1.5 | 0.60 to 0.97 | 0.97 to 1.5 | 0.50 to 0.96 | 0.60 to 1.2"),
        ("exponential", 8, "1.1 to 1.5 | 1.1 to 2.9 | 1.1 to 2.0 | 3.0 to 3.5 | 1.1 to 1.8 | 2.2 to 3.4"),
        ("exponential", 32, "1.0 to 1.7 | 1.3 to 2.8 | 1.0 to 1.4 | 2.7 to 3.0 | 1.0 to 1.4 | 2.1 to 3.1"),
        ("Pareto", 8, "1.1 to 1.5 | 1.1 to 2.5 | 1.1 to 1.7 | 2.6 to 2.9 | 1.1 to 1.6 | 2.0 to 2.9"),
        ("Pareto", 32, "1.1 to 1.5 | 1.2 to 2.4 | 1.0 to 1.3 | 2.1 to 2.6 | 1.0 to 1.5 | 2.2 to 2.8"),
    )),
    Case(PAGE, "- *Exponential or Pareto durations*", "2.9 and 2.0",
         lambda: f"{alone('asynchronous actors')} and {alone('asynchronous learners')}"),
    Case(PAGE, "eight rules of aggregation", "8,064 cells", lambda: f"{len(seconds()):,} cells"),
]  # fmt: skip
