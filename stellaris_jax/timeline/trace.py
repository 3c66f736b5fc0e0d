"""Trace of a live run, `trace.jsonl.gz`: its reader, its writer, and a timeline that replays it.

The file has one JSON object per line, compressed by gzip. The first line is a `Header`. Every other line is a round,
with the fields of `stellaris_jax.timeline.records.Round` and further fields of live runs (`RoundTrace`). All times are
seconds of training since the run began. Rounds of independent actors have two more fields: `segments`, in the order in
which they ended, and `order`, the order of all events (`KINDS`).
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.outputs import appending, rewriting
from stellaris_jax.timeline.record_json import InvalidRecord, as_data, checked_record, is_counts
from stellaris_jax.timeline.records import Batch, Fragment, Group, Happening, Round, Segment, Usage

FORMAT = 1
"""Trace format version; readers refuse other versions."""
NAME = "trace.jsonl.gz"
PROJECTIONS = 8
"""Length of a version's sketch."""
CACHED = 16
"""Number of recent rounds of a trace that are cached for sequential access."""
DAMAGE = (EOFError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Exceptions raised while reading a file that is truncated, damaged, or no trace."""


class Header(NamedTuple):
    """First line of a trace.

    Attributes:
      seed: seed of the run.
      parameters: number of parameters of every version.
      projections: length of a version's sketch.
      format: format version of the file.
    """

    seed: int
    parameters: int
    projections: int = PROJECTIONS
    format: int = FORMAT


class Published(NamedTuple):
    """Published version of the policy.

    Attributes:
      version: number of the version.
      second: time of its publication, in seconds.
      digest: BLAKE2b of its bytes, as little-endian float32.
      norm: Euclidean norm of its parameters.
      sketch: products with `projections` fixed vectors of random signs, divided by the vectors' norm.
    """

    version: int
    second: float
    digest: str
    norm: float
    sketch: list[float]

    @classmethod
    def of(cls, version: int, second: float, params: np.ndarray) -> Published:
        """Record of a version with parameters `[P]`."""
        digest = blake2b(np.ascontiguousarray(params, "<f4").tobytes(), digest_size=16).hexdigest()
        wide = params.astype(np.float64)
        sketch = (signs(len(params)) @ wide / math.sqrt(len(params))).tolist()
        return cls(version, second, digest, float(np.linalg.norm(wide)), sketch)

    def deviation(self, params: np.ndarray) -> float:
        """Approximate distance of parameters `[P]` from this version, as a share of its norm.

        The projections of a difference and the difference itself have the same expected mean square. So the sketch
        estimates the distance to within about a quarter, without the version's parameters.
        """
        current = Published.of(self.version, self.second, params)
        if current.digest == self.digest:
            return 0.0
        difference = np.subtract(self.sketch, current.sketch)
        length = math.sqrt(float(np.mean(np.square(difference))) * len(params))
        return length / max(self.norm, 1e-30)


@cache
def signs(parameters: int) -> np.ndarray:
    """Vectors of random signs, `[projections, P]`, the same for all runs."""
    bits = np.random.Generator(np.random.Philox(key=0)).integers(0, 2, (PROJECTIONS, parameters), np.int8)
    return (2 * bits - 1).astype(np.int8)


class Failure(NamedTuple):
    """Invocation that died and was retried.

    Attributes:
      kind: `learner` or `actor`.
      number: number of the learner or actor.
      start: start of the invocation, in seconds.
      end: time of the failure, in seconds.
      reason: reported cause.
    """

    kind: str
    number: int
    start: float
    end: float
    reason: str


class Roll(NamedTuple):
    """Rollout of one actor: its share of a fragment.

    Attributes:
      actor: number of the actor.
      start: start in seconds.
      end: end in seconds.
    """

    actor: int
    start: float
    end: float


@dataclass
class RoundTrace:
    """Round of a live run.

    Attributes:
      record: events of the round.
      step_scale: the schedule's factor on the learning rate.
      rolls: rollouts of the fragment's actors.
      failures: invocations that died.
      versions: versions published.
      opened: whether host environments started new episodes with this round, because their states could not be
        restored.
    """

    record: Round
    step_scale: float = 1.0
    rolls: list[Roll] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    versions: list[Published] = field(default_factory=list)
    opened: bool = False

    def line(self) -> str:
        """Round as one line of JSON."""
        data = as_data(self)
        data = data.pop("record") | data
        if not self.opened:
            del data["opened"]
        sequence = self.record.sequence
        if self.record.batches or any(not isinstance(event, Group) for event in sequence):
            data["segments"] = [list(event) for event in sequence if isinstance(event, Segment)]
            data["order"] = "".join(KINDS[type(event)] for event in sequence)
        return json.dumps(data)

    @classmethod
    def of(cls, line: str | bytes) -> RoundTrace:
        """Round from what `line` returned. Raises errors of `DAMAGE` for other text."""
        data = json.loads(line)
        segments, order = data.pop("segments", []), data.pop("order", None)
        data.pop("sequence", None)
        further = {name: data.pop(name) for name in FURTHER if name in data or name != "opened"}
        for name in ("groups", "dropped", "usage"):
            data[name]  # they have defaults, but every line names them
        round_ = checked_record(cls, {"record": data, **further})
        if any(len(version.sketch) != PROJECTIONS for version in round_.versions):
            raise InvalidRecord(f"a sketch has not {PROJECTIONS} numbers")
        for group in round_.record.groups:
            _check_group(group)
        round_.record.sequence = _sequence(round_.record, segments, order)
        return round_


FURTHER = ("step_scale", "rolls", "failures", "versions", "opened")
"""Fields of `RoundTrace` beside the record; in a trace they stand among the record's fields."""


KINDS: dict[type, str] = {Segment: "s", Batch: "b", Fragment: "d", Group: "g"}
"""Letters of the events of independent actors: a segment that ended, a batch formed, a fragment dropped, a group."""


def _sequence(record: Round, segments: Any, order: Any) -> list[Happening]:
    """Events of a round in their order. Raises InvalidRecord for those that no run has."""
    if order is None:
        return [*record.groups]
    whole = isinstance(segments, list) and all(isinstance(one, list) for one in segments)
    if not whole or not all(len(one) == len(Segment._fields) and is_counts(one) for one in segments):
        raise InvalidRecord("segments are not lists of five numbers")
    events: dict[str, Any] = {
        KINDS[Segment]: [Segment(*one) for one in segments],
        KINDS[Batch]: record.batches,
        KINDS[Fragment]: record.dropped_fragments,
        KINDS[Group]: record.groups,
    }
    if not isinstance(order, str) or Counter(order) != Counter({kind: len(some) for kind, some in events.items()}):
        raise InvalidRecord("order does not name each event once")
    if any(segment.shard >= record.actors for segment in events[KINDS[Segment]]):
        raise InvalidRecord("a segment is of a shard that no actor is")
    if any(len(batch.fragments) != record.actors for batch in record.batches):
        raise InvalidRecord("a batch has not one fragment for each actor")
    following = {kind: iter(some) for kind, some in events.items()}
    return [next(following[kind]) for kind in order]


def _check_group(group: Group) -> None:
    """Raise InvalidRecord for a group of a trace that no run forms."""
    gradients = group.gradients
    if not gradients or len(group.weights) != len(gradients):
        raise InvalidRecord("a group has no gradients, or not a weight for each")
    if any(version > group.clock for gradient in gradients for version in (gradient.version, *gradient.peers)):
        raise InvalidRecord("a gradient is of a version that was not there yet")


class Rounds(Sequence[RoundTrace]):
    """Rounds of a trace, read lazily from its file; only the `CACHED` latest are cached.

    Iterating reads the file once. Indexing is fast for cached rounds and later ones. An earlier index reads the file
    again from its beginning.
    """

    def __init__(self, path: Path):
        self.path = path
        self._count: int | None = None
        self._cached: deque[RoundTrace] = deque(maxlen=CACHED)
        self._stream: Iterator[RoundTrace] = iter(())
        self._next = 0  # index of the round that the stream is at

    def __iter__(self) -> Iterator[RoundTrace]:
        number = 0
        for round_ in _rounds(self.path):
            number += 1
            yield round_
        self._count = number

    def __len__(self) -> int:
        if self._count is None:
            deque(self, maxlen=0)
        return self._count or 0

    def __getitem__(self, index: Any) -> Any:
        """Round of an index of at least 0. Raises IndexError beyond the last round."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.path} has no round {index}")
        if index < self._next - len(self._cached) or not self._next:
            self._next, self._stream = 0, _rounds(self.path)
            self._cached.clear()
        while self._next <= index:
            try:
                self._cached.append(next(self._stream))
            except StopIteration:
                raise RunError(f"{self.path} was changed while it was read.") from None
            self._next += 1
        return self._cached[index - self._next]


class Trace(NamedTuple):
    """Trace of a live run: its header and its rounds."""

    header: Header
    rounds: Rounds


def write(path: Path, header: Header, rounds: Iterable[RoundTrace]) -> None:
    """Write a trace and replace an existing one, from which `rounds` may be read. Raises OSError."""
    with rewriting(path) as file:
        _pack(file, chain([json.dumps(header._asdict())], (round_.line() for round_ in rounds)))


def append(path: Path, rounds: Iterable[RoundTrace]) -> None:
    """Append rounds to a trace. Raises OSError, also if the file is a link."""
    with appending(path) as file:
        _pack(file, (round_.line() for round_ in rounds))


def _pack(file: BinaryIO, lines: Iterable[str]) -> None:
    """Write lines as one member of a gzip file."""
    with gzip.GzipFile(fileobj=file, mode="wb") as packed:
        for line in lines:
            packed.write(f"{line}\n".encode())


def read(path: Path) -> Trace:
    """Trace up to its last complete line: a run that was killed may leave incomplete lines.

    Raises ConfigError if the file cannot be read. Its rounds raise it if they exceed the size limit of a line.
    """
    try:
        with closing(inputs.unpacked_lines(path)) as lines:
            header = checked_record(Header, json.loads(next(lines, b"")))
    except (OSError, *DAMAGE) as error:
        raise ConfigError(f"{path} is no trace of a live run: {inputs.reason(error)}.") from None
    if header.format != FORMAT:
        raise ConfigError(f"{path} has format {header.format}, while this version reads {FORMAT}.")
    return Trace(header, Rounds(path))


def _rounds(path: Path) -> Iterator[RoundTrace]:
    """Rounds of a trace in order, up to the last complete one."""
    lines = islice(inputs.unpacked_lines(path), 1, None)
    for index in count():
        round_ = _next_round(path, lines, index)
        if round_ is None:
            return
        yield round_


def _next_round(path: Path, lines: Iterator[bytes], index: int) -> RoundTrace | None:
    """Round of the next line; None if the line is missing or truncated, or holds another round than `index`.

    Raises ConfigError for values that no run writes.
    """
    try:
        round_ = RoundTrace.of(next(lines))
    except InvalidRecord as error:
        raise not_as_written(path, index, error) from None
    except (StopIteration, *DAMAGE):
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {inputs.reason(error)}.") from None
    return round_ if round_.record.index == index else None


def not_as_written(path: Path, index: int, error: InvalidRecord) -> ConfigError:
    """Error that says why a round of a trace was written by no run."""
    return ConfigError(f"{path}: round {index + 1} is not as a run writes it: {error}; put the file back.")


class ReplayedTimeline:
    """Timeline of one seed that replays a trace: `next_round` returns the recorded rounds.

    Args:
      rounds: the recorded rounds.
      weights: a `Weight` that recomputes the gradients' weights from their staleness; the recorded weights by default.
    """

    def __init__(self, rounds: Sequence[RoundTrace], weights: Any = None):
        self.rounds, self.weights, self.done = rounds, weights, 0

    def next_round(self, actors: int | None = None, gradients: int | None = None) -> Round:
        """Next recorded round. Raises RunError beyond the last one."""
        if self.done >= len(self.rounds):
            raise RunError(f"the trace ends after round {len(self.rounds)}.")
        record = self.rounds[self.done].record
        self.done += 1
        if self.weights is not None:
            for group in record.groups:
                group.weights = [self.weights.weight(gradient.staleness) for gradient in group.gradients]
        return record

    def state(self) -> dict[str, Any]:
        """Position in the trace, as JSON data."""
        usage = self.rounds[self.done - 1].record.usage if self.done else Usage()
        return {"done": self.done, "usage": as_data(usage)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state()` returned."""
        self.done = state["done"]
