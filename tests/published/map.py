"""Numbers of the map: seconds, gradients, learning rates, and what else does not compare methods."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.stats import mannwhitneyu

from published.case import Case
from published.map_runs import (
    area_for_equal_dollars,
    area_for_equal_seconds,
    areas,
    areas_at,
    beside,
    best_rate,
    factors,
    in_factors,
    one_learner,
    runs,
    seconds_to_half,
    speed,
    times_as_fast,
)
from published.statistics import holm, welch
from published.texts import PARTS, WORDS, decimal, loss, plus_minus, row, significant_span

FRONT, FINDINGS, PAGE = "README.md", "results/README.md", "results/map/README.md"
FASTER = {
    "CartPole, 8 learners": ("cartpole", 8),
    "CartPole, 32": ("cartpole", 32),
    "Acrobot, 8": ("acrobot", 8),
    "Acrobot, 32": ("acrobot", 32),
    "brax hopper, 16": ("brax_hopper", 16),
    "envpool Hopper, 16": ("hopper", 16),
}
"""Rows of the table of speeds, which have the tasks on which async is faster than one learner."""
SPEEDS = (*FASTER.values(), ("breakout", 16), ("asterix", 16), ("pendulum", 16))
STALE_LEARNERS = {
    "cartpole": (8, 16, 32), "breakout": (16,), "asterix": (16,), "hopper": (16,), "pendulum": (16,),
    "brax_hopper": (16,), "acrobot": (8, 16, 32),
}  # fmt: skip
HARDWARE = ("one learner, no parameter function", "one learner, whole GPU")
"""Hardware on which one learner is timed, besides its own."""
WHOLE_GPU = HARDWARE[1]
SIMPLE = ("Stellaris", "async", "all-reduce")


def speed_of_async() -> str:
    ratios = [speed(task, "async", learners) for task, learners in FASTER.values()]
    return significant_span(2**ratio.mean for ratio in ratios if ratio) + " times as fast as one learner"


def speed_beside(hardware: str) -> str:
    """How much faster async is than one learner on other hardware."""
    differences = [beside(task, learners, hardware) for task, learners in FASTER.values()]
    return significant_span(2**difference.mean for difference in differences if difference) + " times"


def survives(task: str, learners: int) -> bool:
    """Whether async is shown to be faster than one learner, corrected for all comparisons of async's seconds."""
    chances = {}
    for other_task, number in SPEEDS:
        taken, alone = seconds_to_half(other_task, "async", number), seconds_to_half(other_task, "all-reduce", 1)
        rivals = {"one learner": alone, "all-reduce": seconds_to_half(other_task, "all-reduce", number)}
        rivals |= {name: alone * factors(other_task, name) for name in HARDWARE}
        for rival, others in rivals.items():
            if np.isfinite([*taken, *others]).all():
                chances[other_task, number, rival] = welch(np.log2(others), np.log2(taken)).p
            elif np.isfinite([*taken, *others]).any():
                chances[other_task, number, rival] = mannwhitneyu(others, taken).pvalue
    corrected = dict(zip(chances, holm(list(chances.values())), strict=True))
    return corrected[task, learners, "one learner"] < 0.05


def row_of_speeds(task: str, learners: int) -> str:
    ratio, _, bounds = times_as_fast(task, "async", learners).partition(" ")
    whole = in_factors(beside(task, learners, WHOLE_GPU))
    others = [whole, *(times_as_fast(task, method, learners) for method in ("all-reduce", "softsync", "Stellaris"))]
    return row(f"**{ratio}** {bounds}" if survives(task, learners) else f"{ratio} {bounds}", *others)


def arrivals(task: str, method: str, learners: int) -> int:
    """Seeds that get to half of what one learner ends with."""
    return int(np.isfinite(seconds_to_half(task, method, learners)).sum())


def arrivals_on_the_pendulum() -> str:
    first, *others = (arrivals("pendulum", method, 16) for method in ("async", "all-reduce", "softsync", "Stellaris"))
    return row(f"{first} of 8 seeds", *(f"{number} of 8" for number in others))


