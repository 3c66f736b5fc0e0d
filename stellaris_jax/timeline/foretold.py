"""What the simulator foretells of a system whose jobs were logged, beside what the log says."""

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
    """What a simulation of some rounds comes to.

    Attributes:
      gradients: gradients that were aggregated.
      aggregated: their mean staleness when they were aggregated.
      delivered: their mean staleness when their learners were done.
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
    """Sentences that compare a log of jobs with the simulation that takes its durations, if there is one."""
    for section, key in WORKERS.items():
        log = _log_of(config, section)
        number = read_log(log).workers(section.removeprefix("delays.")) if log else 0
        if number and number != (given := attrgetter(key)(config)):
            yield f"{log} has {number} {section.removeprefix('delays.')}s, while {key}={given} is simulated."
    if log := _log_of(config, "delays.learner"):
        yield from _compared(log, read_log(log), Foretold.of(config))


def _log_of(config: Config, section: str) -> Path | None:
    """The log that delays of a section are taken of, where they are."""
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
    """When a log's staleness is counted, and the same measure of a simulation."""
    if staleness.aggregated:
        return "gradients are aggregated", foretold.aggregated
    return "learners are done", foretold.delivered
