"""Answer of a choice in words, and as a document."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from typing import Any

from stellaris_jax.base.commands import command
from stellaris_jax.many.choose.answer import Answer, Rate
from stellaris_jax.many.choose.arms import BASELINES, one_learner_overrides
from stellaris_jax.many.choose.building import BILLING
from stellaris_jax.many.choose.files import with_budget
from stellaris_jax.many.choose.objective import PENALISED, misses
from stellaris_jax.many.choose.verdict import Difference, Judged, Scaling, differences, enough, foretold, interval_of
from stellaris_jax.telemetry.format import duration, plural, significant

UNTRIED = 3.0
"""Budget that is proposed if systems were not tried, relative to the one that ended."""
FASTER = {"seconds": "as fast", "dollars": "as cheap"}


def lines(answer: Answer) -> list[str]:
    """Answer in six lines: what to use, against the baselines, ties, staleness, slower jobs, and how sure."""
    best, compared = answer.results[0], differences(answer.results, answer.goal)
    return [
        f"{_use(answer, best)}{_untried(answer)}",
        _against(answer, compared),
        _ties(answer, compared),
        _staleness(answer, best),
        _slower(answer),
        _sure(answer),
    ]


def amount(answer: Answer, shown: str) -> str:
    """Amount with the unit of the goal: `return 12`, `12 s` or `$12`."""
    return {"return": f"return {shown}", "seconds": f"{shown} s", "dollars": f"${shown}"}[answer.goal.measure]


def value(answer: Answer, own: Judged) -> str:
    """Mean of a result with its interval, and how many seeds reached the target."""
    middle, low, high = own.interval
    shown, seeds = amount(answer, significant(middle)), len(own.values)
    parts = [f"{significant(low)} to {significant(high)}"] if math.isfinite(low) else []
    parts += filter(None, [misses(own.reached, seeds)])
    return f"{shown} ({'; '.join(parts)})" if parts else shown


def _use(answer: Answer, best: Judged) -> str:
    target = answer.goal.target
    if target is None:
        return f"Use {name(best)}: {_confirmed(answer, best)}."
    chosen = "" if answer.choice.options.target is not None else " (chosen from the search)"
    if not _is_reached(answer):
        return (
            f"No finalist reached a return of {target:g}{chosen}: raise total_steps, or lower --target. The highest "
            f"return has {name(best)}."
        )
    simulated = _confirmed(answer, best)
    if answer.goal.measure == "seconds":
        simulated = simulated.replace(" s", " simulated seconds", 1)
    return f"Use {name(best)}. It reaches a return of {target:g}{chosen} in {simulated}."


def _untried(answer: Answer) -> str:
    """Sentence on systems of which no candidate was trained, for lack of time; "" if there are none."""
    candidates = answer.choice.candidates
    known = {candidates[number].arm.system for number in answer.rungs[0]} | answer.beaten.keys()
    lacking = {own.arm.system: None for own in candidates if own.arm.system not in known}
    if not lacking:
        return ""
    return (
        f" This says nothing about {', '.join(lacking)}: the budget ended before they were tried. Continue with: "
        f"{with_budget(answer.choice.directory, UNTRIED * answer.choice.options.budget)}"
    )


def _is_reached(answer: Answer) -> bool:
    """Whether any seed of the best one has reached the target."""
    return bool(answer.results[0].reached or (answer.confirmed is not None and answer.confirmed.reached))


def _is_never_reached(answer: Answer) -> bool:
    """Whether there is a target, and no fresh seed of any result has reached it."""
    return answer.goal.target is not None and not any(own.reached for own in answer.results)


def _confirmed(answer: Answer, best: Judged) -> str:
    """Value of the best one on seeds that did not choose it, if there are some."""
    if answer.confirmed is None:
        return f"{value(answer, best)}, on the seeds that chose it"
    return value(answer, answer.confirmed)


def name(own: Judged) -> str:
    """Arm and learning rate of a result."""
    return f"{own.name} with learning rate {own.learning_rate:g}"


def _missed(own: Judged | Scaling) -> str:
    """Parenthesis on seeds that did not reach the target; "" if all did, or if there is none."""
    note = misses(own.reached, len(own.values))
    return note and f" ({note})"


def _penalty(results: Iterable[Judged | Scaling]) -> str:
    """Sentence on seeds that did not reach the target; "" if all did."""
    return f" {PENALISED}" if any(map(_missed, results)) else ""


def ratio(answer: Answer, difference: Difference, other: str = "") -> str:
    """Comparison in words, perhaps with the other's name: `2.1 times as fast as async (1.8 to 2.4)`."""
    interval = f"({significant(difference.low, 2)} to {significant(difference.high, 2)})"
    if answer.goal.target is None:
        than = f" than that of {other}" if other else ""
        return f"return higher by {significant(difference.ratio)}{than} {interval}"
    faster = FASTER[answer.goal.measure] + (f" as {other}" if other else "")
    return f"{significant(difference.ratio, 2)} times {faster} {interval}"


