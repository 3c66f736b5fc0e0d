"""One run on disk: its directory, telemetry, checkpoints, signals and summary around a `Trainer`."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from stellaris_jax import __version__
from stellaris_jax.config.commands import command
from stellaris_jax.config.outputs import write_atomically
from stellaris_jax.config.schema import ConfigError, RunError
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.processes import is_first
from stellaris_jax.registry import register
from stellaris_jax.report.telemetry import Telemetry
from stellaris_jax.report.telemetry.commands import resume_command
from stellaris_jax.report.telemetry.format import clock
from stellaris_jax.report.telemetry.jsonl import complain, plain, read_records
from stellaris_jax.report.telemetry.progress import Display, make_display
from stellaris_jax.timeline.scaling.scheduler import SHIPPED_FOR, is_carried_over
from stellaris_jax.training.checkpoint import DAMAGED, Checkpoints
from stellaris_jax.training.distributed import follow
from stellaris_jax.training.evaluate import Evaluation
from stellaris_jax.training.executors import trainer_of
from stellaris_jax.training.loading import validate
from stellaris_jax.training.programs import Programs
from stellaris_jax.training.records import Record
from stellaris_jax.training.rundir import run_directory, store, writing
from stellaris_jax.training.signals import Abandoned, Signals
from stellaris_jax.training.sources.watch import EnvStalled
from stellaris_jax.training.trainer import Trainer

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "gymnax",
    "brax",
    "mujoco",
    "mujoco-mjx",
    "playground",
    "warp-lang",
    "envpool",
    "gymnasium",
)


class Interrupted(Exception):
    """Training was stopped by a signal; a checkpoint has been written."""

    def __init__(self, signum: int, run_dir: Path):
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum, self.run_dir = signum, run_dir


Callback = Callable[[int, Record, Trainer], object]
"""Called with (round, its record, trainer) after every round, those of a chunk once it is over; true ends the run."""


def train(config: Config, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
    """Train as configured, in a run directory; returns the summary. With `config.resume`, continue a run.

    Args:
      config: what to train.
      callbacks: those beside `config.run.callbacks`.

    Raises:
      ConfigError: before anything is compiled, if the run cannot start.
      Interrupted: after SIGINT or SIGTERM, with everything saved; Abandoned after a second one.
      RunError: if the run cannot go on; or if it is over, but nothing was learned, or what it returns, takes or costs
        is not finite: then `summary.json` says so too, under "failure".
    """
    validate(config)
    if config.engine.distributed and not is_first():
        return follow(config)
    title = f"{config.system.name} · {config.algorithm.name} · {config.env.name}"
    with ExitStack() as stack:
        run_dir = stack.enter_context(run_directory(config))
        display = stack.enter_context(
            closing(make_display(Console(), title, config.rounds, config.run.progress, clock(config.executor)))
        )
        signals = stack.enter_context(Signals(display.note, display.leave))
        return train_within(run_dir, config, display, signals, Programs(), callbacks)


def train_within(
    run_dir: Path,
    config: Config,
    display: Display,
    signals: Signals,
    programs: Programs,
    callbacks: Sequence[Callback] = (),
    watch: Callable[[Record], bool] = lambda record: False,
) -> dict[str, Any]:
    """Train as configured; see `train`.

    Args:
      run_dir: the run's directory, which this process holds (`run_directory`).
      config: what to train, which can run.
      display: shows the run.
      signals: stop it.
      programs: those of other runs of this process.
      callbacks: those beside `config.run.callbacks`.
      watch: called with every evaluation's record; true ends the run.
    """
    if config.engine.compile_cache:
        enable_compile_cache()
    with ExitStack() as stack:
        begun = bool(config.resume) and any((run_dir / name).exists() for name in ("metrics.jsonl", "checkpoints"))
        if config.resume:
            _refuse_lost_checkpoints(run_dir)
        display.working(f"building {config.env.name} and the network")
        with signals.during("the environment and the network to be built", transient=True):
            trainer = stack.enter_context(closing(trainer_of(config, signals.stopping, programs)))
        with writing(run_dir):
            checkpoints = stack.enter_context(closing(Checkpoints(run_dir / "checkpoints", config.checkpoint.keep)))
        resumed = None
        if begun:
            with signals.during("the checkpoint to be read", transient=True):
                resumed = _resume(trainer, checkpoints, display.note)
        with writing(run_dir):
            store(config, run_dir)
            telemetry = stack.enter_context(Telemetry(run_dir, display, resumed, config))
        if is_carried_over(config):
            display.note(
                f"actors are chosen by the scheduler that comes with the package, trained on {SHIPPED_FOR}; "
                f"{command('schedule')} makes one for other jobs (scaling.options.scheduler=PATH)"
            )
        called = [*(register.callback[name] for name in config.run.callbacks), *callbacks]
        session = Session(run_dir, trainer, telemetry, display, checkpoints, signals, called, watch)
        summary = session.finish(session.run())
    if summary["failure"] is not None:
        raise RunError(f"{run_dir}: {summary['failure']}")
    return summary


@dataclass
class Session:
    """A run under way, and everything that is told of it."""

    run_dir: Path
    trainer: Trainer
    telemetry: Telemetry
    display: Display
    checkpoints: Checkpoints
    signals: Signals
    callbacks: Sequence[Callback] = ()
    watch: Callable[[Record], bool] = lambda record: False
    ended: bool = False  # by a callback, or by who watches

    def __post_init__(self) -> None:
        self._saved_at(self.trainer.round)
        self.evaluation_rounds = set(self.trainer.evaluation_rounds)
        self.checkpoint_rounds = set(self.trainer.checkpoint_rounds)
        for record in self.telemetry.evaluations:
            self.checkpoints.score(record["round"], record["eval_return_mean"])
            # Evaluations come after the checkpoints of their rounds, and take time.
            counters = self.trainer.counters
            counters.wall_seconds = max(counters.wall_seconds, record["wall_seconds"])

    def run(self) -> Evaluation | None:
        """Train to the end; the last evaluation, if one was made at the last round.

        Raises Interrupted after a signal.
        """
        try:
            evaluation = self._train()
        except EnvStalled:
            self._rescue()
            self._saved_at(self.checkpoints.newest())
            if not self.signals.caught:
                self.display.leave()
                raise
        except (Exception, SystemExit):
            self._rescue()
            self._saved_at(self.checkpoints.newest())
            with suppress(OSError, SystemExit):  # rich ends a program whose output nobody reads any more
                self.display.leave()
            raise
        except Abandoned:
            self.display.leave()
            raise
        if not self.signals.caught:
            return evaluation
        self.display.leave()
        raise Interrupted(self.signals.caught[0], self.run_dir)

    def _saved_at(self, number: int) -> None:
        """Take note that everything up to a round is on disk."""
        self.saved = number
        state = f"round {number} is saved" if number else "nothing has been saved yet"
        self.display.farewell = f"stopped; {state}; continue with: {resume_command(self.run_dir)}"

    def _train(self) -> Evaluation | None:
        trainer, stopping = self.trainer, self.signals.stopping
        evaluated = {record["round"] for record in self.telemetry.evaluations}
        evaluation = None
        if self._evaluation_is_due() and trainer.round not in evaluated:
            evaluation = self._evaluate()  # the run was stopped between the checkpoint and the evaluation
        while trainer.under_way or not (trainer.finished or stopping.is_set() or self.ended):
            if not trainer.compiled:
                self._compile()
                continue
            with self.signals.during(f"{trainer.about_chunk} to end, and then to be saved"):
                records = trainer.step(ahead=not (self.callbacks or stopping.is_set()))
            with writing(self.run_dir):
                self.telemetry.rounds(records)
                self.trainer.write(self.run_dir)
            # All of them are called, also after one that ends the run.
            answers = [call(one["round"], one, trainer) for one in records for call in self.callbacks]
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
        return evaluation

    def _evaluation_is_due(self) -> bool:
        ended = (self.trainer.finished or self.ended) and bool(self.evaluation_rounds)
        return self.trainer.round > 0 and (ended or self.trainer.round in self.evaluation_rounds)

    def _compile(self) -> None:
        self.checkpoints.wait()
        self.display.working(f"compiling {self.trainer.about_chunk}")
        with self.signals.during("the compiler", transient=self.trainer.round == self.saved):
            seconds = self.trainer.compile()
        self.display.worked(f"compiled in {seconds:.1f} s")

    def _save(self) -> None:
        with writing(self.run_dir):
            self.telemetry.flush()
            self.trainer.save(self.checkpoints)
        self._saved_at(self.trainer.round)

    def _evaluate(self) -> Evaluation:
        """Evaluate the policy, of a round that is on disk whatever becomes of it."""
        self.checkpoints.wait()
        if not self.display.evaluations:
            self.display.working("compiling and making the first evaluation")
        with self.signals.during(f"the evaluation of round {self.trainer.round} to end", transient=True):
            evaluation = self.trainer.evaluate()
        record = self.trainer.evaluation_record(evaluation)
        self.checkpoints.score(self.trainer.round, record["eval_return_mean"])
        with writing(self.run_dir):
            self.telemetry.evaluation(record)
        self.ended |= self.watch(record)
        return evaluation

    def _rescue(self) -> None:
        """After an error, which is the one to be told of: save what was trained before it, if that is whole."""
        with suppress(Exception):
            if self.trainer.under_way:
                with suppress(SystemExit):
                    self.telemetry.rounds(self.trainer.step())
            rounds = self.trainer.members.together(lambda state: state.round)
            whole = (np.asarray(rounds) == self.trainer.round).all()
            if whole and self.trainer.round != self.saved:
                self._save()
                self.checkpoints.wait()

    def finish(self, evaluation: Evaluation | None) -> dict[str, Any]:
        """Sum up a run that is over; returns the summary, which says under "failure" why it has no result."""
        trainer = self.trainer
        if evaluation is None and trainer.config.evaluation.episodes > 0:
            evaluation = trainer.evaluate()
        summary = {**trainer.summary(evaluation), "versions": versions(), "device": device_name(trainer.config)}
        summary["ended_early"] |= self.ended
        summary["failure"] = failure(trainer, summary)
        from stellaris_jax.report.curves import plot_run  # matplotlib, which no step of training should wait for

        with writing(self.run_dir):
            text = json.dumps(plain(summary), indent=2, allow_nan=False)
            write_atomically(self.run_dir / "summary.json", text + "\n")
            plot_run(self.run_dir)
        self.telemetry.finish(summary)
        return summary


def failure(trainer: Trainer, summary: dict[str, Any]) -> str | None:
    """Why a run that is over has no result, in one sentence; None if it has one."""
    rejected = np.asarray(trainer.members.together(lambda state: state.aggregator.rejected)).tolist()
    counts = list(zip(trainer.seeds, [usage.gradients for usage in trainer.usages], rejected, strict=True))
    lost = [str(seed) for seed, gradients, count in counts if 0 < gradients <= count]
    if lost:
        return f"no gradient of {_seeds(lost)} was finite, so all were rejected and nothing was learned."
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
"""What a run is for, by its key in the summary."""


def _resume(trainer: Trainer, checkpoints: Checkpoints, note: Callable[[str], None]) -> int:
    """Continue from the newest intact checkpoint, or from the start where the run was stopped before its first."""
    if not checkpoints.rounds():
        note("there is no checkpoint yet: the run starts over")
        return 0
    restored = trainer.restore(checkpoints, note)
    if restored > trainer.total_rounds:
        raise ConfigError(
            f"total_steps={trainer.config.total_steps} is less than the {restored * trainer.steps_per_round} that "
            f"{trainer.config.resume} has done; ask for as many or more."
        )
    note(f"resumed at round {restored} of {trainer.total_rounds}")
    return restored


def _refuse_lost_checkpoints(run_dir: Path) -> None:
    """Refuse to start a run over whose checkpoints are gone: all that it has measured would be lost.

    A run that was killed before its first checkpoint has the directory for it, but no evaluation and no summary.
    """
    directory, metrics = run_dir / "checkpoints", run_dir / "metrics.jsonl"
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    if any(name.isdigit() for name in names):
        return
    records = read_records(metrics) if metrics.is_file() else []
    if any(record["kind"] == "evaluation" for record in records) or (records and not directory.is_dir()):
        witness = f"{metrics} tells of {records[-1]['round']} rounds"
    elif (run_dir / "summary.json").exists():
        witness = f"{run_dir / 'summary.json'} tells of its end"
    elif any(name.startswith(DAMAGED) for name in names):
        witness = "damaged ones are there"
    else:
        return
    raise ConfigError(
        f"resume={run_dir} has no checkpoint in {directory}, while {witness}; put them back, or start a new run."
    )


def open_run(run_dir: str | Path, values: Mapping[str, Any] | None = None) -> Trainer:
    """The trainer of a run directory, at its newest intact checkpoint. Nothing in the directory is touched.

    Args:
      run_dir: the directory.
      values: of keys of the configuration that shall differ, as {"evaluation.greedy": False}.

    Raises:
      ConfigError: the directory holds no run, or none that can be read.
    """
    path = Path(run_dir) / "config.yaml"
    if not os.path.isfile(path):
        raise ConfigError(f"{run_dir} holds no run: there is no {path}.")
    config = from_yaml(path).replace({"engine.devices": 1, "engine.distributed": False, **(values or {})})
    trainer = trainer_of(config)
    with closing(Checkpoints(Path(run_dir) / "checkpoints", config.checkpoint.keep, read_only=True)) as checkpoints:
        trainer.restore(checkpoints, complain, train=False)
    return trainer


def enable_compile_cache() -> None:
    """Keep compiled programs in the user's cache directory, unless JAX has been given another."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(root / "stellaris_jax" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of the packages a result depends on."""
    found = {"python": platform.python_version(), "stellaris_jax": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def device_name(config: Config) -> str:
    """What the run was executed on, in words."""
    device = jax.devices()[0]
    return f"{config.engine.devices} x {device.platform}:{device.device_kind} ({os.cpu_count()} host cores)"
