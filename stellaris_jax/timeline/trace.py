"""What a live run leaves: `trace.jsonl.gz`, from which the engine repeats it, and a timeline that reads it back.

One JSON object per line, compressed by gzip. The first line is a `Header`; every other one is a round, with the fields
of `stellaris_jax.timeline.records.Round` and what only a live run knows (`RoundTrace`). All times are seconds of
training since the run began.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from stellaris_jax.config import inputs
from stellaris_jax.config.outputs import appending, rewriting
from stellaris_jax.config.schema import ConfigError, RunError
from stellaris_jax.timeline.damage import Damaged, made
from stellaris_jax.timeline.records import Gradient, Group, Round, Usage

FORMAT = 1
"""Of the file; a reader refuses others."""
NAME = "trace.jsonl.gz"
PROJECTIONS = 8
"""Numbers that a version's sketch has."""
HELD = 16
"""Rounds of a trace that are held for those who take one after the other."""
DAMAGE = (EOFError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What reading a file raises that is cut off or damaged, or holds something else than rounds."""


class Header(NamedTuple):
    """What rounds have in common. format: of the file. seed: of the run. parameters: of every version. projections:
    numbers of a sketch."""

    seed: int
    parameters: int
    projections: int = PROJECTIONS
    format: int = FORMAT


class Published(NamedTuple):
    """A version of the policy. second: when it was published. digest: BLAKE2b of its bytes, float32 in little endian.
    norm: Euclidean. sketch: its products with `projections` fixed vectors of random signs, over their length."""

    version: int
    second: float
    digest: str
    norm: float
    sketch: list[float]

    @classmethod
    def of(cls, version: int, second: float, params: np.ndarray) -> Published:
        """Of parameters `[P]`."""
        digest = blake2b(np.ascontiguousarray(params, "<f4").tobytes(), digest_size=16).hexdigest()
        wide = params.astype(np.float64)
        sketch = (signs(len(params)) @ wide / math.sqrt(len(params))).tolist()
        return cls(version, second, digest, float(np.linalg.norm(wide)), sketch)

    def deviation(self, params: np.ndarray) -> float:
        """How far parameters `[P]` are from this version, about, as a share of its norm.

        The mean square of the projections of a difference is its mean square: so the length of the difference is told
        to within a quarter or so, without the parameters.
        """
        other = Published.of(self.version, self.second, params)
        if other.digest == self.digest:
            return 0.0
        apart = np.subtract(self.sketch, other.sketch)
        length = math.sqrt(float(np.mean(np.square(apart))) * len(params))
        return length / max(self.norm, 1e-30)


@cache
def signs(parameters: int) -> np.ndarray:
    """The vectors of random signs, `[projections, P]`: the same for all runs."""
    bits = np.random.Generator(np.random.Philox(key=0)).integers(0, 2, (PROJECTIONS, parameters), np.int8)
    return (2 * bits - 1).astype(np.int8)


class Failure(NamedTuple):
    """An invocation that died, and was made again. kind: of a learner or an actor. number: which. start, end: of it.
    reason: what was heard of it."""

    kind: str
    number: int
    start: float
    end: float
    reason: str


class Roll(NamedTuple):
    """An actor's share of a fragment."""

    actor: int
    start: float
    end: float


@dataclass
class RoundTrace:
    """A live round: what has happened, the schedule's factor on the learning rate, who rolled the fragment, what has
    died, the versions that were published, and whether host environments began new episodes with it, because they could
    not be brought to where they stood."""

    record: Round
    step_scale: float = 1.0
    rolls: list[Roll] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    versions: list[Published] = field(default_factory=list)
    opened: bool = False

    def line(self) -> str:
        """As JSON, on one line."""
        data = asdict(self.record)
        data["step_scale"] = self.step_scale
        data["rolls"] = [roll._asdict() for roll in self.rolls]
        data["failures"] = [failure._asdict() for failure in self.failures]
        data["versions"] = [version._asdict() for version in self.versions]
        if self.opened:
            data["opened"] = True
        return json.dumps(data)

    @classmethod
    def of(cls, line: str | bytes) -> RoundTrace:
        """What `line` wrote. Raises errors of DAMAGE for what it has not written."""
        data = json.loads(line)
        scalars = {"step_scale": data.pop("step_scale"), "opened": data.pop("opened", False)}
        rolls = [made(Roll, roll) for roll in data.pop("rolls")]
        failures = [made(Failure, failure) for failure in data.pop("failures")]
        versions = [made(Published, version) for version in data.pop("versions")]
        groups = [_group(group) for group in data.pop("groups")]
        dropped = [made(Gradient, gradient) for gradient in data.pop("dropped")]
        usage = made(Usage, data.pop("usage"))
        record = made(Round, data, groups=groups, dropped=dropped, usage=usage)
        parts = {"record": record, "rolls": rolls, "failures": failures, "versions": versions}
        if any(len(version.sketch) != PROJECTIONS for version in versions):
            raise Damaged(f"a sketch has not {PROJECTIONS} numbers")
        return made(cls, scalars, **parts)


def _group(data: dict[str, Any]) -> Group:
    """A group of a trace; raises as `RoundTrace.of` does."""
    gradients = [made(Gradient, gradient) for gradient in data.pop("gradients")]
    group = made(Group, data, gradients=gradients)
    if not gradients or len(group.weights) != len(gradients):
        raise Damaged("a group has no gradients, or not a weight for each")
    if any(version > group.clock for one in gradients for version in (one.version, *one.peers)):
        raise Damaged("a gradient is of a version that was not there yet")
    return group


class Rounds(Sequence[RoundTrace]):
    """Rounds of a trace, read from its file when they are asked for: a few are held, however many there are.

    Iterating reads the file once. An index is quick as long as it is one of the newest read or beyond them; one before
    that reads the file anew from its beginning.
    """

    def __init__(self, path: Path):
        self.path = path
        self._count: int | None = None
        self._held: deque[RoundTrace] = deque(maxlen=HELD)
        self._stream: Iterator[RoundTrace] = iter(())
        self._next = 0  # index of the round that the stream is at

    def __iter__(self) -> Iterator[RoundTrace]:
        number = 0
        for one in _rounds(self.path):
            number += 1
            yield one
        self._count = number

    def __len__(self) -> int:
        if self._count is None:
            deque(self, maxlen=0)
        return self._count or 0

    def __getitem__(self, index: Any) -> Any:
        """The round of an index from 0 on. Raises IndexError beyond the last."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.path} has no round {index}")
        if index < self._next - len(self._held) or not self._next:
            self._next, self._stream = 0, _rounds(self.path)
            self._held.clear()
        while self._next <= index:
            try:
                self._held.append(next(self._stream))
            except StopIteration:
                raise RunError(f"{self.path} was changed while it was read.") from None
            self._next += 1
        return self._held[index - self._next]


class Trace(NamedTuple):
    """A trace: what its rounds have in common, and the rounds."""

    header: Header
    rounds: Rounds


def write(path: Path, header: Header, rounds: Iterable[RoundTrace]) -> None:
    """Write a trace, in place of the one that is there, which `rounds` may be read from. Raises OSError."""
    with rewriting(path) as file:
        _pack(file, chain([json.dumps(header._asdict())], (one.line() for one in rounds)))


def append(path: Path, rounds: Iterable[RoundTrace]) -> None:
    """Add rounds at a trace's end. Raises OSError, also where the file is a link."""
    with appending(path) as file:
        _pack(file, (one.line() for one in rounds))


def _pack(file: BinaryIO, lines: Iterable[str]) -> None:
    """Write lines as one member of a gzip file."""
    with gzip.GzipFile(fileobj=file, mode="wb") as packed:
        for line in lines:
            packed.write(f"{line}\n".encode())


def read(path: Path) -> Trace:
    """A trace, as far as it is whole: the last lines of a run that was killed may not be.

    Raises ConfigError, if nothing of it can be read; so do its rounds, where they are larger than what is read.
    """
    try:
        with closing(inputs.unpacked_lines(path)) as lines:
            header = made(Header, json.loads(next(lines, b"")))
    except (OSError, *DAMAGE) as error:
        raise ConfigError(f"{path} is no trace of a live run: {inputs.reason(error)}.") from None
    if header.format != FORMAT:
        raise ConfigError(f"{path} has format {header.format}, while this version reads {FORMAT}.")
    return Trace(header, Rounds(path))


def _rounds(path: Path) -> Iterator[RoundTrace]:
    """The rounds of a trace, one after the other, as far as they are whole."""
    lines = islice(inputs.unpacked_lines(path), 1, None)
    for index in count():
        one = _next_round(path, lines, index)
        if one is None:
            return
        yield one


def _next_round(path: Path, lines: Iterator[bytes], index: int) -> RoundTrace | None:
    """The round of the next line; None where there is none, or another one than that of an index.

    Raises ConfigError for values that no run writes: a line that is cut off has none.
    """
    try:
        one = RoundTrace.of(next(lines))
    except Damaged as error:
        raise ConfigError(f"{path}: round {index + 1} is not as a run writes it: {error}; put the file back.") from None
    except (StopIteration, *DAMAGE):
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {inputs.reason(error)}.") from None
    return one if one.record.index == index else None


class Recorded:
    """A timeline of one seed that has been lived through already: `next_round` returns what was recorded.

    Args:
      rounds: what was recorded.
      weights: gives every gradient's weight anew by its staleness, for a run that would have weighted otherwise; as
        they were recorded by default.
    """

    def __init__(self, rounds: Sequence[RoundTrace], weights: Any = None):
        self.rounds, self.weights, self.done = rounds, weights, 0

    def next_round(self, actors: int | None = None, gradients: int | None = None) -> Round:
        """The next round. Raises RunError beyond the last."""
        if self.done >= len(self.rounds):
            raise RunError(f"the trace ends after round {len(self.rounds)}.")
        record = self.rounds[self.done].record
        self.done += 1
        if self.weights is not None:
            for group in record.groups:
                group.weights = [self.weights.weight(gradient.staleness) for gradient in group.gradients]
        return record

    def state(self) -> dict[str, Any]:
        """Where it stands, as JSON data."""
        usage = self.rounds[self.done - 1].record.usage if self.done else Usage()
        return {"done": self.done, "usage": asdict(usage)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state()` returned."""
        self.done = state["done"]
