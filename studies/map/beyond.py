"""Figures beyond best rates: stale data, many learners, untuned rates, held-out tasks, and fractional steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from stellaris_jax.base.statistics import paired
from studies.claims import Claim, more, no_less
from studies.map import pictures
from studies.map.cells import (
    COMBINED,
    CORE,
    FRACTIONAL,
    HELD_OUT,
    HELD_OUT_LEARNERS,
    LAGGED,
    LAGS,
    LEARNER_COUNTS,
    MANY_LEARNERS,
    MANY_LEARNERS_METHODS,
    MANY_MINIBATCHES,
    METHODS,
    SEQUENTIAL,
    SYSTEMS,
    TUNING,
    Cell,
    held_out_cells,
    many_learners_cells,
)
from studies.map.choices import (
    BASELINE,
    MAPPED,
    Outcomes,
    TaskResults,
    area,
    at_equal_expense,
    by_expense,
    distinct,
    each_task,
    mean_area,
    requested_tasks,
    values,
)
from studies.map.store import outcomes
from studies.study import Study

MARGIN = 0.05
"""Largest difference that counts as equal, as a share of the way to solved."""
PPO_4, PPO_256 = (SEQUENTIAL, "lag 4"), (SEQUENTIAL, "lag 256")


LAG_CLAIMS = (
    ("PPO learns more from data up to 4 updates old than up to 256", "–", PPO_4, PPO_256, False),
    (
        "PPO on data up to 32 updates old learns no less than up to 4", "–", (SEQUENTIAL, "lag 32"), PPO_4, True,
    ),
    (
        "M2PO on data up to 256 updates old learns no less than PPO up to 4",
        "M2PO: equal at 256", ("M2PO", "lag 256"), PPO_4, True,
    ),
    (
        "steps scaled by the effective sample size, without a clip, learn more than PPO, up to 128 updates old",
        "VCPO: stable at 128", ("ESS", "lag 128"), (SEQUENTIAL, "lag 128"), False,
    ),
    (
        "decoupled PPO learns no less than PPO, up to 128 updates and a batch old",
        "AReaL: bears stale batches", ("decoupled", "lag 128"), (SEQUENTIAL, "lag 128"), True,
    ),
    (
        "decoupled PPO learns more than PPO up to 256 updates old",
        "AReaL: PPO fails on stale batches", ("decoupled", "lag 256"), PPO_256, False,
    ),
    (
        "A-3PO's interpolated policy learns no less than a recomputed one, up to 128 updates old",
        "A-3PO: as good, up to 1.8 times as fast", ("A-3PO", "lag 128"), ("decoupled", "lag 128"), True,
    ),
)  # fmt: skip
"""Claims on stale data: claim, the paper's words, the two cells compared, and whether `MARGIN` counts as equal."""


@each_task
def lag(study: Study, task: str) -> list[Claim]:
    """Stale data with one learner and no stale gradients: claims of newer papers about their objectives."""
    results = TaskResults(study.results, task)
    cells = {method: [results.best_lagged(method, lag) for lag in LAGS] for method in LAGGED}
    confirmed = results.confirmed(cell for row in cells.values() for cell in row)
    rows = {
        "PPO" if method == SEQUENTIAL else method: [(cell.rate, values(confirmed, cell, area)) for cell in row]
        for method, row in cells.items()
    }
    names = [f"up to {name.removeprefix('lag ')} updates old" for name in LAGS]
    title = f"{task}: area under the curve on stale data, each method at its best rate"
    pictures.heat(rows, names, "", study.results / f"figure_lag_{task}.png", title)
    at = {
        (method, name): values(confirmed, cell, area)
        for method, row in cells.items()
        for name, cell in zip(LAGS, row, strict=True)
    }
    claims = []
    for text, paper, ours, theirs, margin in LAG_CLAIMS:
        sides = f"{task}: {text}", paper, at[ours], at[theirs]
        claims.append(no_less(*sides, MARGIN) if margin else more(*sides))
    claimed = {("ESS", "128"), ("decoupled", "256")}  # above
    claims += [
        more(
            f"{task}: {name} learns more than PPO up to {lag} updates old",
            "–",
            at[name, f"lag {lag}"],
            at[SEQUENTIAL, f"lag {lag}"],
        )
        for lag in ("128", "256")
        for name in LAGGED
        if name != SEQUENTIAL and (name, lag) not in claimed
    ]
    return claims


