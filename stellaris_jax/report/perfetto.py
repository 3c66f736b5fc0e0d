"""Timeline of a run for https://ui.perfetto.dev, in the Trace Event format, for simulated and live runs.

There is a track for every actor, every learner and the parameter function. Independent actors have a track for every
shard, with its fragments and their versions, one for batches, and a counter of the data queue. An arrow leads from the
start of a gradient, where the learner fetches a policy, to the aggregation of that gradient. Counters show the queue,
staleness, the gate (beta of Eq. 3) and dollars. Times are microseconds of training since the run began.

Format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import rewriting_text
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.report.curves import readable
from stellaris_jax.report.shards import DIED, DROPPED, ShardBar, fragments_under_way, shard_bars
from stellaris_jax.telemetry.jsonl import stream_rows
from stellaris_jax.timeline import Round, Timeline, trace
from stellaris_jax.timeline.billing import bill
from stellaris_jax.timeline.delays import TickStream, delay_of
from stellaris_jax.timeline.joblog import Loading, jobs_of
from stellaris_jax.timeline.jobs import write as write_jobs
from stellaris_jax.timeline.plan import MinibatchLayout
from stellaris_jax.timeline.records import Batch, Fragment
from stellaris_jax.timeline.scaling.limits import is_scaled, limits_of
from stellaris_jax.timeline.ticks import SECOND, ticks
from stellaris_jax.timeline.trace import Failure, Roll

PLATFORM, LEARNERS, ACTORS, DATA = 1, 2, 3, 4
"""Numbers of the groups of tracks."""
JOB_LOGS = {".csv": "csv", ".jsonl": "jsonl"}
"""Formats of a log of jobs, by the file's ending."""
MICRO = 1e6

Event = dict[str, Any]


class TimelineRound(NamedTuple):
    """Round of a timeline.

    Attributes:
      round: the round.
      rolls: rollouts of its fragment, by actor.
      failures: invocations that died in it.
      under_way: fragments of independent actors that wait or are rolled at its end, of simulated runs.
    """

    round: Round
    rolls: list[Roll]
    failures: list[Failure]
    under_way: Sequence[Fragment] = ()


def export(run_dir: Path, layout: MinibatchLayout, path: Path, rounds: int | None = None) -> Path:
    """Write a run's timeline and return `path`.

    Args:
      run_dir: directory of the run, whose first seed is exported.
      layout: minibatch layout of its fragments.
      path: file to write.
      rounds: number of rounds, from the first one on; all by default.

    Raises:
      ConfigError: there is no run, or its records are damaged.
    """
    config = from_yaml(run_dir / "config.yaml")
    with readable(run_dir), rewriting_text(path) as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        separator = ""
        for event in events(config, rounds_of(run_dir, config, layout, rounds)):
            file.write(separator + json.dumps(event, allow_nan=False))
            separator = ", "
        file.write("]}\n")
    return path


def export_jobs(run_dir: Path, layout: MinibatchLayout, path: Path, rounds: int | None = None) -> Path:
    """Write a run's timeline as a log of jobs, which `delays=trace` reads, and return `path`.

    Args:
      run_dir: directory of the run, whose first seed is exported.
      layout: minibatch layout of its fragments.
      path: file to write, with an ending of `JOB_LOGS`.
      rounds: number of rounds, from the first one on; all by default.

    Raises:
      ConfigError: there is no run, or its records are damaged.
    """
    config = from_yaml(run_dir / "config.yaml")
    each = layout.steps * limits_of(config).envs if is_scaled(config) else None
    if config.actor_shards:
        each = layout.steps * layout.envs // config.actor_shards
    with readable(run_dir), rewriting_text(path) as file:
        pairs = ((entry.round, entry.rolls) for entry in rounds_of(run_dir, config, layout, rounds))
        write_jobs(
            file, jobs_of(pairs, lambda actors: each or _share(layout, actors), layout.batch), JOB_LOGS[path.suffix]
        )
    return path


def _share(layout: MinibatchLayout, actors: int) -> int | None:
    """Steps of each actor of a whole fragment; None if the actors have different shares."""
    steps, remainder = divmod(layout.steps * layout.envs, actors)
    return None if remainder else steps


