"""Answer of a choice in words, and as a document."""

from __future__ import annotations

import math
import shlex
from typing import Any

from stellaris_jax.base.commands import command
from stellaris_jax.base.statistics import mean
from stellaris_jax.many.choose.arms import BASELINES, one_learner_overrides
from stellaris_jax.many.choose.choose import Answer
from stellaris_jax.many.choose.verdict import Difference, Judged, differences, enough, foretold
from stellaris_jax.telemetry.format import duration, plural, significant

FASTER = {"seconds": "as fast", "dollars": "as cheap"}


def lines(answer: Answer) -> list[str]:
    """Answer in six lines: what to use, against the baselines, ties, staleness, slower jobs, and how sure."""
    best, compared = answer.results[0], differences(answer.results, answer.goal)
    return [
        _use(answer, best),
        _against(answer, compared),
        _ties(answer, compared),
        _staleness(answer, best),
        _slower(answer),
        _sure(answer),
    ]


def value(answer: Answer, own: Judged) -> str:
    """Mean of a result with its interval, and how many seeds reached the target."""
    middle, half = own.interval
    shown = f"{significant(middle)} ± {significant(half, 2)}" if math.isfinite(half) else significant(middle)
    measure = answer.goal.measure
    if measure == "return":
        return f"return {shown}"
    shown = f"{shown} s" if measure == "seconds" else f"${shown}"
    seeds = len(own.values)
    return shown if own.reached == seeds else f"{shown} ({own.reached} of {seeds} seeds reached it)"


def _use(answer: Answer, best: Judged) -> str:
    if answer.goal.target is None:
        return f"Use {name(best)}: {value(answer, best)}."
    if not best.reached:
        return (
            f"Nothing judged reaches a return of {answer.goal.target:g} within its steps, so all are ranked alike; "
            f"a lower --target, or more total_steps, tells them apart. First of them: {name(best)}."
        )
    return f"Use {name(best)}: it reaches a return of {answer.goal.target:g} in {value(answer, best)}."


def name(own: Judged) -> str:
    """Arm and learning rate of a result."""
    return f"{own.name} with learning rate {own.learning_rate:g}"


def ratio(answer: Answer, difference: Difference) -> str:
    """Comparison in words: `2.1 times as fast (1.8 to 2.4)`."""
    low, high = significant(difference.low, 2), significant(difference.high, 2)
    if answer.goal.target is None:
        return f"return higher by {significant(difference.ratio)} ({low} to {high})"
    return f"{significant(difference.ratio, 2)} times {FASTER[answer.goal.measure]} ({low} to {high})"


def _against(answer: Answer, compared: list[Difference]) -> str:
    baselines = {own.arm.name for own in answer.choice.candidates if own.arm.baseline}
    parts = [
        f"{own.name}: {ratio(answer, difference)}"
        for own, difference in zip(answer.results[1:], compared, strict=True)
        if own.name in baselines
    ]
    lacking = [own for own in BASELINES if own in answer.choice.refused]
    unable = "".join(f" {own} cannot run here: {answer.choice.refused[own]}" for own in lacking)
    if not parts and not lacking:
        return "Against the baselines: it is a baseline itself, and the other was not judged."
    return (f"On equal hardware, against {'; against '.join(parts)}." if parts else "Against the baselines:") + unable


def _ties(answer: Answer, compared: list[Difference]) -> str:
    pairs = list(zip(answer.results[1:], compared, strict=True))
    tied = [name(own) for own, difference in pairs if not difference.separated]
    if not pairs:
        return "Nothing else was judged."
    if not tied:
        return f"It is significantly better than {plural(len(pairs), 'other')} (paired t-tests, Holm)."
    return f"Not separated from it: {'; '.join(tied)}."


def _staleness(answer: Answer, best: Judged) -> str:
    own = best.timing
    versions = f"gradients are {significant(own.staleness, 2)} versions stale and data {significant(own.data_lag, 2)}"
    if not answer.scalings:
        return f"How stale: {versions}, on average; other numbers of learners were not tried."
    if answer.goal.target is not None and not best.reached:
        return f"How stale: {versions}, on average. Learners are not compared, because no seed reached the target."
    few, _ = enough(answer.scalings, answer.goal)
    tried = ", ".join(f"{own.learners}: {significant(mean(own.values))}" for own in answer.scalings)
    helps = (
        f"more than {few} are not shown to help"
        if few < answer.scalings[-1].learners
        else "even the most that were tried help"
    )
    return f"How stale: {versions}, on average. Learners ({answer.goal.measure}) {tried}: {helps}."


def _slower(answer: Answer) -> str:
    if answer.goal.measure != "seconds":
        return "Slower jobs: foretold for seconds only."
    parts = []
    for kind, timings in answer.slower.items():
        times = [(foretold(own, other), own) for own, other in zip(answer.results, timings, strict=True)]
        known = [(seconds, own) for seconds, own in times if seconds is not None]
        if known:
            seconds, own = min(known, key=lambda pair: pair[0])
            still = "it stays first" if own is answer.results[0] else f"{name(own)} leads"
            parts.append(f"with {kind} twice as slow {still} ({significant(seconds)} s)")
    if not parts:
        return "Slower jobs: nothing is foretold, because no seed reached the target."
    return f"From the timeline, if as many rounds are needed: {', '.join(parts)}."


def _sure(answer: Answer) -> str:
    options = answer.choice.options
    searched = plural(answer.tried, "candidate")
    return (
        f"How sure: {searched} searched with {plural(options.seeds, 'seed')}, {len(answer.results)} judged on "
        f"{plural(len(answer.seeds), 'fresh seed')}; ± is half of a 95 % interval. It took {duration(answer.seconds)} "
        f"of {duration(options.budget)}."
    )


def train_command(answer: Answer, own: Judged) -> str:
    """Command that trains a result's configuration."""
    candidate = answer.choice.candidates[own.number]
    settings = [*candidate.arm.overrides, *answer.choice.overrides]
    if candidate.arm.one_learner:
        settings += one_learner_overrides(candidate.config)
    settings.append(f"algorithm.learning_rate={own.learning_rate:g}")
    return f"{command('train')} {shlex.join(settings)}"


def document(answer: Answer) -> dict[str, Any]:
    """Answer as plain data, for JSON."""
    compared = [None, *differences(answer.results, answer.goal)]
    return {
        "answer": lines(answer),
        "command": train_command(answer, answer.results[0]),
        "measure": answer.goal.measure,
        "target": answer.goal.target,
        "seeds": answer.seeds,
        "results": [
            {
                "candidate": own.number,
                "name": own.name,
                "learning_rate": own.learning_rate,
                "values": own.values,
                "mean": own.interval[0],
                "ci95": _finite(own.interval[1]),
                "reached": own.reached,
                "returns": own.returns,
                "timing": own.timing._asdict(),
                "command": train_command(answer, own),
                "compared": None if difference is None else difference._asdict() | {"separated": difference.separated},
            }
            for own, difference in zip(answer.results, compared, strict=True)
        ],
        "learners": [own._asdict() for own in answer.scalings],
        "slower": {kind: [own._asdict() for own in timings] for kind, timings in answer.slower.items()},
        "timings": {system: own._asdict() for system, own in answer.timings.items()},
        "dominated": answer.beaten,
        "refused": answer.choice.refused,
        "rungs": answer.rungs,
        "candidates": [
            {"name": own.arm.name, "learning_rate": own.learning_rate, "overrides": list(own.arm.overrides)}
            for own in answer.choice.candidates
        ],
        "seconds": answer.seconds,
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
