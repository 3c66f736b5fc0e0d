"""Numbers of the page on `choose`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from published.case import Case
from published.files import document, table
from published.statistics import interval, paired
from published.texts import span

CHOOSE = "results/choose/README.md"
JUDGING = [
    *(f"{task}-{delays}" for task in ("cartpole", "acrobot") for delays in ("few_learners", "failures")),
    "breakout-few_learners",
]
"""Pairs of a task and delays that judge; the others had been seen before a change."""
SEEN = [f"breakout-{delays}" for delays in ("heavy_tails", "constant", "slow_actors", "many_learners")]


class Choice(NamedTuple):
    """Worth of a choice, on seeds that it has not seen; shares are of the best candidate's seconds.

    Attributes:
      regret: how much longer it takes.
      limit: upper end of the regret's interval, of seeds in pairs.
      tuned: how much longer plain async takes at the best of its rates.
      default: how much longer the default system takes at its own rate.
      baselines: what the rates of baselines cost each of them, as a share of its own seconds at the best rate.
      cost: processor time, as a share of training all candidates.
      covered: whether each stated interval has the mean on these seeds.
      widths: upper ends of these intervals over lower ones.
    """

    regret: float
    limit: float
    tuned: float
    default: float
    baselines: list[float]
    cost: float
    covered: list[bool]
    widths: list[float]


def seconds_of_all(pair: str) -> dict[tuple[str, float], float]:
    """Mean seconds of all candidates of a pair, by system and learning rate."""
    return {key: float(np.exp(values.mean())) for key, values in logarithms(pair).items()}


def logarithms(pair: str) -> dict[tuple[str, float], np.ndarray]:
    every = document(f"choose/{pair}-full.json")
    keys = zip(every["names"], every["rates"], strict=True)
    return dict(zip(keys, np.log(np.array(every["values"])), strict=True))


@functools.cache
def choice(pair: str) -> Choice:
    every, chosen = document(f"choose/{pair}-full.json"), document(f"choose/{pair}-choice.json")
    means, seeds = seconds_of_all(pair), logarithms(pair)
    stated = [(result["name"], result["learning_rate"], result) for result in chosen["results"]]
    judged = [(name, rate) for name, rate, _ in stated]
    if chosen["confirmed"]:
        stated.append((*judged[0], chosen["confirmed"]))
    stated = [each for each in stated if each[-1]["low"] is not None]
    best = min(means, key=means.__getitem__)
    mean, half = interval(seeds[judged[0]] - seeds[best])
    [usual] = [rate for name, rate in means if name == "Stellaris" and rate == np.median(rates_of("Stellaris", means))]
    return Choice(
        regret=means[judged[0]] / means[best] - 1,
        limit=float(np.exp(mean + half) - 1),
        tuned=fastest("async", means) / means[best] - 1,
        default=means["Stellaris", usual] / means[best] - 1,
        baselines=[
            means[name, rate] / fastest(name, means) - 1
            for name, rate in judged
            if name in ("one learner", "all-reduce")
        ],
        cost=chosen["processor_seconds"] / every["seconds"],
        covered=[bool(own["low"] <= means[name, rate] <= own["high"]) for name, rate, own in stated],
        widths=[own["high"] / own["low"] for *_, own in stated],
    )


def rates_of(system: str, means: dict[tuple[str, float], float]) -> list[float]:
    return [rate for name, rate in means if name == system]


def fastest(system: str, means: dict[tuple[str, float], float]) -> float:
    return min(means[system, rate] for rate in rates_of(system, means))


def percents(shares: Sequence[float]) -> str:
    """Shares of more than nothing, from the smallest to the largest."""
    *others, last = [f"{100 * share:.0f}" for share in sorted(shares) if share > 0]
    return f"{', '.join(others)} and {last} %"


def percent_span(shares: Sequence[float]) -> str:
    return span([100 * share for share in shares], 0) + " %"


def random_searches() -> list[float]:
    """Mean regrets of random searches, which only the study draws."""
    rows = {f"{own['task']}-{own['delays'].replace(' ', '_')}": own for own in table("choose/figure_regret.csv")}
    return [float(rows[pair]["regret_of_random_search"]) for pair in JUDGING]


def chance_of_lower_regret(others: Sequence[float], digits: int) -> str:
    """Probability that larger regrets than those of the choice are by chance."""
    return f"p = {paired(others, [own.regret for own in of(JUDGING)]).p:.{digits}f}"


def asynchrony_beside_several(pairs: Sequence[str]) -> str:
    """Seconds of plain async beside the best system of several learners."""
    ratios = []
    for pair in pairs:
        means = seconds_of_all(pair)
        several = min(mean for (name, _), mean in means.items() if not name.startswith("one learner"))
        ratios.append(fastest("async", means) / several)
    return " and ".join(f"{ratio:.1f}" for ratio in sorted(ratios)) + " times"


def of(pairs: Sequence[str]) -> list[Choice]:
    return [choice(pair) for pair in pairs]


def coverage(pairs: Sequence[str]) -> str:
    covered = [each for own in of(pairs) for each in own.covered]
    return f"{sum(covered)} of {len(covered)}"


def widths(pairs: Sequence[str]) -> str:
    every = [width for own in of(pairs) for width in own.widths]
    return f"{min(every):.1f}-fold to {max(every):.1f}-fold"


CASES = [
    Case(CHOOSE, "**Its choice takes", "8 % longer",
         lambda: f"{100 * np.median([own.regret for own in of(JUDGING)]):.0f} % longer"),
    Case(CHOOSE, "**Its choice takes", "0 to 22 %", lambda: percent_span([own.regret for own in of(JUDGING)])),
    Case(CHOOSE, "**Its choice takes", "13 to 33 %", lambda: percent_span([own.cost for own in of(JUDGING)])),
    Case(CHOOSE, "- *Cost* is", "9 to 15 %", lambda: percent_span([own.cost for own in of(SEEN)])),
    Case(CHOOSE, "| what it chose |", "4, 8, 14 and 22 %", lambda: percents([own.regret for own in of(JUDGING)])),
    Case(CHOOSE, "| its stated intervals |", "21 of 21", partial(coverage, JUDGING)),
    Case(CHOOSE, "| its stated intervals |", "1.3-fold to 8.7-fold", partial(widths, JUDGING)),
    Case(CHOOSE, "| learning rates of baselines |", "12 %",
         lambda: f"{100 * max(loss for own in of(JUDGING) for loss in own.baselines):.0f} %"),
    Case(CHOOSE, "| asynchrony at the best", "17 to 200 %",
         lambda: percent_span([own.tuned for own in of(JUDGING) if own.tuned > 0])),
    Case(CHOOSE, "| asynchrony at the best", "p = 0.27",
         lambda: chance_of_lower_regret([own.tuned for own in of(JUDGING)], 2)),
    Case(CHOOSE, "| random search at equal cost |", "14 to 63 %", lambda: percent_span(random_searches())),
    Case(CHOOSE, "| random search at equal cost |", "p = 0.15", lambda: chance_of_lower_regret(random_searches(), 2)),
    Case(CHOOSE, "| the default system, untuned |", "10, 22, 85, 93 and 142 %",
         lambda: percents([own.default for own in of(JUDGING)])),
    Case(CHOOSE, "| the default system, untuned |", "p = 0.07",
         lambda: chance_of_lower_regret([own.default for own in of(JUDGING)], 2)),
    Case(CHOOSE, "**How sure.** Five pairs", "35, 38, 51 and 52 %",
         lambda: percents([own.limit for own in of(JUDGING)])),
    Case(CHOOSE, "- **One learner** is an ideal", "2.4 and 3.2 times",
         partial(asynchrony_beside_several, ["breakout-heavy_tails", "breakout-slow_actors"])),
    Case(CHOOSE, "With this change the choice is the best", "9 of 13", partial(coverage, SEEN)),
    Case(CHOOSE, "With this change the choice is the best", "0 of 4", partial(coverage, ["breakout-many_learners"])),
    Case(CHOOSE, "With this change the choice is the best", "1.1-fold to 1.3-fold",
         partial(widths, ["breakout-many_learners"])),
]  # fmt: skip
