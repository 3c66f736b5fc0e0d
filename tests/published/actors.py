"""Numbers of the study of asynchronous actors."""

from __future__ import annotations

import functools
from functools import partial

import numpy as np

from published.case import Case
from published.map_runs import TASKS
from published.statistics import interval
from published.study_runs import Run, Setting, best_of, rates_of, runs_at
from published.texts import PARTS, decimal, row, significant, significant_plus_minus

FRONT, PAGE = "README.md", "results/actors/README.md"
TUNING = range(8)
LADDER = ("6.25e-5", "1.25e-4", "2.5e-4", "5e-4", "1e-3", "2e-3", "4e-3", "8e-3", "1.6e-2", "3.2e-2", "6.4e-2")
"""Learning rates; every second one is a rate that objectives are compared at, the rest are PPO's alone."""
LAGS = {"cartpole": (0, 1, 2, 4, 8), "acrobot": (0, 1, 2, 4, 8), "breakout": (0, 2, 8)}
"""Ages of data, in batches, at which objectives are compared."""
NAMES = {"cartpole": "CartPole", "acrobot": "Acrobot", "breakout": "Breakout"}
ADMISSIONS = {
    "barrier": ("barrier", 0), "wait, bound 1": ("wait", 1), "wait, bound 2": ("wait", 2),
    "drop, bound 0": ("drop", 0), "drop, bound 1": ("drop", 1), "drop, bound 2": ("drop", 2),
}  # fmt: skip
FETCHES = {"cartpole": (0, 64, 32, 16, 8), "acrobot": (0, 64, 32, 16, 8), "breakout": (0, 32, 8)}
"""Steps between fetches; 0 is once per fragment."""


def setting(task: str, question: str, method: str, level: int) -> Setting:
    return Setting(f"actors/{task}", TASKS[task], question, method, level)


@functools.cache
def judged(task: str, question: str, method: str, level: int) -> list[Run]:
    """Judging runs at the best of the rates that objectives are compared at."""
    place = setting(task, question, method, level)
    rates = [rate for rate in rates_of(place, TUNING) if LADDER.index(rate) % 2 == 0]
    return runs_at(place, best_of(place, rates, TUNING))


def area_at_lag(task: str, method: str, lag: int) -> str:
    return significant_plus_minus([run.area for run in judged(task, "lags", method, lag)])


def row_of_objective(task: str, method: str) -> str:
    """Areas by lag; Breakout has no runs at lags of 1 and 4."""
    return row(*(area_at_lag(task, method, lag) if lag in LAGS[task] else "" for lag in (0, 1, 2, 4, 8)))


# Admission and fetches ------------------------------------------------------------------------------------------------


def area_until(runs: list[Run], end: float) -> str:
    return significant_plus_minus([run.area_until(end) for run in runs])


def row_of_admission(method: str, bound: int) -> str:
    """Areas over equal seconds and equal batches, and final returns, on both tasks."""
    cells = []
    for task in ("cartpole", "acrobot"):
        end = min(run.seconds[-1] for place in ADMISSIONS.values() for run in judged(task, "bounds", *place))
        own = judged(task, "bounds", method, bound)
        area, final = ([getattr(run, measure) for run in own] for measure in ("area", "final"))
        cells += [area_until(own, end), significant_plus_minus(area), significant_plus_minus(final)]
    return row(*cells)


def row_of_fetches(steps: int) -> str:
    """Areas over equal seconds and data lags, on the tasks that have this number of steps between fetches."""
    cells = []
    for task, several in FETCHES.items():
        every = [run for method in ("free", "0.13 s") for step in several for run in judged(task, "sync", method, step)]
        if steps in several:
            own = judged(task, "sync", "0.13 s", steps)
            lag = [run.value("data_lag") for run in own]
            cells += [area_until(own, min(run.seconds[-1] for run in every)), significant_plus_minus(lag)]
    return row(*cells)


def shortest(task: str) -> str:
    ends = [run.seconds[-1] for place in ADMISSIONS.values() for run in judged(task, "bounds", *place)]
    return f"{min(ends):.0f} s on {task}"


# Best learning rates --------------------------------------------------------------------------------------------------


@functools.cache
def summits(task: str) -> tuple[tuple[int, ...], np.ndarray]:
    """Lags in batches, and at each the logarithm of PPO's best rate: the summit of a parabola through three areas."""
    lags = (0, 2, 8, 16) if task == "breakout" else (0, 1, 2, 4, 8, 16)
    places = [setting(task, "lags", "PPO", lag) for lag in lags]
    rates = [rate for rate in LADDER if all(rate in rates_of(place, range(16)) for place in places)]
    step, found = np.log(2), []
    for place in places:
        areas = [np.mean([run.area for run in runs_at(place, rate, range(16))]) for rate in rates]
        top = int(np.argmax(areas))
        shift = 0.0
        if 0 < top < len(areas) - 1:
            before, highest, after = areas[top - 1 : top + 2]
            shift = float((before - after) / (before - 2 * highest + after) / 2)
        found.append(np.log(float(rates[top])) + shift * step)
    return lags, np.array(found)


