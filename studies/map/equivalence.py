"""Which methods equal plain asynchrony: equivalence within a margin that was fixed before any of these runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stellaris_jax.base.statistics import mean_ci95, welch
from studies.claims import HOLDS, OPEN, Claim, equal
from studies.map import pictures
from studies.map.beyond import MARGIN
from studies.map.cells import LEARNER_COUNTS, METHODS
from studies.map.choices import BASELINE, TaskResults, area, distinct, each_task, values
from studies.map.store import outcomes
from studies.study import Study

JUDGING = {"cartpole": range(16, 56), "acrobot": range(16, 116)}
"""Seeds by task, on which nothing was chosen. Acrobot's curves vary more, so it has more."""
EQUAL, WORSE, BETTER, INACTIVE = "equal", "worse", "better", "changes next to nothing"
LOWER, HIGHER = "lower, by an unknown size", "higher, by an unknown size"
_EVERYWHERE = ("DC-ASGD", "ESS", "OPSM", "IcePop", "decoupled", "A-3PO")
NEXT_TO_NOTHING = {"cartpole": _EVERYWHERE, "acrobot": (*_EVERYWHERE, "norm ratio")}
"""Methods by task of which their sources' constants leave next to nothing with 8 learners.

Equality would say nothing of them. The reasons stand in results/map/README.md, in the section on tuned learning rates.
"""
HEADER = ("method", "rate", "seeds", "area", "difference", "half_width", "verdict")


@each_task
def equivalence(study: Study, task: str) -> list[Claim]:
    """Methods with 8 learners beside plain asynchrony, each at its best learning rate: equal within 0.05, or not?"""
    results, count, seeds = TaskResults(study.results, task), LEARNER_COUNTS[0], JUDGING[task]
    cells = {method: results.best(method, count) for method in METHODS}
    known = outcomes(cells.values(), seeds, study.results)
    base = values(known, cells[BASELINE], area)
    every = {method: values(known, cell, area) for method, cell in cells.items() if method != BASELINE}
    sides = distinct(every, base)
    claims = {
        method: equal(f"{task}: {method} equals async within {MARGIN}", "–", side, base, MARGIN)
        for method, side in sides.items()
        if method not in NEXT_TO_NOTHING[task]
    }
    verdicts = {method: verdict(claim, sides[method], base) for method, claim in claims.items()}
    rows = [
        (method, cells[method].rate, len(seeds), *_figures(side, base), verdicts.get(method, INACTIVE))
        for method, side in sides.items()
    ]
    study.table(f"equivalence_{task}", HEADER, rows)
    title = f"{task}, {count} learners, {len(seeds)} seeds: area under the curve beside async's, each at its best rate"
    gains = {f"{method}, {cells[method].rate}": (sides[method], base) for method in claims}
    pictures.forest(gains, study.results / f"figure_equivalence_{task}.png", title, MARGIN)
    return list(claims.values())


def verdict(claim: Claim, side: Sequence[float], base: Sequence[float]) -> str:
    """Whether a method is `EQUAL`, `WORSE` or `BETTER` by more than the margin, `LOWER` or `HIGHER`; else `OPEN`."""
    if claim.verdict == HOLDS:
        return EQUAL
    difference, half, _ = welch(np.asarray(side), np.asarray(base))
    if claim.verdict == OPEN:
        return OPEN if abs(difference) <= half else LOWER if difference < 0.0 else HIGHER
    return WORSE if difference < 0.0 else BETTER


def _figures(side: Sequence[float], base: Sequence[float]) -> list[str]:
    difference, half, _ = welch(np.asarray(side), np.asarray(base))
    return [f"{value:.4g}" for value in (mean_ci95(side)[0], difference, half)]
