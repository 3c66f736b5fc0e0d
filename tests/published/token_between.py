"""Numbers of completions that are 16 and 32 updates old, beside fresh ones of the same machine."""

from __future__ import annotations

from functools import partial

import numpy as np

from published.case import Case
from published.statistics import Difference, paired
from published.study_runs import runs_at
from published.texts import decimal, loss, row
from published.tokens import PAGE, TUNING, Setting, areas, ends, on_addition

CLIP, DECOUPLED = "PPO clip", "decoupled"
AGES = (16, 32)


def at(method: str, age: int) -> Setting:
    return on_addition(method, age, "between")


def lost(method: str, age: int) -> Difference:
    """What completions of this age cost over the run."""
    return paired(areas(at(method, 0)), areas(at(method, age)))


def ahead(age: int) -> Difference:
    """How much more decoupled PPO learns than PPO's clip."""
    return paired(areas(at(DECOUPLED, age)), areas(at(CLIP, age)))


def ahead_at_the_end(age: int) -> Difference:
    return paired(ends(at(DECOUPLED, age)), ends(at(CLIP, age)))


def lost_at_one_rate(age: int) -> float:
    """What completions of this age cost PPO's clip at 1e-4, on the seeds that chose the rates."""
    fresh, old = (np.mean([run.area for run in runs_at(at(CLIP, own), "1e-4", TUNING)]) for own in (0, age))
    return float(fresh - old)


def row_of(method: str) -> str:
    shares = (decimal(areas(at(method, age)).mean()) for age in (0, *AGES))
    return row(*shares, loss(lost(method, 32), 3))


def means(differences: list[Difference]) -> str:
    return " and ".join(f"{difference.mean:.3f}" for difference in differences)


HOW_SURE = "with the first policies of the section before"
OF_THE_CLIP = "**On addition PPO's clip loses 0.030"
CASES = [
    Case(PAGE, OF_THE_CLIP, "0.030 ± 0.012", lambda: loss(lost(CLIP, 16), 3)),
    Case(PAGE, OF_THE_CLIP, "0.048 ± 0.011", lambda: loss(lost(CLIP, 32), 3)),
    Case(PAGE, OF_THE_CLIP, "0.025 ± 0.011", lambda: loss(ahead(16), 3)),
    Case(PAGE, OF_THE_CLIP, "0.043 ± 0.006", lambda: loss(ahead(32), 3)),
    Case(PAGE, "| PPO's clip | 0.78 | 0.75 |", "0.78 | 0.75 | 0.74 | 0.048 ± 0.011", partial(row_of, CLIP)),
    Case(PAGE, "| decoupled PPO | 0.78 | 0.78 | 0.78 | 0.005", "0.78 | 0.78 | 0.78 | 0.005 ± 0.010",
         partial(row_of, DECOUPLED)),
    Case(PAGE, "| 16 and 32 | decoupled PPO", "0.025 and 0.043", lambda: means([ahead(age) for age in AGES])),
    Case(PAGE, "| 16 and 32 | decoupled PPO", "0.030 and 0.048", lambda: means([lost(CLIP, age) for age in AGES])),
    Case(PAGE, HOW_SURE, "0.83 with fresh completions, 0.84 at 16 and at 32",
         lambda: "{} with fresh completions, {} at 16 and at 32".format(
             decimal(ends(at(CLIP, 0)).mean()), *{decimal(ends(at(CLIP, age)).mean()) for age in AGES})),
    Case(PAGE, HOW_SURE, "0.016 ± 0.013", lambda: loss(ahead_at_the_end(16), 3)),
    Case(PAGE, HOW_SURE, "0.015 ± 0.012", lambda: loss(ahead_at_the_end(32), 3)),
    Case(PAGE, HOW_SURE, "0.023 and 0.036", lambda: " and ".join(f"{lost_at_one_rate(age):.3f}" for age in AGES)),
]  # fmt: skip
