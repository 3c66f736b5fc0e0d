"""Numbers of the map's equivalence: methods beside plain async on seeds that chose nothing."""

from __future__ import annotations

import functools

from published.case import Case
from published.map_runs import areas_at, best_rate
from published.statistics import Difference, welch
from published.texts import WORDS, plus_minus

FRONT, FINDINGS, PAGE = "README.md", "results/README.md", "results/map/README.md"
SEEDS = {"cartpole": range(16, 56), "acrobot": range(16, 116)}
MARGIN = 0.05
METHODS = (
    "all-reduce", "SSP", "softsync", "softsync, w = 1/s", "Stellaris", "w", "truncation", "w, truncation", "gate",
    "gate, w", "gate, truncation", "gate, w, truncation", "w on the gradient", "polynomial", "hinge", "exponential",
    "FedBuff", "gap-aware", "less momentum", "KL gate", "norm ratio", "drop above 8", "wait at 8",
    "capacity (AReaL)", "in order", "V-trace", "TIS", "CISPO", "SAPO", "TOPR", "BAPO", "DPPO", "M2PO",
)  # fmt: skip
"""Methods that do something with 8 learners, the norm ratio on CartPole alone."""


def areas_of(task: str, method: str) -> list[float]:
    return areas_at(task, method, 8, best_rate(task, method, 8), seeds=SEEDS[task]).tolist()


@functools.cache
def differences(task: str) -> dict[str, Difference]:
    methods = [method for method in METHODS if (task, method) != ("acrobot", "norm ratio")]
    return {method: welch(areas_of(task, method), areas_of(task, "async")) for method in methods}


def equal(one: Difference) -> bool:
    """Whether the interval lies within the margin."""
    return abs(one.mean) + one.half < MARGIN


def worse(one: Difference) -> bool:
    """Whether the interval lies below the margin."""
    return one.mean + one.half < -MARGIN


def better(one: Difference) -> bool:
    """Whether the interval lies above zero."""
    return one.mean - one.half > 0.0


def lower(one: Difference) -> bool:
    """Whether the interval lies below zero, and not below the margin."""
    return one.mean + one.half < 0.0 and not worse(one)


def unknown(one: Difference) -> bool:
    """Whether the interval holds zero, and more than the margin."""
    return abs(one.mean) <= one.half and not equal(one)


VERDICTS = {"equal": equal, "worse": worse, "better": better, "lower": lower, "unknown": unknown}


def number(task: str, verdict: str) -> int:
    return sum(map(VERDICTS[verdict], differences(task).values()))


def in_words(task: str) -> list[str]:
    """Numbers of methods that are equal, worse and better."""
    return [WORDS[number(task, verdict)].replace("no", "none") for verdict in ("equal", "worse", "better")]


def on_acrobot() -> str:
    return "On Acrobot {} is equal, {} are worse, and {} is better".format(*in_words("acrobot"))


def widths(task: str) -> str:
    halves = [one.half for one in differences(task).values()]
    return f"± {min(halves):.3f} to {max(halves):.3f}"


def headline() -> str:
    text = "{} are equal to it within 0.05, {} are worse by more, and {} is shown to be better"
    return text.format(*in_words("cartpole"))


CASES = [
    Case(PAGE, "**On CartPole with 8 learners, twelve",
         "twelve are equal to it within 0.05, eight are worse by more, and none is shown to be better", headline),
    Case(PAGE, "| CartPole, beside plain async, 0.793", "0.793 ± 0.021",
         lambda: plus_minus(areas_of("cartpole", "async"), 3)),
    Case(PAGE, "**On CartPole with 8 learners, twelve", "On Acrobot one is equal, five are worse, and none is better",
         on_acrobot),
    Case(PAGE, "| Acrobot, beside plain async", "0.830 ± 0.040", lambda: plus_minus(areas_of("acrobot", "async"), 3)),
    Case(PAGE, "**How sure.** CartPole's seeds", "± 0.045 to 0.083", lambda: widths("acrobot")),
    Case(PAGE, "| no difference shown, nor equality | the other", "the other 22",
         lambda: f"the other {number('acrobot', 'unknown')}"),
    Case(PAGE, "| Which method, with a tuned rate? |", "on CartPole 12 are equal to it, 8 worse; on Acrobot 1 and 5",
         lambda: f"on CartPole {number('cartpole', 'equal')} are equal to it, {number('cartpole', 'worse')} worse; "
                 f"on Acrobot {number('acrobot', 'equal')} and {number('acrobot', 'worse')}"),
    Case(FRONT, "| Which rule is best? |", "1 and 5 on Acrobot (100 seeds, 22 open)",
         lambda: f"{number('acrobot', 'equal')} and {number('acrobot', 'worse')} on Acrobot (100 seeds, "
                 f"{number('acrobot', 'unknown')} open)"),
    Case(FRONT, "| Which rule is best? |", "On CartPole 12 are equal to it within 0.05, and 8 worse",
         lambda: f"On CartPole {number('cartpole', 'equal')} are equal to it within 0.05, and "
                 f"{number('cartpole', 'worse')} worse"),
    Case(FINDINGS, "**With tuned learning rates and 8 learners",
         "on CartPole 12 are equal to it within 0.05 and 8 worse",
         lambda: f"on CartPole {number('cartpole', 'equal')} are equal to it within 0.05 and "
                 f"{number('cartpole', 'worse')} worse"),
]  # fmt: skip
