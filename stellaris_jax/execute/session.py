"""Session of a run: trains chunk by chunk, writes records and checkpoints, evaluates, and ends after signals."""

from __future__ import annotations

import errno
import json
import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stellaris_jax.base.commands import resume_command
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.base.registry import code_location, register
from stellaris_jax.base.watch import EnvStalled
from stellaris_jax.engine.evaluate import Evaluation
from stellaris_jax.execute.plugin_checks import check_answer
from stellaris_jax.execute.records import Record
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.live.vitals import ClusterDied
from stellaris_jax.runs.anchor import Anchor, DirectoryGone
from stellaris_jax.runs.checkpoint import Checkpoints
from stellaris_jax.runs.provenance import device_name, versions
from stellaris_jax.runs.run_dir import writing
from stellaris_jax.runs.signals import Abandoned, Signals
from stellaris_jax.telemetry.integrity import digest_of, with_digests
from stellaris_jax.telemetry.jsonl import plain
from stellaris_jax.telemetry.outputs import Telemetry
from stellaris_jax.telemetry.progress import Display
from stellaris_jax.timeline.trace import NAME as TRACE

ANNOUNCED_SECONDS = 1.0
"""Seconds of an evaluation above which the display announces the next one."""


class Interrupted(Exception):
    """Error: a signal stopped training; a checkpoint was written."""

    def __init__(self, signum: int, run_dir: Path):
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum, self.run_dir = signum, run_dir


Callback = Callable[[int, Record, Trainer], object]
"""Callback, called with (round, record, trainer) after every round; a chunk's rounds come once it is over. True ends
the run."""


