"""Claims of a paper with our results: each with an interval over seeds and a verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import mannwhitneyu, rankdata

from stellaris_jax.base.statistics import FEWEST, holm, mean_ci95, welch
from stellaris_jax.telemetry.format import significant
from studies.files import read_rows, write_table

HOLDS, OPEN, REVERSED = "holds", "not shown", "reversed"
"""Verdicts: the 95 % interval of the difference lies on the paper's side of zero, across it, or on the other side."""
EXCLUDED, COMPATIBLE = "excluded", "compatible"
"""Verdicts on the paper's ratio of both sides: whether it lies outside the 95 % interval of ours, or inside."""
LEVEL = 0.05


@dataclass(frozen=True)
class Claim:
    """Row of a table of claims.

    Attributes:
      claim: the claim.
      paper: the paper's figures.
      ours: our figures.
      n: number of seeds (or measurements) on either side of the comparison.
      p: two-sided p-value that both sides have one mean, by Welch's test, or by the paired t-test if the claim says so;
        None if nothing was tested.
      p_holm: p-value after Holm's correction for all claims of a figure; None if nothing was tested.
      verdict: one of HOLDS, OPEN and REVERSED.
      survives: whether the verdict survives the correction; None if nothing was tested or shown.
      effect: difference toward the paper's side, in halves of its 95 % interval; from 1 up the claim holds, from -1
        down it is reversed. None without an interval.
      size: one of EXCLUDED and COMPATIBLE; empty if the paper has no two figures, or nothing was tested.
    """

    claim: str
    paper: str
    ours: str
    n: str
    p: float | None
    p_holm: float | None
    verdict: str
    survives: bool | None
    effect: float | None = None
    size: str = ""

    @property
    def has_few(self) -> bool:
        """Whether a side of a verdict has too few seeds for an interval to be trusted."""
        return self.verdict != OPEN and self.is_small

    @property
    def is_small(self) -> bool:
        """Whether a side has so few seeds that they decide nothing."""
        return self._fewest < FEWEST

    @property
    def _fewest(self) -> float:
        """Fewest seeds of a side."""
        return min(map(int, re.findall(r"\d+", self.n)), default=math.inf)

    @property
    def shown_verdict(self) -> str:
        """Verdict in Markdown: bold if it survives the correction.

        It says so if nothing was tested or corrected, or if a side has too few seeds for an interval to be trusted.
        """
        if self.has_few:
            return f"{self.verdict}, few seeds"
        if self.p is None and self._fewest == 1:
            return "no test, one seed"
        if self.verdict != OPEN and self.p is None:
            return f"{self.verdict}, {'no test' if self.effect is None else 'not corrected'}"
        return f"**{self.verdict}**" if self.survives else self.verdict

    @property
    def shown_size(self) -> str:
        """The paper's size in Markdown, which few seeds do not decide."""
        return f"{self.size}, few seeds" if self.size and self.is_small else self.size


Test = Callable[[np.ndarray, np.ndarray], tuple[float, float, float]]
"""Test of two sides: difference, half the width of its 95 % interval, and its p-value."""


def more(claim: str, paper: str, a: ArrayLike, b: ArrayLike, unit: str = "", test: Test = welch) -> Claim:
    """Claim that `a` [seeds] is greater than `b` [seeds], by Welch's interval of the difference of means.

    Args:
      claim: text of the claim.
      paper: the paper's figures.
      a: values `[seeds]`; NaN for an unknown value, with which the claim is undecided.
      b: values `[seeds]`, likewise.
      unit: unit of the values.
      test: the test; `paired` uses the differences seed by seed.
    """
    sides = [np.asarray(side, float) for side in (a, b)]
    ours, n = " against ".join(_interval(side, unit) for side in sides), _count(sides)
    if not np.isfinite(np.concatenate(sides)).all():
        return undecided(claim, paper, ours, n)
    difference, half_width, p = test(*sides)
    ours = f"{ours}: {'+' if difference >= 0 else '−'}{significant(abs(difference))}{_half(half_width)}"
    if np.isnan(p):
        return undecided(claim, paper, ours, n)
    verdict = OPEN if p >= LEVEL else HOLDS if difference > 0 else REVERSED
    effect = difference / half_width if half_width > 0.0 else None
    return Claim(claim, paper, ours, n, p, None, verdict, None, effect, _size(paper, sides[0], sides[1], test))