@each_task
def many_learners(study: Study, task: str) -> list[Claim]:
    """64 learners, in rounds of four times as many and as much smaller minibatches, each method at its best rate."""
    known = outcomes(many_learners_cells(task), TUNING, study.results)
    results = TaskResults(study.results, task)
    best = {
        "one learner" if count == 1 else method: results.tuned(
            known, partial(results.at, method, count, variation=MANY_MINIBATCHES)
        )
        for method, count in ((SEQUENTIAL, 1), *((method, MANY_LEARNERS) for method in MANY_LEARNERS_METHODS))
    }
    confirmed = results.confirmed(best.values())
    scales = at_equal_expense(confirmed, best)
    path = study.results / f"figure_crowd_{task}.png"
    title = f"{task}, {MANY_LEARNERS} learners, {MANY_MINIBATCHES}: area under the curve, each method at its best rate"
    pictures.heat(by_expense(confirmed, best, scales), list(scales), "", path, title)
    sides = {method: values(confirmed, cell, area) for method, cell in best.items()}
    place = f"{task}, {MANY_LEARNERS} learners, {MANY_MINIBATCHES}"
    claims = [
        more(f"{place}: one learner learns more per gradient than async", "–", sides["one learner"], sides[BASELINE])
    ]
    return claims + [
        more(f"{place}: {method} learns more than async, each at its best rate", "–", sides[method], sides[BASELINE])
        for method in MANY_LEARNERS_METHODS
        if method != BASELINE
    ]


RIVALS = ("async", "softsync", "Stellaris", "all-reduce")
"""Methods that a default of our own would have to beat."""


def chosen(tasks: Sequence[TaskResults]) -> str:
    """Method, other than the published systems, that learns most without a tuned rate.

    At their best rates hardly any methods differ. So the criterion is the mean over all rates, over these tasks and
    numbers of learners, on the tuning seeds.
    """

    def learned(method: str) -> float:
        known = [(at, at.combined if method in COMBINED else at.tuning) for at in tasks]
        places = product(known, LEARNER_COUNTS)
        return float(np.mean([mean_area(found, at.all_rates(method, count)) for (at, found), count in places]))

    return max((method for method in (*METHODS, *COMBINED) if method not in SYSTEMS), key=learned)


@each_task
def combined(study: Study, task: str) -> list[Claim]:
    """The KL gate at several strengths, and with other methods: every learning rate, on the tuning seeds."""
    results = TaskResults(study.results, task)
    known = results.tuning | results.combined
    for count in LEARNER_COUNTS:
        cells = {method: results.all_rates(method, count) for method in (BASELINE, "KL gate", *COMBINED)}
        path = study.results / f"figure_combined_{task}_{count}.png"
        title = f"{task}: area under the curve by learning rate, {count} learners, seeds for tuning"
        _by_rate(known, cells, path, title)
    return []


def _by_rate(known: Outcomes, cells: Mapping[str, Sequence[Cell]], path: Path, title: str) -> dict[str, list[float]]:
    """Draw methods' cells at every rate, and their means over rates; returns these means, one value per seed."""
    alike = {method: mean_area(known, row) for method, row in cells.items()}
    rows = {
        method: [("", side) for side in (*(values(known, cell, area) for cell in row), alike[method])]
        for method, row in cells.items()
    }
    rates = [cell.rate for cell in next(iter(cells.values()))]
    pictures.heat(rows, [*rates, "all alike"], "learning rate", path, title)
    return alike


def _more_over_rates(place: str, ours: str, alike: Mapping[str, list[float]]) -> list[Claim]:
    """Claims of one method against all others, by means over all rates, one value per seed."""
    text = f"{place}, over all rates: {ours} learns more than"
    rivals = distinct({rival: side for rival, side in alike.items() if rival != ours})
    return [more(f"{text} {rival}", "–", alike[ours], side) for rival, side in rivals.items()]


@each_task
def untuned(study: Study, task: str) -> list[Claim]:
    """Methods without a tuned learning rate: the area under the curve at every rate, and its mean over all rates."""
    results, claims = TaskResults(study.results, task), []
    ours = chosen([TaskResults(study.results, mapped) for mapped in MAPPED])
    methods = dict.fromkeys((*CORE, "capacity (AReaL)", ours))
    for count in LEARNER_COUNTS:
        cells = {method: results.all_rates(method, count) for method in methods}
        confirmed = results.confirmed(cell for row in cells.values() for cell in row)
        path = study.results / f"figure_untuned_{task}_{count}.png"
        title = f"{task}: area under the curve by learning rate, {count} learners, seeds that nothing was chosen on"
        alike = _by_rate(confirmed, cells, path, title)
        claims += _more_over_rates(f"{task}, {count} learners", ours, alike)
    return claims