@dataclass
class Session:
    """Loop around a trainer in a run directory; see `stellaris_jax.execute.run.train_within`.

    Attributes:
      run_dir: directory of the run.
      trainer: trainer of the run.
      telemetry: writer of records and metrics.
      display: display of the run's progress.
      checkpoints: checkpoints of the run.
      signals: signals caught so far, which stop the run.
      callbacks: functions called after every round; true ends the run.
      watch: function called with every evaluation's record; true ends the run.
      anchor: detector of a directory that was moved or removed; `None` skips the check.
      ended: whether a callback or `watch` ended the run.
      evaluated: whether this process has made an evaluation.
      evaluation_seconds: duration of the last evaluation.
    """

    run_dir: Path
    trainer: Trainer
    telemetry: Telemetry
    display: Display
    checkpoints: Checkpoints
    signals: Signals
    callbacks: Sequence[Callback] = ()
    watch: Callable[[Record], bool] = lambda record: False
    anchor: Anchor | None = None
    ended: bool = False
    evaluated: bool = False
    evaluation_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.saved = self.trainer.round  # newest round with a checkpoint, possibly still being written
        # Not a bound method, because display and trainer would then keep each other in memory after the run.
        self.display.farewell = partial(farewell, self.checkpoints, self.run_dir, self.anchor)
        self.evaluation_rounds = set(self.trainer.schedule.evaluation_rounds)
        self.checkpoint_rounds = set(self.trainer.schedule.checkpoint_rounds)
        for record in self.telemetry.evaluations:
            self.checkpoints.score(record["round"], record["eval_return_mean"])
            # An evaluation comes after its round's checkpoint, so its wall time is missing from the checkpoint.
            counters = self.trainer.counters
            counters.wall_seconds = max(counters.wall_seconds, record["wall_seconds"])

    def run(self) -> Evaluation | None:
        """Train to the end; returns the evaluation at the last round, if there was one.

        Raises Interrupted after a signal.
        """
        try:
            evaluation = self._train()
        except EnvStalled:
            self._rescue()
            self._refuse_gone()
            if not self.signals.caught:
                self.display.leave()
                raise
        except (Exception, SystemExit) as error:
            self._rescue()
            self._refuse_gone(error)
            self._leave()
            if self.signals.caught and _comes_with_signals(error):
                raise Interrupted(self.signals.caught[0], self.run_dir) from error
            raise
        except Abandoned:
            self.display.leave()
            raise
        if not self.signals.caught:
            return evaluation
        self._leave()
        raise Interrupted(self.signals.caught[0], self.run_dir)

    def _leave(self) -> None:
        """Close the display, whose terminal may be gone."""
        for end in (self.display.leave, self.display.close):
            with suppress(OSError, SystemExit):  # rich exits a program whose output pipe is closed
                end()

    def _train(self) -> Evaluation | None:
        trainer, stopping = self.trainer, self.signals.stopping
        evaluated = {record["round"] for record in self.telemetry.evaluations}
        # The process may have died before it acted on its last evaluation; earlier ones did not end the run.
        self.ended |= any([self.watch(record) for record in self.telemetry.evaluations][-1:])
        evaluation = None
        if self._evaluation_is_due() and trainer.round not in evaluated:
            evaluation = self._evaluate()  # the run was stopped between the checkpoint and the evaluation
        while trainer.under_way or not (trainer.finished or stopping.is_set() or self.ended):
            if not trainer.compiled:
                self._compile()
                continue
            with self.signals.during(f"{trainer.executor.about_next()} to end, and then to be saved"):
                records = trainer.step(ahead=not (self.callbacks or stopping.is_set()))
            self._refuse_gone()
            with writing(self.run_dir):
                self.telemetry.rounds(records)
                self.trainer.write(self.run_dir)
            # All callbacks are called, even after one that ends the run.
            answers = [
                check_answer(c, c(record["round"], record, trainer)) for record in records for c in self.callbacks
            ]
            self.ended = any(answers)
            evaluation = None
            due = self._evaluation_is_due()
            if due or trainer.round in self.checkpoint_rounds or trainer.finished:
                self._save()
            if due and not stopping.is_set():
                evaluation = self._evaluate()
        if trainer.round != self.saved:
            self._save()
        self.checkpoints.wait()
        self._refuse_gone()
        return evaluation

    def _refuse_gone(self, error: BaseException | None = None) -> None:
        """Raise DirectoryGone if the run directory is not in place, in preference to errors that follow from it."""
        if self.anchor is not None and (trouble := self.anchor.trouble()):
            self.anchor.clear()
            self.display.close()
            raise DirectoryGone(trouble) from error

    def _evaluation_is_due(self) -> bool:
        ended = (self.trainer.finished or self.ended) and bool(self.evaluation_rounds)
        return self.trainer.round > 0 and (ended or self.trainer.round in self.evaluation_rounds)

    def _compile(self) -> None:
        self.checkpoints.wait()
        self.display.working(f"compiling {self.trainer.executor.about_next()}")
        with self.signals.during("the compiler", transient=self.trainer.round == self.saved):
            seconds = self.trainer.compile()
        self.display.worked(f"compiled in {seconds:.1f} s")

    def _save(self) -> None:
        self._refuse_gone()
        with writing(self.run_dir):
            self.telemetry.flush()
            self.trainer.save(self.checkpoints)
        self.saved = self.trainer.round

    def _evaluate(self) -> Evaluation:
        """Evaluate the policy while its checkpoint is being written."""
        # The first evaluation may exhaust memory, and a host environment may crash. So the checkpoint has to be
        # complete before either can kill the process.
        if not self.evaluated or self.trainer.spec.host_fragments:
            self.checkpoints.wait()
        self.evaluated = True
        number = self.trainer.round
        if not self.display.evaluations:
            self.display.working("compiling and making the first evaluation")
        elif self.evaluation_seconds > ANNOUNCED_SECONDS:
            self.display.working(f"evaluating the policy of round {number}")
        begin = time.monotonic()
        with self.signals.during(
            f"the evaluation of round {number} to end", transient=lambda: self.checkpoints.newest() == number
        ):
            evaluation = self.trainer.evaluate()
        self.evaluation_seconds = time.monotonic() - begin
        self._refuse_gone()
        record = self.trainer.evaluation_record(evaluation)
        if self.trainer.finished or self.ended:
            record["over"] = True  # so that a missing summary is noticed
        self.checkpoints.score(number, record["eval_return_mean"])
        with writing(self.run_dir):
            self.telemetry.evaluation(record)
        self.ended |= self.watch(record)
        return evaluation

    def _rescue(self) -> None:
        """Save intact progress after an error; further errors are ignored, so that the first one is reported."""
        with suppress(Exception):
            if self.trainer.under_way:
                with suppress(SystemExit):
                    self.telemetry.rounds(self.trainer.step())
            if self.trainer.round != self.saved:
                rounds = self.trainer.seed_states.gather(lambda state: state.round)
                if (np.asarray(rounds) == self.trainer.round).all():
                    self._save()
        with suppress(Exception):
            self.checkpoints.wait()

    def finish(self, evaluation: Evaluation | None) -> dict[str, Any]:
        """Finish a run; returns the summary, whose "failure" says why there is no result."""
        trainer = self.trainer
        if evaluation is None and trainer.config.evaluation.episodes > 0:
            self.display.working("evaluating the last policy")
            evaluation = trainer.evaluate()
        self._refuse_gone()
        summary = {**trainer.summary(evaluation), "versions": versions(), "device": device_name(trainer.config)}
        summary["ended_early"] |= self.ended
        if (message := never_ready(trainer)) is not None:
            self.display.note(message)
        summary["failure"] = failure(trainer, summary)
        from stellaris_jax.report.curves import plot_run  # imported late: matplotlib should not delay training

        with writing(self.run_dir):
            trace = digest_of(self.run_dir / TRACE)
            document = with_digests(plain(summary), self.telemetry.digest, self.telemetry.settings, trace)
            text = json.dumps(document, indent=2, allow_nan=False)
            write_atomically(self.run_dir / "summary.json", text + "\n")
            plot_run(self.run_dir)
        self.telemetry.finish(summary)
        return summary


