"""Numbers of the study of stale completions by how often decoupled PPO renews its proximal policy."""

from __future__ import annotations

from functools import partial

import numpy as np

from published.case import Case
from published.statistics import paired
from published.study_runs import Setting, runs_at
from published.texts import decimal, loss, row, span

PAGE = "results/tokens/README.md"
SEEDS, RATE, AGE = range(8, 16), "1e-4", 64
INTERVALS = {16: "decoupled", 4: "decoupled at 4", 1: "decoupled at 1"}
"""Methods by the updates after which the proximal policy is renewed."""


def areas(method: str) -> np.ndarray:
    """Mean shares of right completions over the run, by seed."""
    setting = Setting("tokens/addition", (0.0, 1.0), "renewal", method, AGE)
    return np.array([run.area for run in runs_at(setting, RATE, SEEDS)])


def row_of(interval: int) -> str:
    ours = areas(INTERVALS[interval])
    clip, tis = (paired(ours, areas(other)) for other in ("PPO clip", "TIS"))
    return row(decimal(ours.mean()), loss(clip, 3), loss(tis, 3))


CASES = [
    Case(PAGE, "**Intervals of 1, 4 and 16 updates", "by 0.07 to 0.08",
         lambda: "by " + span(paired(areas(each), areas("PPO clip")).mean for each in INTERVALS.values())),
    *(Case(PAGE, near, printed, partial(row_of, interval)) for near, printed, interval in (
        ("| decoupled PPO, renewed every 16 updates |", "0.78 | 0.074 ± 0.008 | 0.004 ± 0.002", 16),
        ("| every 4 |", "0.79 | 0.080 ± 0.007 | 0.010 ± 0.002", 4),
        ("| every update |", "0.78 | 0.069 ± 0.009 | −0.001 ± 0.004", 1),
    )),
    Case(PAGE, "**How sure.** As above, on addition alone", "by 0.006 ± 0.002",
         lambda: f"by {loss(paired(areas(INTERVALS[4]), areas(INTERVALS[16])), 3)}"),
]  # fmt: skip
