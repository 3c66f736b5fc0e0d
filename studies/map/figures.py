"""Figures of the map and their claims, with intervals: `scripts/reproduce.py map`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from studies.claims import Claim, less, more
from studies.map import beyond, pictures
from studies.map.cells import (
    CORE,
    HELD_OUT,
    LEARNER_COUNTS,
    LEARNERS,
    METHODS,
    RATES,
    SEQUENTIAL,
    TASKS,
    VARIATIONS,
    Cell,
)
from studies.map.choices import (
    BASELINE,
    MAPPED,
    Outcomes,
    TaskResults,
    area,
    at_equal_expense,
    by_expense,
    collapse,
    distinct,
    distinct_runs,
    each_task,
    final,
    mean_area,
    seconds_to,
    values,
)
from studies.map.equivalence import equivalence
from studies.map.ranges import ranges
from studies.map.speed import speed
from studies.map.store import Outcome
from studies.map.warnings import alarms
from studies.study import Figure, Study

IDEAS = {"gate": "gate", "weights": "w", "truncation": "truncation"}
"""Stellaris's three ideas, with their names in the names of methods."""


@each_task
def learners(study: Study, task: str) -> list[Claim]:
    """Area under the curve by number of learners, each method at its best learning rate."""
    results = TaskResults(study.results, task)
    cells = {method: [results.best(method, count) for count in LEARNERS] for method in CORE}
    confirmed = results.confirmed(cell for row in cells.values() for cell in row)
    for measure, what in ((area, "area under the curve"), (final, "final return")):
        rows = {
            method: [(cell.rate, values(confirmed, cell, measure)) for cell in row] for method, row in cells.items()
        }
        staleness = [f"{count}\ns = {_staleness(confirmed, cells[BASELINE][i])}" for i, count in enumerate(LEARNERS)]
        path = study.results / f"figure_learners_{task}_{measure.__name__}.png"
        title = f"{task}: {what} by learners, each method at its best rate"
        pictures.heat(rows, staleness, "learners, and mean staleness of async", path, title)
    alone = values(confirmed, results.best(SEQUENTIAL, 1), area)
    return [
        more(
            f"{task}: one learner learns more per gradient than {method} with {count}, each at its best rate",
            "–",
            alone,
            values(confirmed, results.best(method, count), area),
        )
        for method in (BASELINE, "softsync", "Stellaris")
        for count in LEARNERS[1:]
    ]


def _staleness(known: Outcomes, cell: Cell) -> str:
    return f"{np.mean([outcome.staleness for outcome in known[cell]]):.1f}"


@each_task
def methods(study: Study, task: str) -> list[Claim]:
    """Every method against plain asynchrony, each at its best learning rate."""
    results, claims = TaskResults(study.results, task), []
    for count in LEARNER_COUNTS:
        cells = {method: results.best(method, count) for method in METHODS}
        confirmed = results.confirmed(cells.values())
        base = values(confirmed, cells[BASELINE], area)
        every = {method: values(confirmed, cell, area) for method, cell in cells.items() if method != BASELINE}
        sides = distinct(every, base)
        gains = {f"{method}, {cells[method].rate}": (side, base) for method, side in sides.items()}
        title = f"{task}, {count} learners: area under the curve beside async's, each at its best rate"
        if len(sides) < len(every):
            title += f"\n({len(every) - len(sides)} methods are one with another here, to the bit, and left out)"
        pictures.forest(gains, study.results / f"figure_methods_{task}_{count}.png", title)
        claims += [
            more(f"{task}, {count} learners: {method} learns more than async, each at its best rate", "–", side, base)
            for method, side in sides.items()
        ]
    return claims


