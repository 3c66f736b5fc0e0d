"""Claims of a paper beside what came out here, each with an interval over seeds and a verdict."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from numpy.typing import ArrayLike

from stellaris_jax.report.statistics import mean_ci95, welch_ci95

HOLDS, OPEN, REVERSED = "holds", "not shown", "reversed"
"""Verdicts: the 95 % interval of the difference lies on the paper's side of zero, across it, or on the other."""


@dataclass(frozen=True)
class Claim:
    """One row of a table: what is claimed, the paper's figures, ours, and whether it holds."""

    claim: str
    paper: str
    ours: str
    verdict: str


def more(claim: str, paper: str, a: ArrayLike, b: ArrayLike, unit: str = "") -> Claim:
    """The claim that `a` [seeds] is greater than `b` [seeds], by Welch's interval of the difference of means."""
    difference, half_width = welch_ci95(a, b)
    ours = f"{_interval(a, unit)} against {_interval(b, unit)}: {_signed(difference)} ± {_half(half_width)}"
    shown = abs(difference) > half_width  # never where the interval is unknown
    return Claim(claim, paper, ours, (HOLDS if difference > 0 else REVERSED) if shown else OPEN)


def less(claim: str, paper: str, a: ArrayLike, b: ArrayLike, unit: str = "") -> Claim:
    """The claim that `a` is smaller than `b`."""
    found = more(claim, paper, a, b, unit)
    swapped = {HOLDS: REVERSED, REVERSED: HOLDS, OPEN: OPEN}
    return Claim(claim, paper, found.ours, swapped[found.verdict])


def fact(claim: str, paper: str, ours: str, holds: bool) -> Claim:
    """A claim about figures that have no spread, such as an order of means."""
    return Claim(claim, paper, ours, HOLDS if holds else REVERSED)


def write_claims(claims: Iterable[Claim], path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Claim)])
        writer.writeheader()
        writer.writerows(asdict(claim) for claim in claims)


def read_claims(path: Path) -> list[Claim]:
    with open(path, newline="", encoding="utf-8") as file:
        return [Claim(**row) for row in csv.DictReader(file)]


def _interval(values: ArrayLike, unit: str) -> str:
    mean, half_width = mean_ci95(values)
    if unit == "$":
        return f"${mean:.3g} ± {_half(half_width)}"
    return f"{_number(mean)}{unit} ± {_half(half_width)}"


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else '−'}{_number(abs(value))}"


def _number(value: float) -> str:
    """Three digits, and all of those before the point: 0.635, 12.5, 1,034."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _half(width: float) -> str:
    """Half of an interval: two digits, and all of those before the point."""
    return f"{width:,.0f}" if width >= 100 else f"{width:.2g}"
