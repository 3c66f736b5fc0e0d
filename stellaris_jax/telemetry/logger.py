"""Base of the loggers of a run's metrics. To add a logger, subclass `Logger` and register it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from stellaris_jax.config.optioned import Optioned
from stellaris_jax.telemetry.jsonl import warn_on_stderr


class RunInfo(NamedTuple):
    """Description of a run for its loggers.

    Attributes:
      directory: directory of the run.
      config: its configuration, by dotted keys.
      group: sweep that it is a point of, or "".
      resume_round: round that it is resumed from; None for a new run. Logged values of later rounds are void, and come
        again, bit for bit.
      last_env_steps: env steps at that round.
      history: records up to that round, oldest first.
      note: function that shows the user a sentence.
    """

    directory: Path
    config: dict[str, Any]
    group: str = ""
    resume_round: int | None = None
    last_env_steps: float = 0.0
    history: tuple[dict[str, Any], ...] = ()
    note: Callable[[str], None] = warn_on_stderr

    @property
    def name(self) -> str:
        """Name of the run: its directory's name, below its sweep's."""
        return f"{self.group}/{self.directory.name}" if self.group else self.directory.name

    @classmethod
    def of(cls, directory: Path, config: dict[str, Any], **known: Any) -> RunInfo:
        """Description of a run by its directory, which shows whether it is a point of a sweep."""
        place = directory.absolute()
        swept = (place.parent / "sweep.yaml").is_file() and place.name.isdigit()
        return cls(place, config, place.parent.name if swept else "", **known)


class Logger(Optioned):
    """Base of all loggers; it ignores all events.

    A logger that raises an error is reported once, then disabled, so that it never ends the run. A logger checks its
    requirements, such as a package, in `conditions`, which run before training begins.

    Args:
      run: the run to log.
      options: see `Optioned`; `run.logger_options.<name>` sets them.
    """

    connects: ClassVar[bool] = False
    """Whether it connects to a service; a stored run with such a logger needs consent to be resumed (`config.trust`).
    """

    def __init__(self, run: RunInfo, options: dict[str, Any] | None = None):
        super().__init__(options)
        self.run = run

    def rounds(self, rows: list[dict[str, Any]]) -> None:
        """Log training rounds, at least one, oldest first; `stellaris_jax.telemetry` describes the rows."""

    def evaluation(self, row: dict[str, Any]) -> None:
        """Log an evaluation of the policy."""

    def summary(self, summary: dict[str, Any]) -> None:
        """Log the figures of `summary.json`, once the run is over; files in its directory are complete by then."""

    def flush(self) -> None:
        """Flush everything to the operating system, before a checkpoint is written."""

    def close(self) -> None:
        """Close the logger; may be called twice."""