@each_task
def rates(study: Study, task: str) -> list[Claim]:
    """Area under the curve by learning rate, and the best rate of each method against the sequential trainer's."""
    results = TaskResults(study.results, task)
    for count in LEARNER_COUNTS:
        rows = {
            method: [("", values(results.tuning, cell, area)) for cell in results.all_rates(method, count)]
            for method in METHODS
        }
        title = f"{task}: area under the curve by learning rate, {count} learners"
        path = study.results / f"figure_rates_{task}_{count}.png"
        pictures.heat(rows, list(RATES), "learning rate", path, title)
    sequential = results.best_rate(SEQUENTIAL, 1)
    moved = [
        (results.best(method, count), results.at(method, count, sequential))
        for count in LEARNER_COUNTS
        for method in CORE
        if results.best_rate(method, count) != sequential
    ]
    confirmed = results.confirmed(cell for pair in moved for cell in pair)
    sides = {pair: [values(confirmed, cell, area) for cell in pair] for pair in moved}
    return [
        more(
            f"{task}, {best.learners} learners: {best.method} learns more at {best.rate} than at the sequential "
            f"{sequential}",
            "–",
            at_best,
            at_theirs,
        )
        for (best, _), (at_best, at_theirs) in distinct(sides).items()
    ]


@each_task
def ideas(study: Study, task: str) -> list[Claim]:
    """Stellaris's three ideas: the effect of each, at every combination's best learning rate and at every rate."""
    results, claims, rows = TaskResults(study.results, task), [], {}
    combinations = {
        ", ".join(word for word, on in zip(IDEAS.values(), chosen, strict=True) if on) or BASELINE: chosen
        for chosen in product((False, True), repeat=len(IDEAS))
    }
    for count in LEARNER_COUNTS:
        cells = {name: results.best(name, count) for name in combinations}
        confirmed = results.confirmed(cells.values())
        settings: dict[str, tuple[Outcomes, dict[str, Cell]]] = {"its best rate": (confirmed, cells)}
        for rate in RATES[1:]:
            settings[rate] = (results.tuning, {name: results.at(name, count, rate) for name in combinations})
        for setting, (known, chosen_cells) in settings.items():
            for i, idea in enumerate(IDEAS):
                # One value per seed, because combinations of a seed are no independent samples.
                sides = [
                    mean_area(known, [chosen_cells[name] for name, on in combinations.items() if on[i] == kind])
                    for kind in (True, False)
                ]
                if sides[0] == sides[1]:
                    continue  # the idea has no effect here, to the bit
                rows[f"{idea}, {count} learners, {setting}"] = (sides[0], sides[1])
                text = f"{task}, {count} learners, {setting}: combinations with {idea} learn more than those without"
                claims.append(more(text, "–", sides[0], sides[1]))
    title = f"{task}: what each idea of Stellaris adds to the area under the curve, over the others with and without"
    pictures.forest(rows, study.results / f"figure_ideas_{task}.png", title)
    return claims


@each_task
def time(study: Study, task: str) -> list[Claim]:
    """Methods at equal gradients, simulated seconds and dollars, each at its best rate; seconds to a return."""
    results, claims, rows = TaskResults(study.results, task), [], []
    for count in LEARNER_COUNTS:
        cells = {method: results.best(method, count) for method in CORE}
        confirmed = results.confirmed(cells.values())
        scales = at_equal_expense(confirmed, cells)
        path = study.results / f"figure_time_{task}_{count}.png"
        title = f"{task}, {count} learners: area under the curve at equal expense"
        pictures.heat(by_expense(confirmed, cells, scales), list(scales), "", path, title)
        rows += [[count, method, cell.rate, *_reached(confirmed[cell])] for method, cell in cells.items()]
        synchronous, stellaris = cells[SEQUENTIAL], cells["Stellaris"]
        for name, measure in scales.items():
            text = f"{task}, {count} learners, {name}: Stellaris learns more than all-reduce, each at its best rate"
            ours, theirs = (values(confirmed, cell, measure) for cell in (stellaris, synchronous))
            claims.append(more(text, "up to 2.2 times the return", ours, theirs))
        if task != (study.envs or MAPPED)[0]:
            continue  # seconds and dollars follow from delays alone, not from the task
        for what, measure in (("seconds", _seconds), ("dollars", _dollars)):
            text = f"{count} learners: Stellaris takes fewer {what} than all-reduce for as many gradients"
            ours, theirs = (values(confirmed, cell, measure) for cell in (stellaris, synchronous))
            claims.append(less(text, "41 % less cost" if what == "dollars" else "–", ours, theirs))
    columns = [text for share in MARKS for text in (f"seeds at {share}", f"seconds to {share} (median)")]
    study.table(f"time_{task}", ["learners", "method", "rate", *columns], rows)
    return claims


