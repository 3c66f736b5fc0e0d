"""Numbers of the map's equivalence: methods beside plain async on seeds that chose nothing."""

from __future__ import annotations

import functools

from published.case import Case
from published.map_runs import areas_at, best_rate
from published.statistics import Difference, welch
from published.texts import WORDS, plus_minus

FRONT, FINDINGS, PAGE = "README.md", "results/README.md", "results/map/README.md"
SEEDS = {"cartpole": range(16, 56)}
MARGIN = 0.05
METHODS = (
    "all-reduce", "SSP", "softsync", "softsync, w = 1/s", "Stellaris", "w", "truncation", "w, truncation", "gate",
    "gate, w", "gate, truncation", "gate, w, truncation", "w on the gradient", "polynomial", "hinge", "exponential",
    "FedBuff", "gap-aware", "less momentum", "KL gate", "norm ratio", "drop above 8", "wait at 8",
    "capacity (AReaL)", "in order", "V-trace", "TIS", "CISPO", "SAPO", "TOPR", "BAPO", "DPPO", "M2PO",
)  # fmt: skip
"""Methods that do something with 8 learners."""


def areas_of(task: str, method: str) -> list[float]:
    return areas_at(task, method, 8, best_rate(task, method, 8), seeds=SEEDS[task]).tolist()


@functools.cache
def differences(task: str) -> dict[str, Difference]:
    return {method: welch(areas_of(task, method), areas_of(task, "async")) for method in METHODS}


def equal(one: Difference) -> bool:
    """Whether the interval lies within the margin."""
    return abs(one.mean) + one.half < MARGIN


def worse(one: Difference) -> bool:
    """Whether the interval lies below the margin."""
    return one.mean + one.half < -MARGIN


def better(one: Difference) -> bool:
    """Whether the interval lies above zero."""
    return one.mean - one.half > 0.0


VERDICTS = {"equal": equal, "worse": worse, "better": better}


def number(task: str, verdict: str) -> int:
    return sum(map(VERDICTS[verdict], differences(task).values()))


def headline() -> str:
    same, less, more = (WORDS[number("cartpole", verdict)] for verdict in ("equal", "worse", "better"))
    none = more.replace("no", "none")
    return f"{same} are equal to it within 0.05, {less} are worse by more, and {none} is shown to be better"


CASES = [
    Case(PAGE, "**On CartPole with 8 learners, twelve",
         "twelve are equal to it within 0.05, eight are worse by more, and none is shown to be better", headline),
    Case(PAGE, "| beside plain async, 0.793", "0.793 ± 0.021", lambda: plus_minus(areas_of("cartpole", "async"), 3)),
    Case(PAGE, "| Which method, with a tuned rate? |", "on CartPole 12 are equal to it, 8 worse",
         lambda: f"on CartPole {number('cartpole', 'equal')} are equal to it, {number('cartpole', 'worse')} worse"),
    Case(FRONT, "| Which rule is best? |", "On CartPole 12 are equal to it within 0.05, and 8 worse",
         lambda: f"On CartPole {number('cartpole', 'equal')} are equal to it within 0.05, and "
                 f"{number('cartpole', 'worse')} worse"),
    Case(FINDINGS, "**With tuned learning rates and 8 learners",
         "on CartPole 12 are equal to it within 0.05 and 8 worse",
         lambda: f"on CartPole {number('cartpole', 'equal')} are equal to it within 0.05 and "
                 f"{number('cartpole', 'worse')} worse"),
]  # fmt: skip