def _comes_with_signals(error: BaseException) -> bool:
    """Whether an error has the cause of a signal: the terminal is gone, or all processes of a job are ending."""
    return isinstance(error, ClusterDied) or (isinstance(error, OSError) and error.errno == errno.EIO)


def farewell(checkpoints: Checkpoints, run_dir: Path, anchor: Anchor | None = None) -> str:
    """Sentence on the saved state of a stopped run and how to continue."""
    if anchor is not None and (trouble := anchor.trouble()):
        return f"stopped; {trouble}"
    number = checkpoints.newest()
    state = f"round {number} is saved" if number else "nothing has been saved yet"
    return f"stopped; {state}; continue with: {resume_command(run_dir)}"


def never_ready(trainer: Trainer) -> str | None:
    """Sentence on a rule that was never ready for a group; None if it was at least once."""
    groups = sum(usage.updates for usage in trainer.usages)
    if groups == 0 or sum(usage.unready for usage in trainer.usages) < groups:
        return None
    rule = trainer.config.system.rule
    place = code_location(register.rule[rule].ready)
    counts = f"{groups} of {groups} groups were formed only because nothing else could happen"
    return f"system.rule={rule} ({place}) never said ready: {counts}"


def failure(trainer: Trainer, summary: dict[str, Any]) -> str | None:
    """Sentence on why a finished run has no result; None if it has one."""
    rejected = np.asarray(trainer.seed_states.gather(lambda state: state.aggregator.rejected)).tolist()
    counts = list(zip(trainer.seeds, [usage.gradients for usage in trainer.usages], rejected, strict=True))
    unlearned = [str(seed) for seed, gradients, count in counts if 0 < gradients <= count]
    if unlearned:
        return f"no gradient of {_seeds(unlearned)} was finite, so all were rejected and nothing was learned."
    idle = [str(seed) for seed, gradients, _ in counts if gradients == 0]
    if idle and trainer.round > 0:
        return f"all gradients of {_seeds(idle)} were thrown away before they were applied, so nothing was learned."
    for key, name in RESULTS.items():
        value = summary[key]
        for number in value if isinstance(value, list) else [value]:
            if number is not None and not math.isfinite(number):
                return f"the run is over, but its {name} is {number}, which is no result."
    return None


def _seeds(names: list[str]) -> str:
    return f"seed {names[0]}" if len(names) == 1 else f"seeds {', '.join(names)}"


RESULTS = {
    "eval_return_per_seed": "evaluated return",
    "simulated_seconds": "simulated time in seconds",
    "cost_usd": "cost in dollars",
    "cost_common_usd": "cost at the common price in dollars",
}
"""Results of a run: names for messages, keyed by key of the summary."""
