"""`metrics.jsonl`: one JSON object a line, flushed as it is written, repaired when a run is resumed."""

from __future__ import annotations

import json
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from stellaris_jax.config import inputs, outputs
from stellaris_jax.config.schema import ConfigError, printable
from stellaris_jax.report.integrity import checked_line, unchecked

Record = dict[str, Any]


AFTER_A_GAP = 2
"""Number of the first line of a metrics file that has lost records; 1 in one that is whole."""


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: arrays become lists, array scalars numbers, non-finite floats None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def complain(message: str) -> None:
    """Tell whoever looks at the terminal, without a word in what a program prints."""
    print(printable(message), file=sys.stderr)


class Log(NamedTuple):
    """Contents of a metrics file.

    Attributes:
      records: those that are whole, in order; of each kind the last ones, where no more were asked for.
      damage: a sentence for whatever is not as it was written.
      gap: records were lost before the run was resumed.
      owner: the run that the lines belong to, "" in files of earlier versions.
      digest: SHA-256 of the file.
      rounds: number of the last round, if all of them are there from the first one on; else -1.
    """

    records: list[Record]
    damage: str = ""
    gap: bool = False
    owner: str = ""
    digest: str = ""
    rounds: int = 0


def read_log(path: Path, last: int | None = None) -> Log:
    """Read a metrics file, line by line.

    Args:
      path: the file. A last line that was torn by a kill is no damage.
      last: records of each kind that are kept; all by default.

    Returns:
      Its records, and what is wrong with it.

    Raises:
      OSError: it is missing, no regular file, or too large.
    """
    found: dict[str, deque[tuple[int, Record]]] = {kind: deque(maxlen=last) for kind in RETURNS}
    damaged, digest, owners = list[int](), sha256(), set[str]()
    first = newest = rounds = 0
    missing, plain_places = False, list[int]()
    for place, line in enumerate(inputs.lines(path), start=1):
        digest.update(line)
        checked = unchecked(line)
        record = _record(checked.text) if checked else None
        if checked is None or record is None or (first and not checked.number):
            if line.endswith(b"\n"):
                damaged.append(place)
            continue
        if checked.number and not first:  # lines without a check are none of a file whose lines have them
            first, damaged, rounds = checked.number, damaged + plain_places, 0
            for records in found.values():
                records.clear()
            owners.clear()
        if checked.number:
            missing |= bool(newest) and checked.number != newest + 1
            newest = checked.number
        else:
            plain_places.append(place)
        owners.add(checked.owner)
        found[record["kind"]].append((place, record))
        if record["kind"] == "round":
            rounds = rounds + 1 if rounds >= 0 and record["round"] == rounds + 1 else -1
    damage = ""
    if damaged:
        damage = _about(sorted(damaged))
    elif len(owners) > 1:
        damage = "lines of several runs are in it"
    elif missing or first > AFTER_A_GAP:
        damage = "records are missing"
    owner = owners.pop() if len(owners) == 1 else ""
    places = sorted((one for records in found.values() for one in records), key=lambda one: one[0])
    told = damage and f"{path}: {damage}"
    return Log([record for _, record in places], told, first == AFTER_A_GAP, owner, digest.hexdigest(), rounds)


def _about(damaged: list[int]) -> str:
    lines = f"line {damaged[0]} is" if len(damaged) == 1 else f"{len(damaged)} lines are"
    first = "" if len(damaged) == 1 else f", the first of them line {damaged[0]}"
    return f"{lines} damaged and left out{first}"


