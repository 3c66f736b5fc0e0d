"""`metrics.jsonl`: one JSON object a line, flushed as it is written, repaired when a run is resumed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics file in order. A last line torn by a kill is left out.

    Raises ValueError with the line's number where any other line is not JSON.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = enumerate(file, start=1)
        for number, line in lines:
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                if next(lines, None) is None:
                    return
                raise ValueError(f"{path}:{number} is not a JSON record: {line[:60]!r}") from error
            yield record


class MetricsLog:
    """Appends records to a metrics file.

    Without `resume_round` the file starts empty. With it, the records up to and including that round stay, and
    later ones (written after the checkpoint that is being resumed) are dropped by an atomic rewrite.
    `last_env_steps` is the largest env step that stayed, 0 if none.
    """

    def __init__(self, path: Path, resume_round: int | None = None) -> None:
        self.last_env_steps = 0
        kept = []
        if resume_round is not None and path.exists():
            kept = [record for record in read_records(path) if record["round"] <= resume_round]
            self.last_env_steps = max((record["env_steps"] for record in kept), default=0)
        fresh = path.with_name(path.name + ".tmp")
        with open(fresh, "w", encoding="utf-8") as file:
            file.writelines(_line(record) for record in kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as the run

    def write(self, records: list[dict[str, Any]]) -> None:
        """Appends plain records and hands them to the operating system, so that a kill loses at most this call."""
        self._file.write("".join(map(_line, records)))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"
