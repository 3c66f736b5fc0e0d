"""Learning rates chosen on tuning seeds, and measures of outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from studies.outcomes import POINTS, Cell, Outcome, Outcomes, at_rates, outcomes
from studies.study import Study

Measure = Callable[[Outcome], float]


@dataclass(frozen=True)
class Chosen:
    """Places at the learning rates that the tuning seeds choose, on the judging seeds.

    Args:
      study: directories of the outcomes.
      rates: learning rates to begin with.
      ladder: all learning rates that may be tried, from low to high.
      tuning_seeds: seeds that choose.
      judging_seeds: seeds that judge the choices.
    """

    study: Study
    rates: Sequence[str]
    ladder: Sequence[str]
    tuning_seeds: range
    judging_seeds: range
    tuning: Outcomes = field(default_factory=dict)

    def outcomes(self, places: Iterable[Cell]) -> dict[Cell, list[Outcome]]:
        """Outcomes on the judging seeds of every place at its best rate, by place."""
        places = list(places)
        # Several processes share the work.
        self.tuning.update(outcomes(at_rates(places, self.rates), self.tuning_seeds, self.study))
        cells = {place: self.best(place) for place in places}
        judged = outcomes(cells.values(), self.judging_seeds, self.study)
        return {place: judged[cell] for place, cell in cells.items()}

    def best(self, place: Cell) -> Cell:
        """Cell of a place at the rate that `choosing` prefers; while it is the outermost, further ones are tried."""
        tried = list(self.rates)
        while True:
            cells = [place._replace(rate=rate) for rate in tried]
            self.tuning.update(outcomes(cells, self.tuning_seeds, self.study))
            best = max(cells, key=lambda cell: mean_of(self.tuning[cell], choosing))
            further = next_rate(tried, best.rate, self.ladder)
            if further is None:
                return best
            tried.append(further)


def next_rate(tried: Sequence[str], rate: str, ladder: Sequence[str]) -> str | None:
    """Next rate beyond `rate` if it is the outermost of those tried, as far as they are apart; None at an end.

    >>> ladder = ["1", "2", "4", "8", "16"]
    >>> next_rate(["4", "16"], "4", ladder), next_rate(["2", "4"], "4", ladder)
    ('1', '8')
    >>> next_rate(["2", "4", "8"], "4", ladder) is None
    True
    """
    places = sorted(ladder.index(other) for other in tried)
    place, step = ladder.index(rate), places[1] - places[0]
    further = place - step if place == places[0] else place + step if place == places[-1] else -1
    return ladder[further] if 0 <= further < len(ladder) else None


def choosing(outcome: Outcome) -> float:
    """Mean over the learning curve that chooses learning rates, its evaluations taken for equally far apart.

    Runs that were evaluated at the ends of chunks have fewer than `POINTS` evaluations, and the last counts as those
    that lack, as it did when their rates were chosen. For others it is the area.
    """
    shares = outcome.shares
    lacking = max(0, POINTS + 1 - len(shares))
    shares = np.concatenate([shares, np.full(lacking, shares[-1])])
    return float(np.mean((shares[:-1] + shares[1:]) / 2.0))


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
