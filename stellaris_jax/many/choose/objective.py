"""Scores of runs by their evaluations: seconds or dollars to a return, or the return itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.base.statistics import Curve

AXES = {"seconds": "simulated_seconds", "dollars": "cost_usd", "return": "simulated_seconds"}
"""Measures that goals compare, with the key of the axis of their curves in the records of evaluations."""
PENALTY = 2.0
"""Factor on the cutoff for a run that does not reach the target, as in PAR2 of algorithm configuration (Hutter et al.
2009)."""
PENALISED = "A seed that does not reach the target counts twice the longest run (PAR2)."
"""Sentence that says so."""
SHARE = 0.9
"""Share of the way from the lowest to the highest mean return of a search, at which the target lies by default."""
REDUCTION = 3
"""One of so many candidates goes on from a rung."""
RATES = 2
"""Learning rates of each arm that go on from a rung, so that the last rung decides between them, not the first one."""
FRACTIONS = (1 / 9, 1 / 3, 1.0)
"""Parts of a run after which candidates are compared."""


def misses(number: int | None, seeds: int) -> str:
    """Words on seeds that did not reach the target; "" if all did, or if there is none.

    >>> misses(3, 5), misses(5, 5), misses(None, 5)
    ('3 of 5 seeds reached it', '', '')
    """
    return "" if number in (None, seeds) else f"{number} of {seeds} seeds reached it"


class Goal(NamedTuple):
    """Goal of a search.

    Attributes:
      measure: key of `AXES`.
      target: return to reach; `None` for the highest return, and until a search has chosen one.
    """

    measure: str
    target: float | None = None

    @property
    def axis(self) -> str:
        """Key of the records' axis."""
        return AXES[self.measure]


def reached(curve: Curve, level: float) -> float:
    """Place on the x axis where a curve first reaches a level, linearly interpolated; infinite if it never does.

    The first point counts at its own place, because nothing is known of what came before.

    >>> reached((np.array([10.0, 20.0, 30.0]), np.array([0.0, 4.0, 8.0])), 6.0)
    25.0
    """
    x, y = curve
    above = np.flatnonzero(y >= level)
    if not len(above):
        return math.inf
    first = int(above[0])
    if first == 0:
        return float(x[0])
    share = (level - y[first - 1]) / (y[first] - y[first - 1])
    return float(x[first - 1] + share * (x[first] - x[first - 1]))


def mean_curve(evaluations: Sequence[Mapping[str, Any]], axis: str) -> Curve:
    """Mean over seeds of axis and return at each evaluation; evaluations without a return are left out."""
    rows = [row for row in evaluations if row["eval_return_mean"] is not None]
    return np.array([row[axis] for row in rows], float), np.array([row["eval_return_mean"] for row in rows], float)


def seed_curves(evaluations: Sequence[Mapping[str, Any]], axis: str) -> list[Curve]:
    """Curve of every seed: axis and return at each evaluation; evaluations without a return are left out."""
    seeds = len(evaluations[0]["per_seed"]["eval_return_mean"]) if evaluations else 0
    curves = []
    for seed in range(seeds):
        pairs = [(row["per_seed"][axis][seed], row["per_seed"]["eval_return_mean"][seed]) for row in evaluations]
        kept = np.array([pair for pair in pairs if pair[1] is not None], float).reshape(-1, 2)
        curves.append((kept[:, 0], kept[:, 1]))
    return curves


def level(curves: Sequence[Curve], reaching: int, target: float | None) -> float:
    """Return by which candidates are compared on a rung: the highest that so many have reached.

    Those that reach it are compared by how fast they do: both what a candidate learns per gradient and how fast its
    gradients come count. No level is above the target.
    """
    best = sorted((float(y.max()) for _, y in curves if len(y)), reverse=True)
    if not best:
        return math.inf if target is None else target
    highest = best[min(len(best), reaching) - 1]
    return highest if target is None else min(highest, target)


def ranked(curves: Mapping[int, Curve], reaching: int, goal: Goal) -> list[int]:
    """Candidates, best first: by seconds or dollars to the rung's level, then by return.

    Ties are broken by number, so that a ranking repeats itself.

    Args:
      curves: mean curve of each candidate, up to the rung.
      reaching: number of candidates that have reached the rung's level.
      goal: what is compared.
    """
    if goal.measure == "return":
        return sorted(curves, key=lambda number: (-_last(curves[number]), number))
    common = level(list(curves.values()), reaching, goal.target)

    def order(number: int) -> tuple[float, float, int]:
        curve = curves[number]
        highest = float(curve[1].max()) if len(curve[1]) else -math.inf
        return reached(curve, common), -highest, number

    return sorted(curves, key=order)


