"""Whether the answers depend on the size of the policy: three transformers on addition, each with three rates."""

from __future__ import annotations

from stellaris_jax.base.statistics import paired
from studies import panels
from studies.choices import area, final, values
from studies.claims import Claim, more
from studies.outcomes import at_rates, outcomes
from studies.study import Study
from studies.tokens.cells import CLIP, DECOUPLED, LADDER, QUESTIONS, SCALE, SIZES, Cell, places

RATES = LADDER[3:6]
SEEDS = range(16, 19)


def scale(study: Study) -> list[Claim] | None:
    """Policies of 50,000 to 5 million parameters: methods against completions' age, over all learning rates."""
    about = QUESTIONS[SCALE]
    (task,) = about.tasks
    if study.envs is not None and task not in study.envs:
        return None
    sizes = [*SIZES]
    small_first = sorted(places(SCALE), key=lambda place: sizes.index(place.method.partition(", ")[2]))
    runs = outcomes(at_rates(small_first, RATES), SEEDS, study)

    def at(method: str, size: str, level: int) -> list[float]:
        """Areas of all rates and seeds, in one order."""
        cells = [Cell(SCALE, task, f"{method}, {size}", level, rate) for rate in RATES]
        return [value for cell in cells for value in values(runs[cell], area)]

    claims = []
    for size in SIZES:
        where = f"{size} parameters, over all rates"
        late = about.levels[-1]
        claims += [
            more(f"{where}: {method} learns more from fresh completions than from those {late} updates old (paired)",
                 "–", at(method, size, 0), at(method, size, late), test=paired)
            for method in about.methods
        ]  # fmt: skip
        claims += [
            more(f"{where}, {level} updates old: {DECOUPLED} learns more than {CLIP} (paired)", "–",
                 at(DECOUPLED, size, level), at(CLIP, size, level), test=paired)
            for level in about.levels
        ]  # fmt: skip
    rows = [
        [cell.task, cell.method, cell.level, cell.rate, run.seed, f"{run.area:.4g}", f"{run.final:.4g}"]
        for cell, seeds in runs.items()
        for run in seeds
    ]
    study.table("scale", ("env", "method", "lag", "rate", "seed", "area", "final"), rows)
    curves, ticks = {}, {}
    for size in SIZES:
        curves[size] = {
            f"{method}, {rate}": panels.intervals(
                [values(runs[Cell(SCALE, task, f"{method}, {size}", level, rate)], final) for level in about.levels]
            )
            for method in about.methods
            for rate in RATES
        }
        ticks[size] = [str(level) for level in about.levels]
    title = "Share of right completions at the end, by the policy's number of parameters"
    axis, picture = "updates that completions are old", study.picture("scale")
    panels.panels(curves, ticks, axis, "share right", picture, title, possible=(0.0, 1.0))
    return claims
