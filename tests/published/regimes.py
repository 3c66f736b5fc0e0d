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


def one_fast_learner() -> str:
    """Speeds of one learner on all of the hardware with asynchronous actors, with durations that vary."""
    name = "one fast learner, asynchronous actors"
    found = [each for tail in VARYING for number in FEW_AND_MANY for each in speeds(tail, number, name)]
    return f"{significant_span(found)} times"


def raised_by_failures() -> str:
    names = {"varying": VARYING, "constant": ("constant",)}
    raised = [name for name, tails in names.items() if max(speeds_of_both(tails, 0.05)) > max(speeds_of_both(tails))]
    return f"Failures raise only the advantage with {' and '.join(raised)} durations"


def most_when_cold(tails: Iterable[str]) -> str:
    return f"at most {significant(max(speeds_of_both(tails, start='cold')), 2)} times"


CASES = [
    *(Case(page, near, "2.5 to 5.2 times", one_fast_learner) for page, near in (
        (PAGE, "*One learner on all of the hardware*"), (FRONT, "One learner that used all of that hardware"))),
    Case(FINDINGS, "On equal hardware it wins", "2.1 to 3.5 times as many gradients a second",
         lambda: f"{significant_span(speeds_of_both(VARYING))} times as many gradients a second"),
    Case(FINDINGS, "On equal hardware it wins", "0.97 to 1.6 with constant ones",
         lambda: f"{significant_span(speeds_of_both(['constant']))} with constant ones"),
    Case(PAGE, "both wait for nobody are", "2.1 to 3.5 times as fast",
         lambda: f"{significant_span(speeds_of_both(VARYING))} times as fast"),
    Case(FRONT, "| vary (exponential, Pareto) |", "2.1 to 3.5 times as fast | at most 6.1 times",
         lambda: f"{significant_span(speeds_of_both(VARYING))} times as fast | {most_when_cold(VARYING)}"),
    Case(FRONT, "| constant |", "0.97 to 1.6 times as fast | at most 2.1 times",
         lambda: f"{significant_span(speeds_of_both(['constant']))} times as fast | {most_when_cold(['constant'])}"),
    Case(PAGE, "- *Cold starts*", "6.1 times with exponential or Pareto durations, and 2.1 times with constant ones",
         lambda: "{} with exponential or Pareto durations, and {} with constant ones".format(
             *(most_when_cold(tails).removeprefix("at most ") for tails in (VARYING, ["constant"])))),
    Case(PAGE, "- *Cold starts*", "Failures raise only the advantage with constant durations", raised_by_failures),
    Case(FRONT, "Failures raise only the advantage", "Failures raise only the advantage with constant durations",
         raised_by_failures),
    *(Case(PAGE, f"| {tail} | {learners} |", printed, partial(row_of_speeds, tail, learners))
      for tail, learners, printed in (
        ("constant", 8, "1.1 to 1.5 | 1.1 to 1.5 | 1.0 to 1.0 | 1.1 to 1.6 | 1.0 to 1.0 | 1.1 to 1.6"),
        ("constant", 32, "1.0 to 1.5 | 1.0 to 1.5 | 0.60 to 0.97 | 0.97 to 1.5 | 1.0 to 1.0 | 1.0 to 1.6"),
        ("exponential", 8, "1.1 to 1.5 | 1.1 to 2.9 | 1.1 to 2.0 | 3.0 to 3.5 | 1.1 to 2.3 | 3.0 to 3.9"),
        ("exponential", 32, "1.0 to 1.7 | 1.3 to 2.8 | 1.0 to 1.4 | 2.7 to 3.0 | 1.0 to 2.3 | 2.8 to 5.1"),
        ("Pareto", 8, "1.1 to 1.5 | 1.1 to 2.5 | 1.1 to 1.7 | 2.6 to 2.9 | 1.1 to 2.2 | 2.6 to 3.3"),
        ("Pareto", 32, "1.1 to 1.5 | 1.2 to 2.4 | 1.0 to 1.3 | 2.1 to 2.6 | 1.0 to 2.7 | 2.5 to 5.2"),
    )),
    Case(PAGE, "- *Exponential or Pareto durations*", "2.9 and 2.0",
         lambda: f"{alone('asynchronous actors')} and {alone('asynchronous learners')}"),
    Case(PAGE, "eight rules of aggregation", "8,064 cells", lambda: f"{len(seconds()):,} cells"),
]  # fmt: skip
