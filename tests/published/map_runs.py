"""Runs of the map, and the measures that its pages take of them."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from published.files import numbers, table
from published.statistics import Difference, welch
from published.texts import significant

TASKS = {
    "cartpole": (20.0, 475.0),
    "acrobot": (-500.0, -100.0),
    "breakout": (0.4, 10.0),
    "asterix": (0.45, 1.5),
    "pendulum": (10.0, 900.0),
    "brax_hopper": (95.0, 550.0),
    "hopper": (15.0, 400.0),
}
"""Returns at which the way to solved begins and ends."""
RATES = ("3e-4", "1e-3", "3e-3", "1e-2", "3e-2")
"""Learning rates that all methods have; envpool's Hopper has the first three."""
TUNING, JUDGING = range(8), range(8, 16)
"""Seeds that choose a learning rate, and those that judge it."""
COLUMNS = ("method", "learners", "rate", "variation", "seed", "rounds", "returns", "seconds", "cost_usd")
GATE = "KL gate at 0.01"
CORE = ("all-reduce", "async", "SSP", "softsync", "softsync, w = 1/s", "Stellaris", "w", "gate, w", "KL gate",
        "less momentum", "DC-ASGD")  # fmt: skip
"""Methods that are compared for equal seconds and dollars."""


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
      rounds: rounds of the run.
      shares: mean returns of 20 stretches of consecutive rounds, as shares of the way to solved.
      seconds: simulated seconds at the ends of these stretches.
      dollars: the bill of the whole run.
    """

    rounds: int
    shares: np.ndarray
    seconds: np.ndarray
    dollars: float

    @property
    def area(self) -> float:
        """Learning-curve area over env steps; the first stretches have a round more, and no round counts twice."""
        number = len(self.shares)
        if self.rounds < number:
            _, firsts = np.unique(np.arange(number) * self.rounds // number, return_index=True)
            return float(self.shares[firsts].mean())
        lengths = self.rounds // number + (np.arange(number) < self.rounds % number)
        return float((self.shares * lengths).sum() / self.rounds)

    @property
    def choosing(self) -> float:
        """Mean over stretches, which chooses learning rates."""
        return float(self.shares.mean())

    @property
    def final(self) -> float:
        """Mean of the last tenth."""
        return float(self.shares[-2:].mean())

    def seconds_to(self, goal: float) -> float:
        """Seconds until a stretch's mean is as high as the goal."""
        reached = np.flatnonzero(self.shares >= goal)
        return float(self.seconds[reached[0]]) if len(reached) else np.inf

    def area_until(self, end: float) -> float:
        """Learning-curve area over the first seconds; a stretch's mean is that of its middle."""
        begins = np.concatenate([[0.0], self.seconds[:-1]])
        return float(np.interp(np.linspace(0, end, 200), (begins + self.seconds) / 2, self.shares).mean())


@functools.cache
def _runs(task: str) -> dict[tuple[str, int, str, str], dict[int, Run]]:
    """Runs by method, learners, learning rate and variation, and then by seed."""
    untrained, solved = TASKS[task]
    found: dict[tuple[str, int, str, str], dict[int, Run]] = defaultdict(dict)
    for line in table(f"map/{task}.csv.gz", *COLUMNS):
        shares = (numbers(line["returns"]) - untrained) / (solved - untrained)
        place = line["method"], int(line["learners"]), line["rate"], line["variation"]
        found[place][int(line["seed"])] = Run(
            int(line["rounds"]), shares, numbers(line["seconds"]), float(line["cost_usd"])
        )
    return found


def _kept_as(method: str, learners: int, variation: str) -> str:
    """The method as it is in the files: all methods are one with one learner and data that are not stale."""
    return "all-reduce" if learners == 1 and not variation.startswith("lag") else method


def runs_at(
    task: str, method: str, learners: int, rate: str, variation: str = "", seeds: Iterable[int] = JUDGING
) -> list[Run]:
    """Runs of one learning rate."""
    by_seed = _runs(task)[_kept_as(method, learners, variation), learners, rate, variation]
    return [by_seed[seed] for seed in seeds]


def areas_at(
    task: str, method: str, learners: int, rate: str, variation: str = "", seeds: Iterable[int] = JUDGING
) -> np.ndarray:
    """Areas of the runs of one learning rate."""
    return np.array([run.area for run in runs_at(task, method, learners, rate, variation, seeds)])


@functools.cache
def best_rate(task: str, method: str, learners: int, variation: str = "") -> str:
    """Learning rate that the tuning seeds prefer."""
    kept_as = _kept_as(method, learners, variation)
    rates = [
        rate
        for (name, number, rate, changed), by_seed in _runs(task).items()
        if (name, number, changed) == (kept_as, learners, variation) and all(seed in by_seed for seed in TUNING)
    ]

    def preferred(rate: str) -> float:
        return float(np.mean([run.choosing for run in runs_at(task, method, learners, rate, variation, TUNING)]))

    return max(sorted(rates, key=float), key=preferred)


