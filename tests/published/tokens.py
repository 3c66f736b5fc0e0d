"""Numbers of the study of stale completions."""

from __future__ import annotations

import functools
from functools import partial

import numpy as np

from published.case import Case
from published.statistics import Difference, paired
from published.study_runs import Run, Setting, best_of, rates_of, runs_at
from published.texts import decimal, loss, row, significant, span

FRONT, FINDINGS, PAGE = "README.md", "results/README.md", "results/tokens/README.md"
SHARE = (0.0, 1.0)
"""Returns are shares of right completions."""
TUNING = range(2)
AGES = (0, 8, 64, 256)
"""Updates that completions are old."""
METHODS = ("no correction", "PPO clip", "DAPO", "GSPO", "CISPO", "TIS", "IcePop", "M2PO", "decoupled", "A-3PO",
           "DPPO-TV", "VCPO")  # fmt: skip
CORRECTIONS, PROXIMAL = METHODS[1:], ("decoupled", "A-3PO")
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


def young(method: str, age: int) -> np.ndarray:
    return areas(on_addition(method, age, "young"))


def gained_young(method: str, age: int) -> Difference:
    """What completions of this age gain, beside fresh ones of the same machine."""
    return paired(young(method, age), young(method, 0))


def row_of_young(method: str) -> str:
    shares = (decimal(young(method, age).mean()) for age in (0, 1, 4))
    return row(*shares, loss(paired(young(method, 0), young(method, 4)), 3))


def behind_the_clip(method: str) -> str:
    """Gaps to PPO's clip at one and at four updates."""
    return " and ".join(loss(paired(young("PPO clip", age), young(method, age)), 3) for age in (1, 4))


def losses_elsewhere() -> str:
    """Losses of corrections on the other tasks."""
    corrections = ("PPO clip", "GSPO", "TIS", "M2PO", "decoupled")
    return span(lost_on(task, method).mean for task in OTHERS for method in corrections)


def ends(setting: Setting) -> np.ndarray:
    """Shares at the end of the judging runs."""
    return np.array([run.final for run in judged(setting)])


def young_ends(method: str, age: int) -> np.ndarray:
    return ends(on_addition(method, age, "young"))


def end(method: str, age: int, task: str = ADDITION) -> float:
    return float(ends(on(task, method, age)).mean())


def ends_of(task: str) -> tuple[float, float]:
    """Mean shares at the start and at the end, of runs with PPO's clip on fresh completions."""
    return float(np.mean([run.shares[0] for run in judged(on(task, "PPO clip", 0))])), end("PPO clip", 0, task)


def row_of_method(method: str) -> str:
    return row(*(decimal(right(method, age)) for age in AGES), loss(lost(method, 256)))


def row_of_methods(*methods: str) -> str:
    """Spans of several methods; one number where all are the same."""
    spans = [span(right(method, age) for method in methods) for age in AGES]
    cells = [low if low == high else f"{low} to {high}" for low, _, high in (text.split() for text in spans)]
    losses = [lost(method, 256) for method in methods]
    return row(*cells, span(each.mean for each in losses))


def small(method: str, age: int) -> str:
    cost = lost(method, age)
    return f"{verdict(cost)}: {loss(cost, 3)}"


def verdict(cost: Difference) -> str:
    """Whether a loss is shown to be below `MARGIN`."""
    return "yes" if cost.mean + cost.half < MARGIN else "no" if cost.mean - cost.half > MARGIN else "not shown"


def row_of_losses(*methods: str) -> str:
    """Losses by age; several methods share a verdict that they have in common."""
    cells = []
    for age in AGES[1:]:
        verdicts = [small(method, age).partition(": ") for method in methods]
        if len({verdict for verdict, _, _ in verdicts}) == 1:
            cells.append(f"{verdicts[0][0]}: {'; '.join(text for _, _, text in verdicts)}")
        else:
            first, *others = verdicts
            cells.append("; ".join([f"{''.join(first)} ({methods[0]})", *map("".join, others)]))
    return row(*cells)


def changed_verdicts() -> dict[str, set[tuple[str, int]]]:
    """Verdicts on small losses that are others beside TIS's fresh runs, by the new verdict."""
    found: dict[str, set[tuple[str, int]]] = {}
    for method in METHODS:
        for age in AGES[1:]:
            own = small(method, age).partition(":")[0]
            beside = verdict(paired(areas(on_addition("TIS", 0)), areas(on_addition(method, age))))
            if beside != own:
                found.setdefault(beside, set()).add((method, age))
    return found


def sharper() -> str:
    assert changed_verdicts() == {
        "yes": {("decoupled", 8), ("DPPO-TV", 64), ("A-3PO", 256)},
        "no": {("GSPO", 64), ("IcePop", 256)},
    }
    return (
        "decoupled PPO at 8, DPPO-TV at 64 and A-3PO at 256 become *yes*, and GSPO at 64 and IcePop at 256 become *no*"
    )


