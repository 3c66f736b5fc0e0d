"""Numbers of the study of stale completions."""

from __future__ import annotations

import functools
from functools import partial

import numpy as np

from published.case import Case
from published.statistics import Difference, paired
from published.study_runs import Run, Setting, best_of, rates_of, runs_at
from published.texts import decimal, gain, loss, plus_minus, row, signed, significant, span

FRONT, FINDINGS, PAGE = "README.md", "results/README.md", "results/tokens/README.md"
SHARE = (0.0, 1.0)
"""Returns are shares of right completions."""
TUNING = range(2)
AGES = (0, 8, 64, 256)
"""Updates that completions are old."""
METHODS = ("no correction", "PPO clip", "DAPO", "GSPO", "CISPO", "TIS", "IcePop", "M2PO", "decoupled", "A-3PO",
           "DPPO-TV", "VCPO")  # fmt: skip
CORRECTIONS = METHODS[1:]
ADDITION, OTHERS = "addition", ("sort", "countdown")
MARGIN = 0.02
"""Loss below which completions do not cost much."""


def on_addition(method: str, age: int, question: str = "methods") -> Setting:
    return Setting("tokens/addition", SHARE, question, method, age)


def on(task: str, method: str, age: int) -> Setting:
    """A method on one of the three tasks."""
    return Setting(f"tokens/{task}", SHARE, "methods" if task == ADDITION else "tasks", method, age)


def on_tail(question: str, method: str, bound: int) -> Setting:
    """PPO's clip on completions with a heavy tail."""
    return Setting("tokens/tail", SHARE, question, f"PPO clip, {method}", bound)


@functools.cache
def best_rate(setting: Setting) -> str:
    return best_of(setting, rates_of(setting, TUNING), TUNING)


def judged(setting: Setting) -> list[Run]:
    """Judging runs at the best learning rate."""
    return runs_at(setting, best_rate(setting))


@functools.cache
def areas(setting: Setting) -> np.ndarray:
    """Mean shares of right completions over the judging runs."""
    return np.array([run.area for run in judged(setting)])


def right(method: str, age: int) -> float:
    return float(areas(on_addition(method, age)).mean())


def lost(method: str, age: int) -> Difference:
    """What completions of this age cost, beside fresh ones."""
    return paired(areas(on_addition(method, 0)), areas(on_addition(method, age)))


def ahead(method: str, other: str, age: int, task: str = ADDITION) -> Difference:
    """How much more one method learns than another."""
    return paired(areas(on(task, method, age)), areas(on(task, other, age)))


def lost_on(task: str, method: str) -> Difference:
    """What completions that are 64 updates old cost on a task."""
    return paired(areas(on(task, method, 0)), areas(on(task, method, 64)))


def row_of_tasks(method: str) -> str:
    return row(*(loss(lost_on(task, method), 3) for task in (ADDITION, *OTHERS)))


def losses_elsewhere() -> str:
    """Losses of corrections on the other tasks."""
    corrections = ("PPO clip", "GSPO", "TIS", "M2PO", "decoupled")
    return span(lost_on(task, method).mean for task in OTHERS for method in corrections)


def ends_of(task: str) -> tuple[float, float]:
    """Mean shares at the start, of runs with PPO's clip, and at the end of those on fresh completions."""
    runs = judged(on(task, "PPO clip", 0))
    return float(np.mean([run.shares[0] for run in runs])), float(np.mean([run.final for run in runs]))


def row_of_method(method: str) -> str:
    return row(*(decimal(right(method, age)) for age in AGES), loss(lost(method, 256)))


def row_of_methods(*methods: str) -> str:
    """Spans of several methods; one number where all are the same."""
    spans = [span(right(method, age) for method in methods) for age in AGES]
    cells = [low if low == high else f"{low} to {high}" for low, _, high in (text.split() for text in spans)]
    losses = [lost(method, 256) for method in methods]
    return row(*cells, span(each.mean for each in losses))


def small(method: str, age: int) -> str:
    """Whether the loss is shown to be below the margin, and the loss."""
    cost = lost(method, age)
    verdict = "yes" if cost.mean + cost.half < MARGIN else "no" if cost.mean - cost.half > MARGIN else "not shown"
    return f"{verdict}: {loss(cost, 3)}"


