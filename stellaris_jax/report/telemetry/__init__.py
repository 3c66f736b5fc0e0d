"""Everything a run writes and shows while it trains: `metrics.jsonl`, loggers such as TensorBoard's, and the display.

Records are plain dicts; every scalar is a mean over seeds, `per_seed` holds the values themselves. `env_steps`,
`updates`, `wall_seconds`, `simulated_seconds`, `cost_usd`, `gate_escapes`, `gate_groups`, `dropped`,
`failed` and `nonfinite_gradients` count from the start of the run, everything else describes the record's round.

Words, everywhere the same. `data_lag`: versions between the policy that acted and the one that learns. `staleness_*`:
versions between a gradient's fetch and its aggregation, `staleness_in_flight` of them until it was delivered and
`staleness_queued` after that; `staleness_seconds`, the simulated seconds in between; `*_counts`, histograms of
versions.

What admission wastes: `learner_utilisation`, the share of the learners' time since the start of the run in which they
computed; `dropped_seconds`, learner-seconds spent on gradients of the round that were thrown away, over all seeds; and
`dropped_slowness`, how long those took beside all gradients (`gradient_seconds`): above 1, slow work is learned from
less than other work.

Of a live run (`executor=live`), simulated seconds are those that were measured. A replay has `replay_deviation`: how
far its versions of the round are from the recorded ones, at most, as a share of their norm.

How far the learner's policy pi has come from the behaviour policy mu, R = pi / mu, over the minibatches of a round:
`ess` = E[R]^2 / E[R^2], the effective sample size as a share; `chi2` = E[R^2] - 1; `k3` = E[R - 1 - log R], `kl`
where that is known in closed form; `m2` = E[(log R)^2]; `tv` = E|R - 1| / 2. How the policy moves: `update_norm`, the
length of an update, and `update_cosine`, of the angle between it and the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from stellaris_jax.config.schema import flatten
from stellaris_jax.config.schema import plain as as_data
from stellaris_jax.config.tree import Config
from stellaris_jax.registry import author, register
from stellaris_jax.report.integrity import owner_of
from stellaris_jax.report.telemetry.jsonl import MetricsLog, plain
from stellaris_jax.report.telemetry.logger import Logger, RunInfo
from stellaris_jax.report.telemetry.progress import Display

LONGEST = 200
"""Characters of an error's reason; of a database's, statements and values would follow."""


class Telemetry:
    """The one place the trainer reports to.

    `display` is what shows it. `resume_round` is the last round of a run that is being continued: what the run
    directory holds of later rounds is dropped. Without it the metrics start afresh.
    `config` names the loggers. One that fails is told of and left out from there on: no run ends by its logger.
    `evaluations` are the ones that stayed, and those since, oldest first. `settings` is the flat configuration.
    """

    def __init__(
        self,
        run_dir: Path,
        display: Display,
        resume_round: int | None = None,
        config: Config | None = None,
    ) -> None:
        self._run_dir = Path(run_dir)
        self._display = display
        config = config or Config()
        self.settings = settings = flatten(as_data(config))
        owner = owner_of(settings)
        self._metrics = MetricsLog(self._run_dir / "metrics.jsonl", resume_round, display.note, owner)
        self.evaluations = self._metrics.evaluations
        about = RunInfo.of(
            self._run_dir,
            settings,
            resume_round=resume_round,
            last_env_steps=self._metrics.last_env_steps,
            history=tuple(self._metrics.kept),
            note=display.note,
        )
        self._metrics.kept.clear()
        self._loggers: dict[str, Logger] = {}
        for name in config.run.loggers:
            self._guarded(name, partial(self._open, name, about, config.run.options))

    def _open(self, name: str, about: RunInfo, options: dict[str, Any]) -> None:
        self._loggers[name] = register.logger[name](about, options)

    def _guarded(self, name: str, call: Callable[[], object]) -> None:
        """Have a logger do something; without it from there on, if it cannot."""
        try:
            call()
        except (Exception, SystemExit) as error:
            self._loggers.pop(name, None)
            if not self._run_dir.is_dir():
                return  # of that the run tells itself, and ends
            who = author(error) or f"the logger {name}"
            reason = f"{type(error).__name__}: {error}".strip().splitlines()[0][:LONGEST]
            self._display.note(f"{who} failed, and the run goes on without it: {reason}")

    def _tell(self, call: Callable[[Logger], object]) -> None:
        for name, logger in list(self._loggers.items()):
            self._guarded(name, partial(call, logger))

    def rounds(self, records: list[dict[str, Any]]) -> None:
        """Reports training rounds, oldest first."""
        if not records:
            return
        records = [{"kind": "round", **plain(record)} for record in records]
        self._metrics.write(records)
        self._tell(lambda logger: logger.rounds(records))
        self._display.rounds(records)

    def evaluation(self, record: dict[str, Any]) -> None:
        """Reports one evaluation of the policy."""
        record = {"kind": "evaluation", **plain(record)}
        # An evaluation that the metrics lack is made again when the run is resumed, so loggers lose none to a kill.
        self._tell(lambda logger: logger.evaluation(record))
        self.flush()
        self._metrics.write([record])
        self.evaluations.append(record)
        self._display.evaluation(record)

    def flush(self) -> None:
        """Hands everything to the operating system, before a checkpoint makes it part of the run for good."""
        self._tell(lambda logger: logger.flush())

    @property
    def digest(self) -> str:
        """SHA-256 of the metrics so far."""
        return self._metrics.digest

    def note(self, text: str) -> None:
        """Shows a message once, above the live display: a checkpoint was saved, a fallback was taken."""
        self._display.note(text)

    def finish(self, summary: dict[str, Any]) -> None:
        """Closes everything and shows the final table."""
        self._tell(lambda logger: logger.summary(plain(summary)))
        self.close()
        returns = [record["eval_return_mean"] for record in self.evaluations]
        known = [value for value in returns if isinstance(value, int | float)]
        self._display.finished(plain(summary), self._run_dir, known)

    def close(self) -> None:
        """Ends the display and closes the files; a second call does nothing."""
        self._display.close()
        self._tell(lambda logger: logger.close())
        self._metrics.close()

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


__all__ = ["Telemetry"]
