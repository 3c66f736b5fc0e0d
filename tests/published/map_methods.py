"""Numbers of the map that compare methods."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from published.case import Case
from published.map_runs import (
    GATE,
    RATES,
    TUNING,
    areas,
    areas_at,
    areas_over_rates,
)
from published.statistics import Difference, Values, holm, paired, welch
from published.texts import WORDS, decimal, gain, loss, plus_minus, row, span

FRONT, FINDINGS, PAGE = "README.md", "results/README.md", "results/map/README.md"
METHODS = (
    "all-reduce", "SSP", "softsync", "softsync, w = 1/s", "Stellaris", "w", "truncation", "w, truncation", "gate",
    "gate, w", "gate, truncation", "gate, w, truncation", "w on the gradient", "polynomial", "hinge", "exponential",
    "FedBuff", "DC-ASGD", "gap-aware", "less momentum", "KL gate", "norm ratio", "ESS", "drop above 8", "wait at 8",
    "capacity (AReaL)", "in order", "V-trace", "TIS", "CISPO", "decoupled", "A-3PO", "SAPO", "TOPR", "BAPO", "IcePop",
    "OPSM", "DPPO", "M2PO",
)  # fmt: skip
"""Methods beside plain async."""
COMBINATIONS = {
    "": "async", "w": "w", "t": "truncation", "g": "gate", "wt": "w, truncation", "gw": "gate, w",
    "gt": "gate, truncation", "gwt": "gate, w, truncation",
}  # fmt: skip
"""Methods by which of Stellaris's ideas they have: weights, truncation, the gate."""
TWO_TASKS = ("cartpole", "acrobot")
THREE_RATES = (RATES[0:3], RATES[1:4], RATES[2:5])
"""Ranges of neighbouring learning rates."""
BOTH = (GATE, "all-reduce")


class Comparison(NamedTuple):
    """One method beside another.

    Attributes:
      task: where.
      learners: how many.
      method: which one.
      difference: how much more it learns.
      corrected: probability of the difference by chance, corrected for all comparisons of the family.
    """

    task: str
    learners: int
    method: str
    difference: Difference
    corrected: float = 1.0

    @property
    def verdict(self) -> str:
        return self.difference.verdict


def corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    chances = holm([comparison.difference.p for comparison in comparisons])
    return [each._replace(corrected=chance) for each, chance in zip(comparisons, chances, strict=True)]


@functools.cache
def tuned_methods() -> list[Comparison]:
    """Methods beside async, each at its best rate; those that are the same to the bit count once."""
    found = []
    for task in TWO_TASKS:
        for learners in (8, 32):
            beside = areas(task, "async", learners)
            seen = [beside.tolist()]
            for method in METHODS:
                own = areas(task, method, learners)
                if own.tolist() not in seen:
                    seen.append(own.tolist())
                    found.append(Comparison(task, learners, method, welch(own, beside)))
    return corrected(found)


def tuned(task: str, learners: int, verdict: str) -> list[Comparison]:
    """Comparisons of one task and number of learners that have this verdict."""
    return [each for each in tuned_methods() if each[:2] == (task, learners) and each.verdict == verdict]


def ahead_with_8() -> str:
    better = sum(len(tuned(task, 8, "holds")) for task in TWO_TASKS)
    return f"{better or 'none'} of the {len(METHODS)} other methods"


def behind_with_8() -> str:
    names = [each.method for each in tuned("cartpole", 8, "reversed") if each.corrected < 0.05]
    number = len(tuned("cartpole", 8, "reversed"))
    survive = f"{WORDS[len(names)]} after Holm's correction: {' and '.join(names)}"
    return f"{WORDS[number].capitalize()} of them learn less on CartPole ({survive})"


def behind_on_acrobot() -> str:
    number = len(tuned("acrobot", 8, "reversed"))
    return f"{WORDS[number]} on Acrobot ({len(tuned_methods())} comparisons, both tasks, 8 and 32 learners)"


def ranges() -> Iterator[Comparison]:
    """Comparisons over ranges of three rates: the gate beside four rivals, and fractional steps beside whole ones."""
    for task in TWO_TASKS:
        for learners in (8, 32):
            for rates in THREE_RATES:
                area = partial(areas_over_rates, task, learners=learners, rates=rates)
                for rival in ("async", "softsync", "Stellaris", "all-reduce"):
                    yield Comparison(task, learners, rival, welch(area(GATE), area(rival)))
                for method in ("Stellaris", "w", "KL gate", GATE) if task == "cartpole" else ():
                    difference = paired(area(f"{method}, fractional"), area(method))
                    yield Comparison(task, learners, f"{method}, fractional", difference)


def gate_over_ranges() -> str:
    beside_async = [each for each in corrected(list(ranges())) if each.method == "async"]
    ahead = [each for each in beside_async if each.verdict == "holds"]
    surviving = sum(each.corrected < 0.05 for each in ahead)
    behind = sum(each.verdict == "reversed" for each in beside_async)
    end = f"{surviving} of which survive, and behind in {behind or 'none'}"
    return f"{len(ahead)} of {len(beside_async)} comparisons, {end}"