def _against(answer: Answer, compared: list[Difference]) -> str:
    if _is_never_reached(answer):
        return "Nothing is compared with a baseline, because no fresh seed reached the target."
    baselines = {own.arm.name for own in answer.choice.candidates if own.arm.baseline}
    judged = [pair for pair in zip(answer.results[1:], compared, strict=True) if pair[0].name in baselines]
    never = [own.name for own, _ in judged if own.reached == 0]
    parts = [
        f"{ratio(answer, difference, own.name)}{_missed(own)}" + ("" if difference.separated else ", not separated")
        for own, difference in judged
        if own.reached != 0
    ]
    lacking = [own for own in BASELINES if own in answer.choice.refused]
    unable = "".join(f" {own} cannot run here: {answer.choice.refused[own]}" for own in lacking)
    if not judged:
        if answer.results[0].name in baselines:
            return f"It is a baseline itself, and no other baseline was judged.{unable}"
        return f"No baseline was judged, for lack of time.{unable}"
    verb = "it has a" if answer.goal.target is None else "it is"
    said = [f"{verb} {'; '.join(parts)}"] if parts else []
    said += [f"{' and '.join(never)} never reached the target"] if never else []
    what = "Differences" if answer.goal.target is None else "Ratios"
    chosen = f" {what} are of the seeds that chose it, which flatters it." if parts else ""
    doubts = _doubts(answer, [own for own, _ in judged])
    chosen += f" Baselines may do better than this: the learning rate of {doubts}." if doubts else ""
    notes = f"{chosen}{_penalty(own for own, _ in judged)}{unable}"
    return f"On equal hardware, with waiting actors, {'; '.join(said)}.{notes}"


def _doubts(answer: Answer, results: Iterable[Judged]) -> str:
    """Words on results whose learning rate may not be their best: `async is the highest of 3 tried`; "" if none is."""
    names: dict[str, list[str]] = {}
    for own in results:
        names.setdefault(rate_doubt(answer.rate(own)), []).append(own.name)
    return "; that of ".join(f"{' and of '.join(own)} {doubt}" for doubt, own in names.items() if doubt)


def rate_doubt(rate: Rate) -> str:
    """Words on why a learning rate may not be the best one; "" if its neighbours were tried to the end.

    >>> rate_doubt(Rate([0.01, 0.1, 1.0], 1 / 9, "highest"))
    'is the highest of 3 tried, chosen after 11 % of the steps'
    >>> rate_doubt(Rate([0.1], 0.0, ""))
    'is the only one tried'
    """
    if len(rate.tried) < 2:
        return "is the only one tried"
    parts = [f"is the {rate.edge} of {len(rate.tried)} tried"] if rate.edge else []
    if rate.share < 1.0:
        parts.append(f"{'' if parts else 'was '}chosen after {rate.share:.0%} of the steps".replace("%", " %"))
    return ", ".join(parts)


def _ties(answer: Answer, compared: list[Difference]) -> str:
    pairs = list(zip(answer.results[1:], compared, strict=True))
    tied = [f"{name(own)}{_missed(own)}" for own, difference in pairs if not difference.separated]
    if not pairs:
        return "Nothing else was judged."
    if _is_never_reached(answer):
        return "Nothing is separated, because no fresh seed reached the target."
    if not tied:
        return f"It is significantly better than {plural(len(pairs), 'other')} (paired t-tests, Holm)."
    return f"Not separated from it: {'; '.join(tied)}."


