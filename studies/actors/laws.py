"""Fall of the best learning rate with data lag: its fits, with bootstrap intervals over seeds, and their claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from stellaris_jax.telemetry.format import significant
from studies.actors.cells import LADDER
from studies.claims import HOLDS, LEVEL, OPEN, REVERSED, Claim, undecided

RESAMPLES = 2000
"""Bootstrap samples of the seeds."""
CROSSOVERS = np.linspace(0.0, 16.0, 161)
"""Data lags that are tried as the crossover."""


class Fit(NamedTuple):
    """Fit with its bootstrap interval over seeds.

    Attributes:
      value: fit of all seeds; NaN if it is not determined.
      low: lower end of the 95 % interval; NaN if it has none.
      high: upper end, likewise.
      samples: fits of all bootstrap samples; NaN where they are not determined.
    """

    value: float
    low: float
    high: float
    samples: np.ndarray

    def __str__(self) -> str:
        if not all(map(math.isfinite, (self.value, self.low, self.high))):
            return "not known"
        low, high = (_signed(end) for end in (self.low, self.high))
        return f"{_signed(self.value)} (95 % interval {low} to {high})"


class Law(NamedTuple):
    """Best learning rate by data lag.

    Attributes:
      best: best rate at each lag, interpolated, with its interval.
      slope: slope of log best rate against log(1 + lag), over all lags.
      beyond: slope beyond a crossover, with a constant before; -1 is the law 1 / staleness.
      bend: coefficient of the square of log(1 + lag); negative if the fall steepens with lag, 0 for a power law.
      crossover: data lag up to which the best rate is constant, if it falls as 1 / (1 + lag) beyond.
      fitted: rate at each lag of that constant and fall.
    """

    best: list[Fit]
    slope: Fit
    beyond: Fit
    bend: Fit
    crossover: Fit
    fitted: np.ndarray


def law(areas: np.ndarray, lags: Sequence[int], rates: Sequence[float], resamples: int = RESAMPLES) -> Law:
    """Fit of the best learning rate.

    Seeds are resampled with replacement; a seed takes its runs at all lags and rates with it.

    Args:
      areas: area under the learning curve `[lags, rates, seeds]`.
      lags: data lags in batches.
      rates: learning rates, rising, each the same multiple of the one before.
      resamples: number of bootstrap samples.
    """
    seeds = areas.shape[-1]
    draws = np.random.default_rng(0).integers(seeds, size=(resamples, seeds))
    chosen = np.vstack([np.arange(seeds), draws])
    best = np.array([peak(areas[..., row].mean(axis=-1), np.log(rates)) for row in chosen])
    ages = np.log1p(np.asarray(lags, float))
    line, parabola = (np.polyfit(ages, best.T, degree)[0] for degree in (1, 2))
    edges = crossover(best, ages)
    fitted = -np.maximum(ages - np.log1p(edges[0]), 0.0)
    return Law(
        best=[_fit(np.exp(column), seeds) for column in best.T],
        slope=_fit(line, seeds),
        beyond=_fit(slope_beyond(best, lags), seeds),
        bend=_fit(parabola, seeds),
        crossover=_fit(edges, seeds),
        fitted=np.exp(fitted + np.mean(best[0] - fitted)),
    )


def peak(areas: np.ndarray, log_rates: np.ndarray) -> np.ndarray:
    """Logarithm of the best rate at each lag: the summit of the parabola through the best rate and its neighbours.

    Args:
      areas: mean areas `[lags, rates]`.
      log_rates: logarithms of the rates, evenly spaced.
    """
    summits = []
    for row in areas:
        place = int(np.argmax(row))
        shift = 0.0
        if 0 < place < len(row) - 1:
            left, middle, right = row[place - 1 : place + 2]
            bend = left - 2.0 * middle + right
            shift = 0.5 * (left - right) / bend if bend < 0.0 else 0.0
        summits.append(log_rates[place] + shift * (log_rates[1] - log_rates[0]))
    return np.array(summits)


def crossover(best: np.ndarray, ages: np.ndarray) -> np.ndarray:
    """Lags from which on the best rate falls as 1 / (1 + lag), by least squares of a constant before.

    Args:
      best: logarithms of best rates `[samples, lags]`.
      ages: logarithms of 1 + lag `[lags]`.
    """
    expected = -np.maximum(ages - np.log1p(CROSSOVERS)[:, None], 0.0)
    errors = best[:, None, :] - expected
    errors -= errors.mean(axis=-1, keepdims=True)
    return np.asarray(CROSSOVERS[np.argmin(np.sum(errors**2, axis=-1), axis=-1)])


def slope_beyond(best: np.ndarray, lags: Sequence[int]) -> np.ndarray:
    """Slopes of log best rate against log(1 + lag) beyond a crossover, by least squares of a constant before.

    A crossover beyond the second largest lag leaves a single lag that can lie anywhere on a fall. Such a slope is not
    determined (NaN) if it is between -1 and 0: the law with a later crossover fits as well.

    Args:
      best: logarithms of best rates `[samples, lags]`.
      lags: data lags in batches, rising.
    """
    starts = CROSSOVERS[: np.searchsorted(CROSSOVERS, lags[-2], side="right")]
    falls = np.maximum(np.log1p(np.asarray(lags, float)) - np.log1p(starts)[:, None], 0.0)
    falls -= falls.mean(axis=-1, keepdims=True)
    slopes = best @ falls.T / np.sum(falls**2, axis=-1)
    errors = best[:, None, :] - best.mean(axis=-1)[:, None, None] - slopes[..., None] * falls
    at = np.argmin(np.sum(errors**2, axis=-1), axis=-1)
    found = slopes[np.arange(len(best)), at]
    return np.where((at == len(starts) - 1) & (found > -1.0) & (found <= 0.0), np.nan, found)


def _fit(samples: np.ndarray, seeds: int) -> Fit:
    """Fit of the first sample, with the interval of the others; none if more than 5 % are not determined."""
    others = samples[1:]
    known = others[np.isfinite(others)]
    tail = float(ndtr(stdtrit(seeds - 1, LEVEL / 2.0) * math.sqrt(seeds / (seeds - 1.0))))
    enough = len(known) >= (1.0 - LEVEL) * len(others)
    low, high = map(float, np.quantile(known, (tail, 1.0 - tail))) if enough else (math.nan, math.nan)
    return Fit(float(samples[0]), low, high, others)


def p_value(tail: float, seeds: int) -> float:
    """Two-sided p-value of a tail of bootstrap samples.

    Bootstrap samples of few seeds spread too little. Their quantiles are made those of Student's t, as in the expanded
    percentile intervals of Hesterberg (2015).

    Args:
      tail: share of the samples beyond a number.
      seeds: number of seeds.
    """
    return min(1.0, 2.0 * float(stdtr(seeds - 1, ndtri(min(tail, 0.5)) * math.sqrt((seeds - 1.0) / seeds))))


def _signed(value: float) -> str:
    return significant(value, 2).replace("-", "−") if abs(value) >= 0.005 else "0.00"


def at_end(rate: str) -> str:
    """Which end of the ladder a learning rate is: `smallest`, `largest`, or nothing."""
    return {LADDER[0]: "smallest", LADDER[-1]: "largest"}.get(rate, "")


def claims_of(task: str, fitted: Law, limited: bool, n: int) -> list[Claim]:
    """Claims about the best learning rate of a task: it falls, more slowly than the law beyond a crossover, and bends.

    Args:
      task: the task.
      fitted: the fit.
      limited: whether a best rate is at an end of the ladder; then the form of the fall is not known.
      n: number of seeds.
    """
    paper = "arXiv 2607.01083: {}"
    texts = {
        "falls": f"{task}: the best learning rate falls with data lag",
        "slower": f"{task}: beyond a crossover it falls, but more slowly than 1 / (1 + lag)",
        "steepens": f"{task}: the fall steepens with data lag, as after a constant",
    }
    falls = below(texts["falls"], paper.format("beyond a crossover"), fitted.slope, 0.0, n)
    slower = above(texts["slower"], paper.format("no"), fitted.beyond, -1.0, n)
    steepens = below(texts["steepens"], paper.format("yes"), fitted.bend, 0.0, n)
    if limited:
        about = "a best rate is at an end of the ladder"
        return [falls, *(undecided(one.claim, one.paper, about, str(n)) for one in (slower, steepens))]
    return [falls, _both(slower, falls), _both(steepens, falls)]


def _both(claim: Claim, falls: Claim) -> Claim:
    """Claim about a fall: nothing is shown of it unless the fall is, and its p-value is the larger of both."""
    p = max(claim.p or 0.0, falls.p or 0.0)
    return replace(claim, p=p, verdict=claim.verdict if p < LEVEL and falls.verdict == HOLDS else OPEN)


def above(claim: str, paper: str, fit: Fit, than: float, n: int) -> Claim:
    """Claim that a fitted number is greater than another, by the bootstrap's two-sided p-value.

    Bootstrap samples that are not determined count on both sides.

    Args:
      claim: text of the claim.
      paper: the paper's figure.
      fit: the fit.
      than: the number.
      n: number of seeds.
    """
    least, unknown = 0.5 / len(fit.samples), np.isnan(fit.samples)
    sides = (np.mean((fit.samples <= than) | unknown), np.mean((fit.samples >= than) | unknown))
    p = 1.0 if math.isnan(fit.value) else p_value(max(least, float(min(sides))), n)
    verdict = OPEN if p >= LEVEL else HOLDS if fit.value > than else REVERSED
    return Claim(claim, paper, str(fit), str(n), p, None, verdict, None)


def below(claim: str, paper: str, fit: Fit, than: float, n: int) -> Claim:
    """Claim that a fitted number is smaller than another; the arguments are those of `above`."""
    reverse = above(claim, paper, fit, than, n)
    return replace(reverse, verdict={HOLDS: REVERSED, REVERSED: HOLDS, OPEN: OPEN}[reverse.verdict])