def arrivals_on_asterix() -> str:
    ratio = times_as_fast("asterix", "all-reduce", 16, middle=" times as fast ")
    first, *others = (f"{arrivals('asterix', method, 16)} of 8 seeds" for method in ("async", "softsync", "Stellaris"))
    return row(first, ratio, *others)


def median_seconds(method: str) -> str:
    """Median seconds to three quarters of the way on CartPole, with 8 learners."""
    return f"{np.median([run.seconds_to(0.75) for run in runs('cartpole', method, 8)]):.0f}"


def row_of_areas(task: str, learners: int, digits_of_async: int = 2) -> str:
    stale, averaged = areas(task, "async", learners), areas(task, "all-reduce", learners)
    return row(plus_minus(one_learner(task)), plus_minus(stale, digits_of_async), plus_minus(averaged))


def costs_of_staleness() -> str:
    on_cartpole = f"{decimal(one_learner('cartpole').mean())} to {decimal(areas('cartpole', 'async', 8).mean())}"
    on_breakout = f"{decimal(one_learner('breakout').mean())} to {decimal(areas('breakout', 'async', 16).mean(), 3)}"
    return f"CartPole {on_cartpole} (8 learners), Breakout {on_breakout} (16)"


def parts_of_the_rate() -> str:
    """How much lower async's best learning rates are than one learner's."""
    factors = {
        task: {round(float(best_rate(task, "all-reduce", 1)) / float(best_rate(task, "async", number)))
               for number in several}
        for task, several in STALE_LEARNERS.items()
    }  # fmt: skip
    lower = [number for several in factors.values() if several != {1} for number in several]
    tasks, same = sum(several != {1} for several in factors.values()), factors["acrobot"] == {1}
    parts = f"a {PARTS[min(lower)]} to a {PARTS[max(lower)]}"
    return f"{parts} of one learner's on {WORDS[tasks]} tasks, the same on {'Acrobot' if same else 'none'}"


def row_of_async() -> str:
    factor = float(best_rate("cartpole", "all-reduce", 1)) / float(best_rate("cartpole", "async", 8))
    at_its_best = f"{plus_minus(areas('cartpole', 'async', 8))} at a {PARTS[round(factor)]} of it"
    return row(plus_minus(areas_at("cartpole", "async", 8, "1e-2")), at_its_best)


def row_of_stellaris() -> str:
    at_its_best = f"{plus_minus(areas('cartpole', 'Stellaris', 8))} at {best_rate('cartpole', 'Stellaris', 8)}"
    return row(plus_minus(areas_at("cartpole", "Stellaris", 8, "1e-2")), at_its_best)


def savings() -> str:
    """Seconds and dollars that Stellaris saves beside all-reduce, with 8 learners."""
    ours, theirs = runs("cartpole", "Stellaris", 8), runs("cartpole", "all-reduce", 8)
    seconds = 1 - sum(run.seconds[-1] for run in ours) / sum(run.seconds[-1] for run in theirs)
    dollars = 1 - sum(run.dollars for run in ours) / sum(run.dollars for run in theirs)
    return f"{100 * seconds:.0f} % fewer seconds and {100 * dollars:.0f} % fewer dollars"


def in_as_many_seconds(method: str) -> str:
    """Areas on Breakout in as many seconds as the shortest run of the methods that are compared there takes."""
    learners = {"all-reduce": 16, "one learner": 1}[method]
    rivals = ("async", "softsync", "Stellaris", "all-reduce", "KL gate at 0.01")
    every = [*runs("breakout", "all-reduce", 1), *(run for rival in rivals for run in runs("breakout", rival, 16))]
    end = min(float(run.seconds[-1]) for run in every)
    return plus_minus([run.area_until(end) for run in runs("breakout", "all-reduce", learners)])


def best_at_other_seeds() -> str:
    at_best = f"{plus_minus(areas('cartpole', 'async', 32))} at {best_rate('cartpole', 'async', 32)}"
    return f"{plus_minus(areas_at('cartpole', 'async', 32, '1e-3'))} at 1e-3, and {at_best}"


