"""One run on disk: a `Session` around a `Trainer` in the run's directory; also opens existing runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from stellaris_jax.base.commands import command, resume_command
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.outputs import cache_folder
from stellaris_jax.base.registry import register
from stellaris_jax.config.old_options import renamed
from stellaris_jax.config.schema import flatten, plain
from stellaris_jax.config.shipped import untuned
from stellaris_jax.config.stored import from_yaml, run_config
from stellaris_jax.config.tree import Config, knobs
from stellaris_jax.config.trust import Trust, admit
from stellaris_jax.engine.processes import is_first
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.execute.executors import check_installed
from stellaris_jax.execute.follower import follow
from stellaris_jax.execute.job import check_and_prepare, prepare
from stellaris_jax.execute.loading import check_and_start_jax
from stellaris_jax.execute.records import Record
from stellaris_jax.execute.session import Callback, Interrupted, Session
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.report.runs import read_run
from stellaris_jax.runs.anchor import Anchor
from stellaris_jax.runs.checkpoint import DAMAGED, Checkpoints
from stellaris_jax.runs.run_dir import run_directory, store, writing
from stellaris_jax.runs.signals import Signals
from stellaris_jax.telemetry.format import clock
from stellaris_jax.telemetry.integrity import fixed_settings
from stellaris_jax.telemetry.jsonl import read_rows, set_aside, warn_on_stderr
from stellaris_jax.telemetry.outputs import Telemetry
from stellaris_jax.telemetry.progress import Display, make_display
from stellaris_jax.timeline.prediction import comparison
from stellaris_jax.timeline.scaling.scheduler import SHIPPED_FOR, is_carried_over

BEST = "best"
"""Name of the kept checkpoint whose evaluation had the highest return."""


def train(
    config: Config,
    callbacks: Sequence[Callback] = (),
    watch: Callable[[Record], bool] = lambda record: False,
) -> dict[str, Any]:
    """Train as configured, in a run directory; returns the summary. With `config.resume`, continue a run.

    Args:
      config: configuration of the run.
      callbacks: callbacks in addition to `config.run.callbacks`.
      watch: called with every evaluation's record; true ends the run, such as at a return: `lambda record:
        record["eval_return_mean"] >= 475`.

    Raises:
      ConfigError: the run cannot start; raised before anything is compiled.
      Interrupted: a signal arrived and everything was saved; Abandoned after a second one.
      RunError: the run cannot continue; or it is over, but nothing was learned, or its return, time or cost is not
        finite. In the second case `summary.json` reports it under "failure".
    """
    check_installed(config)
    check_and_start_jax(config)
    if config.engine.distributed and not is_first():
        return follow(config)
    title = f"{config.system.name} · {config.algorithm.name} · {config.env.name}"
    with ExitStack() as stack:
        run_dir = stack.enter_context(run_directory(config))
        display = stack.enter_context(
            closing(make_display(Console(), title, config.rounds, config.run.progress, clock(config.executor)))
        )
        signals = stack.enter_context(Signals(display.note, display.leave))
        for sentence in () if config.resume else (*untuned(config), *comparison(config)):
            display.note(sentence)
        return train_within(run_dir, config, display, signals, ProgramCache(), callbacks, watch)


def train_within(
    run_dir: Path,
    config: Config,
    display: Display,
    signals: Signals,
    programs: ProgramCache,
    callbacks: Sequence[Callback] = (),
    watch: Callable[[Record], bool] = lambda record: False,
) -> dict[str, Any]:
    """Train as configured, in an open run directory; see `train`.

    Args:
      run_dir: the run's directory, locked by this process (`run_directory`).
      config: configuration that can run.
      display: shows the run.
      signals: stop the run.
      programs: cache of compiled programs, shared with other runs of this process.
      callbacks: callbacks in addition to `config.run.callbacks`.
      watch: called with every evaluation's record, records from before a resume included; true ends the run.
    """
    if config.engine.compile_cache:
        enable_compile_cache()

    def abandon() -> None:
        """End work before the first round after a signal; the run can be resumed."""
        if signals.stopping.is_set():
            with writing(run_dir):
                store(config, run_dir)
            display.note(f"stopped before the first round; continue with: {resume_command(run_dir)}")
            raise Interrupted(signals.caught[0], run_dir)

    with ExitStack() as stack:
        started = bool(config.resume) and any((run_dir / name).exists() for name in ("metrics.jsonl", "checkpoints"))
        if config.resume:
            _refuse_lost_checkpoints(run_dir)
        display.working(f"building {config.env.name} and the network")
        with signals.during("the environment and the network to be built", transient=True):
            trainer = stack.enter_context(
                closing(Trainer(prepare(config, display.working, abandon), signals.stopping, programs))
            )
        with writing(run_dir):
            checkpoints = stack.enter_context(closing(_checkpoints(run_dir, config)))
        anchor = stack.enter_context(closing(Anchor(run_dir)))
        resumed = None
        if started:
            with signals.during("the checkpoint to be read", transient=True):
                resumed = _resume(trainer, checkpoints, display.note)
        with writing(run_dir):
            if resumed is not None:
                _set_foreign_metrics_aside(run_dir, resumed, display.note)
            store(config, run_dir)
            telemetry = stack.enter_context(Telemetry(run_dir, display, resumed, config))
        if is_carried_over(config):
            display.note(
                f"actors are chosen by the scheduler that comes with the package, trained on {SHIPPED_FOR}; "
                f"{command('schedule')} makes one for other jobs (scaling.options.scheduler=PATH)"
            )
        all_callbacks = [*(register.callback[name] for name in config.run.callbacks), *callbacks]
        session = Session(run_dir, trainer, telemetry, display, checkpoints, signals, all_callbacks, watch, anchor)
        summary = session.finish(session.run())
    if summary["failure"] is not None:
        raise RunError(f"{run_dir}: {summary['failure']}")
    return summary


def _resume(trainer: Trainer, checkpoints: Checkpoints, note: Callable[[str], None]) -> int:
    """Continue from the newest intact checkpoint, or from the start if the run stopped before its first one."""
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
    """Refuse to restart a run whose checkpoints are gone, because that would lose its measurements.

    A run killed before its first checkpoint has an empty checkpoint directory, but no evaluation and no summary.
    """
    directory, metrics = run_dir / "checkpoints", run_dir / "metrics.jsonl"
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    if any(name.isdigit() for name in names):
        return
    records = read_rows(metrics, lambda message: None) if metrics.is_file() else []
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


def _set_foreign_metrics_aside(run_dir: Path, round_: int, note: Callable[[str], None]) -> None:
    """Set aside the metrics of another run, so that this run does not append to them."""
    run = read_run(run_dir, lambda message: None)
    if run.foreign:
        original = set_aside(run_dir / "metrics.jsonl", round_)
        note(f"{run_dir / 'metrics.jsonl'} belongs to another run; it is kept as {original}")


def open_run(
    run_dir: str | Path,
    values: Mapping[str, Any] | None = None,
    trust: Trust = False,
    at: int | str | None = None,
    alone: bool = False,
) -> Trainer:
    """Open a run directory's trainer at its newest intact checkpoint; leaves the directory untouched.

    Args:
      run_dir: directory of the run.
      values: changed settings by dotted key, as {"evaluation.greedy": False}.
      trust: plug-ins and modules that the run may import (see `config.trust`).
      at: round of another checkpoint that was kept; `BEST` for the one whose evaluation had the highest return.
      alone: whether this process does nothing else. Then JAX starts as for the training of this run, whose compiled
        programs are found.

    Raises:
      ConfigError: the directory holds no readable run, or no such checkpoint, or the user has not allowed its imports.
    """
    path = run_config(run_dir)
    config = admit(from_yaml(path), path, trust)
    knobs()["num_seeds"].check(config.num_seeds)  # checked before a list of that length is made
    fixed = {"engine.devices": 1, "engine.distributed": False, "init_from": ""}
    config = config.replace(fixed | renamed(values or {}, config))
    if config.engine.compile_cache:
        enable_compile_cache()
    trainer = Trainer(check_and_prepare(config, alone))
    with closing(_checkpoints(Path(run_dir), config, read_only=True)) as checkpoints:
        if at is not None:
            checkpoints.only = _kept(Path(run_dir), checkpoints.rounds(), at)
        restored = trainer.restore(checkpoints, warn_on_stderr, train=False)
    if at is not None:
        return trainer
    summary = read_run(Path(run_dir), lambda message: None, last=1).summary or {}
    if isinstance(last := summary.get("rounds"), int) and restored < last:
        warn_on_stderr(
            f"{run_dir}: the newest intact checkpoint is of round {restored}, while the run ended at round {last}"
        )
    return trainer


def _kept(run_dir: Path, rounds: list[int], at: int | str) -> int:
    """Round of a checkpoint that was kept. Raises ConfigError if there is none."""
    accepted = f"accepted: {', '.join(map(str, rounds)) or 'none, for no checkpoint was kept'}."
    if at != BEST:
        if at not in rounds:
            raise ConfigError(f"{run_dir} has no checkpoint of round {at}; {accepted}")
        return int(at)
    evaluations = read_run(run_dir, warn_on_stderr).evaluations
    returns = {row["round"]: row["eval_return_mean"] for row in evaluations if row["eval_return_mean"] is not None}
    if not returns:
        raise ConfigError(f"{run_dir} has no evaluation that says which round was best; {accepted}")
    found = max(returns, key=lambda round_: (returns[round_], round_))
    if found not in rounds:
        raise ConfigError(f"{run_dir} was best at round {found}, whose checkpoint is not there; {accepted}")
    return int(found)


def _checkpoints(run_dir: Path, config: Config, read_only: bool = False) -> Checkpoints:
    """Checkpoints of a run, with its fixed settings."""
    settings = fixed_settings(flatten(plain(config)))
    return Checkpoints(run_dir / "checkpoints", config.checkpoint.keep, read_only, settings)


def enable_compile_cache() -> None:
    """Store compiled programs in the user's cache directory, unless JAX has another one configured."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        root = cache_folder()
        jax.config.update("jax_compilation_cache_dir", None if root is None else str(root / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