def read_records(path: Path, note: Callable[[str], None] = complain) -> list[Record]:
    """The whole records of a metrics file, in order; `note` is told of damage (`read_log`).

    Raises ConfigError where it cannot be read, is no regular file, or is larger than `inputs.METRICS`.
    """
    try:
        log = read_log(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if log.damage:
        note(log.damage)
    return log.records


def stream_records(path: Path) -> Iterator[Record]:
    """The records of a metrics file, one after the other; damaged lines are left out. Raises as `read_records` does."""
    try:
        for line in inputs.lines(path):
            checked = unchecked(line)
            if checked is not None and (record := _record(checked.text)) is not None:
                yield record
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be read: {inputs.reason(error)}.")


def _record(line: bytes) -> Record | None:
    """A line's record, if it is one and whole."""
    try:
        record = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    try:
        per_seed = record["per_seed"]
        seeds = len(per_seed[RETURNS[record["kind"]]])
        whole = (
            _is_count(record["round"])
            and isinstance(record["env_steps"], (int, float))
            and all(_is_figure(record.get(key)) for key in FIGURES)
            and all(len(per_seed[key]) == seeds for key in FIGURES & per_seed.keys())
            and all(_is_figure(value) for key in FIGURES & per_seed.keys() for value in per_seed[key])
        )
    except (TypeError, KeyError):
        return None
    return record if whole else None


RETURNS = {"round": "train_return", "evaluation": "eval_return_mean"}
"""Kinds of records, and the key of their return."""
FIGURES = {
    "env_steps", "wall_seconds", "simulated_seconds", "cost_usd", "train_return", "eval_return_mean",
    "eval_return_ci95",
}  # fmt: skip
"""Keys of a record, and of its `per_seed`, that hold numbers or null, and that curves are made of."""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_figure(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


class MetricsLog:
    """Appends records to a metrics file, each line with its check (`report.integrity`).

    Without `resume_round` the file starts empty. With it, the records up to and including that round stay, and
    later ones (written after the checkpoint that is being resumed) are dropped by an atomic rewrite. Where lines are
    damaged, the file as it was is kept beside it, `note` is told, and line numbers go on with a gap.
    `last_env_steps` is the largest env step that stayed, 0 if none, `kept` are the records that stayed, and
    `evaluations` the evaluations among them. `owner` is the run, as `integrity.owner_of` names it; `digest` that of the
    file so far.
    """

    def __init__(
        self,
        path: Path,
        resume_round: int | None = None,
        note: Callable[[str], None] = complain,
        owner: str = "",
    ) -> None:
        self.kept = kept = list[Record]()
        self._owner = owner or "0" * 8
        self._number = 0
        self._digest = sha256()
        if resume_round is not None:
            log = _intact_log(path, resume_round, note)
            kept += [record for record in log.records if record["round"] <= resume_round]
            rounds = {record["round"] for record in kept if record["kind"] == "round"}
            if log.damage or log.gap or len(rounds) < resume_round:
                self._number = AFTER_A_GAP - 1
        self.last_env_steps = max((record["env_steps"] for record in kept), default=0)
        self.evaluations = [record for record in kept if record["kind"] == "evaluation"]
        with outputs.rewriting_text(path) as file:
            file.write(self._lines(plain(record) for record in kept))
            file.flush()
            os.fsync(file.fileno())
        self._file = outputs.appending(path)

    @property
    def digest(self) -> str:
        """SHA-256 of all that was written."""
        return self._digest.hexdigest()

    def _lines(self, records: Iterable[Record]) -> str:
        first = self._number + 1
        lines = [checked_line(_json(record), number, self._owner) for number, record in enumerate(records, first)]
        self._number += len(lines)
        text = "".join(lines)
        self._digest.update(text.encode())
        return text

    def write(self, records: list[Record]) -> None:
        """Appends plain records and hands them to the operating system, so that a kill loses at most this call."""
        self._file.write(self._lines(records).encode())
        self._file.flush()

    def close(self) -> None:
        """Closes the file. What cannot be written was told of by the call that wrote it."""
        with suppress(OSError):
            self._file.close()


def _intact_log(path: Path, resume_round: int, note: Callable[[str], None]) -> Log:
    """The metrics of a run that is resumed; where they are damaged, the file is kept beside them, and `note` told."""
    try:
        log = read_log(path)
    except FileNotFoundError:
        return Log([])
    except OSError as error:
        log = Log([], f"{path} cannot be read ({error.strerror})")
    if log.damage:
        original = set_aside(path, resume_round)
        note(f"{log.damage}; the file as it was is {original}")
    return log


def set_aside(path: Path, round_: int) -> Path:
    """Give a damaged metrics file another name, which is returned."""
    names = (f"damaged-{path.stem}-{round_}{f'-{n}' * (n > 1)}{path.suffix}" for n in count(1))
    original = next(path.with_name(name) for name in names if not os.path.lexists(path.with_name(name)))
    path.rename(original)
    return original


def _json(record: Record) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False)