SECONDS = [
    Case(FINDINGS, "In seconds, asynchrony is", "1.5 to 3.6 times as fast as one learner", speed_of_async),
    *(Case(page, near, "0.66 to 1.6 times", partial(speed_beside, WHOLE_GPU)) for page, near in (
        (FINDINGS, "In seconds, asynchrony is"), (PAGE, "**In seconds, asynchronous learners are"),
        (FRONT, "**And to a return?**"), (PAGE, "**Beside one learner with a quarter of a GPU, as each"))),
    Case(PAGE, "Geometric means over seeds 8 to 15", "1.4 to 3.3 times", partial(speed_beside, HARDWARE[0])),
    Case(FRONT, "**And to a return?**", "1.5 to 3.6 times as fast",
         lambda: speed_of_async().removesuffix(" as one learner")),
    *(
        Case(PAGE, f"| {near} | {printed[:5]}", printed, partial(row_of_speeds, *FASTER[near]))
        for near, printed in {
            "CartPole, 8 learners": "1.5 (1.1 to 1.9) | 0.66 (0.50 to 0.86) | 0.84 (0.71 to 0.98) | "
            "1.6 (1.1 to 2.3) | 1.5 (1.1 to 1.9)",
            "CartPole, 32": "**1.7** (1.3 to 2.3) | 0.77 (0.58 to 1.0) | 7 of 8 seeds | "
            "1.1 (0.77 to 1.7) | 1.4 (0.94 to 2.0)",
            "Acrobot, 8": "**2.6** (1.6 to 4.1) | 1.1 (0.71 to 1.8) | 7 of 8 seeds | 2.1 (1.3 to 3.4) | 6 of 8 seeds",
            "Acrobot, 32": "**3.6** (2.4 to 5.3) | 1.6 (1.1 to 2.4) | 7 of 8 seeds | 7 of 8 seeds | 2.1 (1.2 to 3.8)",
            "envpool Hopper, 16": "**1.8** (1.4 to 2.2) | 0.80 (0.65 to 0.98) | 2.0 (1.7 to 2.5) | "
            "2.2 (1.8 to 2.7) | 2.0 (1.6 to 2.4)",
        }.items()
    ),
    Case(PAGE, "| brax hopper, 16 | **", "2.8 (1.8 to 4.2) | 3.9 (3.0 to 5.1)",
         lambda: row(*(times_as_fast("brax_hopper", method, 16) for method in ("softsync", "Stellaris")))),
    Case(PAGE, "| inverted pendulum (one", "8 of 8 seeds | 8 of 8 | 6 of 8 | 8 of 8", arrivals_on_the_pendulum),
    Case(PAGE, "| Asterix | 4", "4 of 8 seeds | 1.8 times as fast (1.5 to 2.2) | 5 of 8 seeds | 4 of 8 seeds",
         arrivals_on_asterix),
    Case(PAGE, "has the lowest median of all", "172 s", lambda: median_seconds("softsync, w = 1/s") + " s"),
    Case(PAGE, "has the lowest median of all", "Stellaris takes 232, async 235, all-reduce 388",
         lambda: "Stellaris takes {}, async {}, all-reduce {}".format(*map(median_seconds, SIMPLE))),
]  # fmt: skip

