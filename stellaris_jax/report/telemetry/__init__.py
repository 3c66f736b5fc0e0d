"""Everything a run writes and shows while it trains: `metrics.jsonl`, TensorBoard events and the display.

Records are plain dicts; every scalar is a mean over seeds, `per_seed` holds the values themselves. `env_steps`,
`updates`, `wall_seconds`, `simulated_seconds`, `cost_usd`, `gate_escapes`, `gate_groups`, `dropped`,
`failed` and `nonfinite_gradients` count from the start of the run, everything else describes the record's round.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from stellaris_jax.report.telemetry.jsonl import MetricsLog, plain
from stellaris_jax.report.telemetry.progress import Display
from stellaris_jax.report.telemetry.summary import print_summary
from stellaris_jax.report.telemetry.tensorboard import EventLog


class Telemetry:
    """The one place the trainer reports to.

    `display` is what shows it. `resume_round` is the last round of a run that is being continued: what the run
    directory holds of later rounds is dropped. Without it the metrics start afresh.
    `evaluations` are the ones that stayed, oldest first.
    """

    def __init__(self, run_dir: Path, display: Display, resume_round: int | None = None) -> None:
        self._run_dir = Path(run_dir)
        self._display = display
        self._metrics = MetricsLog(self._run_dir / "metrics.jsonl", resume_round, display.note)
        self._events = EventLog(self._run_dir, resume_round, self._metrics.last_env_steps)
        self.evaluations = self._metrics.evaluations

    def rounds(self, records: list[dict[str, Any]]) -> None:
        """Reports training rounds, oldest first."""
        if not records:
            return
        records = [{"kind": "round", **plain(record)} for record in records]
        self._metrics.write(records)
        self._events.rounds(records)
        self._display.rounds(records)

    def evaluation(self, record: dict[str, Any]) -> None:
        """Reports one evaluation of the policy."""
        record = {"kind": "evaluation", **plain(record)}
        self._metrics.write([record])
        self._events.evaluation(record)
        self._events.flush()
        self._display.evaluation(record)

    def flush(self) -> None:
        """Hands everything to the operating system, before a checkpoint makes it part of the run for good."""
        self._events.flush()

    def note(self, text: str) -> None:
        """Shows a message once, above the live display: a checkpoint was saved, a fallback was taken."""
        self._display.note(text)

    def finish(self, summary: dict[str, Any]) -> None:
        """Closes everything and prints the final table."""
        self.close()
        print_summary(self._display.console, plain(summary), self._run_dir)

    def close(self) -> None:
        """Ends the display and closes the files; a second call does nothing."""
        self._display.close()
        self._events.close()
        self._metrics.close()

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


__all__ = ["Telemetry"]
