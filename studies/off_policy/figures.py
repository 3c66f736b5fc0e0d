"""Figure of the study and its claims: `scripts/reproduce.py off_policy`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stellaris_jax.base.statistics import mean_ci95, paired
from studies import panels
from studies.choices import Chosen, Measure, area, final, values
from studies.claims import Claim, more
from studies.off_policy.cells import JUDGING, LADDER, LEVELS, TASKS, TUNING, places
from studies.outcomes import Outcome
from studies.study import Figure, Study

ENVS = tuple(TASKS)
COLUMNS: dict[str, Measure] = {
    "area": area,
    "final": final,
    "seconds": lambda run: run.seconds[-1],
    "data_lag": lambda run: run.datum("data_lag"),
}
HEADER = ("env", "learners", "rate", *(f"{name}{end}" for name in COLUMNS for end in ("", "_ci95")))


def staleness(study: Study) -> list[Claim] | None:
    """Asynchronous learners under DQN, SAC and PPO, each at its best learning rate."""
    claims: list[Claim] = []
    rows: list[list[Any]] = []
    curves: dict[str, dict[str, panels.Points]] = {}
    tasks = [task for task in TASKS if task in (study.envs or TASKS)]
    if not tasks:
        return None
    for task in tasks:
        judged = Chosen(study, TASKS[task].rates, LADDER, TUNING, JUDGING).outcomes(places(task))
        by_learners = {cell.level: runs for cell, runs in judged.items()}
        rows += [_row(runs) for runs in judged.values()]
        env, _, algorithm = task.partition(", ")
        curves.setdefault(env, {})[algorithm] = panels.intervals([values(by_learners[n], area) for n in LEVELS])
        claims += [
            more(f"{task}: 1 learner learns more per gradient than {n} asynchronous ones (paired)", "–",
                 values(by_learners[1], area), values(by_learners[n], area), test=paired)
            for n in LEVELS[1:]
        ]  # fmt: skip
    study.table("staleness", HEADER, rows)
    labels = {env: [str(n) for n in LEVELS] for env in curves}
    axis = "area under the curve, share of the way to solved"
    title = "On the pendulum four asynchronous learners cost SAC and PPO area; on CartPole no loss is shown"
    panels.panels(curves, labels, "asynchronous learners", axis, study.picture("staleness"), title)
    return claims


def _row(runs: Sequence[Outcome]) -> list[Any]:
    cell = runs[0].cell
    numbers = [number for measure in COLUMNS.values() for number in mean_ci95(values(runs, measure))]
    return [cell.task, cell.level, cell.rate, *(f"{number:.6g}" for number in numbers)]


FIGURES: dict[str, Figure] = {"staleness": staleness}
