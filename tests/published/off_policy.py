"""Numbers of the study of DQN and SAC."""

from __future__ import annotations

import functools
from functools import partial

import numpy as np

from published.case import Case
from published.statistics import paired
from published.study_runs import Run, Setting, all_runs, best_of, rates_of, runs_at
from published.texts import loss, plus_minus, row

FRONT, PAGE = "README.md", "results/off_policy/README.md"
WAYS = {
    "pendulum, SAC": (-1500.0, -200.0),
    "pendulum, PPO": (-1500.0, -200.0),
    "cartpole, DQN": (20.0, 475.0),
    "cartpole, PPO": (20.0, 475.0),
}
"""Returns at which the way to solved begins and ends."""
TUNING = range(3)


@functools.cache
def areas(task: str, learners: int) -> np.ndarray:
    """Areas of the judging runs at the best learning rate."""
    return np.array([run.area for run in judged(task, learners)])


def ends(task: str, learners: int) -> np.ndarray:
    """Final returns of the judging runs at the best learning rate."""
    return np.array([run.final for run in judged(task, learners)])


def judged(task: str, learners: int) -> list[Run]:
    setting = Setting(f"off_policy/{task}", WAYS[task], "staleness", "async", learners)
    return runs_at(setting, best_of(setting, rates_of(setting, TUNING), TUNING))


def row_of_task(task: str, bold: int = 0) -> str:
    """Areas by number of learners, of which one may be in bold."""
    texts = {learners: plus_minus(areas(task, learners)) for learners in (1, 2, 4, 8, 32)}
    return row(*(f"**{text}**" if learners == bold else text for learners, text in texts.items()))


def losses(task: str) -> tuple[str, str]:
    """What staleness costs with four and eight learners."""
    four, eight = (loss(paired(areas(task, 1), areas(task, learners))) for learners in (4, 8))
    return four, eight


def not_excluded() -> str:
    """The largest loss of DQN that an interval has."""
    every = [paired(areas("cartpole, DQN", 1), areas("cartpole, DQN", learners)) for learners in (2, 4, 8, 16, 32)]
    return f"losses of up to {max(each.mean + each.half for each in every):.2f}"


def all_of_them() -> str:
    settings = [by_seed for task, way in WAYS.items() for by_seed in all_runs(f"off_policy/{task}", way).values()]
    return f"{sum(map(len, settings))} runs"


CASES = [
    Case(FRONT, "Do DQN and SAC bear it?", "4 learners 0.39 ± 0.07, 8 learners 0.14 ± 0.04, one learner 0.74 ± 0.02",
         lambda: "4 learners {}, 8 learners {}, one learner {}".format(
             *(plus_minus(areas("pendulum, SAC", number)) for number in (4, 8, 1)))),
    Case(PAGE, "| pendulum, SAC |", "0.74 ± 0.02 | 0.64 ± 0.02 | 0.39 ± 0.07 | **0.14 ± 0.04** | 0.12 ± 0.02",
         partial(row_of_task, "pendulum, SAC", bold=8)),
    *(Case(PAGE, f"| {near} |", printed, partial(row_of_task, task)) for near, task, printed in (
        ("pendulum, PPO", "pendulum, PPO", "0.86 ± 0.03 | 0.85 ± 0.02 | 0.77 ± 0.02 | 0.61 ± 0.03 | 0.60 ± 0.08"),
        ("CartPole, DQN", "cartpole, DQN", "0.43 ± 0.10 | 0.42 ± 0.08 | 0.36 ± 0.07 | 0.39 ± 0.13 | 0.36 ± 0.08"),
        ("CartPole, PPO", "cartpole, PPO", "0.77 ± 0.06 | 0.72 ± 0.08 | 0.75 ± 0.11 | 0.71 ± 0.09 | 0.71 ± 0.08"),
    )),
    Case(PAGE, "**How sure?**", "0.35 ± 0.07 with four learners and 0.60 ± 0.05 with eight",
         lambda: "{} with four learners and {} with eight".format(*losses("pendulum, SAC"))),
    Case(PAGE, "**How sure?**", "0.09 ± 0.04 with four and 0.25 ± 0.04 with eight",
         lambda: "{} with four and {} with eight".format(*losses("pendulum, PPO"))),
    Case(PAGE, "At the end of the run SAC has",
         "1.04 with one learner, 1.03 with two, 0.94 ± 0.08 with four and 0.30 ± 0.11 with eight",
         lambda: "{:.2f} with one learner, {:.2f} with two, {} with four and {} with eight".format(
             *(ends("pendulum, SAC", number).mean() for number in (1, 2)),
             *(plus_minus(ends("pendulum, SAC", number)) for number in (4, 8)))),
    Case(PAGE, "**How sure?**", "losses of up to 0.24", not_excluded),
    Case(PAGE, "- Learning rates: five half-decades", "582 runs", all_of_them),
]  # fmt: skip