def row_of_losses(method: str) -> str:
    return row(*(small(method, age) for age in AGES[1:]))


def always_small() -> str:
    names = [method for method in METHODS if all(small(method, age).startswith("yes") for age in AGES[1:])]
    return f"{' and '.join(names)} PPO"


def most_at_8() -> str:
    several = ("TIS", "CISPO", "VCPO")
    worst = [method for method in several if right(method, 8) < min(right(method, 64), right(method, 256))]
    return " and ".join(worst) + " lose more at 8"


def largest_loss_at_8() -> str:
    """The largest loss of those of the corrections."""
    return f"at most {max(lost(method, 8).mean for method in CORRECTIONS):.2f}"


def updates_to_goal(method: str, age: int) -> list[float]:
    """Updates to the first evaluation with 75 % right; infinite where there is none."""
    ways = []
    for run in judged(on_addition(method, age)):
        (arrived,) = np.nonzero(run.shares >= 0.75)
        ways.append(run.rounds[arrived[0]] if len(arrived) else np.inf)
    return ways


def row_of_updates(*methods: str) -> str:
    """Median updates of a method, with the seeds that arrive unless all do; or the span of several methods."""
    cells = []
    for age in AGES:
        ways = [updates_to_goal(method, age) for method in methods]
        low, high = (limit(np.median(each) for each in ways) for limit in (min, max))
        text = "–" if low == np.inf else f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
        seeds = np.isfinite(ways).sum()
        cells.append(text if len(methods) > 1 or seeds == 8 else f"{text} ({seeds})")
    return row(*cells)


# Learning rates -------------------------------------------------------------------------------------------------------


def tuning_area(method: str, age: int, rate: str) -> float:
    return float(np.mean([run.area for run in runs_at(on_addition(method, age), rate, TUNING)]))


def methods_that_want(rate: str, age: int) -> int:
    return sum(best_rate(on_addition(method, age)) == rate for method in METHODS)


def best_rates() -> str:
    at_8, at_64, at_256 = (methods_that_want("1e-4", age) for age in AGES[1:])
    assert at_8 == at_64, "the page has one number for both"
    old = f"{at_8} of {len(METHODS)} at 8 and 64 updates, {at_256} at 256"
    return f"{old}; on fresh completions {methods_that_want('3e-4', 0)} have 3e-4"


def cost_of_a_high_rate() -> str:
    """What three times the rate costs at 8 updates."""
    return span(tuning_area(method, 8, "1e-4") - tuning_area(method, 8, "3e-4") for method in CORRECTIONS)


def lower_rates() -> str:
    """How much lower the best rates are at 64 updates than on fresh completions."""
    fresh, old = ([np.log10(float(best_rate(on_addition(method, age)))) for method in METHODS] for age in (0, 64))
    powers = paired(fresh, old)
    low, high = powers.mean - powers.half, powers.mean + powers.half
    ratio, least, most = (significant(10**power, 2) for power in (powers.mean, low, high))
    return f"a factor of {ratio} ({least} to {most})"


def row_of_rate(method: str, rate: str) -> str:
    return row(*(decimal(tuning_area(method, age, rate)) for age in AGES))


# Actors ---------------------------------------------------------------------------------------------------------------


def row_of_rounded_weights(method: str) -> str:
    """Shares with exact, bfloat16 and int8 weights of actors, fresh and 8 updates old."""
    cells = []
    for age in (0, 8):
        rounded = (on_addition(f"{method}, {weights}", age, "mismatch") for weights in ("bfloat16", "int8"))
        cells += [decimal(areas(setting).mean()) for setting in (on_addition(method, age), *rounded)]
    return row(*cells)


def gain_with_int8() -> str:
    """What two corrections gain on fresh completions of actors with int8 weights, which is one number here."""
    plain, *others = (
        areas(on_addition(f"{method}, int8", 0, "mismatch")) for method in ("no correction", "PPO clip", "TIS")
    )
    gains = sorted({decimal(paired(corrected, plain).mean, 3) for corrected in others})
    return f"PPO's clip and TIS learn {' and '.join(gains)} more than no correction"