NUMBER = r"\$?(-?\d+(?:\.\d+)?)(?: s| %)?"


def ratio_of(paper: str) -> float | None:
    """Ratio of a paper's two figures, of which the second is not 0; None for other texts.

    >>> ratio_of("297 against 230"), ratio_of("$0.74 against $1.00"), ratio_of("1.5 times"), ratio_of("–")
    (1.291304347826087, 0.74, 1.5, None)
    """
    if times := re.fullmatch(r"(\d+(?:\.\d+)?) times", paper):
        return float(times[1])
    found = re.fullmatch(f"{NUMBER} against {NUMBER}", paper)
    return float(found[1]) / float(found[2]) if found and float(found[2]) else None


def _size(paper: str, a: np.ndarray, b: np.ndarray, test: Test) -> str:
    """Whether the interval of `a` less the paper's ratio times `b` contains zero (Fieller's way to test a ratio)."""
    ratio = ratio_of(paper)
    if ratio is None:
        return ""
    p = test(a, ratio * b)[2]
    return "" if np.isnan(p) else EXCLUDED if p < LEVEL else COMPATIBLE


def no_less(
    claim: str, paper: str, a: ArrayLike, b: ArrayLike, margin: float, unit: str = "", test: Test = welch
) -> Claim:
    """Claim that `a` is at least `b`, up to a margin.

    It holds if the interval of the difference lies above -margin, and is reversed if it lies below. The arguments are
    those of `more`, with the `margin` in units of the values.
    """
    shown = more(claim, paper, a, b, unit, test)
    shifted = more(claim, paper, np.asarray(a, float) + margin, b, unit, test)
    return replace(shifted, ours=f"{shown.ours} (margin {significant(margin)}{unit})")


def equal(
    claim: str, paper: str, a: ArrayLike, b: ArrayLike, margin: float, unit: str = "", test: Test = welch
) -> Claim:
    """Claim that `a` and `b` differ by less than a margin.

    It holds if the interval of the difference lies within the margin on both sides: two one-sided tests (TOST), each at
    2.5 %. It is reversed if the interval lies beyond the margin on one side. Otherwise it is not shown: that is not the
    same as equal. The arguments are those of `no_less`.
    """
    lower, higher = (a, b) if np.mean(np.asarray(a, float)) <= np.mean(np.asarray(b, float)) else (b, a)
    shown, worst = more(claim, paper, a, b, unit, test), no_less(claim, paper, lower, higher, margin, unit, test)
    return replace(worst, ours=f"{shown.ours} (margin {significant(margin)}{unit})", n=shown.n)


def less(claim: str, paper: str, a: ArrayLike, b: ArrayLike, unit: str = "") -> Claim:
    """Claim that `a` is smaller than `b`; the arguments are those of `more`."""
    reverse = more(claim, paper, a, b, unit)
    swapped = {HOLDS: REVERSED, REVERSED: HOLDS, OPEN: OPEN}
    effect = None if reverse.effect is None else -reverse.effect
    return replace(reverse, verdict=swapped[reverse.verdict], effect=effect)


def sooner(claim: str, paper: str, a: ArrayLike, b: ArrayLike) -> Claim:
    """Claim that runs of `a` arrive earlier than those of `b`, by the ranks of their times (Mann-Whitney).

    For sides with runs that never arrive, whose means are unknown; these runs are the last.

    Args:
      claim: text of the claim.
      paper: the paper's figures.
      a: times `[seeds]`; infinite or NaN for a run that does not arrive.
      b: times `[seeds]`, likewise.
    """
    sides = [np.nan_to_num(np.asarray(side, float), nan=np.inf, posinf=np.inf) for side in (a, b)]
    n, reached = _count(sides), " against ".join(f"{np.isfinite(side).sum()} of {len(side)}" for side in sides)
    ours = f"reached by {reached} seeds (ranks)"
    if not np.isfinite(np.concatenate(sides)).any():
        return undecided(claim, paper, ours, n)
    ranked = rankdata(np.concatenate(sides))
    earlier, later = ranked[: len(sides[0])], ranked[len(sides[0]) :]
    p = float(mannwhitneyu(earlier, later).pvalue)
    verdict = OPEN if p >= LEVEL else HOLDS if earlier.mean() < later.mean() else REVERSED
    return Claim(claim, paper, ours, n, p, None, verdict, None)


