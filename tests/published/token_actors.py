"""Numbers of the study of stale completions by what actors do: rounded weights, partial rollouts, admission."""

from __future__ import annotations

from functools import partial

from published.case import Case
from published.statistics import paired
from published.texts import decimal, gain, plus_minus, row, signed
from published.tokens import PAGE, areas, judged, on_addition, on_tail


def row_of_rounded_weights(method: str) -> str:
    """Shares with exact, bfloat16 and int8 weights of actors, fresh and 8 updates old."""
    cells = []
    for age in (0, 8):
        rounded = (on_addition(f"{method}, {weights}", age, "mismatch") for weights in ("bfloat16", "int8"))
        cells += [decimal(areas(setting).mean()) for setting in (on_addition(method, age), *rounded)]
    return row(*cells)


def in_flight_per_update() -> str:
    return gain(paired(*(areas(on_tail("in flight", method, 1)) for method in ("in flight", "whole"))), 3)


def in_flight_per_second() -> str:
    changing, whole = (judged(on_tail("in flight", method, 1)) for method in ("in flight", "whole"))
    end = min(run.seconds[-1] for run in changing + whole)
    return gain(paired(*([run.area_until(end) for run in several] for several in (changing, whole))), 3)


def of_dropped(bound: int, column: str) -> list[float]:
    """A record of dropped completions, of the judging runs with a bound."""
    return [run.value(column) for run in judged(on_tail("admission", "drop", bound))]


def slowness(bound: int) -> str:
    """Seconds of dropped completions, as a share of those of all."""
    return f"{plus_minus(of_dropped(bound, 'fragments_dropped_slowness'))} times"


def wrongness(bound: int) -> str:
    """How much less often dropped completions are right than used ones."""
    return plus_minus([-value for value in of_dropped(bound, "fragments_dropped_return")])


def row_of_bound(bound: int, digits: int) -> str:
    """Shares with waiting and with dropping."""
    waiting, dropping = (areas(on_tail("admission", method, bound)) for method in ("wait", "drop"))
    difference = paired(waiting, dropping)
    return row(plus_minus(waiting), plus_minus(dropping), f"{signed(difference.mean, digits)} ± {difference.half:.2f}")


CASES = [
    Case(PAGE, "learn equally", "+0.006 ± 0.026 per update", lambda: f"{in_flight_per_update()} per update"),
    Case(PAGE, "learn equally", "+0.010 ± 0.034 in as many seconds",
         lambda: f"{in_flight_per_second()} in as many seconds"),
    *(Case(PAGE, "They are right less often", printed, partial(slowness, bound))
      for bound, printed in ((1, "1.25 ± 0.03 times"), (2, "1.45 ± 0.05 times"))),
    Case(PAGE, "They are right less often", "0.09 ± 0.01 and 0.10 ± 0.01 of all",
         lambda: f"{wrongness(1)} and {wrongness(2)} of all"),
    Case(PAGE, "| 1 batch |", "0.81 ± 0.08 | 0.82 ± 0.04 | −0.003 ± 0.09", partial(row_of_bound, 1, 3)),
    Case(PAGE, "| 2 batches |", "0.84 ± 0.05 | 0.82 ± 0.11 | +0.03 ± 0.09", partial(row_of_bound, 2, 2)),
    *(Case(PAGE, f"| {near} |", printed, partial(row_of_rounded_weights, method)) for near, method, printed in (
        ("no correction | 0.78 | 0.78 | 0.79", "no correction", "0.78 | 0.78 | 0.79 | 0.68 | 0.68 | 0.69"),
        ("PPO's clip | 0.79", "PPO clip", "0.79 | 0.79 | 0.79 | 0.78 | 0.78 | 0.78"),
        ("TIS | 0.79", "TIS", "0.79 | 0.78 | 0.79 | 0.77 | 0.77 | 0.77"),
        ("IcePop | 0.78", "IcePop", "0.78 | 0.79 | 0.79 | 0.75 | 0.76 | 0.76"),
    )),
]  # fmt: skip