def best_rate(task: str, lag: int) -> float:
    lags, logarithms = summits(task)
    return float(np.exp(logarithms[lags.index(lag)]))


def exponent(task: str) -> str:
    """Slope of the logarithm of the best rate over that of 1 + lag."""
    lags, logarithms = summits(task)
    return significant(float(np.polyfit(np.log1p(lags), logarithms, 1)[0]), 2)


def crossover(task: str) -> str:
    """Lag from which on a fall as 1 / (1 + lag), after a constant, fits best; tenths of batches are tried."""
    lags, logarithms = summits(task)
    tried = np.linspace(0, 16, 161)
    errors = [np.var(logarithms + np.maximum(np.log1p(lags) - np.log1p(begin), 0)) for begin in tried]
    return significant(float(tried[np.argmin(errors)]), 2)


def row_of_ppo(task: str) -> str:
    rates = (significant(best_rate(task, lag), 2) for lag in (0, 16))
    return row(*(area_at_lag(task, "PPO", lag) for lag in (0, 2, 8)), *rates)


def lower_with_old_data() -> str:
    parts = {task: PARTS[round(best_rate(task, 0) / best_rate(task, 16))] for task in NAMES}
    on_both = parts["cartpole"] if parts["cartpole"] == parts["acrobot"] else "different part"
    return f"a {on_both} of that for fresh data on CartPole and Acrobot, a {parts['breakout']} on Breakout"


def with_all_rates(task: str) -> str:
    """PPO's area at lag 4, if it may have the rates in between."""
    place = setting(task, "lags", "PPO", 4)
    best = best_of(place, rates_of(place, TUNING), TUNING)
    fewer, _ = interval([run.area for run in judged(task, "lags", "PPO", 4)])
    more, _ = interval([run.area for run in runs_at(place, best)])
    return f"{decimal(more)} instead of {decimal(fewer)} on {NAMES[task]}"


SUMMARY = [
    Case(PAGE, "| CartPole | 0.928", "0.928 ± 0.026 | 0.893 ± 0.026 | 0.512 ± 0.068 | 0.013 | 0.0019",
         partial(row_of_ppo, "cartpole")),
    Case(PAGE, "| Acrobot | 0.937", "0.937 ± 0.10 | 0.873 ± 0.079 | 0.615 ± 0.11 | 0.0048 | 0.00068",
         partial(row_of_ppo, "acrobot")),
    Case(PAGE, "| Breakout | 0.413", "0.413 ± 0.11 | 0.359 ± 0.027 | 0.106 ± 0.011 | 0.011 | 0.0022",
         partial(row_of_ppo, "breakout")),
    Case(FRONT, "How much lower, with old data?",
         "a seventh of that for fresh data on CartPole and Acrobot, a fifth on Breakout", lower_with_old_data),
    Case(PAGE, "With them PPO would have", "0.76 instead of 0.73 on CartPole", partial(with_all_rates, "cartpole")),
    Case(PAGE, "With them PPO would have", "0.79 instead of 0.73 on Acrobot", partial(with_all_rates, "acrobot")),
]  # fmt: skip

ADMISSION = [
    Case(PAGE, f"| {near} |", printed, partial(row_of_admission, *ADMISSIONS[near]))
    for near, printed in {
        "barrier":
            "0.560 ± 0.085 | 0.783 ± 0.043 | 1.05 ± 0 | 0.654 ± 0.26 | 0.851 ± 0.11 | 0.995 ± 0.025",
        "wait, bound 1":
            "0.524 ± 0.070 | 0.567 ± 0.075 | 0.943 ± 0.11 | 0.596 ± 0.12 | 0.727 ± 0.082 | 0.971 ± 0.020",
        "wait, bound 2":
            "0.395 ± 0.054 | 0.402 ± 0.060 | 0.784 ± 0.13 | 0.582 ± 0.14 | 0.686 ± 0.11 | 0.905 ± 0.049",
        "drop, bound 0":
            "0.497 ± 0.087 | 0.795 ± 0.043 | 1.05 ± 0 | 0.603 ± 0.16 | 0.872 ± 0.051 | 1.03 ± 0.0064",
        "drop, bound 1":
            "0.554 ± 0.089 | 0.608 ± 0.071 | 0.963 ± 0.042 | 0.644 ± 0.10 | 0.783 ± 0.058 | 0.979 ± 0.013",
        "drop, bound 2":
            "0.475 ± 0.054 | 0.495 ± 0.056 | 0.947 ± 0.13 | 0.590 ± 0.081 | 0.684 ± 0.064 | 0.896 ± 0.061",
    }.items()
]  # fmt: skip

