"""Whether the answers depend on the size of the policy: three transformers on addition, each with several rates."""

from __future__ import annotations

import numpy as np

from stellaris_jax.base.statistics import paired
from studies import panels
from studies.choices import area, final
from studies.claims import Claim, more
from studies.outcomes import Outcome, Outcomes, at_rates, outcomes
from studies.study import Study
from studies.tokens.cells import LADDER, QUESTIONS, SCALE, SIZES, Cell, places
from studies.tokens.judged import COLOURS

RATES = {"50k": LADDER[3:7], "500k": LADDER[3:6], "5M": LADDER[3:6]}
"""Learning rates of every size. The largest is best at the lowest; lower ones would take an hour."""
SEEDS = range(16, 19)
"""Seeds of every size; three, since those of the largest take most of the study's time."""


def held_out(runs: dict[str, list[Outcome]]) -> np.ndarray:
    """Areas by seed, each at the learning rate that is best on the other seeds `[seeds]`.

    Args:
      runs: runs by learning rate, a list of one per seed.
    """
    areas = np.array([[area(run) for run in seeds] for seeds in runs.values()])
    others = areas.sum(axis=1, keepdims=True) - areas
    return np.take_along_axis(areas, others.argmax(axis=0)[None], axis=0)[0]


def scale(study: Study) -> list[Claim] | None:
    """Policies of 50,000 to 5 million parameters: methods against completions' age, each at its best learning rate."""
    about = QUESTIONS[SCALE]
    (task,) = about.tasks
    if study.envs is not None and task not in study.envs:
        return None
    sizes = [*SIZES]
    runs: Outcomes = {}
    for size in sizes:
        of_size = [place for place in places(SCALE) if place.method.endswith(f", {size}")]
        runs |= outcomes(at_rates(of_size, RATES[size]), SEEDS, study)

    def at(method: str, size: str, level: int) -> np.ndarray:
        """Areas by seed `[seeds]`."""
        return held_out({rate: runs[Cell(SCALE, task, f"{method}, {size}", level, rate)] for rate in RATES[size]})

    late, smallest, largest = about.levels[-1], sizes[0], sizes[-1]
    claims = []
    for size in SIZES:
        where = f"{size} parameters"
        claims += [
            more(f"{where}: {method} learns more from fresh completions than from those {late} updates old (paired)",
                 "–", at(method, size, 0), at(method, size, late), test=paired)
            for method in about.methods
        ]  # fmt: skip
        clip, decoupled = about.methods
        claims += [
            more(f"{where}, {level} updates old: {decoupled} learns more than {clip} (paired)", "–",
                 at(decoupled, size, level), at(clip, size, level), test=paired)
            for level in about.levels
        ]  # fmt: skip
    claims += [
        more(f"{method} loses more with {late} updates at {largest} than at {smallest}", "–",
             at(method, largest, 0) - at(method, largest, late), at(method, smallest, 0) - at(method, smallest, late))
        for method in about.methods
    ]  # fmt: skip
    rows = [
        [cell.task, cell.method, cell.level, cell.rate, run.seed, f"{run.area:.4g}", f"{final(run):.4g}"]
        for cell, seeds in runs.items()
        for run in seeds
    ]
    study.table("scale", ("env", "method", "lag", "rate", "seed", "area", "final"), rows)
    old = about.levels[1:]
    curves = {
        f"{size} parameters": {
            method: panels.intervals([list(at(method, size, 0) - at(method, size, level)) for level in old])
            for method in about.methods
        }
        for size in sizes
    }
    ticks = {name: list(map(str, old)) for name in curves}
    title = "Loss against fresh completions, in share right over the run, by the policy's number of parameters"
    axis, picture = "updates that completions are old", study.picture("scale")
    panels.panels(curves, ticks, axis, "share right lost", picture, title, possible=(-1.0, 1.0), colours=COLOURS)
    return claims