def in_flight_per_update() -> str:
    """What updates within a completion gain."""
    return gain(paired(*(areas(on_tail("in flight", method, 1)) for method in ("in flight", "whole"))), 3)


def in_flight_per_second() -> str:
    changing, whole = (judged(on_tail("in flight", method, 1)) for method in ("in flight", "whole"))
    end = min(run.seconds[-1] for run in changing + whole)
    return gain(paired(*([run.area_until(end) for run in several] for several in (changing, whole))), 3)


def slowness(bound: int) -> str:
    """Seconds of dropped completions, as a share of those of all."""
    runs = judged(on_tail("admission", "drop", bound))
    return plus_minus([run.value("fragments_dropped_slowness") for run in runs]) + " times"


def wrongness(bound: int) -> str:
    """How much less often dropped completions are right than used ones."""
    runs = judged(on_tail("admission", "drop", bound))
    return plus_minus([-run.value("fragments_dropped_return") for run in runs])


def row_of_bound(bound: int, digits: int) -> str:
    """Shares with waiting and with dropping."""
    waiting, dropping = (areas(on_tail("admission", method, bound)) for method in ("wait", "drop"))
    difference = paired(waiting, dropping)
    return row(plus_minus(waiting), plus_minus(dropping), f"{signed(difference.mean, digits)} ± {difference.half:.2f}")


