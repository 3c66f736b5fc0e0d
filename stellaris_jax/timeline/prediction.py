"""Comparison of a log of jobs with the simulator's prediction for the same system."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from stellaris_jax.config.schema import shown
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.delays import WORKERS
from stellaris_jax.timeline.joblog import Log, Staleness, Versions, read_log
from stellaris_jax.timeline.simulate import Timeline

MOST = 2000
"""Gradients of a log that are compared, the first ones: a rule such as `stellaris` lets staleness fall as it goes."""
FEWEST = 100
"""Gradients that are simulated at least, where a log has fewer."""


class Foretold(NamedTuple):
    """Prediction of a simulation of some rounds.

    Attributes:
      gradients: number of aggregated gradients.
      aggregated: mean staleness of gradients at their aggregation, in versions.
      delivered: mean staleness of gradients at their delivery, in versions.
      utilisation: share of the time that learners compute.
      fragments: number of fragments of independent actors that became part of a batch or were dropped.
      rolled: mean number of versions that were published while such a fragment was rolled.
    """

    gradients: int
    aggregated: float
    delivered: float
    utilisation: float
    fragments: int
    rolled: float

    @classmethod
    def of(cls, config: Config, enough: int = MOST) -> Foretold:
        """Simulate the first rounds of a configuration, until there are enough gradients."""
        timeline, aggregated, delivered = Timeline.of(config, config.seed), [], []
        versions, rolled = Versions(), []
        for _ in range(config.rounds):
            record = timeline.next_round()
            versions.add(record)
            for group in record.groups:
                aggregated += [gradient.staleness for gradient in group.gradients]
                delivered += [gradient.in_flight for gradient in group.gradients]
            fragments = [one for batch in record.batches for one in batch.fragments] + record.dropped_fragments
            rolled += [versions.newest(one.end) - one.versions[0] for one in fragments]
            if len(aggregated) >= enough:
                break
        usage = timeline.usage
        time = usage.seconds * config.system.learners
        busy = usage.learner_busy / time if time > 0 else 0.0
        return cls(len(aggregated), _mean(aggregated), _mean(delivered), busy, len(rolled), _mean(rolled))


def comparison(config: Config) -> Iterator[str]:
    """Sentences that compare a log of jobs with the simulation that uses its durations; none without a log."""
    for section, key in WORKERS.items():
        if log := _log_of(config, section):
            logged, kind = read_log(log), section.removeprefix("delays.")
            yield from _shortened(log, logged, kind)
            yield from _counted(log, logged, kind, key, attrgetter(key)(config))
    of_learners, of_actors = _log_of(config, "delays.learner"), _log_of(config, "delays.actor")
    rolled = read_log(of_actors).published_during("actor", MOST) if of_actors else None
    staleness = read_log(of_learners).staleness(MOST) if of_learners else None
    if of_learners or rolled is not None:
        foretold = Foretold.of(config, MOST if staleness is None else max(FEWEST, staleness.jobs))
        if of_learners:
            yield from _compared(of_learners, staleness, read_log(of_learners).utilisation(), foretold)
        if of_actors and rolled is not None:
            yield _aged(of_actors, rolled, foretold)


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / max(1, len(numbers))


def _aged(log: Path, rolled: Staleness, foretold: Foretold) -> str:
    """A sentence on the versions that were published while a log's actors worked."""
    found = (
        f"{log}: {rolled.mean:.2g} versions were published on average while an actor's job ran (jobs: {rolled.jobs}), "
        "and waiting adds to that"
    )
    if not foretold.fragments:
        return f"{found}."
    return f"{found}; the simulation foretells {foretold.rolled:.2g} (fragments: {foretold.fragments})."


def _shortened(log: Path, logged: Log, kind: str) -> Iterator[str]:
    """A sentence about jobs of a kind that take no time, without which the simulated ones are too long."""
    if instant := logged.instant(kind):
        every = len(logged.kinds[kind].starts)
        yield (
            f"{log}: {instant} of {every} jobs of kind {kind} take no time and are left out, so simulated jobs are "
            "longer than those of the log; give times with fractions of a second."
        )


def _counted(log: Path, logged: Log, kind: str, key: str, simulated: int) -> Iterator[str]:
    """A sentence about `id`s that do not count the workers of a kind, or count others than are simulated."""
    number, unnamed, double = logged.workers(kind), logged.unnamed(kind), logged.overlapping(kind)
    if unnamed:
        yield f"{log}: {unnamed} jobs of {kind}s have no id, so {key} may be too small; {key}={simulated} is simulated."
    elif double is not None:
        yield (
            f"{log}: jobs of the {kind} {shown(double)} overlap, so its id is that of several; "
            f"{key}={simulated} is simulated."
        )
    elif number and number != simulated:
        yield f"{log} has {number} {kind}s, while {key}={simulated} is simulated."


def _log_of(config: Config, section: str) -> Path | None:
    """Log that provides the delays of a section; None if there is none."""
    delay = attrgetter(section)(config)
    known = config.executor == "simulated" and delay.kind == "trace" and delay.options.get("log")
    return Path(delay.options["log"]) if known else None


def _compared(log: Path, staleness: Staleness | None, utilisation: float | None, foretold: Foretold) -> Iterator[str]:
    if staleness is None:
        yield (
            f"{log} has no versions (version_start of its learners' jobs), so its staleness is unknown; the simulation "
            f"foretells a mean staleness of {foretold.aggregated:.2g} when gradients are aggregated."
        )
    else:
        when, mean = _measure(staleness, foretold)
        yield (
            f"{log}: the mean staleness when {when} was {staleness.mean:.2g} ({staleness.jobs} gradients); the "
            f"simulation foretells {mean:.2g} ({foretold.gradients} gradients)."
        )
    if utilisation is not None:
        yield (
            f"{log}: its learners computed {utilisation:.0%} of the time; the simulation foretells "
            f"{foretold.utilisation:.0%}."
        )


def _measure(staleness: Staleness, foretold: Foretold) -> tuple[str, float]:
    """Time at which a log's staleness is measured, in words, and the simulation's staleness at the same time."""
    if staleness.aggregated:
        return "gradients are aggregated", foretold.aggregated
    return "learners are done", foretold.delivered