def _last(curve: Curve) -> float:
    return float(curve[1][-1]) if len(curve[1]) else -math.inf


def default_target(curves: Sequence[Curve]) -> float:
    """Target of a search without one: `SHARE` of the way from the lowest to the highest mean return."""
    values = np.concatenate([y for _, y in curves])
    return float(values.min() + SHARE * (values.max() - values.min()))


def to_target(curves: Sequence[Curve], target: float, cutoff: float) -> list[float]:
    """Seconds or dollars of each seed to the target; `PENALTY` times the cutoff for a seed that does not reach it."""
    places = [reached(curve, target) for curve in curves]
    return [place if math.isfinite(place) else PENALTY * cutoff for place in places]


def final_returns(curves: Sequence[Curve]) -> list[float]:
    """Last return of each seed."""
    return [_last(curve) for curve in curves]


def rungs(rounds: Sequence[int]) -> list[int]:
    """Evaluations' rounds after which candidates are compared, the last one among them.

    Args:
      rounds: rounds of all evaluations.

    >>> rungs(range(10, 280, 10))
    [30, 90, 270]
    """
    places = [max(1, round(fraction * len(rounds))) for fraction in FRACTIONS]
    return [rounds[place - 1] for place in sorted(set(places))]


class Cut(NamedTuple):
    """Cut that a rung makes.

    Attributes:
      arms: arms that go on, besides baselines, each with its best `RATES` learning rates.
      reaching: candidates that have reached the rung's level.
    """

    arms: int
    reaching: int


def cut(count: int, rung: int, finalists: int) -> Cut:
    """Cut of a rung: about a third of its candidates go on, and two thirds reach its level.

    The last rung decides which are finalists, and at which learning rate. So as many reach its level as are judged.

    Args:
      count: candidates of the first rung.
      rung: number of the rung, from 1 on.
      finalists: arms that are judged, besides baselines.

    >>> [cut(30, rung, 2) for rung in (1, 2, 3)]
    [Cut(arms=5, reaching=20), Cut(arms=2, reaching=6), Cut(arms=2, reaching=2)]
    """
    if rung == len(FRACTIONS):
        return Cut(finalists, finalists)
    third = max(finalists, count // REDUCTION**rung)
    return Cut(max(finalists, math.ceil(third / RATES)), 2 * third)


def going_on(ranking: Sequence[int], names: Mapping[int, str], always: Collection[str], arms: int) -> list[int]:
    """Candidates that go on from a rung: the best arms, and all baselines, each with its best `RATES` learning rates.

    The best candidate of each arm comes first, because a budget may end before the last ones.

    Args:
      ranking: candidates of the rung, best first.
      names: arm of each candidate.
      always: baselines.
      arms: number of arms that go on besides.

    >>> going_on([0, 1, 2, 3, 4], {0: "a", 1: "a", 2: "b", 3: "a", 4: "c"}, ["c"], 1)
    [0, 4, 1]
    """
    own: dict[str, list[int]] = {}
    for number in ranking:
        own.setdefault(names[number], []).append(number)
    going = [found for place, (name, found) in enumerate(own.items()) if place < arms or name in always]
    return [found[place] for place in range(RATES) for found in going if place < len(found)]


class Reached:
    """Watch of a run: ends it after a round, or once its target is reached.

    Args:
      round_: round after whose evaluation the run pauses.
      target: return; infinite for none.
      every_seed: whether each seed has to reach the target once, rather than the mean over seeds.
    """

    def __init__(self, round_: int, target: float = math.inf, every_seed: bool = False):
        self.round, self.target, self.every_seed = round_, target, every_seed
        self._seeds: set[int] = set()

    def __call__(self, record: Mapping[str, Any]) -> bool:
        value, values = record["eval_return_mean"], record["per_seed"]["eval_return_mean"]
        if self.every_seed:
            self._seeds |= {seed for seed, own in enumerate(values) if own is not None and own >= self.target}
            is_reached = len(self._seeds) == len(values)
        else:
            is_reached = value is not None and value >= self.target
        return is_reached or record["round"] >= self.round