GRADIENTS = [
    Case(FINDINGS, "Per gradient, staleness hurts",
         "CartPole 0.95 to 0.79 (8 learners), Breakout 0.53 to 0.036 (16)", costs_of_staleness),
    Case(FRONT, "Does staleness hurt?", "plain async 0.79 ± 0.07, one learner 0.95 ± 0.02",
         lambda: f"plain async {plus_minus(areas('cartpole', 'async', 8))}, "
                 f"one learner {plus_minus(one_learner('cartpole'))}"),
    Case(PAGE, "| CartPole, 8 learners | 0.", "0.95 ± 0.02 | 0.79 ± 0.07 | 0.72 ± 0.05",
         partial(row_of_areas, "cartpole", 8)),
    Case(PAGE, "| Breakout, 16 |", "0.53 ± 0.06 | 0.036 ± 0.002 | 0.18 ± 0.02",
         partial(row_of_areas, "breakout", 16, 3)),
    Case(PAGE, "| Asterix, 16 |", "0.35 ± 0.04 | 0.11 ± 0.02 | 0.24 ± 0.03", partial(row_of_areas, "asterix", 16)),
    Case(PAGE, "| envpool's Hopper, 16 |", "0.23 ± 0.04 | 0.12 ± 0.01 | 0.20 ± 0.02",
         partial(row_of_areas, "hopper", 16)),
    Case(PAGE, "one learner learns most per gradient", "0.945 ± 0.017", lambda: plus_minus(one_learner("cartpole"), 3)),
    Case(PAGE, "It runs out of updates with more", "0.92 ± 0.02 with 4",
         lambda: f"{plus_minus(areas('cartpole', 'all-reduce', 4))} with 4"),
    Case(PAGE, "It runs out of updates with more", "0.36 ± 0.09 with 32",
         lambda: f"{plus_minus(areas('cartpole', 'all-reduce', 32))} with 32"),
    Case(PAGE, "| plain async | 0.85", "0.85 ± 0.05 | 0.87 ± 0.06 | 0.85 ± 0.07 | 0.83 ± 0.18 | 0.89 ± 0.10",
         lambda: row(*(plus_minus(areas_at("acrobot", "async", number, "1e-3")) for number in (1, 4, 8, 16, 32)))),
]  # fmt: skip

LEARNING_RATES = [
    Case(FINDINGS, "Stale gradients mostly want",
         "a third to a hundredth of one learner's on six tasks, the same on Acrobot", parts_of_the_rate),
    Case(PAGE, "| plain async | −0.01", "−0.01 ± 0.04 | 0.79 ± 0.07 at a tenth of it", row_of_async),
    Case(PAGE, "| Stellaris | 0.30", "0.30 ± 0.22 | 0.82 ± 0.04 at 3e-3", row_of_stellaris),
    Case(PAGE, "Averaging loses little", "0.18 ± 0.11 below it",
         lambda: loss(welch(areas("cartpole", "softsync", 8), areas_at("cartpole", "softsync", 8, "1e-2")))
                 + " below it"),
    Case(PAGE, "*Pure asynchrony's rate*", "0.78 ± 0.09 at 1e-3, and 0.71 ± 0.04 at 3e-4", best_at_other_seeds),
]  # fmt: skip

EXPENSE = [
    Case(PAGE, "| per gradient, 8 learners |", "0.82 ± 0.04 | 0.72 ± 0.05",
         lambda: row(*(plus_minus(areas("cartpole", method, 8)) for method in ("Stellaris", "all-reduce")))),
    Case(PAGE, "| in as many seconds, 8 learners |", "0.81 | 0.64",
         lambda: row(*(decimal(area_for_equal_seconds(method, 8)) for method in ("Stellaris", "all-reduce")))),
    Case(PAGE, "| for as many dollars, 8 learners |", "0.81 | 0.66",
         lambda: row(*(decimal(area_for_equal_dollars(method, 8)) for method in ("Stellaris", "all-reduce")))),
    Case(PAGE, "| per gradient, 32 learners |", "0.62 ± 0.10 | 0.36 ± 0.09",
         lambda: row(*(plus_minus(areas("cartpole", method, 32)) for method in ("Stellaris", "all-reduce")))),
    Case(PAGE, "With 8 learners it takes", "15 % fewer seconds and 12 % fewer dollars", savings),
    Case(PAGE, "*On Breakout* one learner is ahead", "0.18 ± 0.03, all-reduce 0.15 ± 0.02",
         lambda: f"{in_as_many_seconds('one learner')}, all-reduce {in_as_many_seconds('all-reduce')}"),
]  # fmt: skip

CASES = [*SECONDS, *GRADIENTS, *LEARNING_RATES, *EXPENSE]
