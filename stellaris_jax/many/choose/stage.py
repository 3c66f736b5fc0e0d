"""Training of a choice's runs: each until its watch ends it, as many at a time as cores and memory allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.config.tree import Config
from stellaris_jax.execute.records import Record
from stellaris_jax.execute.session import Interrupted
from stellaris_jax.many.choose.decisions import Decisions
from stellaris_jax.many.choose.files import Options
from stellaris_jax.many.choose.objective import Goal, Reached, rungs
from stellaris_jax.many.concurrency import Watch, is_of_disk, stoppable
from stellaris_jax.many.points import PointQueue
from stellaris_jax.report.runs import Run, planned_evaluations, read_run
from stellaris_jax.runs.checkpoint import CheckpointError
from stellaris_jax.runs.signals import Signals
from stellaris_jax.telemetry.format import duration
from stellaris_jax.telemetry.shared_display import SharedDisplay

MEND = "put its files back, or remove all but config.yaml to train it again"


def run_of(config: Config) -> Run:
    """Run as it is on disk."""
    return read_run(Path(config.run.dir), lambda message: None)


def evaluations(config: Config) -> list[dict[str, Any]]:
    """Records of the evaluations of a run so far. Raises RunError if records are damaged or missing."""
    run = run_of(config)
    if not run.curve:
        raise RunError(f"{'; '.join(run.damage) or f'{run.path}: records are missing'}; {MEND}.")
    return run.evaluations


def rung_of(config: Config, index: int) -> int:
    """Round after which candidates are compared on a rung.

    Args:
      config: configuration of a candidate.
      index: number of the rung, from 0 on.
    """
    places = rungs(planned_evaluations(config.rounds, config.evaluation.points))
    return places[min(index, len(places) - 1)]


def is_over(config: Config, goal: Goal) -> bool:
    """Whether a run has reached the target with every seed, or its end, and all its records are there."""
    watch = Reached(config.rounds, math.inf if goal.target is None else goal.target, every_seed=True)
    run = run_of(config)
    return run.curve and any([watch(row) for row in run.evaluations])


class Stage:
    """Training of runs within the budget of a choice.

    Args:
      directory: directory of the choice.
      options: options of the choice.
      decisions: count the real seconds.
      say: shows a sentence, while no run trains.
      resume: command that continues it.
    """

    def __init__(
        self, directory: Path, options: Options, decisions: Decisions, say: Callable[[str], None], resume: str
    ):
        self.directory, self.options, self.decisions, self.say = directory, options, decisions, say
        self.resume = resume
        self._signals: Signals | None = None
        self._display: SharedDisplay | None = None

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Context of all stages, which a signal stops.

        Raises:
          Interrupted: a signal arrived and everything was saved; Abandoned after a second one.
        """

        def farewell() -> str:
            return f"stopped after {duration(self.decisions.seconds)}; continue with: {self.resume}"

        with stoppable(self, self.directory, farewell) as self._signals, suppress(Interrupted):
            yield

    def note(self, text: str) -> None:
        """Show a message, on the display of the runs if some train."""
        (self.say if self._display is None else self._display.note)(text)

    def close(self) -> None:
        """End the display of the runs."""
        if self._display is not None:
            self._display.close()

    @contextmanager
    def during(self, work: str) -> Iterator[None]:
        """Context of work other than training, before which a signal stops the choice. Raises Interrupted."""
        self._check()
        with nullcontext() if self._signals is None else self._signals.during(work, transient=True):
            yield
        self._check()

    def _check(self) -> None:
        """Raise Interrupted if a signal arrived."""
        if self._signals is not None and self._signals.stopping.is_set():
            raise Interrupted(self._signals.caught[0], self.directory)

    def to_target(self, name: str, configs: Sequence[Config], goal: Goal, unit: str) -> None:
        """Train runs until every seed has reached the target, or to the end, whatever the budget says.

        It is decided which runs have a result. If that was decided before, those whose files are gone train again.

        Args:
          name: name of the decision: a flag for each run.
          configs: configurations of the runs, each with its directory.
          goal: what is compared.
          unit: noun for the runs, in the plural.

        Raises:
          Interrupted: a signal arrived and everything was saved; Abandoned after a second one.
          ConfigError: the stored decision is about other runs.
          RunError: the disk is full, the files of a run are damaged or in use, or a result is lost.
        """
        before = self.decisions[name] if name in self.decisions else [True] * len(configs)
        if len(before) != len(configs):
            raise ConfigError(f"{self.decisions.path}: {name} must be of {len(configs)} runs, not of {len(before)}.")
        wanted = [config for config, flag in zip(configs, before, strict=True) if flag]
        missing = [config for config in wanted if not is_over(config, goal)]
        target = math.inf if goal.target is None else goal.target
        self.train(missing, [Reached(config.rounds, target, every_seed=True) for config in missing], math.inf, unit)
        for config in wanted:
            evaluations(config)  # raises if they are damaged
        now = [is_over(config, goal) for config in configs]
        for config, flag, own in zip(configs, self.decisions.make(name, now), now, strict=True):
            if flag and not own:
                raise RunError(f"{config.run.dir} had a result, which is no longer there; {MEND}.")

    def train(self, configs: Sequence[Config], watches: Sequence[Reached], share: float, unit: str) -> None:
        """Train runs, each until its watch ends it.

        Args:
          configs: configurations of the runs, each with its directory.
          watches: watch of each run.
          share: share of the budget after which no run starts.
          unit: noun for the runs, in the plural.

        Raises:
          Interrupted: a signal arrived and everything was saved; Abandoned after a second one.
          RunError: the disk is full, or the files of a run are damaged or in use.
        """
        self._check()
        if not configs:
            return
        sizes = [config.env.num_envs * config.algorithm.rollout_length * config.num_seeds for config in configs]
        steps = [size * watch.round for size, watch in zip(sizes, watches, strict=True)]
        deadline, begin = share * self.options.budget, self.decisions.seconds
        before, has_begun = [_done(config) for config in configs], [_has_begun(config) for config in configs]

        def may_start() -> bool:
            self.decisions.save_seconds()
            return self.decisions.seconds < deadline

        with closing(SharedDisplay(Console(), steps, set(), unit=unit)) as self._display:
            queue = PointQueue(
                configs,
                set(),
                self._display,
                self._signals or Signals(self.note, self.close),
                watch_of=lambda number: self._counted(watches[number]),
                may_start=may_start,
                order=range(len(configs)),
                parallel=self.options.parallel,
            )
            queue.through()
        self._display = None
        self._measure(
            [
                (rounds - old, wall - passed)
                for (rounds, wall), (old, passed) in zip(map(_done, configs), before, strict=True)
            ],
            queue.width,
            self.decisions.seconds - begin,
        )
        self.decisions.save()
        self._check()
        for number, error in queue.outcome.reasons.items():
            self._raise_if_passing(configs[number], error, has_begun[number])
        if queue.outcome.error is not None:
            raise queue.outcome.error

    def _counted(self, watch: Watch) -> Watch:
        """Watch that stores the real seconds, too, so that a kill loses few of them."""

        def counted(record: Record) -> bool:
            with suppress(RunError):  # what fails says so when a decision is stored
                self.decisions.save_seconds()
            return watch(record)

        return counted

    def _measure(self, trained: Sequence[tuple[int, float]], width: int, elapsed: float) -> None:
        """Measure how long a round takes, and what else a run takes, such as compiling.

        Args:
          trained: rounds times seeds, and seconds of training and evaluation, of each run of a stage.
          width: concurrent runs.
          elapsed: real seconds of the stage.
        """
        if rounds := sum(count for count, _ in trained):
            busy = min(elapsed, sum(wall for _, wall in trained) / min(width, len(trained)))
            self.decisions.pace = busy / rounds
            self.decisions.setup = (elapsed - busy) / sum(count > 0 for count, _ in trained)

    def _raise_if_passing(self, config: Config, error: BaseException, has_begun: bool) -> None:
        """Raise RunError if a run failed for a reason that says nothing about the candidate and can be mended."""
        resume, cause = f"continue with: {self.resume}", str(error).rstrip(".")
        if is_of_disk(error):
            raise RunError(f"{config.run.dir}: {cause}. Make room, then {resume}") from error
        if has_begun and isinstance(error, ConfigError | CheckpointError):
            raise RunError(f"{config.run.dir}: {cause}. If files are damaged, {MEND}; then {resume}") from error


def _done(config: Config) -> tuple[int, float]:
    """Rounds times seeds that a run has trained, to its last evaluation, and the real seconds without compiling."""
    rows = run_of(config).evaluations
    return (rows[-1]["round"] * config.num_seeds, rows[-1]["wall_seconds"]) if rows else (0, 0.0)


def _has_begun(config: Config) -> bool:
    """Whether a run has written more than its configuration."""
    return any((Path(config.run.dir) / name).exists() for name in ("metrics.jsonl", "checkpoints"))
