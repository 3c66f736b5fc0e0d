"""Jobs of a training system as lines of a log: the schema, its readers and its writers for JSONL and CSV.

A line holds one job. JSONL and CSV have the same columns, which `docs/jobs.md` describes. Logs come from strangers, so
a line, a number and a text are bounded, and a mistake is one sentence that names its line and its column.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.near_miss import did_you_mean
from stellaris_jax.config.schema import shown

SCHEMA = 2
"""Version of the schema. Logs of the first one have no column `schema`."""
KINDS = ("learner", "actor", "aggregate", "loader")
NEEDED = ("kind", "start", "end")
"""Columns that every job must have."""
SUFFIXES = {".csv": "csv", ".json": "jsonl", ".jsonl": "jsonl", ".ndjson": "jsonl"}
"""Formats by the ends of names. The first line decides for other names."""
LATEST = 1e11
"""Largest time in seconds. Times in milliseconds since 1970 are larger."""
LARGEST = 2**53
"""Largest whole number that every reader of JSON keeps exactly."""
LONGEST = 200
"""Characters of an `id` or a `batch`."""
EXAMPLES = "seconds such as 12.5, or ISO 8601 with a time zone such as 2026-01-31T12:00:00.5Z"


class Job(NamedTuple):
    """Job of a learner, an actor, the parameter function or the data loader.

    Attributes:
      kind: one of `KINDS`.
      start: second at which it starts.
      end: second at which it ends.
      id: name of the learner or actor that does it.
      version_start: version of the policy that it works with.
      version_end: newest version of the policy when it ends.
      length: steps of environments, or tokens, that it makes or learns from.
      batch: name of the batch or group that its data become part of.
    """

    kind: str
    start: float
    end: float
    id: str | None = None
    version_start: int | None = None
    version_end: int | None = None
    length: int | None = None
    batch: str | None = None


COLUMNS = ("schema", *Job._fields)
REQUEST = "request"
"""Column of inference engines' logs: a line that has it needs no `kind`, and is an actor's job."""
FORMER = "version"
"""Name of `version_start` in the first schema."""


def read(path: Path) -> Iterator[Job]:
    """Jobs of a file of JSONL or CSV, one after the other. Raises ConfigError."""
    lines = _texts(path)
    reader = _Reader(path)
    try:
        first = next(lines, None)
        if first is None:
            return
        form = SUFFIXES.get(path.suffix.lower()) or ("jsonl" if first[1].lstrip().startswith("{") else "csv")
        whole = _chained(first, lines)
        yield from _jsonl(reader, whole) if form == "jsonl" else _csv(reader, whole)
    except OSError as error:
        raise ConfigError(f"{path} is no log of jobs: {inputs.reason(error)}.") from None


def write(file: TextIO, jobs: Iterable[Job], form: str) -> None:
    """Write jobs to an open file in `jsonl` or `csv`. Optional fields that are `None` are left out."""
    table = csv.writer(file, lineterminator="\n") if form == "csv" else None
    if table is not None:
        table.writerow(COLUMNS)
    for job in jobs:
        if table is not None:
            table.writerow([SCHEMA, *job])
        else:
            given = {name: value for name, value in job._asdict().items() if value is not None}
            file.write(json.dumps({"schema": SCHEMA, **given}, allow_nan=False) + "\n")


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    for number, line in enumerate(inputs.lines(path, inputs.TABLE, inputs.MIB), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}, line {number}, byte {error.start + 1}: a log must be text in UTF-8.") from None
        if text.strip():
            yield number, text


def _chained(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rest


def _jsonl(reader: _Reader, lines: Iterator[tuple[int, str]]) -> Iterator[Job]:
    for number, text in lines:
        try:
            cells = json.loads(text, object_pairs_hook=_once)
        except _Twice as error:
            raise ConfigError(
                f"{reader.path}, line {number}, column {error}: the line names it twice; once is possible."
            ) from None
        except (ValueError, RecursionError):
            cells = None
        told = f"{reader.path}, line {number}: {shown(text.strip())}"
        if not isinstance(cells, dict):
            raise ConfigError(f"{told} is no job with kind, start and end.")
        cells = _with_kind(cells, f"{reader.path}, line {number}")
        if missing := [name for name in NEEDED if cells.get(name) is None]:
            other = f" (or {REQUEST}, for a completion)" if "kind" in missing else ""
            raise ConfigError(f"{told} lacks {' and '.join(missing)}{other}.")
        yield reader.job(cells, number)


def _with_kind(cells: dict[str, Any], place: str) -> dict[str, Any]:
    """Cells of a line, of which requests are an actor's jobs. Raises ConfigError if one is said to be another's."""
    if _absent(cells, REQUEST):
        return cells
    if not _absent(cells, "kind") and cells["kind"] != "actor":
        raise ConfigError(
            f"{place}, column kind: {shown(cells['kind'])} does not go with {REQUEST}, which is a job of an actor; "
            "leave one of them out."
        )
    return cells | {"kind": "actor"}


class _Twice(Exception):
    """Name of a column that a line gives two values."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, of which Python would keep the last of two values. Raises _Twice."""
    cells = dict(pairs)
    if len(cells) < len(pairs):
        names = [name for name, _ in pairs]
        if double := _double(names):
            raise _Twice(double)
    return cells


def _double(names: list[str]) -> str | None:
    """The first column that is named twice. Columns that are ignored may be."""
    return next((name for name in (*COLUMNS, FORMER, REQUEST) if names.count(name) > 1), None)


