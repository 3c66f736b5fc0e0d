"""Fractional Adam steps compared with `factored` weights: `system.aggregation=fractional` on the map."""

from __future__ import annotations

from functools import partial

from stellaris_jax.base.statistics import paired
from studies.claims import Claim, more
from studies.map import pictures
from studies.map.cells import FRACTIONAL, LEARNER_COUNTS, TUNING
from studies.map.choices import TaskResults, area, each_task, mean_area, values
from studies.map.store import outcomes
from studies.study import Study


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