def gate_at_its_best() -> str:
    """The gate beside async at the best rates, where it is ahead."""
    settings = [(task, learners) for task in TWO_TASKS for learners in (8, 32)]
    differences = [welch(areas(task, GATE, learners), areas(task, "async", learners)) for task, learners in settings]
    (ahead,) = [each for each in differences if each.verdict == "holds"]
    return f"{gain(ahead)}, one of {WORDS[len(settings)]} comparisons"


def row_over_rates(task: str) -> str:
    return row(*(plus_minus(areas_over_rates(task, name, 32)) for name in (GATE, "async", "softsync", "Stellaris")))


def gate_with_8(rival: str) -> list[str]:
    """How far the gate is ahead with 8 learners, over all rates, on both tasks."""
    return [gain(welch(areas_over_rates(task, GATE, 8), areas_over_rates(task, rival, 8))) for task in TWO_TASKS]


def tuning_area(method: str) -> np.ndarray:
    return areas_over_rates("cartpole", method, 32, seeds=TUNING)


def held_out(task: str, method: str) -> np.ndarray:
    """Areas with 16 learners, each method at its best rate."""
    return areas(task, method, 16)


def gate_where_averaging_is_ahead() -> str:
    """The gate's areas on the three tasks where all-reduce learns more."""
    digits = {"breakout": 3, "asterix": 3, "hopper": 2}
    ahead = [task for task in digits if welch(held_out(task, "all-reduce"), held_out(task, GATE)).verdict == "holds"]
    return ", ".join(plus_minus(held_out(task, GATE), digits[task]) for task in ahead)


def idea_on_acrobot(rate: str, middle: str) -> str:
    """What weights add on Acrobot, or take away, with 8 and with 32 learners."""
    few, many = (idea("w", number, rate, "acrobot").removesuffix(f" at {rate}")[1:] for number in (8, 32))
    return few + middle.format(many)


def idea(letter: str, learners: int, rate: str = "", task: str = "cartpole") -> str:
    """What an idea adds to the area, mean over the other two with and without; at a shared rate or each one's best."""

    def area(method: str) -> Values:
        if rate:
            return areas_at(task, method, learners, rate, seeds=TUNING)
        return areas(task, method, learners)

    with_it = np.mean([area(method) for ideas, method in COMBINATIONS.items() if letter in ideas], axis=0)
    without = np.mean([area(method) for ideas, method in COMBINATIONS.items() if letter not in ideas], axis=0)
    return gain(welch(with_it, without)) + (f" at {rate}" if rate else "")


TUNED = [
    Case(PAGE, "is shown to learn more than plain async at its own", "none of the 39 other methods", ahead_with_8),
    Case(PAGE, "is shown to learn more than plain async at its own",
         "Nine of them learn less on CartPole (two after Holm's correction: hinge and less momentum)", behind_with_8),
    Case(PAGE, "is shown to learn more than plain async at its own",
         "four on Acrobot (122 comparisons, both tasks, 8 and 32 learners)", behind_on_acrobot),
    Case(PAGE, "of the methods differ from pure asynchrony", "22 of the methods",
         lambda: f"{sum(each[:2] == ('cartpole', 32) for each in tuned_methods())} of the methods"),
    Case(PAGE, "of the methods differ from pure asynchrony", "0.06 to 0.07",
         lambda: span(each.difference.mean for each in tuned("cartpole", 32, "holds"))),
    Case(PAGE, "*All-reduce, softsync, FedBuff and the gate with weights*", "0.24 to 0.35",
         lambda: span(welch(areas("cartpole", "async", 32), areas("cartpole", method, 32)).mean
                      for method in ("all-reduce", "softsync", "FedBuff", "gate, w"))),
]  # fmt: skip

