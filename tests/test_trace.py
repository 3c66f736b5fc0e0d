"""Traces of live runs: written round by round, read as a stream, whatever their length and wherever they are cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hostile_files import MIB, bomb, little_memory

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.execute.recording import Outline
from stellaris_jax.timeline import Gradient, Group, Round, trace
from stellaris_jax.timeline.joblog import durations
from stellaris_jax.timeline.records import Usage
from stellaris_jax.timeline.trace import Header, Published, ReplayedTimeline, Roll, RoundTrace

HEADER = Header(seed=3, parameters=5)


def lived(index: int, gradients: int = 4) -> RoundTrace:
    """A round as a live run leaves it."""
    group = Group(
        [Gradient(index, i, i, index - min(i, index), index + 0.1, index + 0.3) for i in range(gradients)],
        [1.0] * gradients, index, index + 0.4, False, None, index + 0.5,
    )  # fmt: skip
    record = Round(index, index, float(index), 2, 0.05, index, index + 0.1, [group], [], Usage(updates=index + 1))
    version = Published(index + 1, index + 0.5, f"{index:032x}", 1.0, [0.1 * i for i in range(8)])
    rolls = [Roll(actor, index + 0.01, index + 0.05) for actor in range(2)]
    return RoundTrace(record, 1.0 - index / 1e6, rolls, [], [version])


def append_each(path: Path, rounds: Iterator[RoundTrace] | list[RoundTrace]) -> Path:
    """A trace to which every round is added on its own, as a run does."""
    trace.write(path, HEADER, [])
    for one in rounds:
        trace.append(path, [one])
    return path


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 600 rounds, a member each; made from one whose bytes stand for all."""
    return append_each(tmp_path_factory.mktemp("long") / trace.NAME, map(lived, range(600)))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    rounds = [lived(index) for index in range(40)]
    path = append_each(tmp_path / trace.NAME, rounds)
    header, found = trace.read(path)
    assert header == HEADER and len(found) == 40 and list(found) == rounds
    trace.write(path, HEADER, rounds)
    assert list(trace.read(path).rounds) == rounds


def test_rounds_by_their_index(tmp_path: Path) -> None:
    """Forth, back within what is held, and back to the beginning."""
    rounds = [lived(index) for index in range(60)]
    found = trace.read(append_each(tmp_path / trace.NAME, rounds)).rounds
    for index in (0, 1, 30, 29, 20, 59, 3, 4, 0, 59):
        assert found[index] == rounds[index]
    for index in (60, -1):
        with pytest.raises(IndexError):
            found[index]
    trace.write(found.path, HEADER, rounds[:10])
    with pytest.raises(RunError, match="was changed while it was read"):
        found[30]


def test_time_is_linear_and_memory_constant(long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the decompressor is handed grows as the file, however many members there are."""
    handed: list[int] = []
    decompressobj = inputs.zlib.decompressobj

    class Counted:
        def __init__(self, **options: Any):
            self.inner = decompressobj(**options)

        def decompress(self, data: bytes, most: int) -> bytes:
            handed.append(len(data))
            return self.inner.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    monkeypatch.setattr(inputs.zlib, "decompressobj", Counted)
    half = tmp_path / trace.NAME
    half.write_bytes(long.read_bytes()[: long.stat().st_size // 2])
    work = []
    for path in (half, long):
        handed.clear()
        with little_memory(2 * MIB):
            count = sum(1 for _ in trace.read(path).rounds)
        work.append(sum(handed))
    assert count == 600 and work[1] < 2.2 * work[0]


def test_those_who_use_a_trace_hold_little_of_it(long: Path, tmp_path: Path) -> None:
    with little_memory(2 * MIB):
        found = trace.read(long)
        outline = Outline.of(found)
        recorded = ReplayedTimeline(found.rounds)
        usages = [recorded.next_round().usage.updates for _ in range(100)]
        trace.write(tmp_path / trace.NAME, found.header, islice(found.rounds, 300))
    assert len(outline.scales) == len(found.rounds) == 600 and outline[1:3] == (2, 3)
    assert usages == list(range(1, 101)) and len(trace.read(tmp_path / trace.NAME).rounds) == 300
    with little_memory(4 * MIB):
        assert durations(long, "learner") == pytest.approx([0.2] * 2400)


def test_a_recorded_timeline_goes_on_from_anywhere(long: Path) -> None:
    recorded = ReplayedTimeline(trace.read(long).rounds)
    recorded.restore({"done": 450})
    assert recorded.next_round() == lived(450).record and recorded.state()["done"] == 451
    recorded.restore({"done": 599})
    recorded.next_round()
    with pytest.raises(RunError, match="the trace ends after round 600"):
        recorded.next_round()


def test_a_trace_that_is_cut_anywhere_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    rounds = [lived(index) for index in range(6)]
    path = append_each(tmp_path / trace.NAME, rounds[:5])
    first = path.stat().st_size
    trace.append(path, rounds[5:])
    whole = path.read_bytes()
    counts = set()
    for end in range(first - 200, len(whole), 3):
        path.write_bytes(whole[:end])
        found = list(trace.read(path).rounds)
        assert found == rounds[: len(found)]
        counts.add(len(found))
    assert counts >= {4, 5}
    path.write_bytes(whole[:first] + b"no gzip")
    assert list(trace.read(path).rounds) == rounds[:5]


@pytest.mark.parametrize(
    "line", ["", "3", "[1]", "{", "[" * 100_000, '{"step_scale": 1}', lived(7).line(), "\xff", json.dumps({"x": "\0"})]
)
def test_what_is_no_round_ends_a_trace(line: str, tmp_path: Path) -> None:
    path = append_each(tmp_path / trace.NAME, [lived(0)])
    path.write_bytes(path.read_bytes() + bomb(1, line.encode("latin-1") + b"\n") + bomb(1, lived(1).line().encode()))
    assert len(trace.read(path).rounds) == 1


def test_bombs_are_one_sentence(tmp_path: Path) -> None:
    path = append_each(tmp_path / trace.NAME, [lived(0)])
    sound = path.read_bytes()
    path.write_bytes(sound + bomb(200))
    with little_memory(60 * MIB), pytest.raises(ConfigError, match="a line of it holds more than 16 MiB"):
        list(trace.read(path).rounds)
    path.write_bytes(bomb(200))
    with little_memory(60 * MIB), pytest.raises(ConfigError, match="is no trace of a live run: a line of it holds"):
        trace.read(path)


def test_rounds_that_hold_no_numbers(tmp_path: Path) -> None:
    one = lived(0)
    one = replace(one, rolls=[Roll(0, "soon", "late")])  # type: ignore[arg-type]
    path = append_each(tmp_path / trace.NAME, [one])
    with pytest.raises(ConfigError, match="is no log of jobs: it holds something else than seconds"):
        durations(path, "actor")
