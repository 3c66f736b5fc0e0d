"""A run's timeline for https://ui.perfetto.dev, in the Trace Event format: simulated and live runs alike.

There is a track for every actor, every learner and the parameter function. Arrows go from where a gradient begins, with
the policy that it fetched, to the aggregation that it becomes part of. Counters show the queue, staleness, the gate
(beta of Eq. 3) and dollars. Times are microseconds of training since the run began.

Format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.config.outputs import rewriting_text
from stellaris_jax.config.schema import ConfigError
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.report.curves import readable
from stellaris_jax.report.telemetry.jsonl import stream_records
from stellaris_jax.timeline import Round, Timeline, trace
from stellaris_jax.timeline.billing import bill
from stellaris_jax.timeline.delays import TickStream, delay_of
from stellaris_jax.timeline.plan import MinibatchLayout
from stellaris_jax.timeline.scaling.limits import is_scaled, limits_of
from stellaris_jax.timeline.ticks import SECOND, ticks
from stellaris_jax.timeline.trace import Failure, Roll

PLATFORM, LEARNERS, ACTORS = 1, 2, 3
"""Numbers of the groups of tracks."""
MICRO = 1e6

Event = dict[str, Any]


class Lived(NamedTuple):
    """A round, who rolled its fragment, and what died in it."""

    record: Round
    rolls: list[Roll]
    failures: list[Failure]


def export(run_dir: Path, cut: MinibatchLayout, path: Path, rounds: int | None = None) -> Path:
    """Write a run's timeline; returns `path`.

    Args:
      run_dir: of the run, whose first seed it is.
      cut: how its fragments are cut.
      path: to write.
      rounds: that many at its beginning; all by default.

    Raises:
      ConfigError: there is no run, or its records are damaged.
    """
    config = from_yaml(run_dir / "config.yaml")
    with readable(run_dir), rewriting_text(path) as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        separator = ""
        for event in events(config, rounds_of(run_dir, config, cut, rounds)):
            file.write(separator + json.dumps(event, allow_nan=False))
            separator = ", "
        file.write("]}\n")
    return path


def rounds_of(run_dir: Path, config: Config, cut: MinibatchLayout, last: int | None = None) -> Iterator[Lived]:
    """A run's rounds, of its first seed, one after the other: as they were recorded live, or simulated again.

    Args:
      run_dir: of the run.
      config: its configuration.
      cut: how its fragments are cut.
      last: as many of them, from the first on; all by default.

    Raises:
      ConfigError: there are none yet, or no trace of a live run can be read.
    """
    lived = _recorded(run_dir / trace.NAME) if config.executor == "live" else _simulated(run_dir, config, cut)
    first = next(lived, None)
    if first is None:
        raise ConfigError(f"{run_dir} has no rounds yet, so there is no timeline of it.")
    return islice(chain([first], lived), last)


def _recorded(path: Path) -> Iterator[Lived]:
    return (Lived(one.record, one.rolls, one.failures) for one in trace.read(path).rounds)


def _simulated(run_dir: Path, config: Config, cut: MinibatchLayout) -> Iterator[Lived]:
    """The rounds of a simulated run, simulated again; who rolled them is what was recorded."""
    metrics = run_dir / "metrics.jsonl"
    timeline, limits, number = Timeline.of(config, config.seed), limits_of(config), 0
    stream, passing = TickStream(delay_of(config.delays.actor), config.seed, "actor"), 2 * ticks(config.platform.cache)
    loader = TickStream(delay_of(config.delays.loader), config.seed, "loader")
    for one in stream_records(metrics) if metrics.exists() else ():
        if one["kind"] != "round":
            continue
        number += 1
        if one["round"] != number:
            return  # what comes after a round that is missing cannot be simulated
        actors = int(one["per_seed"]["actors"][0])
        if not 0 <= actors <= limits.maximum:
            raise ValueError(f"{actors} actors in a round")
        if is_scaled(config):
            record = timeline.next_round(actors, cut.epochs * cut.count(actors * limits.envs))
        else:
            record = timeline.next_round(actors)
        durations = [duration + passing for duration in stream.take(actors)]
        # In whole ticks, of which seconds are exact enough: so nothing begins before the run.
        begin = ticks(record.complete) - max(durations, default=0) - (next(loader) if actors else 0)
        rolls = [Roll(actor, begin / SECOND, (begin + one) / SECOND) for actor, one in enumerate(durations)]
        yield Lived(record, rolls, [])


def events(config: Config, lived: Iterable[Lived]) -> Iterator[Event]:
    """All events of some rounds."""
    flow, queue, actors = count(1), Queue(), 0
    for one in lived:
        record, actors = one.record, max(actors, len(one.rolls))
        queue.add(record)
        yield from (_collected(record, roll) for roll in one.rolls)
        yield from (_died(failure) for failure in one.failures)
        yield from _learned(record, flow)
        dollars = bill(config.system, config.prices, record.usage, limits_of(config).buckets[-1]).total
        yield _counter("dollars", record.usage.seconds, dollars)
    yield from queue.events()
    yield from _tracks(config.system.learners, actors)


def _tracks(learners: int, actors: int) -> Iterator[Event]:
    groups = {PLATFORM: "parameter function", LEARNERS: "learners", ACTORS: "actors"}
    for pid, name in groups.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    names = [(PLATFORM, ["aggregations"]), (LEARNERS, [f"learner {i}" for i in range(learners)])]
    for pid, rows in [*names, (ACTORS, [f"actor {i}" for i in range(actors)])]:
        for tid, name in enumerate(rows):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(name: str, pid: int, tid: int, start: float, end: float, **arguments: Any) -> Event:
    duration = max(0.0, end - start) * MICRO
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start * MICRO, "dur": duration, "args": arguments}


def _counter(name: str, second: float, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": PLATFORM, "tid": 0, "ts": second * MICRO, "args": {name: value}}


def _collected(record: Round, roll: Roll) -> Event:
    name = f"fragment {record.index}"
    return _slice(name, ACTORS, roll.actor, roll.start, roll.end, version=record.behaviour_version)


def _died(failure: Failure) -> Event:
    pid = ACTORS if failure.kind == "actor" else LEARNERS
    return _slice("died", pid, failure.number, failure.start, failure.end, reason=failure.reason)


def _learned(record: Round, flow: Iterator[int]) -> Iterator[Event]:
    """A round's gradients, those that were thrown away too, and what became of them."""
    for gradient in record.dropped:
        named = {"fragment": gradient.fragment, "minibatch": gradient.minibatch, "version": gradient.version}
        yield _slice("thrown away", LEARNERS, gradient.learner, gradient.start, gradient.end, **named)
    for group in record.groups:
        staleness = [gradient.staleness for gradient in group.gradients]
        yield _slice(
            f"version {group.clock + 1}",
            PLATFORM,
            0,
            group.second,
            max(group.published, group.second),
            gradients=len(group.gradients),
            staleness=staleness,
            weights=group.weights,
            escaped=group.escaped,
        )
        yield _counter("staleness", group.second, sum(staleness) / len(staleness))
        if group.threshold is not None:
            yield _counter("gate", group.second, group.threshold)
        for gradient in group.gradients:
            name = f"fragment {gradient.fragment}, minibatch {gradient.minibatch}"
            place = (name, LEARNERS, gradient.learner, gradient.start, gradient.end)
            yield _slice(*place, version=gradient.version, staleness=gradient.staleness, peers=gradient.peers)
            arrow = {"name": "gradient", "cat": "gradient", "id": next(flow)}
            start, end = gradient.start * MICRO, group.second * MICRO
            yield {"ph": "s", **arrow, "pid": LEARNERS, "tid": gradient.learner, "ts": start}
            yield {"ph": "f", "bp": "e", **arrow, "pid": PLATFORM, "tid": 0, "ts": end}


class Queue:
    """Number of gradients that are waiting, whenever that changes."""

    def __init__(self) -> None:
        self._seconds, self._changes = array("d"), array("q")

    def add(self, record: Round) -> None:
        """Add what was delivered and aggregated in a round."""
        for group in record.groups:
            for gradient in group.gradients:
                self._seconds.append(gradient.end)
                self._changes.append(1)
            self._seconds.append(group.second)
            self._changes.append(-len(group.gradients))

    def events(self) -> Iterator[Event]:
        """Counters in the order of time; what was delivered in a moment comes before what was aggregated in it."""
        seconds, changes = np.array(self._seconds), np.array(self._changes, np.int64)
        order = np.lexsort((-changes, seconds))
        for place, waiting in zip(order, changes[order].cumsum(), strict=True):
            yield _counter("queue", float(seconds[place]), int(waiting))
