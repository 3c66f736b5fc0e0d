"""Figures of the study and their claims: `scripts/reproduce.py tokens`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stellaris_jax.base.statistics import paired
from studies.choices import area, area_of_equal_seconds, values
from studies.claims import Claim, equal, more
from studies.outcomes import Outcome, outcomes
from studies.study import Figure, Study
from studies.tokens import collapse, published, scale
from studies.tokens.cells import (
    ADMISSION,
    BETWEEN,
    CLIP,
    DECOUPLED,
    DROP,
    FLIGHT,
    IN_FLIGHT,
    JUDGING,
    METHOD,
    MISMATCH,
    NONE,
    OTHERS,
    PRECISIONS,
    QUESTIONS,
    RENEWAL,
    RENEWAL_RATE,
    RENEWED,
    TASKS,
    TIS,
    WAIT,
    WHOLE,
    YOUNG,
    places,
)
from studies.tokens.judged import HEADER, Judged, row
from studies.tokens.measures import MARGIN

ENVS = tuple(TASKS)
AGE = "updates that completions are old"


def methods(study: Study) -> list[Claim] | None:
    """Corrections on completions of exactly so many updates ago, each at its best learning rate."""
    return _compared(study, METHOD, "methods", "Share of right completions over the run, less PPO's clip on fresh ones")


def tasks(study: Study) -> list[Claim] | None:
    """The same on two other tasks: letters in order, and numbers from given ones."""
    return _compared(
        study, OTHERS, "tasks", "Other tasks: share right over the run, less PPO's clip on fresh completions"
    )


def young(study: Study) -> list[Claim] | None:
    """Completions of one and four updates ago, as asynchronous language-model trainers have them."""
    title = "One and four updates old: share right over the run, less PPO's clip on fresh completions"
    return _compared(study, YOUNG, "young", title)


def between(study: Study) -> list[Claim] | None:
    """Completions of 16 and 32 updates ago, at which PPO's clip and decoupled PPO part."""
    title = "16 and 32 updates old: share right over the run, less PPO's clip on fresh completions"
    return _compared(study, BETWEEN, "between", title)


def renewal(study: Study) -> list[Claim] | None:
    """Decoupled PPO whose proximal policy is renewed every update, every 4 and every 16, beside PPO's clip and TIS."""
    (task,) = QUESTIONS[RENEWAL].tasks
    if study.envs is not None and task not in study.envs:
        return None
    runs = outcomes([place._replace(rate=RENEWAL_RATE) for place in places(RENEWAL)], JUDGING, study)
    at = {cell.method: seeds for cell, seeds in runs.items()}
    pairs = [(name, other) for other in (CLIP, TIS) for name in (DECOUPLED, *RENEWED)]
    pairs += [(DECOUPLED, name) for name in RENEWED]
    claims = [
        _more(f"{task}, {old(64)}: {name} learns more than {other}", at[name], at[other]) for name, other in pairs
    ]
    study.table("renewal", HEADER, [row(seeds) for seeds in runs.values()])
    return claims


def old(level: int) -> str:
    """Age in words.

    >>> old(1), old(8)
    ('1 update old', '8 updates old')
    """
    return f"{level} update{'' if level == 1 else 's'} old"


def _compared(study: Study, question: str, figure: str, title: str) -> list[Claim] | None:
    """Claims on each method by level, and beside no correction and PPO's clip if they were trained.

    Args:
      study: directories.
      question: the question.
      figure: name of its figure.
      title: title of the picture.
    """
    judged = Judged(study, question)
    if not judged.tasks:
        return None
    names, late = QUESTIONS[question].methods, [level for level in QUESTIONS[question].levels if level > 0]
    claims: list[Claim] = []
    for task in judged.tasks:
        at = {(name, level): judged.at(question, task, name, level) for name in names for level in (0, *late)}
        claims += [
            _more(f"{task}: {name} learns more from fresh completions than from those {old(level)}",
                  at[name, 0], at[name, level])
            for name in names for level in late
        ]  # fmt: skip
        claims += [
            _more(f"{task}, {old(level)}: {name} learns more than {other}", at[name, level], at[other, level])
            for other in (NONE, CLIP) if other in names
            for name in names if name not in (NONE, other) for level in late
        ]  # fmt: skip
    judged.table(study, figure, question)
    judged.draw(study, figure, question, AGE, title, fresh=question)
    return claims


