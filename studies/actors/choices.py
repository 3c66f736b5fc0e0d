"""Learning rates chosen on tuning seeds, and the fall of the best learning rate with data lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from stellaris_jax.telemetry.format import significant
from studies.actors.cells import COARSE_RATES, JUDGING, LADDER, TUNING, Cell, at_rates
from studies.actors.store import Outcome, Outcomes, outcomes
from studies.claims import HOLDS, LEVEL, OPEN, REVERSED, Claim
from studies.study import Study

RESAMPLES = 2000
"""Bootstrap samples of the seeds."""
CROSSOVERS = np.linspace(0.0, 16.0, 161)
"""Data lags that are tried as the crossover."""

Measure = Callable[[Outcome], float]


@dataclass(frozen=True)
class Chosen:
    """Places at the learning rates that the tuning seeds choose, on the judging seeds.

    Args:
      study: directories of the outcomes.
      rates: learning rates to begin with.
    """

    study: Study
    rates: Sequence[str] = COARSE_RATES
    tuning: Outcomes = field(default_factory=dict)

    def outcomes(self, places: Iterable[Cell]) -> dict[Cell, list[Outcome]]:
        """Outcomes on the judging seeds of every place at its best rate, by place."""
        places = list(places)
        self.tuning.update(outcomes(at_rates(places, self.rates), TUNING, self.study))  # several calls share them
        cells = {place: self.best(place) for place in places}
        judged = outcomes(cells.values(), JUDGING, self.study)
        return {place: judged[cell] for place, cell in cells.items()}

    def best(self, place: Cell) -> Cell:
        """Cell of a place at the rate with the largest mean area; while it is the outermost, further ones are tried."""
        tried = list(self.rates)
        while True:
            cells = [place._replace(rate=rate) for rate in tried]
            self.tuning.update(outcomes(cells, TUNING, self.study))
            best = max(cells, key=lambda cell: mean_of(self.tuning[cell], area))
            further = next_rate(tried, best.rate)
            if further is None:
                return best
            tried.append(further)


def next_rate(tried: Sequence[str], rate: str) -> str | None:
    """Next rate beyond `rate` if it is the outermost of those tried, as far as they are apart; None at an end.

    >>> next_rate(["1e-3", "4e-3", "1.6e-2"], "1e-3"), next_rate(["1e-3", "2e-3"], "2e-3")
    ('2.5e-4', '4e-3')
    >>> next_rate(["1e-3", "4e-3", "1.6e-2"], "4e-3") is None
    True
    """
    places = sorted(LADDER.index(other) for other in tried)
    place, step = LADDER.index(rate), places[1] - places[0]
    further = place - step if place == places[0] else place + step if place == places[-1] else -1
    return LADDER[further] if 0 <= further < len(LADDER) else None


def area(outcome: Outcome) -> float:
    """Area under the learning curve over batches."""
    return outcome.area


def final(outcome: Outcome) -> float:
    """Final return, as a share of the way to solved."""
    return outcome.final


def mean_of(runs: Sequence[Outcome], measure: Measure) -> float:
    """Mean of a measure over seeds."""
    return float(np.mean([measure(run) for run in runs]))


def values(runs: Sequence[Outcome], measure: Measure) -> list[float]:
    """Measure of each seed."""
    return [measure(run) for run in runs]


def area_of_equal_seconds(places: Mapping[Cell, Sequence[Outcome]]) -> Measure:
    """Area under the learning curve over simulated seconds, up to the end of the shortest run of these places."""
    seconds = min(run.seconds[-1] for runs in places.values() for run in runs)
    return lambda run: run.area_until(seconds)


# The law of learning rate and staleness -------------------------------------------------------------------------------


class Fit(NamedTuple):
    """Fit with its bootstrap interval over seeds.

    Attributes:
      value: fit of all seeds.
      low: lower end of the 95 % interval.
      high: upper end.
      samples: fits of all bootstrap samples.
    """

    value: float
    low: float
    high: float
    samples: np.ndarray

    def __str__(self) -> str:
        return f"{significant(self.value, 2)} (95 % interval {significant(self.low, 2)} to {significant(self.high, 2)})"


class Law(NamedTuple):
    """Best learning rate by data lag.

    Attributes:
      best: best rate at each lag, interpolated, with its interval.
      slope: slope of log best rate against log(1 + lag); -1 is the law 1 / staleness.
      crossover: data lag up to which the best rate is constant, if it falls as 1 / (1 + lag) beyond.
    """

    best: list[Fit]
    slope: Fit
    crossover: Fit


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
    slopes = (best - best.mean(axis=1, keepdims=True)) @ (ages - ages.mean()) / np.sum((ages - ages.mean()) ** 2)
    return Law([_fit(np.exp(column)) for column in best.T], _fit(slopes), _fit(crossover(best, ages)))


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


def _fit(samples: np.ndarray) -> Fit:
    low, high = np.quantile(samples[1:], (0.025, 0.975))
    return Fit(float(samples[0]), float(low), float(high), samples[1:])


def above(claim: str, paper: str, fit: Fit, than: float, n: int) -> Claim:
    """Claim that a fitted number is greater than another, by the bootstrap's two-sided p-value.

    Args:
      claim: text of the claim.
      paper: the paper's figure.
      fit: the fit.
      than: the number.
      n: number of seeds.
    """
    least = 1.0 / len(fit.samples)
    p = min(1.0, max(least, 2.0 * min(float(np.mean(fit.samples <= than)), float(np.mean(fit.samples >= than)))))
    verdict = OPEN if p >= LEVEL else HOLDS if fit.value > than else REVERSED
    return Claim(claim, paper, str(fit), str(n), p, None, verdict, None)


def below(claim: str, paper: str, fit: Fit, than: float, n: int) -> Claim:
    """Claim that a fitted number is smaller than another; the arguments are those of `above`."""
    reverse = above(claim, paper, fit, than, n)
    return replace(reverse, verdict={HOLDS: REVERSED, REVERSED: HOLDS, OPEN: OPEN}[reverse.verdict])
