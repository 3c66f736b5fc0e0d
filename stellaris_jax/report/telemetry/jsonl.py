"""`metrics.jsonl`: one JSON object a line, flushed as it is written, repaired when a run is resumed."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from stellaris_jax.config import inputs, outputs
from stellaris_jax.config.schema import ConfigError

Record = dict[str, Any]


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
    print(message, file=sys.stderr)


def read_records(path: Path, note: Callable[[str], None] = complain) -> list[Record]:
    """The records of a metrics file, in order; see `stream_records`."""
    return list(stream_records(path, note))


def stream_records(path: Path, note: Callable[[str], None] = complain) -> Iterator[Record]:
    """The records of a metrics file, one after the other.

    Args:
      path: the file.
      note: told of damaged lines, which are left out; a last line torn by a kill is left out without a word.

    Raises:
      ConfigError: it cannot be read, is no regular file, or is larger than `inputs.METRICS`.
    """
    damaged, first = 0, 0
    try:
        for number, line in enumerate(inputs.lines(path), start=1):
            if (record := _record(line)) is not None:
                yield record
            elif line.endswith(b"\n"):
                damaged, first = damaged + 1, first or number
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {inputs.reason(error)}.") from None
    if damaged:
        lines = f"line {first} is" if damaged == 1 else f"{damaged} lines are"
        where = "" if damaged == 1 else f", the first of them line {first}"
        note(f"{path}: {lines} damaged and left out{where}")


def _record(line: bytes) -> Record | None:
    """A line's record, if it is one and whole."""
    try:
        record = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    returns = {"round": "train_return", "evaluation": "eval_return_mean"}
    try:
        whole = (
            isinstance(record["per_seed"][returns[record["kind"]]], list)
            and isinstance(record["round"], int)
            and isinstance(record["env_steps"], (int, float))
        )
    except (TypeError, KeyError):
        return None
    return record if whole else None


class MetricsLog:
    """Appends records to a metrics file.

    Without `resume_round` the file starts empty. With it, the records up to and including that round stay, and
    later ones (written after the checkpoint that is being resumed) are dropped by an atomic rewrite; where lines are
    damaged, the file as it was is kept beside it, and `note` is told.
    `last_env_steps` is the largest env step that stayed, 0 if none, `kept` are the records that stayed, and
    `evaluations` the evaluations among them.
    """

    def __init__(self, path: Path, resume_round: int | None = None, note: Callable[[str], None] = complain) -> None:
        self.kept = kept = list[Record]()
        if resume_round is not None and path.exists():
            damage: list[str] = []
            kept += [record for record in read_records(path, damage.append) if record["round"] <= resume_round]
            for message in damage:
                original = path.with_name(f"damaged-{path.stem}-{resume_round}{path.suffix}")
                outputs.copy(path, original, inputs.METRICS)
                note(f"{message}; the file as it was is {original}")
        self.last_env_steps = max((record["env_steps"] for record in kept), default=0)
        self.evaluations = [record for record in kept if record["kind"] == "evaluation"]
        with outputs.rewriting_text(path) as file:
            file.writelines(_line(plain(record)) for record in kept)
            file.flush()
            os.fsync(file.fileno())
        self._file = outputs.appending(path)

    def write(self, records: list[Record]) -> None:
        """Appends plain records and hands them to the operating system, so that a kill loses at most this call."""
        self._file.write("".join(map(_line, records)).encode())
        self._file.flush()

    def close(self) -> None:
        """Closes the file. What cannot be written was told of by the call that wrote it."""
        with suppress(OSError):
            self._file.close()


def _line(record: Record) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"
