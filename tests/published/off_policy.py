"""Numbers of the study of DQN and SAC."""

from __future__ import annotations

import functools
from functools import partial

import numpy as np

from published.case import Case
from published.statistics import paired
from published.study_runs import Run, Setting, all_runs, best_of, rates_of, runs_at
from published.texts import loss, plus_minus, row, significant

FRONT, PAGE = "README.md", "results/off_policy/README.md"
WAYS = {
    "pendulum, SAC": (-1200.0, -200.0),
    "pendulum, PPO": (-1200.0, -200.0),
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


def row_of_task(task: str) -> str:
    """Areas by number of learners."""
    return row(*(plus_minus(areas(task, learners)) for learners in (1, 2, 4, 8, 32)))


def half_way(run: Run) -> float:
    """Share of the run after which its curve first is half-way to solved; infinite if it never is."""
    (above,) = np.nonzero(run.shares >= 0.5)
    if not len(above):
        return np.inf
    last = int(above[0])
    (low, high), (begin, end) = run.shares[last - 1 : last + 1], run.rounds[last - 1 : last + 1]
    return float((begin + (0.5 - low) / (high - low) * (end - begin)) / run.rounds[-1])


def row_of_slowness(task: str) -> str:
    """Steps to half-way beside one learner's, by number of learners, or how many seeds get there."""
    alone, cells = float(np.median([half_way(run) for run in judged(task, 1)])), []
    for learners in (2, 4, 8, 32):
        ways = np.array([half_way(run) for run in judged(task, learners)])
        all_there = np.isfinite(ways).all()
        some = f"{np.isfinite(ways).sum()} of {len(ways)} seeds get there"
        cells.append(f"{significant(float(np.median(ways)) / alone, 2)} times" if all_there else some)
    return row(*cells)


def run_over_way(task: str) -> str:
    """Length of a run, in what one learner takes to half-way."""
    return f"{significant(1.0 / float(np.median([half_way(run) for run in judged(task, 1)])), 2)} times"


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
    Case(FRONT, "Does staleness hurt DQN and SAC?",
         "one learner 0.67 ± 0.03, 4 learners 0.21 ± 0.09, 8 learners −0.11 ± 0.06",
         lambda: "one learner {}, 4 learners {}, 8 learners {}".format(
             *(plus_minus(areas("pendulum, SAC", number)) for number in (1, 4, 8)))),
    *(Case(PAGE, f"| {near} | {printed[:4]}", printed, partial(row_of_task, task)) for near, task, printed in (
        ("pendulum, SAC", "pendulum, SAC", "0.67 ± 0.03 | 0.54 ± 0.03 | 0.21 ± 0.09 | −0.11 ± 0.06 | −0.15 ± 0.02"),
        ("pendulum, PPO", "pendulum, PPO", "0.82 ± 0.04 | 0.80 ± 0.03 | 0.70 ± 0.03 | 0.49 ± 0.04 | 0.48 ± 0.10"),
        ("CartPole, DQN", "cartpole, DQN", "0.43 ± 0.10 | 0.42 ± 0.08 | 0.36 ± 0.07 | 0.39 ± 0.13 | 0.36 ± 0.08"),
        ("CartPole, PPO", "cartpole, PPO", "0.77 ± 0.06 | 0.72 ± 0.08 | 0.75 ± 0.11 | 0.71 ± 0.09 | 0.71 ± 0.08"),
    )),
    Case(PAGE, "**How sure?**", "0.46 ± 0.09 with four learners and 0.78 ± 0.06 with eight",
         lambda: "{} with four learners and {} with eight".format(*losses("pendulum, SAC"))),
    Case(PAGE, "**How sure?**", "0.12 ± 0.05 with four and 0.33 ± 0.06 with eight",
         lambda: "{} with four and {} with eight".format(*losses("pendulum, PPO"))),
    Case(PAGE, "At the end of the run SAC has",
         "1.05 with one learner, 1.05 with two, 0.93 ± 0.10 with four and 0.09 ± 0.14 with eight",
         lambda: "{:.2f} with one learner, {:.2f} with two, {} with four and {} with eight".format(
             *(ends("pendulum, SAC", number).mean() for number in (1, 2)),
             *(plus_minus(ends("pendulum, SAC", number)) for number in (4, 8)))),
    *(Case(PAGE, f"| {task} | {printed[:9]}", printed, partial(row_of_slowness, task)) for task, printed in (
        ("pendulum, SAC", "1.3 times | 2.0 times | 3 of 8 seeds get there | 2 of 8 seeds get there"),
        ("pendulum, PPO", "1.1 times | 1.9 times | 4.1 times | 3.8 times"))),
    *(Case(PAGE, "Ratios of medians over seeds", printed, partial(run_over_way, task)) for task, printed in (
        ("pendulum, SAC", "3.1 times"), ("pendulum, PPO", "7.8 times"))),
    Case(PAGE, "**How sure?**", "losses of up to 0.24", not_excluded),
    Case(PAGE, "- Learning rates: five half-decades", "582 runs", all_of_them),
]  # fmt: skip