MARKS = (0.25, 0.5, 0.75)
"""Shares of the way to solved that runs are timed to."""


def _reached(runs: Sequence[Outcome]) -> list[str]:
    """Number of seeds that reached each mark, and the median of their seconds if most did."""
    cells = []
    for share in MARKS:
        seconds = [seconds_to(run, share) for run in runs]
        median = float(np.median(seconds))
        cells += [str(sum(map(math.isfinite, seconds))), f"{median:.4g}" if math.isfinite(median) else ""]
    return cells


def _seconds(outcome: Outcome) -> float:
    return outcome.seconds[-1]


def _dollars(outcome: Outcome) -> float:
    return outcome.cost_usd


@each_task
def variations(study: Study, task: str) -> list[Claim]:
    """Other delays, other reuse of data, and pipelined actors, with 8 learners and the learning rates tuned before."""
    results, count = TaskResults(study.results, task), LEARNER_COUNTS[0]
    cells = {method: [results.best(method, count, variation) for variation in VARIATIONS] for method in CORE}
    confirmed = results.confirmed(cell for row in cells.values() for cell in row)
    rows = {method: [("", values(confirmed, cell, area)) for cell in row] for method, row in cells.items()}
    names = [(name or "as elsewhere").replace(" ", "\n") for name in VARIATIONS]
    path = study.results / f"figure_variations_{task}.png"
    pictures.heat(
        rows,
        names,
        "",
        path,
        f"{task}, {count} learners: area under the curve, one setting changed, learning rates as elsewhere",
    )
    base = [values(confirmed, cell, area) for cell in cells[BASELINE]]
    return [
        more(
            f"{task}, {name}: {method} learns more than async", "–", values(confirmed, cells[method][i], area), base[i]
        )
        for i, name in enumerate(VARIATIONS)
        for method in ("softsync", "Stellaris", "w", "KL gate")
        if name
    ]


@each_task
def collapses(study: Study, task: str) -> list[Claim]:
    """Runs that learned and then collapsed, and the diagnostics that announce it."""
    results = TaskResults(study.results, task)
    for count in LEARNER_COUNTS:
        rows = {
            method: [
                ("", [float(collapse(run) is not None) for run in results.tuning[cell]])
                for cell in results.all_rates(method, count)
            ]
            for method in METHODS
        }
        path = study.results / f"figure_collapses_{task}_{count}.png"
        title = f"{task}, {count} learners: seeds that learned and then collapsed"
        pictures.heat(rows, list(RATES), "learning rate", path, title, best=False, counted=True)
    runs = distinct_runs(run for seeds in results.tuning.values() for run in seeds)
    halves = [[run for run in runs if run.seed % 2 == half] for half in (0, 1)]
    diagnostics = alarms(*halves)
    study.table(
        f"collapses_{task}_alarms",
        [
            "diagnostic",
            "rings",
            "threshold",
            "announced",
            "false alarms",
            "lead (share of the run)",
            "area",
            "area at equal rate",
            "area in one cell",
            "collapsed",
            "sound",
        ],
        [
            [a.name, "above" if a.above else "below", *(f"{x:.3g}" for x in a[2:9]), a.collapsed, a.sound]
            for a in diagnostics
        ],
    )
    if diagnostics:
        path = study.results / f"figure_collapses_{task}_alarms.png"
        pictures.alarms(diagnostics, path, f"{task}: which diagnostic announces a collapse")
    return []


FIGURES: dict[str, Figure] = {
    "learners": learners,
    "methods": methods,
    "equivalence": equivalence,
    "rates": rates,
    "ideas": ideas,
    "time": time,
    "speed": speed,
    "combined": beyond.combined,
    "untuned": beyond.untuned,
    "ranges": ranges,
    "variations": variations,
    "lag": beyond.lag,
    "crowd": beyond.many_learners,
    "collapses": collapses,
    "fractional": beyond.fractional,
    "held": beyond.held_out,
}
ENVS = tuple(TASKS)
"""Tasks that may be requested."""
assert {*MAPPED, *HELD_OUT} == {*ENVS}