def _csv(reader: _Reader, lines: Iterator[tuple[int, str]]) -> Iterator[Job]:
    path, at = reader.path, 0

    def texts() -> Iterator[str]:
        nonlocal at
        for number, text in lines:
            at = number
            yield text

    header: list[str] | None = None
    try:
        for row in csv.reader(texts(), strict=True):
            cells = [cell.strip() for cell in row]
            if header is None:
                header = cells
                _check_header(path, header, at)
                continue
            if len(cells) != len(header):
                raise ConfigError(f"{path}, line {at}: a row has {len(header)} cells as the header, not {len(cells)}.")
            named = dict(zip(header, cells, strict=True))
            named = _with_kind(named, f"{path}, line {at}")
            if _absent(named, "kind"):
                raise ConfigError(f"{path}, line {at}: a row lacks kind (or {REQUEST}, for a completion).")
            yield reader.job(named, at)
    except csv.Error as error:
        raise ConfigError(f"{path}, line {at}: this is no CSV ({error}).") from None


def _check_header(path: Path, header: list[str], line: int) -> None:
    given = {*header, "kind"} if REQUEST in header else {*header}
    missing = [name for name in NEEDED if name not in given]
    if missing:
        raise ConfigError(f"{path}, line {line}: the header {shown(header)} lacks {' and '.join(missing)}.")
    if double := _double(header):
        raise ConfigError(f"{path}, line {line}, column {double}: the header names it twice; once is possible.")


class _Reader:
    """Reader of the jobs of one file, whose times are all seconds or all ISO 8601."""

    def __init__(self, path: Path):
        self.path = path
        self._first: datetime | float | None = None

    def job(self, cells: Mapping[str, Any], line: int) -> Job:
        """The job of a line. Raises ConfigError."""
        place = f"{self.path}, line {line}"
        schema = _whole(cells, "schema", place)
        if schema not in (None, SCHEMA):
            raise ConfigError(f"{place}, column schema: {schema} is unknown; {SCHEMA} is read, or no schema at all.")
        kind = cells["kind"]
        if kind not in KINDS:
            meant = did_you_mean(kind, KINDS) if isinstance(kind, str) and len(kind) <= LONGEST else "."
            raise ConfigError(f"{place}, column kind: {shown(kind)} is not one of {', '.join(KINDS)}{meant}")
        start, end = (self._second(cells[name], f"{place}, column {name}") for name in ("start", "end"))
        if end < start:
            raise ConfigError(f"{place}: a job ends after it starts, unlike {cells['start']} to {cells['end']}.")
        begun, ended = _whole(cells, "version_start", place), _whole(cells, "version_end", place)
        if begun is None and schema is None:
            # The first schema left open what it has to be; logs of inference engines have a number.
            begun = _integer(cells.get(FORMER)) if _absent(cells, REQUEST) else _whole(cells, FORMER, place)
        if begun is not None and ended is not None and ended < begun:
            raise ConfigError(f"{place}, column version_end: {ended} must be at least version_start, which is {begun}.")
        length, batch = _whole(cells, "length", place), _label(cells, "batch", place)
        return Job(kind, start, end, _label(cells, "id", place), begun, ended, length, batch)

    def _second(self, value: Any, place: str) -> float:
        """A time in seconds, those of ISO 8601 since the first of the file."""
        time = _time(value)
        if time is None:
            raise ConfigError(f"{place}: {shown(value)} is no time; write {EXAMPLES}.")
        if self._first is None:
            self._first = time
        if isinstance(time, datetime) and isinstance(self._first, datetime):
            return (time - self._first).total_seconds()
        if isinstance(time, datetime) or isinstance(self._first, datetime):
            raise ConfigError(f"{place}: {shown(value)} is written unlike earlier times; all are seconds, or ISO 8601.")
        if not abs(time) <= LATEST:
            raise ConfigError(f"{place}: {shown(value)} must be seconds, at most {LATEST:.0e} of them.")
        return time


def _time(value: Any) -> datetime | float | None:
    """A number of seconds, or a moment of a time zone; None for what is neither."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        if len(value) > LONGEST:
            return None
        with suppress(ValueError):
            moment = datetime.fromisoformat(value.strip())
            if moment.tzinfo is not None:
                return moment
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if seconds == seconds else None


def _absent(cells: Mapping[str, Any], name: str) -> bool:
    return cells.get(name) in (None, "")


def _integer(value: Any) -> int | None:
    """A whole number from 0 on, also where a table has written it as 3.0; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,16}(\.0*)?", value, flags=re.ASCII):
        value = int(value.partition(".")[0])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST else None


def _whole(cells: Mapping[str, Any], name: str, place: str) -> int | None:
    if _absent(cells, name):
        return None
    number = _integer(cells[name])
    if number is None:
        raise ConfigError(
            f"{place}, column {name}: {shown(cells[name])} must be a whole number of at least 0, or be left out."
        )
    return number


def _label(cells: Mapping[str, Any], name: str, place: str) -> str | None:
    if _absent(cells, name):
        return None
    value = cells[name]
    number = _integer(value)
    if number is not None:
        return str(number)
    if isinstance(value, str) and len(value) <= LONGEST:
        return value
    raise ConfigError(
        f"{place}, column {name}: {shown(value)} must be a whole number or a text of at most {LONGEST} characters."
    )
