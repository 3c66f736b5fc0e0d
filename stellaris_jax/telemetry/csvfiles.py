"""Metrics as CSV: `rounds.csv` and `evaluations.csv`, with the names that all loggers use."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from stellaris_jax.base import inputs, outputs
from stellaris_jax.base.registry import register
from stellaris_jax.telemetry.logger import Logger, RunInfo
from stellaris_jax.telemetry.names import STEP, named


class Sheet:
    """CSV file that grows by lines. It is rewritten for new columns, which are rare."""

    def __init__(self, path: Path):
        self.path, self.columns = path, ["round", STEP]
        self._file: TextIO | None = None
        path.unlink(missing_ok=True)

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows, and flush them to the operating system."""
        lines = [{"round": row["round"], STEP: row[STEP], **dict(named(row))} for row in rows]
        fresh = [name for name in dict.fromkeys(name for line in lines for name in line) if name not in self.columns]
        if fresh or self._file is None:
            self._widen(fresh)
        assert self._file is not None
        csv.DictWriter(self._file, self.columns).writerows(lines)
        self._file.flush()

    def _widen(self, fresh: list[str]) -> None:
        """Add columns to the file."""
        self.close()
        written: list[dict[str, Any]] = []
        if self.path.exists():
            with inputs.open_text(self.path, inputs.METRICS) as file:
                written = list(csv.DictReader(file))
        self.columns += fresh
        with outputs.rewriting_text(self.path) as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(written)
        self._file = io.TextIOWrapper(outputs.appending(self.path), encoding="utf-8", newline="")

    def close(self) -> None:
        """Close the file. Earlier calls have reported failed writes."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


@register.logger("csv")
class Csv(Logger):
    """Logger that writes a line for every round, and for every evaluation."""

    def __init__(self, run: RunInfo, options: dict[str, Any] | None = None):
        super().__init__(run, options)
        self.sheets = {kind: Sheet(run.directory / f"{kind}s.csv") for kind in ("round", "evaluation")}
        for kind, sheet in self.sheets.items():
            if known := [row for row in run.history if row["kind"] == kind]:
                sheet.add(known)

    def rounds(self, rows: list[dict[str, Any]]) -> None:
        self.sheets["round"].add(rows)

    def evaluation(self, row: dict[str, Any]) -> None:
        self.sheets["evaluation"].add([row])

    def close(self) -> None:
        for sheet in self.sheets.values():
            sheet.close()
