"""Answers without a tuned learning rate, over several ranges of learning rates."""

from __future__ import annotations

from collections.abc import Sequence

from stellaris_jax.base.statistics import paired
from studies.claims import Claim, more
from studies.map import pictures
from studies.map.beyond import RIVALS
from studies.map.cells import FRACTIONAL, LEARNER_COUNTS
from studies.map.choices import TaskResults, distinct, each_task, mean_area
from studies.study import Study

UNTUNED = "KL gate at 0.01"
"""Method that figure `untuned` chose: it learns most over all learning rates, on the seeds for tuning."""
FRACTIONAL_TASKS = ("cartpole",)
"""Tasks on which fractional steps were trained at every learning rate."""
WIDTH = 3
"""Learning rates of a range, each about half a decade above the one before."""


def ranges_of(rates: Sequence[str]) -> dict[str, slice]:
    """Ranges of neighbouring learning rates by name, from the lowest to the highest."""
    starts = range(len(rates) - WIDTH + 1)
    return {f"{rates[start]} to {rates[start + WIDTH - 1]}": slice(start, start + WIDTH) for start in starts}


@each_task
def ranges(study: Study, task: str) -> list[Claim]:
    """Comparisons over three ranges of learning rates: what learns most without a tuned rate, and fractional steps.

    A value is the mean area under the curve over a range, on seeds that nothing was chosen on.
    """
    results = TaskResults(study.results, task)
    fractional = FRACTIONAL if task in FRACTIONAL_TASKS else ()
    pairs = {method.removesuffix(", fractional"): method for method in fractional}
    methods = dict.fromkeys((UNTUNED, *RIVALS, *(name for pair in pairs.items() for name in pair)))
    every = {(method, count): results.all_rates(method, count) for method in methods for count in LEARNER_COUNTS}
    confirmed = results.confirmed(cell for cells in every.values() for cell in cells)
    parts = ranges_of([cell.rate for cell in every[UNTUNED, LEARNER_COUNTS[0]]])
    means = {
        (method, count, name): mean_area(confirmed, cells[part])
        for (method, count), cells in every.items()
        for name, part in parts.items()
    }
    places = [(count, name) for count in LEARNER_COUNTS for name in parts]
    claims = []
    for count, name in places:
        place = f"{task}, {count} learners, {name}"
        rivals = distinct({rival: means[rival, count, name] for rival in RIVALS})
        claims += [
            more(f"{place}: {UNTUNED} learns more than {rival}", "–", means[UNTUNED, count, name], side)
            for rival, side in rivals.items()
        ]
        claims += [
            more(
                f"{place}: {plain} learns more with fractional steps (paired)",
                "–", means[method, count, name], means[plain, count, name], test=paired,
            )
            for plain, method in pairs.items()
        ]  # fmt: skip
    rows = {method: [("", means[method, *place]) for place in places] for method in methods}
    title = f"{task}: area under the curve, means over ranges of learning rates"
    columns = [f"{count} learners,\n{name}" for count, name in places]
    pictures.heat(rows, columns, "", study.results / f"figure_ranges_{task}.png", title)
    return claims