def mismatch(study: Study) -> list[Claim] | None:
    """Actors that compute with rounded weights, beside those that compute as learners do."""
    judged = Judged(study, METHOD, MISMATCH)
    if not judged.tasks:
        return None
    (task,), claims = judged.tasks, []
    for level in QUESTIONS[MISMATCH].levels:
        for name in QUESTIONS[MISMATCH].methods:
            exact = judged.at(METHOD, task, name, level)
            claims += [
                _more(f"{task}, {level} updates old: {name} learns more without a mismatch than with {kind} actors",
                      exact, judged.at(MISMATCH, task, f"{name}, {kind}", level))
                for kind in PRECISIONS
            ]  # fmt: skip
        claims += [
            _more(f"{task}, {level} updates old, {kind} actors: {name} learns more than {NONE}",
                  *(judged.at(MISMATCH, task, f"{one}, {kind}", level) for one in (name, NONE)))
            for kind in PRECISIONS for name in QUESTIONS[MISMATCH].methods if name != NONE
        ]  # fmt: skip
    judged.table(study, "mismatch", MISMATCH)
    title = "Actors with rounded weights: share right over the run, less PPO's clip on fresh ones without rounding"
    judged.draw(study, "mismatch", MISMATCH, AGE, title, fresh=METHOD)
    return claims


def flight(study: Study) -> list[Claim] | None:
    """Weights that change within a completion, beside completions of one policy each."""
    judged = Judged(study, FLIGHT)
    if not judged.tasks:
        return None
    (task,), claims = judged.tasks, []
    for level in QUESTIONS[FLIGHT].levels:
        ours, theirs = (judged.at(FLIGHT, task, f"{CLIP}, {name}", level) for name in (IN_FLIGHT, WHOLE))
        seconds = area_of_equal_seconds({ours[0].cell: ours, theirs[0].cell: theirs})
        where = f"{task}, at most {level} batches ahead: in-flight updates"
        claims += [
            _more(f"{where} learn more than whole completions, per update", ours, theirs),
            more(f"{where} learn more than whole completions in as many seconds (paired)", "–",
                 values(ours, seconds), values(theirs, seconds), test=paired),
        ]  # fmt: skip
    judged.table(study, "flight", FLIGHT)
    judged.draw(study, "flight", FLIGHT, "batches that actors may be ahead", "In-flight updates and whole completions")
    return claims


def admission(study: Study) -> list[Claim] | None:
    """Completions that are too old are dropped, or waited for, where long completions are right more often."""
    judged = Judged(study, ADMISSION)
    if not judged.tasks:
        return None
    (task,), claims = judged.tasks, []
    for level in QUESTIONS[ADMISSION].levels:
        wait, drop = (judged.at(ADMISSION, task, f"{CLIP}, {name}", level) for name in (WAIT, DROP))
        where = f"{task}, bound of {level} batches"
        kept = [run.datum("fragments_dropped_slowness") for run in drop]
        claims += [
            more(f"{where}: dropped completions take longer than used ones, as a share of all (paired)", "–", kept,
                 np.ones(len(kept)), test=paired),
            more(f"{where}: dropped completions are right more often than used ones (paired)", "–",
                 [run.datum("fragments_dropped_return") for run in drop], np.zeros(len(kept)), test=paired),
            _more(f"{where}: waiting learns more than dropping, per update", wait, drop),
            equal(f"{where}: waiting learns as much as dropping, per update (paired)", "–", values(wait, area),
                  values(drop, area), MARGIN, test=paired),
        ]  # fmt: skip
    judged.table(study, "admission", ADMISSION)
    judged.draw(
        study, "admission", ADMISSION, "bound in batches", "Completions that are too old: waited for, or dropped"
    )
    return claims


def announced(study: Study) -> list[Claim] | None:
    """Records that announce a collapse, over all runs of all learning rates."""
    judged = Judged(study, METHOD)
    runs = [run for seeds in judged.tuning.values() for run in seeds]
    return collapse.claims(study, runs) if runs else None


def claimed(study: Study) -> list[Claim] | None:
    """Published claims on a small scale, each as close to its source as these tasks allow."""
    judged = Judged(study, METHOD, MISMATCH, FLIGHT, ADMISSION)
    complete = study.envs is None
    return published.claims(study, judged) if complete else None


def _more(text: str, ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Claim:
    """Claim about areas under learning curves of the same seeds, by their differences."""
    return more(f"{text} (paired)", "–", values(ours, area), values(theirs, area), test=paired)


FIGURES: dict[str, Figure] = {
    "methods": methods,
    "collapse": announced,
    "flight": flight,
    "admission": admission,
    "mismatch": mismatch,
    "tasks": tasks,
    "young": young,
    "between": between,
    "renewal": renewal,
    "published": claimed,
    "scale": scale.scale,
}
