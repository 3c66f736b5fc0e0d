"""Learning rates chosen on tuning seeds, and measures of outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from studies.actors.cells import COARSE_RATES, JUDGING, LADDER, TUNING, Cell, at_rates
from studies.actors.store import Outcome, Outcomes, outcomes
from studies.study import Study

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


def equal_seconds(places: Mapping[Cell, Sequence[Outcome]]) -> float:
    """Simulated seconds at the end of the shortest run of these places."""
    return min(run.seconds[-1] for runs in places.values() for run in runs)


def area_of_equal_seconds(places: Mapping[Cell, Sequence[Outcome]]) -> Measure:
    """Area under the learning curve over simulated seconds, up to the end of the shortest run of these places."""
    seconds = equal_seconds(places)
    return lambda run: run.area_until(seconds)
