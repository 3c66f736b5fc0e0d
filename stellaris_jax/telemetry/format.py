"""Numbers as people read them. None, a value that does not exist, is shown as a dash everywhere."""

from __future__ import annotations

MISSING = "-"


def number(value: float | None, digits: int = 1) -> str:
    """`1234.56` as `1,234.6`."""
    return MISSING if value is None else f"{value:,.{digits}f}"


def count(value: float | None) -> str:
    """`24576` as `24,576`; a mean over seeds that is not whole keeps one digit."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


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
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def dollars(value: float | None) -> str:
    """Whole cents from ten cents up, two significant digits below."""
    if value is None:
        return MISSING
    return f"${value:,.2f}" if value >= 0.1 else f"${value:.2g}"


def percent(share: float | None) -> str:
    """`0.954` as `95 %`."""
    return MISSING if share is None else f"{100 * share:.0f} %"


def interval(mean: float | None, half_width: float | None, digits: int = 1) -> str:
    """`12.3 ± 0.4`, or the mean alone where there is no interval."""
    if mean is None or half_width is None:
        return number(mean, digits)
    return f"{number(mean, digits)} ± {number(half_width, digits)}"


def sparkline(values: list[float]) -> str:
    """A row of bars between the smallest and the largest value."""
    bars = "▁▂▃▄▅▆▇█"
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(bars[round((value - low) * scale)] for value in values)
