"""What a run is told to, beside its own files and the display. To add one, subclass `Logger` and register it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from stellaris_jax.config.options import Optioned
from stellaris_jax.report.telemetry.jsonl import complain


class RunInfo(NamedTuple):
    """The run that a logger is of.

    directory: where it is stored. config: its configuration, by dotted keys. group: the sweep that it is a point of, ""
    for none. resume_round: the round it goes on from, None for a new one; what was logged of later rounds is void, and
    comes again, the same to the bit. last_env_steps: env steps at that round. history: records up to it, oldest first.
    note: shows the user a sentence.
    """

    directory: Path
    config: dict[str, Any]
    group: str = ""
    resume_round: int | None = None
    last_env_steps: float = 0.0
    history: tuple[dict[str, Any], ...] = ()
    note: Callable[[str], None] = complain

    @property
    def name(self) -> str:
        """What the run is called: as its directory, below its sweep."""
        return f"{self.group}/{self.directory.name}" if self.group else self.directory.name

    @classmethod
    def of(cls, directory: Path, config: dict[str, Any], **known: Any) -> RunInfo:
        """A run by its directory, which tells whether it is a sweep's."""
        place = directory.absolute()
        swept = (place.parent / "sweep.yaml").is_file() and place.name.isdigit()
        return cls(place, config, place.parent.name if swept else "", **known)


class Logger(Optioned):
    """Does nothing with what it is told; the base of all loggers.

    One that raises is told of, and left out from there on: no run ends by its logger. What it needs that may be
    missing, such as a package, it names in `conditions`, which are looked at before the run begins.

    Args:
      run: what it logs.
      options: see `Optioned`; those of all loggers are `run.options`.
    """

    connects: ClassVar[bool] = False
    """Whether it connects to a service, so that a stored run with it needs consent to be resumed (`config.trust`)."""

    def __init__(self, run: RunInfo, options: dict[str, Any] | None = None):
        super().__init__(options)
        self.run = run

    def rounds(self, records: list[dict[str, Any]]) -> None:
        """Rounds of training, at least one, oldest first; `stellaris_jax.report.telemetry` says what records hold."""

    def evaluation(self, record: dict[str, Any]) -> None:
        """An evaluation of the policy."""

    def summary(self, summary: dict[str, Any]) -> None:
        """The figures of `summary.json`, once the run is over; files in its directory are complete by then."""

    def flush(self) -> None:
        """Hand everything to the operating system: a checkpoint is about to be written."""

    def close(self) -> None:
        """Nothing more will come; may be called twice."""