def always_small() -> str:
    """Methods that are shown to lose little at both old ages."""
    names = [method for method in METHODS if all(small(method, age).startswith("yes") for age in AGES[2:])]
    return f"{' and '.join(names)} PPO are shown"


def losses_at_8() -> str:
    return span(lost(method, 8).mean for method in CORRECTIONS)


def behind_decoupled() -> str:
    """What TIS learns less than decoupled PPO, on three tasks."""
    here, *elsewhere = (ahead("decoupled", "TIS", 64, task) for task in (ADDITION, *OTHERS))
    (both,) = {decimal(each.mean) for each in elsewhere}
    return f"({loss(here, 3)}), on sort and countdown by {both}"


def settings_without_90() -> str:
    """Settings in which no more than half of the seeds ever have 90 % right."""
    every = [judged(on_addition(method, age)) for method in METHODS for age in AGES]
    few = sum(2 * sum(run.shares.max() >= 0.9 for run in runs) <= len(runs) for runs in every)
    return f"In {few} of {len(every)} settings"


def updates_to_goal(method: str, age: int) -> list[float]:
    """Updates to the first evaluation with 75 % right; infinite where there is none."""
    runs = judged(on_addition(method, age))
    return [next(iter(run.rounds[run.shares >= 0.75]), np.inf) for run in runs]


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
    return f"{at_8} of {len(METHODS)} at 8 and 64 updates, {at_256} at 256"


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