def fact(claim: str, paper: str, ours: str, holds: bool) -> Claim:
    """Claim about figures without spread, such as an order of means: nothing is tested."""
    return Claim(claim, paper, ours, "", None, None, HOLDS if holds else REVERSED, None)


def beyond(claim: str, paper: str, ours: str, interval: tuple[float, float, float], nothing: float) -> Claim:
    """Claim that a figure exceeds what says nothing, by its interval alone; it is not corrected for other claims.

    Args:
      claim: text of the claim.
      paper: the paper's figures.
      ours: our figures.
      interval: the figure, and its interval from low to high.
      nothing: the figure that says nothing.
    """
    value, low, high = interval
    if not np.isfinite(interval).all():
        return undecided(claim, paper, ours)
    verdict = HOLDS if low > nothing else REVERSED if high < nothing else OPEN
    half = value - low if value >= nothing else high - value
    effect = (value - nothing) / half if half > 0.0 else None
    return Claim(claim, paper, ours, "", None, None, verdict, None, effect)


def undecided(claim: str, paper: str, ours: str, n: str = "") -> Claim:
    """Claim with too few data for a test."""
    return Claim(claim, paper, ours, n, None, None, OPEN, None)


def corrected(claims: Sequence[Claim]) -> list[Claim]:
    """Claims of one figure, with Holm's correction for the number of tested claims.

    The correction uses exact p-values; then both are rounded to three digits.
    """
    adjusted = iter(holm([claim.p for claim in claims if claim.p is not None]))
    return [claim if claim.p is None else _judged(claim, next(adjusted)) for claim in claims]


def has_papers(claims: Iterable[Claim]) -> bool:
    """Whether any claim is a paper's: the others have a dash for its figures."""
    return any(claim.paper not in ("", "–") for claim in claims)


def _judged(claim: Claim, p_holm: float) -> Claim:
    survives = None if claim.verdict == OPEN or claim.has_few else p_holm < LEVEL
    return replace(
        claim, p=_rounded(claim.p), p_holm=_rounded(p_holm), survives=survives, effect=_rounded(claim.effect)
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def write_claims(claims: Iterable[Claim], path: Path) -> None:
    """Replace a file of claims."""
    survival = {True: "yes", False: "no", None: ""}
    rows = [(asdict(claim) | {"survives": survival[claim.survives]}).values() for claim in claims]
    write_table(path, [field.name for field in fields(Claim)], map(tuple, rows))


def read_claims(path: Path) -> list[Claim]:
    """Claims that `write_claims` wrote; none survives without a test, or in files of earlier versions."""
    return read_rows(path, _claim)


def _claim(row: dict[str, str]) -> Claim:
    p = float(row["p"]) if row.get("p") else None
    survives = {"yes": True, "no": False}.get(row.get("survives", "")) if p is not None else None
    return Claim(
        row["claim"],
        row["paper"],
        row["ours"],
        row.get("n") or "",
        p,
        float(row["p_holm"]) if row.get("p_holm") else None,
        row["verdict"],
        survives,
        float(effect) if (effect := row.get("effect") or row.get("toward")) else None,
        row.get("size") or "",
    )


def _interval(values: np.ndarray, unit: str) -> str:
    known = values[np.isfinite(values)]
    if not len(known):
        return "nothing known"
    mean, half_width = mean_ci95(known)
    number = significant(mean).replace("-", "−", 1) if mean < 0.0 else significant(mean)
    text = f"${number}" if unit == "$" else f"{number}{unit}"
    text += _half(half_width)
    return text if len(known) == len(values) else f"{text} (known of {len(known)} of {len(values)})"


def _half(width: float) -> str:
    return f" ± {significant(width, 2)}" if np.isfinite(width) else ""


def _count(sides: Sequence[np.ndarray]) -> str:
    return " and ".join(dict.fromkeys(str(len(side)) for side in sides))