def _staleness(answer: Answer, best: Judged) -> str:
    own = best.timing
    versions = (
        f"Staleness: gradients are {significant(own.staleness, 2)} versions old on average, and data "
        f"{significant(own.data_lag, 2)}."
    )
    if not answer.scalings:
        alone = answer.choice.candidates[best.number].arm.one_learner
        reason = "as it is one learner" if alone else "for lack of time or of room for more"
        return f"{versions} Other numbers of learners were not tried, {reason}."
    if answer.goal.target is not None and not _is_reached(answer):
        return f"{versions} Numbers of learners are not compared, because no seed reached the target."
    few, _ = enough(answer.scalings, answer.goal)
    tried = ", ".join(
        f"{own.learners}: {amount(answer, significant(interval_of(own.values, answer.goal.target is not None).middle))}"
        f"{_missed(own)}"
        for own in answer.scalings
    )
    helps = (
        f"more than {few} are not shown to help"
        if few < answer.scalings[-1].learners
        else "even the most that were tried help"
    )
    penalty = _penalty(answer.scalings)
    return f"{versions} By number of learners, at the same learning rate, {tried}: {helps}.{penalty}"


def _slower(answer: Answer) -> str:
    if answer.goal.target is None:
        return "Slower jobs: foretold for seconds and dollars only."
    if not answer.results[0].reached:
        return "Slower jobs: nothing is foretold, because no seed reached the target."
    parts = []
    for kind, timings in answer.slower.items():
        times = [foretold(own, other, answer.goal) for own, other in zip(answer.results, timings, strict=True)]
        first = times.index(min(times))
        leads = "it stays first" if first == 0 else f"{name(answer.results[first])} leads"
        parts.append(f"with {kind} twice as slow {leads} ({amount(answer, significant(times[first]))})")
    return f"Foretold from timelines, for as many rounds as on the seeds that chose it: {'; '.join(parts)}. Not tested."


def _sure(answer: Answer) -> str:
    options, candidates = answer.choice.options, answer.choice.candidates
    rates, tried = {own.learning_rate for own in candidates}, {candidates[n].learning_rate for n in answer.rungs[0]}
    fewer = f" at {len(tried)} of {plural(len(rates), 'learning rate')}" if len(tried) < len(rates) else ""
    refused = list(answer.choice.refused)
    unable = f" {plural(len(refused), 'candidate')} cannot run here, as {refused[0]}." if refused else ""
    others = [own for place, own in enumerate(answer.results) if not (place and candidates[own.number].arm.baseline)]
    doubts = _doubts(answer, others)
    rate = f" Other learning rates may be better: that of {doubts}." if doubts else ""
    return (
        f"How sure: {answer.tried} of {plural(len(candidates), 'candidate')}{fewer} searched with "
        f"{plural(options.seeds, 'seed')}; {len(answer.results)} judged on {plural(len(answer.seeds), 'fresh seed')}; "
        f"intervals are of 95 %.{rate}{unable} It took {duration(answer.seconds)} of {duration(options.budget)}."
    )


def train_command(answer: Answer, own: Judged) -> str:
    """Command that trains a result's configuration."""
    candidate = answer.choice.candidates[own.number]
    settings = [*answer.choice.overrides, *candidate.arm.overrides]
    if candidate.arm.one_learner:
        settings += one_learner_overrides(candidate.config)
    if answer.goal.measure == "dollars":  # presets may be billed in another way
        given = {line.partition("=")[0] for line in settings}
        settings += [f"{key}={value}" for key, value in BILLING.items() if key not in given]
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
                "rate": answer.rate(own)._asdict(),
                "values": own.values,
                **_interval(own),
                "reached": own.reached,
                "returns": own.returns,
                "timing": own.timing._asdict(),
                "command": train_command(answer, own),
                "compared": None if difference is None else difference._asdict() | {"separated": difference.separated},
            }
            for own, difference in zip(answer.results, compared, strict=True)
        ],
        "confirmed": None
        if answer.confirmed is None
        else {
            "seeds": answer.confirming,
            **_interval(answer.confirmed),
            "values": answer.confirmed.values,
            "reached": answer.confirmed.reached,
        },
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


def _interval(own: Judged) -> dict[str, float | None]:
    return {name: number if math.isfinite(number) else None for name, number in own.interval._asdict().items()}