CASES_OF_AGE = [
    *(Case(page, near, "0.00 to 0.03", losses_at_8) for page, near in (
        (PAGE, "**On addition eight updates cost"), (PAGE, "*8 updates old* corrections"),
        (FINDINGS, "cost a language model"))),
    Case(PAGE, "**On addition eight updates cost", "lost 0.24 of 0.79",
         lambda: f"lost {lost('PPO clip', 256).mean:.2f} of {decimal(right('PPO clip', 0))}"),
    Case(PAGE, "**On addition eight updates cost", "A-3PO lose 0.01 at most",
         lambda: f"A-3PO lose {max(lost(each, 256).mean for each in ('TIS', 'CISPO', *PROXIMAL)):.2f} at most"),
    *(Case(page, near, "0.02 to 0.11", losses_elsewhere) for page, near in (
        (PAGE, "**On addition eight updates cost"), (FINDINGS, "cost a language model"))),
    Case(PAGE, "At the end PPO's clip has",
         "0.87 with fresh completions, 0.85 at 8, 0.82 at 64 and 0.69 at 256",
         lambda: "{} with fresh completions, {} at 8, {} at 64 and {} at 256".format(
             *(decimal(end("PPO clip", age)) for age in AGES))),
    Case(PAGE, "At the end PPO's clip has", "TIS has 0.86, 0.84, 0.84 and 0.86, all at 1e-4",
         lambda: "TIS has {}, {}, {} and {}, all at {}".format(
             *(decimal(end("TIS", age)) for age in AGES), *{best_rate(on_addition("TIS", age)) for age in AGES})),
    Case(PAGE, "*8 updates old* corrections", "0.008 ± 0.004, and PPO's 0.012 ± 0.006",
         lambda: f"{loss(lost('DAPO', 8), 3)}, and PPO's {loss(lost('PPO clip', 8), 3)}"),
    Case(PAGE, "*8 updates old* corrections", "correction 0.10 is lost",
         lambda: f"correction {decimal(lost('no correction', 8).mean)} is lost"),
    Case(PAGE, "**On addition PPO's clip loses nothing", "0.024 ± 0.012 more",
         lambda: f"{loss(gained_young('PPO clip', 1), 3)} more"),
    *(Case(PAGE, f"| {near} |", printed, partial(row_of_young, method)) for near, method, printed in (
        ("PPO's clip | 0.78 | 0.81", "PPO clip", "0.78 | 0.81 | 0.79 | −0.010 ± 0.011"),
        ("TIS | 0.78 | 0.79", "TIS", "0.78 | 0.79 | 0.78 | 0.004 ± 0.012"),
        ("decoupled PPO | 0.78 | 0.77", "decoupled", "0.78 | 0.77 | 0.78 | 0.003 ± 0.011"),
        ("no correction | 0.78 | 0.78 | 0.64 | 0.140 ± 0.043", "no correction", "0.78 | 0.78 | 0.64 | 0.140 ± 0.043"),
    )),
    *(Case(PAGE, "**How sure.** As above, on another machine", printed, partial(behind_the_clip, method))
      for method, printed in (
        ("TIS", "0.019 ± 0.011 and 0.014 ± 0.005"), ("decoupled", "0.036 ± 0.012 and 0.013 ± 0.003"))),
    Case(PAGE, "**How sure.** As above, on another machine", "ahead of PPO's clip by 0.021 ± 0.018",
         lambda: f"ahead of PPO's clip by {loss(paired(young_ends('TIS', 1), young_ends('PPO clip', 1)), 3)}"),
    Case(PAGE, "**How sure.** As above, on another machine", "the gain of PPO's clip is 0.016 ± 0.030",
         lambda: "the gain of PPO's clip is " + loss(paired(*(young_ends("PPO clip", age) for age in (1, 0))), 3)),
    Case(PAGE, "Each method is compared with its own fresh completions",
         "decoupled PPO at 8, DPPO-TV at 64 and A-3PO at 256 become *yes*, and GSPO at 64 and IcePop at 256 "
         "become *no*",
         sharper),
    Case(PAGE, "*At 64 and more, take decoupled PPO.*", "0.08 on addition, 0.03 on sort and 0.08 on countdown",
         lambda: "{} on addition, {} on sort and {} on countdown".format(
             *(decimal(ahead("decoupled", "PPO clip", 64, task).mean) for task in (ADDITION, *OTHERS)))),
    Case(PAGE, "*TIS need not be better", "by 0.08 at 64 updates and 0.23 at 256, on countdown by 0.06 at 64",
         lambda: "by {} at 64 updates and {} at 256, on countdown by {} at 64".format(
             *(decimal(ahead("TIS", "PPO clip", age, task).mean)
               for age, task in ((64, ADDITION), (256, ADDITION), (64, "countdown"))))),
    Case(PAGE, "*TIS need not be better", "(0.006 ± 0.018)",
         lambda: f"({loss(ahead('TIS', 'PPO clip', 64, 'sort'), 3)})"),
    Case(PAGE, "*TIS need not be better", "(0.005 ± 0.008), on sort and countdown by 0.02", behind_decoupled),
    Case(PAGE, "*At 8 updates* CISPO", "0.017 ± 0.010 behind",
         lambda: f"{loss(ahead('PPO clip', 'CISPO', 8), 3)} behind"),
    *(Case(PAGE, f"| {near}", printed, partial(row_of_tasks, method)) for near, method, printed in (
        ("decoupled PPO | 0.0", "decoupled", "0.008 ± 0.010 | 0.037 ± 0.006 | 0.018 ± 0.009"),
        ("GSPO | 0.0", "GSPO", "0.031 ± 0.019 | 0.030 ± 0.010 | 0.061 ± 0.010"),
        ("TIS | 0.0", "TIS", "0.014 ± 0.005 | 0.059 ± 0.014 | 0.047 ± 0.014"),
        ("M2PO | 0.0", "M2PO", "0.017 ± 0.011 | 0.062 ± 0.016 | 0.057 ± 0.013"),
        ("PPO's clip | 0.0", "PPO clip", "0.090 ± 0.010 | 0.067 ± 0.012 | 0.108 ± 0.019"),
        ("no correction | 0.1", "no correction", "0.186 ± 0.027 | 0.226 ± 0.024 | 0.171 ± 0.013"),
    )),
    Case(PAGE, "Sort begins at", "0.38 right and ends at 0.97 on fresh completions, countdown at 0.21 and 0.54",
         lambda: "{} right and ends at {} on fresh completions, countdown at {} and {}".format(
             *(decimal(share) for task in OTHERS for share in ends_of(task)))),
    Case(FINDINGS, "cost a language model", "PPO's clip learns 0.55 instead of 0.79, decoupled PPO 0.78",
         lambda: "PPO's clip learns {} instead of {}, decoupled PPO {}".format(
             decimal(right("PPO clip", 256)), decimal(right("PPO clip", 0)), decimal(right("decoupled", 256)))),
    Case(PAGE, "less than 0.02 at 64 and 256 updates.", "TIS and decoupled PPO are shown", always_small),
    Case(FRONT, "And completions of a language model?", "fresh 0.79, 8 updates old 0.78, 64 0.70, 256 0.55",
         lambda: "fresh {}, 8 updates old {}, 64 {}, 256 {}".format(
             *(decimal(right("PPO clip", age)) for age in AGES))),
    Case(FRONT, "And completions of a language model?", "Decoupled PPO at 256: 0.78",
         lambda: f"Decoupled PPO at 256: {decimal(right('decoupled', 256))}"),
    *(Case(PAGE, f"| {near} |", printed, partial(row_of_updates, *methods)) for near, printed, methods in (
        ("no correction | 60", "60 | 216 (5) | – (4) | – (3)", ("no correction",)),
        ("PPO's clip | 72", "72 | 108 | 204 (7) | – (4)", ("PPO clip",)),
        ("DAPO's wider clip | 72", "72 | 108 | 144 | 356 (5)", ("DAPO",)),
        ("GSPO | 60", "60 | 96 | 144 | 276 (5)", ("GSPO",)),
        ("M2PO, DPPO-TV, IcePop | 60", "60 | 96 to 108 | 108 to 120 | 120 to 204", ("M2PO", "DPPO-TV", "IcePop")),
        ("TIS, CISPO, decoupled PPO, A-3PO, VCPO | 60 to 72", "60 to 72 | 84 to 108 | 96 to 120 | 96 to 120",
         ("TIS", "CISPO", "decoupled", "A-3PO", "VCPO")),
    )),
    Case(PAGE, "**How sure.** Medians over 8", "In 33 of 48 settings", settings_without_90),
    *(Case(PAGE, f"| {near} |", printed, partial(row_of_method, method)) for near, method, printed in (
        ("no correction | 0.78 | 0.68 | 0.59", "no correction", "0.78 | 0.68 | 0.59 | 0.56 | 0.22 ± 0.02"),
        ("PPO's clip (GRPO) | 0.79", "PPO clip", "0.79 | 0.78 | 0.70 | 0.55 | 0.24 ± 0.03"),
        ("DAPO's wider clip | 0.79", "DAPO", "0.79 | 0.78 | 0.72 | 0.60 | 0.19 ± 0.03"),
        ("GSPO | 0.78", "GSPO", "0.78 | 0.78 | 0.75 | 0.68 | 0.10 ± 0.02"),
    )),
    Case(PAGE, "| M2PO, DPPO-TV, IcePop | 0.78", "0.78 | 0.75 to 0.78 | 0.77 | 0.73 to 0.75 | 0.03 to 0.05",
         partial(row_of_methods, "M2PO", "DPPO-TV", "IcePop")),
    Case(PAGE, "| TIS, CISPO, decoupled PPO, A-3PO, VCPO | 0.78",
         "0.78 to 0.79 | 0.76 to 0.78 | 0.77 to 0.78 | 0.77 to 0.78 | 0.00 to 0.02",
         partial(row_of_methods, "TIS", "CISPO", "decoupled", "A-3PO", "VCPO")),
    *(Case(PAGE, f"| {near}", printed, partial(row_of_losses, *methods)) for near, methods, printed in (
        ("decoupled PPO | not", ("decoupled",),
         "not shown: 0.011 ± 0.011 | yes: 0.008 ± 0.010 | yes: 0.005 ± 0.012"),
        ("TIS; CISPO | not", ("TIS", "CISPO"),
         "not shown: 0.017 ± 0.007; 0.029 ± 0.012 | yes: 0.014 ± 0.005 (TIS); not shown: 0.015 ± 0.010 "
         "| yes: 0.009 ± 0.005; 0.010 ± 0.004"),
        ("A-3PO | yes", ("A-3PO",), "yes: 0.004 ± 0.014 | not shown: 0.016 ± 0.012 | not shown: 0.010 ± 0.012"),
        ("DPPO-TV; GSPO | yes", ("DPPO-TV", "GSPO"),
         "yes: 0.005 ± 0.011; −0.002 ± 0.017 | not shown: 0.011 ± 0.010; 0.031 ± 0.019 "
         "| no: 0.049 ± 0.016; 0.105 ± 0.017"),
    )),
]  # fmt: skip