CASES_OF_AGE = [
    Case(FINDINGS, "cost a language model", "at most 0.03", largest_loss_at_8),
    Case(PAGE, "**On addition eight updates cost", "at most 0.03", largest_loss_at_8),
    *(Case(page, near, printed, losses_elsewhere) for page, near, printed in (
        (PAGE, "**On addition eight updates cost", "0.02 to 0.11"),
        (FINDINGS, "cost a language model", "0.02 to 0.11"),
    )),
    Case(PAGE, "*Beyond that, take decoupled PPO.*", "0.07 on addition, 0.03 on sort and 0.09 on countdown",
         lambda: "{} on addition, {} on sort and {} on countdown".format(
             *(decimal(ahead("decoupled", "PPO clip", 64, task).mean) for task in (ADDITION, *OTHERS)))),
    Case(PAGE, "*TIS and CISPO need not be better.*",
         "by 0.07 at 64 updates and 0.22 at 256, on countdown by 0.06 at 64",
         lambda: "by {} at 64 updates and {} at 256, on countdown by {} at 64".format(
             *(decimal(ahead("TIS", "PPO clip", age, task).mean)
               for age, task in ((64, ADDITION), (256, ADDITION), (64, "countdown"))))),
    Case(PAGE, "*TIS and CISPO need not be better.*", "0.005 ± 0.015",
         lambda: loss(ahead("TIS", "PPO clip", 64, "sort"), 3)),
    *(Case(PAGE, f"| {near}", printed, partial(row_of_tasks, method)) for near, method, printed in (
        ("decoupled PPO | 0", "decoupled", "0.005 ± 0.011 | 0.031 ± 0.007 | 0.020 ± 0.009"),
        ("GSPO | 0.022", "GSPO", "0.022 ± 0.020 | 0.027 ± 0.008 | 0.059 ± 0.011"),
        ("TIS | 0.017", "TIS", "0.017 ± 0.007 | 0.053 ± 0.013 | 0.048 ± 0.017"),
        ("M2PO | 0.014", "M2PO", "0.014 ± 0.008 | 0.059 ± 0.016 | 0.059 ± 0.014"),
        ("PPO's clip | 0.083", "PPO clip", "0.083 ± 0.011 | 0.061 ± 0.011 | 0.111 ± 0.020"),
        ("no correction | 0.175", "no correction", "0.175 ± 0.029 | 0.224 ± 0.026 | 0.180 ± 0.009"),
    )),
    Case(PAGE, "Sort begins at", "0.38 right and ends at 0.97 on fresh completions, countdown at 0.21 and 0.54",
         lambda: "{} right and ends at {} on fresh completions, countdown at {} and {}".format(
             *(decimal(share) for task in OTHERS for share in ends_of(task)))),
    Case(FINDINGS, "cost a language model", "PPO's clip learns 0.57 instead of 0.80, decoupled PPO 0.80",
         lambda: "PPO's clip learns {} instead of {}, decoupled PPO {}".format(
             decimal(right("PPO clip", 256)), decimal(right("PPO clip", 0)), decimal(right("decoupled", 256)))),
    Case(PAGE, "**On addition decoupled PPO is shown", "decoupled PPO", always_small),
    Case(FRONT, "And completions of a language model?", "fresh 0.80, 8 updates old 0.79, 64 0.72, 256 0.57",
         lambda: "fresh {}, 8 updates old {}, 64 {}, 256 {}".format(
             *(decimal(right("PPO clip", age)) for age in AGES))),
    *(Case(PAGE, f"| {near} |", printed, partial(row_of_updates, *methods)) for near, printed, methods in (
        ("no correction | 50", "50 | 180 (5) | – (4) | – (3)", ("no correction",)),
        ("PPO's clip | 60", "60 | 90 | 170 (7) | – (4)", ("PPO clip",)),
        ("DAPO's wider clip | 60", "60 | 90 | 120 | 300 (5)", ("DAPO",)),
        ("GSPO | 50", "50 | 80 | 120 | 230 (5)", ("GSPO",)),
        ("M2PO, DPPO-TV, IcePop | 50", "50 | 80 to 90 | 90 to 100 | 100 to 170", ("M2PO", "DPPO-TV", "IcePop")),
        ("TIS, CISPO, decoupled PPO, A-3PO, VCPO | 50 to 60", "50 to 60 | 70 to 90 | 80 to 100 | 80 to 100",
         ("TIS", "CISPO", "decoupled", "A-3PO", "VCPO")),
    )),
    *(Case(PAGE, f"| {near} |", printed, partial(row_of_method, method)) for near, method, printed in (
        ("no correction | 0.79 | 0.70 | 0.62", "no correction", "0.79 | 0.70 | 0.62 | 0.55 | 0.24 ± 0.02"),
        ("PPO's clip (GRPO) | 0.80", "PPO clip", "0.80 | 0.79 | 0.72 | 0.57 | 0.23 ± 0.02"),
        ("DAPO's wider clip | 0.80", "DAPO", "0.80 | 0.79 | 0.74 | 0.62 | 0.18 ± 0.02"),
        ("GSPO | 0.79", "GSPO", "0.79 | 0.80 | 0.77 | 0.70 | 0.09 ± 0.02"),
    )),
    Case(PAGE, "| M2PO, DPPO-TV, IcePop | 0.79",
         "0.79 | 0.76 to 0.79 | 0.78 to 0.79 | 0.76 to 0.77 | 0.03 to 0.04",
         partial(row_of_methods, "M2PO", "DPPO-TV", "IcePop")),
    Case(PAGE, "| TIS, CISPO, decoupled PPO, A-3PO, VCPO | 0.79",
         "0.79 to 0.80 | 0.77 to 0.79 | 0.78 to 0.79 | 0.78 to 0.80 | 0.00 to 0.02",
         partial(row_of_methods, "TIS", "CISPO", "decoupled", "A-3PO", "VCPO")),
    Case(PAGE, "*8 updates old* every", "0.006 ± 0.003 there, and PPO's 0.010 ± 0.007",
         lambda: f"{loss(lost('DAPO', 8), 3)} there, and PPO's {loss(lost('PPO clip', 8), 3)}"),
    Case(PAGE, "*Ages of 1 to 7 were not trained.*", "TIS and CISPO lose more at 8", most_at_8),
    Case(PAGE, "PPO's clip is slightly better there", "CISPO −0.020 ± 0.008",
         lambda: f"CISPO {gain(ahead('CISPO', 'PPO clip', 8), 3)}"),
    *(Case(PAGE, f"| {near}", printed, partial(row_of_losses, method))
      for near, method, printed in (
        ("decoupled PPO | yes", "decoupled", "yes: 0.006 ± 0.013 | yes: 0.005 ± 0.011 | yes: −0.001 ± 0.015"),
        ("A-3PO | yes", "A-3PO", "yes: 0.000 ± 0.015 | not shown: 0.012 ± 0.010 | yes: 0.004 ± 0.011"),
        ("DPPO-TV | yes", "DPPO-TV", "yes: 0.003 ± 0.012 | yes: 0.008 ± 0.009 | no: 0.038 ± 0.015"),
        ("GSPO | yes", "GSPO", "yes: −0.006 ± 0.018 | not shown: 0.022 ± 0.020 | no: 0.092 ± 0.018"),
    )),
]  # fmt: skip

