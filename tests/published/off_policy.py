"""Numbers of the study of DQN and SAC."""

from __future__ import annotations

import functools
from functools import partial

import numpy as np

from published.case import Case
from published.statistics import paired
from published.study_runs import Setting, all_runs, best_of, rates_of, runs_at
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
    setting = Setting(f"off_policy/{task}", WAYS[task], "staleness", "async", learners)
    return np.array([run.area for run in runs_at(setting, best_of(setting, rates_of(setting, TUNING), TUNING))])


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
    Case(FRONT, "Do DQN and SAC bear it?", "4 learners 0.96 ± 0.03, 8 learners 0.33 ± 0.16, one learner 1.02",
         lambda: "4 learners {}, 8 learners {}, one learner {:.2f}".format(
             *(plus_minus(areas("pendulum, SAC", number)) for number in (4, 8)), areas("pendulum, SAC", 1).mean())),
    Case(PAGE, "| pendulum, SAC |", "1.02 ± 0.01 | 1.02 ± 0.01 | 0.96 ± 0.03 | **0.33 ± 0.16** | 0.39 ± 0.16",
         partial(row_of_task, "pendulum, SAC", bold=8)),
    *(Case(PAGE, f"| {near} |", printed, partial(row_of_task, task)) for near, task, printed in (
        ("pendulum, PPO", "pendulum, PPO", "0.86 ± 0.03 | 0.85 ± 0.02 | 0.78 ± 0.02 | 0.62 ± 0.03 | 0.61 ± 0.08"),
        ("CartPole, DQN", "cartpole, DQN", "0.47 ± 0.28 | 0.31 ± 0.22 | 0.36 ± 0.18 | 0.44 ± 0.21 | 0.46 ± 0.29"),
        ("CartPole, PPO", "cartpole, PPO", "0.77 ± 0.06 | 0.72 ± 0.07 | 0.75 ± 0.11 | 0.71 ± 0.09 | 0.71 ± 0.08"),
    )),
    Case(PAGE, "**How sure?**", "0.06 ± 0.02 with four learners and 0.70 ± 0.16 with eight",
         lambda: "{} with four learners and {} with eight".format(*losses("pendulum, SAC"))),
    Case(PAGE, "**How sure?**", "0.09 ± 0.04 and 0.25 ± 0.04", lambda: " and ".join(losses("pendulum, PPO"))),
    Case(PAGE, "**How sure?**", "losses of up to 0.43", not_excluded),
    Case(PAGE, "- Learning rates: five half-decades", "585 runs", all_of_them),
]  # fmt: skip
