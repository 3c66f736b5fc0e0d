"""Numbers as the pages write them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from published.statistics import Difference, Values, interval

MINUS = "−"
WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
PARTS = {
    2: "half", 3: "third", 4: "quarter", 5: "fifth", 6: "sixth", 7: "seventh", 10: "tenth", 14: "fourteenth",
    30: "thirtieth", 100: "hundredth",
}  # fmt: skip
"""Names of one part of so many."""


def decimal(number: float, digits: int = 2) -> str:
    """A number with so many decimals; zero has no sign."""
    text = f"{abs(number):.{digits}f}"
    return MINUS + text if number < 0 and float(text) else text


def signed(number: float, digits: int = 2) -> str:
    """A number with its sign and so many decimals."""
    return f"{number:+.{digits}f}".replace("-", MINUS)


def significant(number: float, digits: int = 3) -> str:
    """A number with so many significant digits, never in fewer than those before the decimal point."""
    if number == 0:
        return "0"
    exponent = math.floor(math.log10(abs(float(f"{number:.{digits - 1}e}"))))
    return f"{number:,.{max(0, digits - 1 - exponent)}f}".replace("-", MINUS)


def plus_minus(values: Values, digits: int = 2) -> str:
    """A mean and half of its interval, with so many decimals."""
    mean, half = interval(values)
    return f"{decimal(mean, digits)} ± {half:.{digits}f}"


def significant_plus_minus(values: Values) -> str:
    """A mean with three significant digits, and half of its interval with two."""
    mean, half = interval(values)
    return f"{significant(mean)} ± {significant(half, 2)}"


def gain(difference: Difference, digits: int = 2) -> str:
    """A difference with its sign, and half of its interval."""
    return f"{signed(difference.mean, digits)} ± {difference.half:.{digits}f}"


def loss(difference: Difference, digits: int = 2) -> str:
    """A difference without a sign unless it is negative, and half of its interval."""
    return f"{decimal(difference.mean, digits)} ± {difference.half:.{digits}f}"


def span(values: Iterable[float], digits: int = 2) -> str:
    """The least and the largest, with so many decimals."""
    least, *_, largest = sorted(values)
    return f"{decimal(least, digits)} to {decimal(largest, digits)}"


def significant_span(values: Iterable[float], digits: int = 2) -> str:
    """The least and the largest, with so many significant digits."""
    least, *_, largest = sorted(values)
    return f"{significant(least, digits)} to {significant(largest, digits)}"


def row(*cells: str) -> str:
    """Cells of a row of a table."""
    return " | ".join(cells)