FETCHING = [
    Case(PAGE, f"| {near} |", printed, partial(row_of_fetches, steps))
    for near, steps, printed in (
        ("once per fragment, of 128 steps", 0,
         "0.821 ± 0.026 | 12.7 ± 0.19 | 0.748 ± 0.033 | 12.7 ± 0.19 | 0.318 ± 0.028 | 12.7 ± 0.19"),
        ("every 64 steps", 64, "0.933 ± 0.022 | 10.6 ± 0.17 | 0.802 ± 0.056 | 10.6 ± 0.17"),
        ("every 32 steps", 32,
         "0.923 ± 0.025 | 9.45 ± 0.17 | 0.848 ± 0.038 | 9.45 ± 0.17 | 0.374 ± 0.022 | 9.45 ± 0.17"),
        ("every 16 steps", 16, "0.931 ± 0.023 | 8.69 ± 0.18 | 0.835 ± 0.061 | 8.69 ± 0.18"),
        ("every 8 steps", 8,
         "0.913 ± 0.035 | 7.89 ± 0.23 | 0.830 ± 0.062 | 7.89 ± 0.23 | 0.368 ± 0.027 | 7.89 ± 0.23"),
    )
]  # fmt: skip

OBJECTIVES = [
    Case(PAGE, f"| {method} | {printed[:5]}", printed, partial(row_of_objective, task, method))
    for task, method, printed in (
        ("cartpole", "decoupled", "0.909 ± 0.062 | 0.908 ± 0.043 | 0.726 ± 0.086 | 0.654 ± 0.12 | 0.482 ± 0.10"),
        ("cartpole", "TIS", "0.791 ± 0.088 | 0.688 ± 0.029 | 0.609 ± 0.10 | 0.508 ± 0.10 | 0.382 ± 0.034"),
        ("cartpole", "CISPO", "0.735 ± 0.095 | 0.649 ± 0.076 | 0.564 ± 0.097 | 0.511 ± 0.083 | 0.399 ± 0.040"),
        ("cartpole", "A-3PO", "0.909 ± 0.062 | 0.893 ± 0.093 | 0.779 ± 0.067 | 0.528 ± 0.062 | 0.453 ± 0.11"),
        ("cartpole", "V-trace", "0.812 ± 0.078 | 0.687 ± 0.042 | 0.638 ± 0.055 | 0.509 ± 0.12 | 0.355 ± 0.024"),
        ("acrobot", "PPO", "0.937 ± 0.10 | 0.935 ± 0.017 | 0.873 ± 0.079 | 0.727 ± 0.15 | 0.615 ± 0.11"),
        ("acrobot", "decoupled", "0.895 ± 0.19 | 0.854 ± 0.26 | 0.932 ± 0.040 | 0.848 ± 0.15 | 0.894 ± 0.054"),
        ("acrobot", "TIS", "0.963 ± 0.027 | 0.907 ± 0.052 | 0.928 ± 0.038 | 0.890 ± 0.053 | 0.852 ± 0.085"),
        ("acrobot", "A-3PO", "0.895 ± 0.19 | 0.756 ± 0.34 | 0.936 ± 0.039 | 0.878 ± 0.074 | 0.890 ± 0.057"),
        ("acrobot", "V-trace", "0.707 ± 0.19 | 0.551 ± 0.33 | 0.791 ± 0.16 | 0.290 ± 0.22 | 0.395 ± 0.17"),
        ("acrobot", "CISPO", "0.964 ± 0.026 | 0.940 ± 0.037 | 0.925 ± 0.046 | 0.855 ± 0.13 | 0.825 ± 0.072"),
        ("breakout", "decoupled", "0.414 ± 0.11 |  | 0.178 ± 0.15 |  | 0.0795 ± 0.10"),
        ("breakout", "V-trace", "0.324 ± 0.11 |  | 0.177 ± 0.013 |  | 0.0418 ± 0.022"),
        ("breakout", "TIS", "0.298 ± 0.10 |  | 0.148 ± 0.010 |  | 0.0295 ± 0.0040"),
        ("breakout", "CISPO", "0.280 ± 0.12 |  | 0.145 ± 0.017 |  | 0.0155 ± 0.016"),
    )
]

LAW = [
    *(Case(PAGE, "| exponent over all lags |", printed, partial(exponent, task))
      for task, printed in (("cartpole", "−0.78"), ("acrobot", "−0.81"), ("breakout", "−0.59"))),
    *(Case(PAGE, "| crossover in batches", printed, partial(crossover, task))
      for task, printed in (("cartpole", "1.1"), ("breakout", "2.5"))),
]  # fmt: skip

ENDS = [Case(PAGE, "Equal seconds end with", f"{seconds} s on {task}", partial(shortest, task))
        for task, seconds in (("cartpole", 146), ("acrobot", 160))]  # fmt: skip

CASES = [*SUMMARY, *ADMISSION, *ENDS, *FETCHING, *OBJECTIVES, *LAW]
