"""Comparison of a log of jobs with the simulator's prediction for the same system."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.delays import WORKERS
from stellaris_jax.timeline.joblog import Log, Staleness, read_log
from stellaris_jax.timeline.simulate import Timeline

GRADIENTS = 2000
"""Gradients after which a simulation that is compared with a log ends."""


class Foretold(NamedTuple):
    """Prediction of a simulation of some rounds.

    Attributes:
      gradients: number of aggregated gradients.
      aggregated: mean staleness of gradients at their aggregation, in versions.
      delivered: mean staleness of gradients at their delivery, in versions.
      utilisation: share of the time that learners compute.
    """

    gradients: int
    aggregated: float
    delivered: float
    utilisation: float

    @classmethod
    def of(cls, config: Config) -> Foretold:
        """Simulate the first rounds of a configuration, until there are enough gradients."""
        timeline, aggregated, delivered = Timeline.of(config, config.seed), [], []
        for _ in range(config.rounds):
            for group in timeline.next_round().groups:
                aggregated += [gradient.staleness for gradient in group.gradients]
                delivered += [gradient.in_flight for gradient in group.gradients]
            if len(aggregated) >= GRADIENTS:
                break
        usage, number = timeline.usage, max(1, len(aggregated))
        time = usage.seconds * config.system.learners
        busy = usage.learner_busy / time if time > 0 else 0.0
        return cls(len(aggregated), sum(aggregated) / number, sum(delivered) / number, busy)


def comparison(config: Config) -> Iterator[str]:
    """Sentences that compare a log of jobs with the simulation that uses its durations; none without a log."""
    for section, key in WORKERS.items():
        log = _log_of(config, section)
        number = read_log(log).workers(section.removeprefix("delays.")) if log else 0
        if number and number != (given := attrgetter(key)(config)):
            yield f"{log} has {number} {section.removeprefix('delays.')}s, while {key}={given} is simulated."
    if log := _log_of(config, "delays.learner"):
        yield from _compared(log, read_log(log), Foretold.of(config))


def _log_of(config: Config, section: str) -> Path | None:
    """Log that provides the delays of a section; None if there is none."""
    delay = attrgetter(section)(config)
    known = config.executor == "simulated" and delay.kind == "trace" and delay.options.get("log")
    return Path(delay.options["log"]) if known else None


def _compared(log: Path, logged: Log, foretold: Foretold) -> Iterator[str]:
    staleness = logged.staleness()
    if staleness is None:
        yield (
            f"{log} has no versions (version_start of its learners' jobs), so its staleness is unknown; the simulation "
            f"foretells a mean staleness of {foretold.aggregated:.2g} when gradients are aggregated."
        )
    else:
        when, mean = _measure(staleness, foretold)
        yield (
            f"{log}: the mean staleness when {when} was {staleness.mean:.2g} ({staleness.gradients} gradients); the "
            f"simulation foretells {mean:.2g} ({foretold.gradients} gradients)."
        )
    utilisation = logged.utilisation()
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