RATES = [
    Case(PAGE, "**On addition 1e-4 for most methods", "11 of 12 at 8 and 64 updates, 9 at 256", best_rates),
    Case(PAGE, "**On addition 1e-4 for most methods", "0.04 to 0.34 at 8", lambda: f"{cost_of_a_high_rate()} at 8"),
    Case(PAGE, "**On addition 1e-4 for most methods", "a factor of 2.1 (1.3 to 3.3)", lower_rates),
    *(Case(PAGE, f"| {name}, {rate} |", printed, partial(row_of_rate, method, rate))
      for name, method, rate, printed in (
        ("PPO's clip", "PPO clip", "1e-4", "0.76 | 0.75 | 0.68 | 0.54"),
        ("PPO's clip", "PPO clip", "3e-4", "0.77 | 0.69 | 0.62 | 0.56"),
        ("TIS", "TIS", "1e-4", "0.76 | 0.75 | 0.75 | 0.74"),
        ("TIS", "TIS", "3e-4", "0.76 | 0.51 | 0.50 | 0.73"),
        ("decoupled PPO", "decoupled", "1e-4", "0.76 | 0.75 | 0.75 | 0.75"),
        ("decoupled PPO", "decoupled", "3e-4", "0.77 | 0.68 | 0.65 | 0.74"),
    )),
    Case(PAGE, "Two tuning seeds each, no interval", "M2PO at 3e-4 has 0.47 at 8",
         lambda: f"M2PO at 3e-4 has {decimal(tuning_area('M2PO', 8, '3e-4'))} at 8"),
]  # fmt: skip

CASES = [*CASES_OF_AGE, *RATES]