UNTUNED = [
    Case(FINDINGS, "Without tuning, a gate by policy KL", "CartPole, 32 learners, 0.62 against 0.31",
         lambda: "CartPole, 32 learners, {} against {}".format(
             *(decimal(areas_over_rates("cartpole", name, 32).mean()) for name in (GATE, "async")))),
    Case(FRONT, "What if I cannot tune?", "0.62 ± 0.05, plain async 0.31 ± 0.03",
         lambda: ", plain async ".join(plus_minus(areas_over_rates("cartpole", name, 32)) for name in (GATE, "async"))),
    Case(PAGE, "**The KL gate (`system=parallax`): with 32", "0.62 ± 0.05 on CartPole over five learning rates",
         lambda: f"{plus_minus(areas_over_rates('cartpole', GATE, 32))} on CartPole over five learning rates"),
    Case(PAGE, "**The KL gate (`system=parallax`): with 32", "plain async 0.31 ± 0.03",
         lambda: f"plain async {plus_minus(areas_over_rates('cartpole', 'async', 32))}"),
    Case(PAGE, "| CartPole, 32 learners |", "0.62 ± 0.05 | 0.31 ± 0.03 | 0.28 ± 0.05 | 0.36 ± 0.05",
         partial(row_over_rates, "cartpole")),
    Case(PAGE, "| Acrobot, 32 learners |", "0.82 ± 0.09 | 0.46 ± 0.08 | 0.49 ± 0.15 | 0.46 ± 0.10",
         partial(row_over_rates, "acrobot")),
    Case(PAGE, "At its own best rate it is ahead of pure", "+0.05 ± 0.04, one of four comparisons", gate_at_its_best),
    Case(PAGE, "*Over other ranges*", "10 of 12 comparisons, 8 of which survive, and behind in none",
         gate_over_ranges),
    Case(PAGE, "*Over other ranges*", "0.66 ± 0.04 against 0.53 ± 0.08",
         lambda: " against ".join(plus_minus(areas_over_rates("cartpole", name, 8, THREE_RATES[-1]))
                                  for name in ("all-reduce", GATE))),
    Case(PAGE, "*With 8 learners* it is ahead", "+0.20 ± 0.05 on CartPole and +0.27 ± 0.13 on Acrobot",
         lambda: "{} on CartPole and {} on Acrobot".format(*gate_with_8("async"))),
    Case(PAGE, "*With 8 learners* it is ahead", "all-reduce (+0.05 ± 0.05, +0.09 ± 0.14)",
         lambda: f"all-reduce ({', '.join(gate_with_8('all-reduce'))})"),
    Case(PAGE, "*With 8 learners* it is ahead", "capacity (+0.05 ± 0.08, +0.05 ± 0.13)",
         lambda: f"capacity ({', '.join(gate_with_8('capacity (AReaL)'))})"),
    Case(PAGE, "- *Strength*", "behind 0.02 by 0.10 ± 0.05",
         lambda: f"behind 0.02 by {loss(welch(tuning_area('KL gate'), tuning_area('KL gate at 0.002')))}"),
]  # fmt: skip

HELD_OUT = [
    Case(PAGE, "*Averaging loses least*", "0.119 ± 0.009, 0.122 ± 0.029, 0.14 ± 0.02", gate_where_averaging_is_ahead),
    Case(PAGE, "| all-reduce | ahead on the inverted pendulum", "brax's hopper (+0.06 ± 0.03",
         lambda: f"brax's hopper ({gain(welch(*(areas_over_rates('brax_hopper', name, 16) for name in BOTH)))}"),
    Case(PAGE, "On envpool's Hopper it is ahead of pure asynchrony", "0.02 ± 0.02",
         lambda: loss(welch(held_out("hopper", GATE), held_out("hopper", "async")))),
    Case(PAGE, "On envpool's Hopper it is ahead of pure asynchrony", "0.61 ± 0.04, 0.68 ± 0.03",
         lambda: ", ".join(plus_minus(held_out("brax_hopper", name)) for name in (GATE, "Stellaris"))),
    Case(PAGE, "On envpool's Hopper it is ahead of pure asynchrony", "0.42 ± 0.04 against 0.33 ± 0.03 and 0.30 ± 0.10",
         lambda: "{} against {} and {}".format(*(plus_minus(held_out("pendulum", name))
                                                 for name in (GATE, "async", "softsync")))),
]  # fmt: skip

IDEAS = [
    Case(PAGE, "| weights by staleness, 8 learners |", "+0.53 ± 0.06 at 1e-2", partial(idea, "w", 8, "1e-2")),
    Case(PAGE, "- *Ideas*: weights add", "0.50 ± 0.25 at 1e-2 with 8 learners and 0.68 ± 0.19 with 32",
         partial(idea_on_acrobot, "1e-2", " at 1e-2 with 8 learners and {} with 32")),
    Case(PAGE, "- *Ideas*: weights add", "0.30 ± 0.10 and 0.21 ± 0.08 away at 1e-3",
         partial(idea_on_acrobot, "1e-3", " and {} away at 1e-3")),
    Case(PAGE, "How sure.** Seeds 0 to 7 for rates", "0.28 ± 0.04 away at 1e-3 with 8 learners",
         lambda: idea("w", 8, "1e-3").strip("−").replace(" at", " away at") + " with 8 learners"),
    Case(PAGE, "| weights by staleness, 8 learners |", "−0.10 ± 0.04", partial(idea, "w", 8)),
    Case(PAGE, "| the gate, 8 learners |", "+0.13 ± 0.06 at 3e-3", partial(idea, "g", 8, "3e-3")),
    Case(PAGE, "| the gate, 8 learners |", "+0.11 ± 0.04 at 1e-2", partial(idea, "g", 8, "1e-2")),
    Case(PAGE, "| the gate, 32 learners |", "+0.22 ± 0.08 at 1e-2 | −0.21 ± 0.06",
         lambda: row(idea("g", 32, "1e-2"), idea("g", 32))),
]  # fmt: skip

CASES = [*TUNED, *UNTUNED, *HELD_OUT, *IDEAS]
