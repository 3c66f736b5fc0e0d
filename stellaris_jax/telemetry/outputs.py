"""Outputs of a training run, together: `metrics.jsonl`, loggers and the display."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from stellaris_jax.base.registry import author, register
from stellaris_jax.config.schema import flatten
from stellaris_jax.config.schema import plain as as_data
from stellaris_jax.config.tree import Config
from stellaris_jax.telemetry.integrity import run_identity
from stellaris_jax.telemetry.jsonl import MetricsLog, plain
from stellaris_jax.telemetry.logger import Logger, RunInfo
from stellaris_jax.telemetry.progress import Display

LONGEST = 200
"""Most characters of an error's reason; a database's errors would go on with statements and values."""


class Telemetry:
    """Outputs of a training run: metrics, loggers and the display.

    A logger that fails is reported once, then disabled. It never ends the run.

    Args:
      run_dir: directory of the run.
      display: display of the run.
      resume_round: last round of a resumed run; later rows in the run directory are dropped. None starts anew.
      config: configuration of the run, which names the loggers.

    Attributes:
      evaluations: records of all evaluations, oldest first.
      settings: the flat configuration.
    """

    def __init__(
        self, run_dir: Path, display: Display, resume_round: int | None = None, config: Config | None = None
    ) -> None:
        self._run_dir = Path(run_dir)
        self._display = display
        config = config or Config()
        self.settings = settings = flatten(as_data(config))
        owner = run_identity(settings)
        self._metrics = MetricsLog(self._run_dir / "metrics.jsonl", resume_round, display.note, owner)
        self.evaluations = self._metrics.evaluations
        about = RunInfo.of(
            self._run_dir,
            settings,
            resume_round=resume_round,
            last_env_steps=self._metrics.last_env_steps,
            history=tuple(self._metrics.history),
            note=display.note,
        )
        self._metrics.history.clear()
        self._loggers: dict[str, Logger] = {}
        for name in config.run.loggers:
            self._guarded(name, partial(self._open, name, about, config.run.logger_options.get(name, {})))

    def _open(self, name: str, about: RunInfo, options: dict[str, Any]) -> None:
        self._loggers[name] = register.logger[name](about, options)

    def _guarded(self, name: str, call: Callable[[], object]) -> None:
        """Call a logger, and disable it if it fails."""
        try:
            call()
        except (Exception, SystemExit) as error:
            self._loggers.pop(name, None)
            if not self._run_dir.is_dir():
                return  # the run itself reports this, and ends
            origin = author(error) or f"the logger {name}"
            reason = f"{type(error).__name__}: {error}".strip().splitlines()[0][:LONGEST]
            self._display.note(f"{origin} failed, and the run goes on without it: {reason}")

    def _call_loggers(self, call: Callable[[Logger], object]) -> None:
        for name, logger in list(self._loggers.items()):
            self._guarded(name, partial(call, logger))

    def rounds(self, rows: list[dict[str, Any]]) -> None:
        """Report training rounds, oldest first."""
        if not rows:
            return
        rows = [{"kind": "round", **plain(row)} for row in rows]
        self._metrics.write(rows)
        self._call_loggers(lambda logger: logger.rounds(rows))
        self._display.rounds(rows)

    def evaluation(self, row: dict[str, Any]) -> None:
        """Report one evaluation of the policy."""
        row = {"kind": "evaluation", **plain(row)}
        # Loggers come first: a resumed run repeats evaluations that the metrics lack, so a kill loses none.
        self._call_loggers(lambda logger: logger.evaluation(row))
        self.flush()
        self._metrics.write([row])
        self.evaluations.append(row)
        self._display.evaluation(row)

    def flush(self) -> None:
        """Flush everything to the operating system, before a checkpoint makes it a lasting part of the run."""
        self._call_loggers(lambda logger: logger.flush())

    @property
    def digest(self) -> str:
        """SHA-256 of the metrics so far."""
        return self._metrics.digest

    def note(self, text: str) -> None:
        """Show a message once, above the live display, such as a saved checkpoint or a fallback."""
        self._display.note(text)

    def finish(self, summary: dict[str, Any]) -> None:
        """Close everything and show the final table."""
        self._call_loggers(lambda logger: logger.summary(plain(summary)))
        self.close()
        returns = [row["eval_return_mean"] for row in self.evaluations]
        known = [value for value in returns if isinstance(value, int | float)]
        self._display.finished(plain(summary), self._run_dir, known)

    def close(self) -> None:
        """End the display and close the files; a second call does nothing."""
        self._display.close()
        self._call_loggers(lambda logger: logger.close())
        self._metrics.close()

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


__all__ = ["Telemetry"]
