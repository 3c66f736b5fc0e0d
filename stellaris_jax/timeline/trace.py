"""What a live run leaves: `trace.jsonl.gz`, from which the engine repeats it, and a timeline that reads it back.

One JSON object per line, compressed by gzip. The first line is a `Header`; every other one is a round, with the fields
of `stellaris_jax.timeline.records.Round` and what only a live run knows (`RoundTrace`). All times are seconds of
training since the run began.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.config.schema import ConfigError, RunError
from stellaris_jax.timeline.records import Gradient, Group, Round, Usage

FORMAT = 1
"""Of the file; a reader refuses others."""
NAME = "trace.jsonl.gz"
PROJECTIONS = 8
"""Numbers that a version's sketch has."""


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
    def of(cls, line: str) -> RoundTrace:
        """What `line` wrote."""
        data = json.loads(line)
        step_scale, opened = data.pop("step_scale"), data.pop("opened", False)
        rolls = [Roll(**roll) for roll in data.pop("rolls")]
        failures = [Failure(**failure) for failure in data.pop("failures")]
        versions = [Published(**version) for version in data.pop("versions")]
        groups = [Group.of(group) for group in data.pop("groups")]
        dropped = [Gradient(**gradient) for gradient in data.pop("dropped")]
        usage = Usage(**data.pop("usage"))
        record = Round(**data, groups=groups, dropped=dropped, usage=usage)
        return cls(record, step_scale, rolls, failures, versions, opened)


class Trace(NamedTuple):
    """A trace as it was read."""

    header: Header
    rounds: list[RoundTrace]


def write(path: Path, header: Header, rounds: Iterable[RoundTrace]) -> None:
    """Write a trace."""
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(json.dumps(header._asdict()) + "\n")
        file.writelines(one.line() + "\n" for one in rounds)


def append(path: Path, rounds: Iterable[RoundTrace]) -> None:
    """Add rounds at a trace's end."""
    with gzip.open(path, "at", encoding="utf-8") as file:
        file.writelines(one.line() + "\n" for one in rounds)


def read(path: Path) -> Trace:
    """A trace, as far as it is whole: the last lines of a run that was killed may not be.

    Raises ConfigError, if nothing of it can be read.
    """
    try:
        lines = _lines(path)
        header = Header(**json.loads(lines[0]))
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(f"{path} is no trace of a live run: {error}.") from None
    if header.format != FORMAT:
        raise ConfigError(f"{path} has format {header.format}, while this version reads {FORMAT}.")
    rounds: list[RoundTrace] = []
    for line in lines[1:]:
        try:
            one = RoundTrace.of(line)
        except (ValueError, TypeError, KeyError):
            break
        if one.record.index != len(rounds):
            break
        rounds.append(one)
    return Trace(header, rounds)


def _lines(path: Path) -> list[str]:
    """Lines of a compressed file that may end anywhere."""
    data, text = path.read_bytes(), b""
    while data:
        member = zlib.decompressobj(wbits=31)
        try:
            text += member.decompress(data)
        except zlib.error:
            break
        data = member.unused_data
    return text.decode(errors="replace").splitlines()


class Recorded:
    """A timeline of one seed that has been lived through already: `next_round` returns what was recorded.

    Args:
      rounds: that there are.
      weights: gives every gradient's weight anew by its staleness, for a run that would have weighted otherwise; as
        they were recorded by default.
    """

    def __init__(self, rounds: Sequence[Round], weights: Any = None):
        self.rounds, self.weights, self.done = rounds, weights, 0

    def next_round(self, actors: int | None = None, gradients: int | None = None) -> Round:
        """The next round. Raises RunError beyond the last."""
        if self.done >= len(self.rounds):
            raise RunError(f"the trace ends after round {len(self.rounds)}.")
        record = self.rounds[self.done]
        self.done += 1
        if self.weights is not None:
            for group in record.groups:
                group.weights = [self.weights.weight(gradient.staleness) for gradient in group.gradients]
        return record

    def state(self) -> dict[str, Any]:
        """Where it stands, as JSON data."""
        usage = self.rounds[self.done - 1].usage if self.done else Usage()
        return {"done": self.done, "usage": asdict(usage)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state()` returned."""
        self.done = state["done"]