def runs(task: str, method: str, learners: int) -> list[Run]:
    """Judging runs at the best learning rate."""
    return runs_at(task, method, learners, best_rate(task, method, learners))


def areas(task: str, method: str, learners: int, variation: str = "") -> np.ndarray:
    """Areas of the judging runs at the best learning rate."""
    return areas_at(task, method, learners, best_rate(task, method, learners, variation), variation)


def one_learner(task: str) -> np.ndarray:
    """Areas of one learner at its best learning rate."""
    return areas(task, "all-reduce", 1)


def areas_over_rates(
    task: str, method: str, learners: int, rates: Sequence[str] = (), seeds: Iterable[int] = JUDGING
) -> np.ndarray:
    """Areas of each seed, means over learning rates that all methods share."""
    shared = rates or (RATES[:3] if task == "hopper" else RATES)
    return np.mean([areas_at(task, method, learners, rate, "", seeds) for rate in shared], axis=0)


def areas_with(variation: str, method: str, task: str = "cartpole") -> np.ndarray:
    """Areas with one thing changed, at the learning rate that is best without the change."""
    return areas_at(task, method, 8, best_rate(task, method, 8), variation)


def areas_on_stale_data(method: str, age: int) -> np.ndarray:
    """Areas of one learner on CartPole, from data up to so many updates old; PPO is kept as all-reduce."""
    return areas("cartpole", "all-reduce" if method == "PPO" else method, 1, f"lag {age}")


# Seconds --------------------------------------------------------------------------------------------------------------


def seconds_to_half(task: str, method: str, learners: int) -> np.ndarray:
    """Seconds to half of what one learner ends with, its ends being those of the tuning seeds."""
    rate = best_rate(task, "all-reduce", 1)
    goal = np.mean([run.final for run in runs_at(task, "all-reduce", 1, rate, seeds=TUNING)]) / 2
    return np.array([run.seconds_to(float(goal)) for run in runs(task, method, learners)])


def speed(task: str, method: str, learners: int) -> Difference | None:
    """Doublings of speed beside one learner, if all seeds get there."""
    alone, together = seconds_to_half(task, "all-reduce", 1), seconds_to_half(task, method, learners)
    if not np.isfinite([*alone, *together]).all():
        return None
    return welch(np.log2(alone), np.log2(together))


def times_as_fast(task: str, method: str, learners: int, middle: str = " ") -> str:
    """Ratio of geometric mean seconds, with its interval; or how many seeds get there."""
    doublings = speed(task, method, learners)
    if doublings is None:
        return f"{np.isfinite(seconds_to_half(task, method, learners)).sum()} of 8 seeds"
    return in_factors(doublings, middle)


def in_factors(doublings: Difference | None, middle: str = " ") -> str:
    """Factor of so many doublings, with its interval."""
    assert doublings is not None
    low, high = doublings.mean - doublings.half, doublings.mean + doublings.half
    ratio, least, most = (significant(2**power, 2) for power in (doublings.mean, low, high))
    return f"{ratio}{middle}({least} to {most})"


def beside(task: str, learners: int, hardware: str) -> Difference | None:
    """Doublings of async's speed beside one learner on other hardware, if all seeds get there."""
    alone, together = seconds_to_half(task, "all-reduce", 1), seconds_to_half(task, "async", learners)
    if not np.isfinite([*alone, *together]).all():
        return None
    return welch(np.log2(alone * factors(task, hardware)), np.log2(together))


def factors(task: str, hardware: str) -> np.ndarray:
    """Seconds of one learner on other hardware, over its own, of the judging seeds."""
    lines = sorted(table("map/figure_speed_hardware.csv"), key=lambda line: int(line["seed"]))
    return np.array([float(line["seconds"]) for line in lines if (line["task"], line["hardware"]) == (task, hardware)])


@functools.cache
def equal_expense(learners: int) -> tuple[float, float]:
    """Seconds and dollars of CartPole's shortest and cheapest run."""
    every = [run for method in CORE for run in runs("cartpole", method, learners)]
    return min(float(run.seconds[-1]) for run in every), min(run.dollars for run in every)


def area_for_equal_seconds(method: str, learners: int) -> float:
    """Mean area in as many seconds as the shortest run takes."""
    end, _ = equal_expense(learners)
    return float(np.mean([run.area_until(end) for run in runs("cartpole", method, learners)]))


def area_for_equal_dollars(method: str, learners: int) -> float:
    """Mean area for as many dollars as the cheapest run costs; a run's dollars are spent evenly over its seconds."""
    _, dollars = equal_expense(learners)
    ends = [(run, dollars / run.dollars * float(run.seconds[-1])) for run in runs("cartpole", method, learners)]
    return float(np.mean([run.area_until(end) for run, end in ends]))