RATES = [
    Case(PAGE, "**1e-4 for most methods", "11 of 12 at 8 and 64 updates, 9 at 256; on fresh completions 7 have 3e-4",
         best_rates),
    Case(PAGE, "**1e-4 for most methods", "0.05 to 0.36 at 8", lambda: f"{cost_of_a_high_rate()} at 8"),
    Case(PAGE, "**1e-4 for most methods", "a factor of 2.1 (1.3 to 3.3)", lower_rates),
    *(Case(PAGE, f"| {name}, {rate} |", printed, partial(row_of_rate, method, rate))
      for name, method, rate, printed in (
        ("PPO's clip", "PPO clip", "1e-4", "0.77 | 0.77 | 0.70 | 0.57"),
        ("PPO's clip", "PPO clip", "3e-4", "0.77 | 0.70 | 0.60 | 0.57"),
        ("TIS", "TIS", "1e-4", "0.77 | 0.76 | 0.76 | 0.76"),
        ("TIS", "TIS", "3e-4", "0.77 | 0.50 | 0.46 | 0.70"),
        ("decoupled PPO", "decoupled", "1e-4", "0.77 | 0.76 | 0.76 | 0.76"),
        ("decoupled PPO", "decoupled", "3e-4", "0.78 | 0.69 | 0.65 | 0.72"),
    )),
    Case(PAGE, "Two tuning seeds each, no interval", "M2PO at 3e-4 has 0.47 at 8",
         lambda: f"M2PO at 3e-4 has {decimal(tuning_area('M2PO', 8, '3e-4'))} at 8"),
]  # fmt: skip

ACTORS = [
    Case(PAGE, "learn equally", "−0.001 ± 0.009 per update", lambda: f"{in_flight_per_update()} per update"),
    Case(PAGE, "learn equally", "+0.001 ± 0.009 in as many seconds",
         lambda: f"{in_flight_per_second()} in as many seconds"),
    *(Case(PAGE, "They are right less often", printed, partial(slowness, bound))
      for bound, printed in ((1, "1.25 ± 0.03 times"), (2, "1.45 ± 0.05 times"))),
    Case(PAGE, "They are right less often", "0.09 ± 0.01 and 0.10 ± 0.01 of all",
         lambda: f"{wrongness(1)} and {wrongness(2)} of all"),
    Case(PAGE, "| 1 batch |", "0.81 ± 0.08 | 0.82 ± 0.04 | −0.003 ± 0.09", partial(row_of_bound, 1, 3)),
    Case(PAGE, "| 2 batches |", "0.84 ± 0.05 | 0.82 ± 0.11 | +0.03 ± 0.09", partial(row_of_bound, 2, 2)),
    Case(PAGE, "On fresh completions of int8 actors", "PPO's clip and TIS learn 0.009 more than no correction",
         gain_with_int8),
    *(Case(PAGE, f"| {near} |", printed, partial(row_of_rounded_weights, method)) for near, method, printed in (
        ("no correction | 0.79 | 0.79", "no correction", "0.79 | 0.79 | 0.80 | 0.70 | 0.70 | 0.70"),
        ("PPO's clip | 0.80", "PPO clip", "0.80 | 0.79 | 0.81 | 0.79 | 0.79 | 0.80"),
        ("TIS | 0.80", "TIS", "0.80 | 0.79 | 0.81 | 0.78 | 0.78 | 0.78"),
        ("IcePop | 0.79", "IcePop", "0.79 | 0.80 | 0.80 | 0.76 | 0.77 | 0.77"),
    )),
]  # fmt: skip

CASES = [*CASES_OF_AGE, *RATES, *ACTORS]