def rounds_of(
    run_dir: Path, config: Config, layout: MinibatchLayout, last: int | None = None
) -> Iterator[TimelineRound]:
    """Rounds of a run's first seed, in order: as recorded live, or simulated again.

    Args:
      run_dir: directory of the run.
      config: its configuration.
      layout: minibatch layout of its fragments.
      last: number of rounds, from the first one on; all by default.

    Raises:
      ConfigError: there are no rounds yet, the trace of a live run cannot be read, or the durations of a simulated
        run are not known again.
    """
    rounds = _recorded(run_dir / trace.NAME) if config.executor == "live" else _simulated(run_dir, config, layout)
    first = next(rounds, None)
    if first is None:
        raise ConfigError(f"{run_dir} has no rounds yet, so there is no timeline of it.")
    return islice(chain([first], rounds), last)


def _recorded(path: Path) -> Iterator[TimelineRound]:
    return (TimelineRound(one.record, one.rolls, one.failures) for one in trace.read(path).rounds)


def _simulated(run_dir: Path, config: Config, layout: MinibatchLayout) -> Iterator[TimelineRound]:
    """Rounds of a simulated run, simulated again; the numbers of actors are the recorded ones."""
    if config.delays.by == "episodes":
        raise ConfigError(
            f"{run_dir} has delays.by=episodes: durations follow its episodes, which only training computes, so there "
            "is no timeline of it."
        )
    metrics = run_dir / "metrics.jsonl"
    timeline, limits, number = Timeline.of(config, config.seed), limits_of(config), 0
    stream, passing = TickStream(delay_of(config.delays.actor), config.seed, "actor"), 2 * ticks(config.platform.cache)
    loader = TickStream(delay_of(config.delays.loader), config.seed, "loader")
    for row in stream_rows(metrics) if metrics.exists() else ():
        if row["kind"] != "round":
            continue
        number += 1
        if row["round"] != number:
            return  # rounds after a missing one cannot be simulated
        actors = int(row["per_seed"]["actors"][0])
        if not 0 <= actors <= limits.maximum:
            raise ValueError(f"{actors} actors in a round")
        if is_scaled(config):
            round_ = timeline.next_round(actors, layout.epochs * layout.count(actors * limits.envs))
        else:
            round_ = timeline.next_round(actors)
        if config.actor_shards:
            yield TimelineRound(round_, [], [], fragments_under_way(timeline))
            continue
        durations = [duration + passing for duration in stream.take(actors)]
        # Whole ticks keep rollouts from beginning before the run by rounding.
        begin = ticks(round_.complete) - max(durations, default=0) - (next(loader) if actors else 0)
        rolls = [Roll(actor, begin / SECOND, (begin + duration) / SECOND) for actor, duration in enumerate(durations)]
        yield TimelineRound(round_, rolls, [])


def events(config: Config, rounds: Iterable[TimelineRound]) -> Iterator[Event]:
    """All events of some rounds."""
    flow, queue, data, actors = count(1), Queue("queue"), Queue("data queue"), config.actor_shards
    entry, loading = None, Loading()
    for entry in rounds:
        round_ = entry.round
        _add_gradients(queue, round_)
        if config.actor_shards:
            yield from _fragments(shard_bars(config, [round_]), data, config)
            yield from (_slice("rollout", ACTORS, *roll) for roll in entry.rolls)
            yield from map(_formed, loading.done(round_))
        else:
            actors = max(actors, len(entry.rolls))
            yield from (_collected(round_, roll) for roll in entry.rolls)
        yield from (_died(failure) for failure in entry.failures)
        yield from _learned(round_, flow)
        dollars = bill(config.system, config.prices, round_.usage, limits_of(config).buckets[-1]).total
        yield _counter("dollars", round_.usage.seconds, dollars)
    if entry is not None and entry.under_way:
        bars = shard_bars(config, [], entry.under_way)
        yield from _fragments(bars, data, config, entry.round.usage.seconds)
    yield from map(_formed, loading.batches)
    yield from queue.events()
    yield from data.events()
    yield from _tracks(config, actors)


