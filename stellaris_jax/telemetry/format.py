"""Numbers as readable text. None, a missing value, is a dash everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stellaris_jax.base.statistics import FEWEST

MISSING = "-"


def number(value: float | None, digits: int = 1) -> str:
    """`1234.56` as `1,234.6`."""
    return MISSING if value is None else f"{value:,.{digits}f}"


def count(value: float | None) -> str:
    """`24576` as `24,576`; a mean over seeds that is no integer keeps one digit."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def significant(value: float | None, digits: int = 3) -> str:
    """Number with significant digits, and all digits before the point: `0.958`, `12.5`, `1,034`."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0.0:
        return "0"
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if exponent < -4:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def compact(value: float | None) -> str:
    """`283456` as `283k`, three significant digits."""
    if value is None:
        return MISSING
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            scaled = value / unit
            return f"{scaled:.0f}{name}" if abs(scaled) >= 100 else f"{scaled:.3g}{name}"
    return f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Seconds as `h:mm:ss`."""
    if seconds is None:
        return MISSING
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def clock(executor: str | None) -> str:
    """Adjective for the seconds of a run: measured for a live run and its replay, else simulated."""
    return "measured" if executor in ("live", "replay") else "simulated"


def dollars(value: float | None) -> str:
    """Amount in whole cents from a dollar up, with three significant digits below."""
    if value is None:
        return MISSING
    if value >= 1.0:
        return f"${value:,.2f}"
    cents = f"${value:.2f}" if value >= 0.1 else ""
    return max(cents, f"${value:.3g}", key=len)


def percent(share: float | None) -> str:
    """`0.954` as `95 %`."""
    return MISSING if share is None else f"{100 * share:.0f} %"


def interval(mean: float | None, half_width: float | None) -> str:
    """`12.3 ± 0.45`: three significant digits of the mean, two of the half-width; the mean alone without one."""
    if mean is None or half_width is None or not math.isfinite(half_width):
        return significant(mean)
    return f"{significant(mean)} ± {significant(half_width, 2)}"


def over_seeds(mean: float | None, half_width: float | None, per_seed: Sequence[float | None] | None) -> str:
    """Mean with its interval or, for too few seeds, with their range: `435 (398 to 472)`."""
    known = [value for value in per_seed or () if value is not None]
    if 1 < len(known) < FEWEST:
        return f"{significant(mean)} ({significant(min(known))} to {significant(max(known))})"
    return interval(mean, half_width)


def plural(count: int, noun: str) -> str:
    """`1 run`, `2 runs`, `1,280 runs`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def value_text(value: Any) -> str:
    """Value of a setting as YAML has it: `true`, `null`, `0.01`."""
    return (
        {True: "true", False: "false", None: "null"}[value] if value is None or isinstance(value, bool) else str(value)
    )


def basis(seeds: int, episodes: int) -> str:
    """Basis of `over_seeds`: `95 % over 128 episodes`, or for several seeds `3 seeds, 384 episodes`."""
    interval_of = "95 % over " if seeds == 1 or seeds >= FEWEST else ""
    return interval_of + (f"{seeds} seeds, " if seeds > 1 else "") + f"{count(episodes)} episodes"


def escapes(row: Mapping[str, Any]) -> str:
    """`25 of 200 groups`: groups that the gate refused, and that were aggregated; a dash without a gate."""
    escaped, groups = row.get("gate_escapes"), row.get("gate_groups")
    return count(escaped) if escaped is None or groups is None else f"{count(escaped)} of {count(groups)} groups"


SPARKLINE = 24
"""Most bars of a sparkline."""


def spread(values: Sequence[float]) -> list[float]:
    """Evenly spaced values, one for each bar of a sparkline, from the first to the last."""
    if len(values) <= SPARKLINE:
        return list(values)
    return [values[round(bar * (len(values) - 1) / (SPARKLINE - 1))] for bar in range(SPARKLINE)]


def sparkline(values: list[float]) -> str:
    """Row of bars between the smallest and the largest value; of half the height if all are equal."""
    bars = "▁▂▃▄▅▆▇█"
    if not values:
        return ""
    low, high = min(values), max(values)
    if low == high:
        return bars[len(bars) // 2] * len(values)
    scale = (len(bars) - 1) / (high - low)
    return "".join(bars[round((value - low) * scale)] for value in values)
