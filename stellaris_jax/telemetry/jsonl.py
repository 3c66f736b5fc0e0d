"""Metrics file `metrics.jsonl`: one JSON object a line, flushed after each write, repaired when a run is resumed."""

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

from stellaris_jax.base import inputs, outputs
from stellaris_jax.base.errors import ConfigError, printable
from stellaris_jax.telemetry.integrity import checked_line, verified_line

MetricsRow = dict[str, Any]


AFTER_A_GAP = 2
"""Number of the first line of a metrics file that has lost records; a complete file begins with 1."""


def plain(value: Any) -> Any:
    """`value` as JSON data: arrays become lists, array scalars numbers, non-finite floats None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def warn_on_stderr(message: str) -> None:
    """Print a warning on stderr; stdout is left to results."""
    print(printable(message), file=sys.stderr)


class Log(NamedTuple):
    """Contents of a metrics file.

    Attributes:
      rows: intact rows, in order; the last ones of each kind if the reader asked for no more.
      damage: a sentence about damage; empty if the file is as it was written.
      gap: whether records were lost before the run was resumed.
      owner: run that the lines belong to, "" in files of earlier versions.
      digest: SHA-256 of the file.
      rounds: number of the last round if all rounds from the first one on are there; else -1.
    """

    rows: list[MetricsRow]
    damage: str = ""
    gap: bool = False
    owner: str = ""
    digest: str = ""
    rounds: int = 0


def read_log(path: Path, last: int | None = None) -> Log:
    """Read a metrics file, line by line.

    Args:
      path: the file. A last line that a kill cut off is no damage.
      last: number of last records of each kind to keep; all by default.

    Returns:
      Its rows, and a description of its damage.

    Raises:
      OSError: the file is missing, no regular file, or too large.
    """
    by_kind: dict[str, deque[tuple[int, MetricsRow]]] = {kind: deque(maxlen=last) for kind in RETURNS}
    damaged, digest, owners = list[int](), sha256(), set[str]()
    first = newest = rounds = 0
    missing, plain_places = False, list[int]()
    for place, line in enumerate(inputs.lines(path), start=1):
        digest.update(line)
        checked = verified_line(line)
        row = _record(checked.text) if checked else None
        if checked is None or row is None or (first and not checked.number):
            if line.endswith(b"\n"):
                damaged.append(place)
            continue
        if checked.number and not first:  # the earlier lines, which have no check, are foreign
            first, damaged, rounds = checked.number, damaged + plain_places, 0
            for rows in by_kind.values():
                rows.clear()
            owners.clear()
        if checked.number:
            missing |= bool(newest) and checked.number != newest + 1
            newest = checked.number
        else:
            plain_places.append(place)
        owners.add(checked.owner)
        by_kind[row["kind"]].append((place, row))
        if row["kind"] == "round":
            rounds = rounds + 1 if rounds >= 0 and row["round"] == rounds + 1 else -1
    damage = ""
    if damaged:
        damage = _about(sorted(damaged))
    elif len(owners) > 1:
        damage = "lines of several runs are in it"
    elif missing or first > AFTER_A_GAP:
        damage = "records are missing"
    owner = owners.pop() if len(owners) == 1 else ""
    places = sorted((pair for rows in by_kind.values() for pair in rows), key=lambda pair: pair[0])
    message = damage and f"{path}: {damage}"
    return Log([row for _, row in places], message, first == AFTER_A_GAP, owner, digest.hexdigest(), rounds)


def _about(damaged: list[int]) -> str:
    lines = f"line {damaged[0]} is" if len(damaged) == 1 else f"{len(damaged)} lines are"
    first = "" if len(damaged) == 1 else f", the first of them line {damaged[0]}"
    return f"{lines} damaged and left out{first}"


def read_rows(path: Path, note: Callable[[str], None] = warn_on_stderr) -> list[MetricsRow]:
    """Intact rows of a metrics file, in order; `note` receives a sentence about damage (`read_log`).

    Raises ConfigError if the file cannot be read, is no regular file, or is larger than `inputs.METRICS`.
    """
    try:
        log = read_log(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if log.damage:
        note(log.damage)
    return log.rows


def stream_rows(path: Path) -> Iterator[MetricsRow]:
    """Rows of a metrics file, one after the other, without damaged lines. Raises as `read_rows` does."""
    try:
        for line in inputs.lines(path):
            checked = verified_line(line)
            if checked is not None and (row := _record(checked.text)) is not None:
                yield row
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be read: {inputs.reason(error)}.")


def _record(line: bytes) -> MetricsRow | None:
    """Row of a line, if the line is intact."""
    try:
        row = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    try:
        per_seed = row["per_seed"]
        seeds = len(per_seed[RETURNS[row["kind"]]])
        valid = (
            _is_count(row["round"])
            and isinstance(row["env_steps"], (int, float))
            and all(_is_figure(row.get(key)) for key in FIGURES)
            and all(len(per_seed[key]) == seeds for key in FIGURES & per_seed.keys())
            and all(_is_figure(value) for key in FIGURES & per_seed.keys() for value in per_seed[key])
        )
    except (TypeError, KeyError):
        return None
    return row if valid else None


RETURNS = {"round": "train_return", "evaluation": "eval_return_mean"}
"""Kinds of rows, and the key of their return."""
FIGURES = {
    "env_steps", "learned_steps", "wall_seconds", "simulated_seconds", "cost_usd", "train_return", "eval_return_mean",
    "eval_return_ci95",
}  # fmt: skip
"""Keys of a record, and of its `per_seed`, that curves use; their values are numbers or null."""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_figure(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


class MetricsLog:
    """Writer of a metrics file, each line with its check (`telemetry.integrity`).

    Without `resume_round` the file starts empty. With it, records up to and including that round are kept, and later
    ones (written after the checkpoint) are dropped by an atomic rewrite. If lines are damaged, the original file is
    renamed, `note` receives a sentence, and line numbers continue with a gap.

    Args:
      path: the file.
      resume_round: last round to keep; None starts an empty file.
      note: receives sentences about damage.
      owner: identity of the run, from `integrity.run_identity`.

    Attributes:
      last_env_steps: largest env step that was kept, or 0.
      history: rows that were kept.
      evaluations: evaluations among them.
    """

    def __init__(
        self, path: Path, resume_round: int | None = None, note: Callable[[str], None] = warn_on_stderr, owner: str = ""
    ) -> None:
        self.history = history = list[MetricsRow]()
        self._owner = owner or "0" * 8
        self._number = 0
        self._digest = sha256()
        if resume_round is not None:
            log = _intact_log(path, resume_round, note)
            history += [row for row in log.rows if row["round"] <= resume_round]
            rounds = {row["round"] for row in history if row["kind"] == "round"}
            if log.damage or log.gap or len(rounds) < resume_round:
                self._number = AFTER_A_GAP - 1
        self.last_env_steps = max((row["env_steps"] for row in history), default=0)
        self.evaluations = [row for row in history if row["kind"] == "evaluation"]
        with outputs.rewriting_text(path) as file:
            file.write(self._lines(plain(row) for row in history))
            file.flush()
            os.fsync(file.fileno())
        self._file = outputs.appending(path)

    @property
    def digest(self) -> str:
        """SHA-256 of the file so far."""
        return self._digest.hexdigest()

    def _lines(self, rows: Iterable[MetricsRow]) -> str:
        first = self._number + 1
        lines = [checked_line(_json(row), number, self._owner) for number, row in enumerate(rows, first)]
        self._number += len(lines)
        text = "".join(lines)
        self._digest.update(text.encode())
        return text

    def write(self, rows: list[MetricsRow]) -> None:
        """Append plain records and flush them to the operating system, so that a kill loses at most this call."""
        self._file.write(self._lines(rows).encode())
        self._file.flush()

    def close(self) -> None:
        """Close the file. Earlier calls have reported failed writes."""
        with suppress(OSError):
            self._file.close()


def _intact_log(path: Path, resume_round: int, note: Callable[[str], None]) -> Log:
    """Metrics of a resumed run. A damaged file is renamed, and `note` receives a sentence."""
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
    """Rename a damaged metrics file, and return its new path."""
    names = (f"damaged-{path.stem}-{round_}{f'-{n}' * (n > 1)}{path.suffix}" for n in count(1))
    original = next(path.with_name(name) for name in names if not os.path.lexists(path.with_name(name)))
    path.rename(original)
    return original


def _json(row: MetricsRow) -> str:
    return json.dumps(row, separators=(",", ":"), allow_nan=False)