def held_out(study: Study) -> list[Claim] | None:
    """The map's best method on held-out tasks, with a held-out number of learners."""
    tasks = requested_tasks(study, HELD_OUT)
    if not tasks:
        return None
    ours, claims = chosen([TaskResults(study.results, task) for task in MAPPED]), []
    tuned: dict[str, list[pictures.Field]] = {}
    untuned: dict[str, list[pictures.Field]] = {}
    for task in tasks:
        results = TaskResults(study.results, task, tuple(held_out_cells(task, (*RIVALS, ours))))
        cells = {"one learner": results.best(SEQUENTIAL, 1)}
        cells |= {method: results.best(method, HELD_OUT_LEARNERS) for method in (*RIVALS, ours)}
        every = {method: results.all_rates(method, HELD_OUT_LEARNERS) for method in (*RIVALS, ours)}
        confirmed = results.confirmed([*cells.values(), *(cell for row in every.values() for cell in row)])
        for method, cell in cells.items():
            tuned.setdefault(method, []).append((cell.rate, values(confirmed, cell, area)))
        claims += _held_out_claims(study, task, ours, cells, confirmed)
        alike = {method: mean_area(confirmed, row) for method, row in every.items()}
        for method, side in alike.items():
            untuned.setdefault(method, []).append(("", side))
        claims += _more_over_rates(f"{task}, {HELD_OUT_LEARNERS} learners", ours, alike)
    title = f"Held-out tasks, {HELD_OUT_LEARNERS} learners: area under the curve"
    pictures.heat(tuned, tasks, "", study.results / "figure_held.png", f"{title}, each at its best rate")
    pictures.heat(untuned, tasks, "", study.results / "figure_held_rates.png", f"{title}, all rates alike")
    return claims


def _held_out_claims(study: Study, task: str, ours: str, cells: Mapping[str, Cell], confirmed: Outcomes) -> list[Claim]:
    """Claims about one task: each method's cell at its best rate, per gradient, second and dollar."""
    scales = at_equal_expense(confirmed, cells)
    path = study.results / f"figure_held_{task}.png"
    title = f"{task}, {HELD_OUT_LEARNERS} learners: area under the curve, each method at its best rate"
    pictures.heat(by_expense(confirmed, cells, scales), list(scales), "", path, title)
    at = {
        (method, name.partition(" (")[0]): values(confirmed, cell, measure)
        for method, cell in cells.items()
        for name, measure in scales.items()
    }
    place, best = f"{task}, {HELD_OUT_LEARNERS} learners", at[ours, "equal gradients"]
    claims = [
        more(
            f"{place}: {ours} learns more than {rival}, each at its best rate", "–", best, at[rival, "equal gradients"]
        )
        for rival in RIVALS
    ]
    for method in (BASELINE, SEQUENTIAL):
        text = f"{place}: one learner learns more per gradient than {method}, each at its best rate"
        claims.append(more(text, "–", at["one learner", "equal gradients"], at[method, "equal gradients"]))
    text = f"{place}: {ours} learns no less per gradient than one learner"
    claims.append(no_less(text, "–", best, at["one learner", "equal gradients"], MARGIN))
    text = f"{place}: {ours} learns no less than async in as many seconds"
    claims.append(no_less(text, "–", at[ours, "equal seconds"], at[BASELINE, "equal seconds"], MARGIN))
    return claims


@each_task
def fractional(study: Study, task: str) -> list[Claim]:
    """Fractional steps beside factored weights, each method at its best learning rate and over all rates alike.

    Learning rates are chosen on the seeds for tuning; differences are paired by seed, on the other seeds.
    """
    results, claims = TaskResults(study.results, task), []
    methods = {method.removesuffix(", fractional"): method for method in FRACTIONAL}
    names = [*methods, *methods.values()]
    every = {(name, count): results.all_rates(name, count) for name in names for count in LEARNER_COUNTS}
    known = outcomes((cell for row in every.values() for cell in row), TUNING, study.results)
    best = {
        (name, count): results.tuned(known, partial(results.at, name, count))
        for name in names
        for count in LEARNER_COUNTS
    }
    confirmed = results.confirmed([*best.values(), *(cell for row in every.values() for cell in row)])
    rows = {
        name: [
            field
            for count in LEARNER_COUNTS
            for field in (
                (best[name, count].rate, values(confirmed, best[name, count], area)),
                ("", mean_area(confirmed, every[name, count])),
            )
        ]
        for pair in methods.items()
        for name in pair
    }
    columns = [
        f"{count} learners,\n{what}" for count in LEARNER_COUNTS for what in ("best learning rate", "all rates alike")
    ]
    title = f"{task}: area under the curve of factored and fractional weights, seeds that nothing was chosen on"
    pictures.heat(rows, columns, "", study.results / f"figure_fractional_{task}.png", title, best=False)
    for column, name in enumerate(columns):
        for plain, method in methods.items():
            claims.append(
                more(
                    f"{task}, {name.replace(chr(10), ' ')}: {plain} learns more with fractional steps (paired)",
                    "–",
                    rows[method][column][1],
                    rows[plain][column][1],
                    test=paired,
                )
            )
    return claims