def _tracks(config: Config, actors: int) -> Iterator[Event]:
    groups = {PLATFORM: "parameter function", LEARNERS: "learners", ACTORS: "actors"}
    if config.actor_shards:
        groups[DATA] = "data"
    for pid, name in groups.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    actor = "shard" if config.actor_shards else "actor"
    names = {
        PLATFORM: ["aggregations"],
        LEARNERS: [f"learner {i}" for i in range(config.system.learners)],
        ACTORS: [f"{actor} {i}" for i in range(actors)],
        DATA: ["batches"],
    }
    for pid, rows in ((pid, names[pid]) for pid in groups):
        for tid, name in enumerate(rows):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(name: str, pid: int, tid: int, start: float, end: float, **arguments: Any) -> Event:
    duration = max(0.0, end - start) * MICRO
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start * MICRO, "dur": duration, "args": arguments}


def _counter(name: str, second: float, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": PLATFORM, "tid": 0, "ts": second * MICRO, "args": {name: value}}


def _collected(round_: Round, roll: Roll) -> Event:
    name = f"fragment {round_.index}"
    return _slice(name, ACTORS, roll.actor, roll.start, roll.end, version=round_.behaviour_version)


def _fragments(bars: Iterable[ShardBar], queue: Queue, config: Config, until: float = math.inf) -> Iterator[Event]:
    """Events of fragments until a second, which are added to the data queue's length; versions change within them."""
    for bar in bars:
        fragment, within = bar.fragment, [one for one in bar.segments if one[0] < until]
        if bar.outcome != DIED and bar.end <= until:
            queue.add(bar.end, 1)
        if fragment.left:
            queue.add(fragment.left, -1)
        about = {DROPPED: ", dropped", DIED: ", died"}.get(bar.outcome, "")
        named: Any = {"versions": fragment.versions, "order": fragment.order, "batches_complete": fragment.batch}
        shard, end = fragment.shard, min(bar.end, until)
        yield _slice(f"fragment {fragment.number}{about}", ACTORS, shard, fragment.begin, end, **named)
        if config.executor != "live" and bar.outcome != DIED and config.segments > 1:
            for start, stop, version in within:
                yield _slice(f"version {version}", ACTORS, shard, start, min(stop, until), version=version)


def _formed(batch: Batch) -> Event:
    """Event of a batch, from its formation until its minibatches can be had."""
    named: Any = {"fragments": [[one.shard, one.number] for one in batch.fragments], "version": batch.clock}
    ages = [batch.age(fragment) for fragment in batch.fragments]
    return _slice(f"batch {batch.index}", DATA, 0, batch.second, batch.loaded, **named, ages=ages)


def _died(failure: Failure) -> Event:
    pid = ACTORS if failure.kind == "actor" else LEARNERS
    return _slice("died", pid, failure.number, failure.start, failure.end, reason=failure.reason)


def _learned(round_: Round, flow: Iterator[int]) -> Iterator[Event]:
    """Events of a round's gradients, dropped ones too, and of their aggregation."""
    for gradient in round_.dropped:
        named = {"fragment": gradient.fragment, "minibatch": gradient.minibatch, "version": gradient.version}
        yield _slice("thrown away", LEARNERS, gradient.learner, gradient.start, gradient.end, **named)
    for group in round_.groups:
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


def _add_gradients(queue: Queue, round_: Round) -> None:
    """Add the deliveries and aggregations of a round to the number of waiting gradients."""
    for group in round_.groups:
        for gradient in group.gradients:
            queue.add(gradient.end, 1)
        queue.add(group.second, -len(group.gradients))


class Queue:
    """Length of a queue over time; `name` is the counter's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._seconds, self._changes = array("d"), array("q")

    def add(self, second: float, change: int) -> None:
        """Add a change of the length."""
        self._seconds.append(second)
        self._changes.append(change)

    def events(self) -> Iterator[Event]:
        """Counters in the order of time; at equal times, what joins comes before what leaves."""
        seconds, changes = np.array(self._seconds), np.array(self._changes, np.int64)
        order = np.lexsort((-changes, seconds))
        for place, waiting in zip(order, changes[order].cumsum(), strict=True):
            yield _counter(self.name, float(seconds[place]), int(waiting))
