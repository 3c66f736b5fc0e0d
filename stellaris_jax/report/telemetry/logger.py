"""What a run is told to, beside its own files and the display. To add one, subclass `Logger` and register it."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Logger:
    """Does nothing with what it is told; the base of all loggers.

    Args:
      directory: the run's.
      resume_round: the round that a run goes on from, None for a new one; what was logged of later rounds is void.
      last_env_steps: env steps at that round.
    """

    def __init__(self, directory: Path, resume_round: int | None = None, last_env_steps: float = 0.0):
        self.directory = directory

    def rounds(self, records: list[dict[str, Any]]) -> None:
        """Rounds of training, at least one, oldest first; `stellaris_jax.report.telemetry` says what records hold."""

    def evaluation(self, record: dict[str, Any]) -> None:
        """An evaluation of the policy."""

    def summary(self, summary: dict[str, Any]) -> None:
        """The figures of `summary.json`, once the run is over."""

    def flush(self) -> None:
        """Hand everything to the operating system: a checkpoint is about to be written."""

    def close(self) -> None:
        """Nothing more will come; may be called twice."""
