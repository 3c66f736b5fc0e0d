"""`metrics.jsonl`: one JSON object a line, flushed as it is written, repaired when a run is resumed."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stellaris_jax.config.outputs import replacing

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
    """The records of a metrics file, in order.

    Damaged lines are left out, and `note` is told of them; a last line torn by a kill is left out without a word.
    """
    records, damaged = [], []
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if (record := _record(line)) is not None:
                records.append(record)
            elif line.endswith("\n"):
                damaged.append(number)
    if damaged:
        lines = f"line {damaged[0]} is" if len(damaged) == 1 else f"{len(damaged)} lines are"
        first = "" if len(damaged) == 1 else f", the first of them line {damaged[0]}"
        note(f"{path}: {lines} damaged and left out{first}")
    return records


def _record(line: str) -> Record | None:
    """A line's record, if it is one and whole."""
    try:
        record = json.loads(line)
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
                shutil.copyfile(path, original)
                note(f"{message}; the file as it was is {original}")
        self.last_env_steps = max((record["env_steps"] for record in kept), default=0)
        self.evaluations = [record for record in kept if record["kind"] == "evaluation"]
        with replacing(path) as fresh, open(fresh, "w", encoding="utf-8") as file:
            file.writelines(_line(plain(record)) for record in kept)
            file.flush()
            os.fsync(file.fileno())
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as the run

    def write(self, records: list[Record]) -> None:
        """Appends plain records and hands them to the operating system, so that a kill loses at most this call."""
        self._file.write("".join(map(_line, records)))
        self._file.flush()

    def close(self) -> None:
        """Closes the file. What cannot be written was told of by the call that wrote it."""
        with suppress(OSError):
            self._file.close()


def _line(record: Record) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"
