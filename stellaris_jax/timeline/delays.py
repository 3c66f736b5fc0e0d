"""Delay models and streams of simulated durations.

The i-th duration of a stream is a pure function of (seed, entity, i). So a timeline is repeatable, and its
whole random state is one counter per stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from stellaris_jax.base.errors import RunError
from stellaris_jax.base.registry import register
from stellaris_jax.config.buffer import minibatches_per_round
from stellaris_jax.config.optioned import Optioned
from stellaris_jax.config.schema import knob, shown
from stellaris_jax.config.sections import DelayConfig, DelaysConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.joblog import durations, read_log
from stellaris_jax.timeline.jobs import KINDS
from stellaris_jax.timeline.ticks import ticks_of

ENTITIES = ("learner", "actor", "aggregate", "failure", "scaling", "loader", "actor_failure")
BLOCK = 1024
MOST_BLOCKS = 64
"""Blocks that a stream keeps for access out of order."""
OPTIONAL_JOBS = ("aggregate", "loader")
"""Kinds of jobs that take no time if a log has none of them."""
WORKERS = {"delays.learner": "system.learners", "delays.actor": "platform.actors"}
"""Numbers of workers that a log of jobs provides, by delay section."""


class Delay(Optioned):
    """Distribution of durations; the base of all delay models.

    A duration is a function of one standard random number. NumPy draws it in the simulator, JAX where training jobs are
    environments.

    Attributes:
      noise: kind of the random number: `normal`, `exponential`, `uniform` (in [0, 1)), or empty for none.
      seconds: `delays.*.seconds`, the scale.
    """

    noise: ClassVar[str] = ""
    seconds: float
    FIXED: ClassVar[tuple[str, ...]] = ("seconds",)

    def __init__(self, seconds: float = 1.0, options: Mapping[str, Any] | None = None):
        super().__init__(options)
        self.seconds = seconds

    def durations(self, noise: Any, xp: ModuleType = np) -> Any:
        """Seconds `[n]` from standard random numbers `[n]`, computed with `xp`, NumPy or JAX's."""
        return xp.full(noise.shape, self.seconds)

    @property
    def typical(self) -> float:
        """Typical duration in seconds."""
        return self.seconds

    def block(self, generator: np.random.Generator, number: int) -> list[float]:
        """Durations number * BLOCK, ..., (number + 1) * BLOCK - 1 of a stream."""
        seconds: list[float] = np.asarray(self.durations(_draw(self.noise, generator), np)).tolist()
        return seconds


def _checked(model: Delay, seconds: Any) -> np.ndarray:
    """Durations that a model has drawn, `[BLOCK]`. Raises RunError for values that are no durations."""
    lists = isinstance(seconds, list) and len(seconds) == BLOCK
    if lists and {*map(type, seconds)} == {float}:
        drawn = np.array(seconds)
        if np.all((drawn >= 0.0) & (drawn < np.inf)):
            return drawn
    wrong = [s for s in seconds if not (isinstance(s, float | int) and 0.0 <= s < np.inf)] if lists else [seconds]
    if wrong:
        raise RunError(
            f"{type(model).__name__}, a delay model, has drawn {shown(wrong[0])} for durations; they must be finite "
            f"and at least 0, one for each of the random numbers it is given."
        )
    return np.array(seconds)


def _draw(noise: str, generator: np.random.Generator) -> np.ndarray:
    if noise == "uniform":
        return generator.random(BLOCK)
    if not noise:
        return np.zeros(BLOCK)
    numbers: np.ndarray = getattr(generator, f"standard_{noise}")(BLOCK)
    return numbers


@register.delay("constant")
class Constant(Delay):
    """Constant duration: always `seconds`."""


class Multiplied(Delay):
    """Base of delays that are `seconds` times a random factor; `seconds` must be positive."""

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        delay: DelayConfig = attrgetter(section)(config)
        yield (
            delay.seconds > 0,
            f"{section}.seconds must be greater than 0 if {section}.kind is {delay.kind}, not {delay.seconds}.",
        )


@register.delay("lognormal")
class Lognormal(Multiplied):
    """Lognormal distribution with median `seconds`."""

    noise = "normal"
    sigma: float = knob(0.5, "deviation of log-seconds", within="[0, 20]")

    def durations(self, noise: Any, xp: ModuleType = np) -> Any:
        return self.seconds * xp.exp(self.sigma * noise)


@register.delay("exponential")
class Exponential(Multiplied):
    """Exponential (memoryless) distribution with mean `seconds`, for comparisons with queueing theory."""

    noise = "exponential"

    def durations(self, noise: Any, xp: ModuleType = np) -> Any:
        return self.seconds * noise


@register.delay("pareto")
class Pareto(Multiplied):
    """Pareto distribution with minimum `seconds`: a heavy tail of stragglers."""

    noise = "exponential"
    alpha: float = knob(2.0, "tail index; smaller means heavier stragglers", within="[0.1, inf)")

    def durations(self, noise: Any, xp: ModuleType = np) -> Any:
        return self.seconds * (1.0 + xp.expm1(noise / self.alpha))

    def block(self, generator: np.random.Generator, number: int) -> list[float]:
        # NumPy's own formula differs from `durations` in the last bits. Releases must keep the same timelines.
        seconds: list[float] = (self.seconds * (1.0 + generator.pareto(self.alpha, BLOCK))).tolist()
        return seconds


@register.delay("measured")
class Measured(Delay):
    """Durations from a table, in order and repeated; `durations` draws from the table at random."""

    noise = "uniform"
    table: tuple[float, ...] = knob((), "measured durations in seconds", within="(0, inf)")

    def durations(self, noise: Any, xp: ModuleType = np) -> Any:
        return xp.asarray(self.table)[(noise * len(self.table)).astype(int)]

    @property
    def typical(self) -> float:
        return sum(self.table) / len(self.table)

    def block(self, generator: np.random.Generator, number: int) -> list[float]:
        return [self.table[i % len(self.table)] for i in range(number * BLOCK, (number + 1) * BLOCK)]

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        yield (
            len(delay_of(attrgetter(section)(config)).table) > 0,
            f"{section}.kind=measured needs {section}.options.table, a list of seconds with at least one entry.",
        )


@register.delay("trace")
class Traced(Measured):
    """Durations of the jobs of one kind in a log, in order and repeated.

    The log is JSONL or CSV: `kind` (learner, actor, aggregate or loader), `start` and `end` of each job. The page on
    logs of jobs describes the optional columns. A live run's `trace.jsonl.gz` is a log, too. Loading and aggregating
    take no time if the log has no such jobs. `system.learners` and `platform.actors` default to the numbers of distinct
    `id`s. `train` and `plot --timeline` compare the log's staleness with the simulator's prediction.
    """

    log: str = knob("", "log of jobs: a file of JSONL or CSV, or the directory of a live run")
    job: str = knob("learner", "kind of jobs that durations are taken of", choices=KINDS)
    table: tuple[float, ...] = knob((), "taken from the log", within="[0, inf)")

    def __init__(self, seconds: float = 1.0, options: Mapping[str, Any] | None = None):
        super().__init__(seconds, options)
        if self.log and not self.table:
            self.table = tuple(durations(Path(self.log), self.job)) or (0.0,) * (self.job in OPTIONAL_JOBS)

    @classmethod
    def settles(cls, config: Config, section: str) -> Iterator[tuple[str, Any, str]]:
        log = attrgetter(section)(config).options.get("log", "")
        key = WORKERS.get(section)
        if config.executor != "simulated" or key is None or not log or not isinstance(log, str):
            return
        if number := read_log(Path(log)).workers(section.removeprefix("delays.")):
            most, why = _most(config, key)
            reason = f"{log} has {number} ids of {section.removeprefix('delays.')}s, more than the {most} of {why}"
            yield key, number, "" if number <= most else f"{reason}; give {key}={most} or fewer, or raise those keys."

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        delay: DelayConfig = attrgetter(section)(config)
        log = delay.options.get("log", "")
        yield bool(log), f"{section}.kind=trace needs {section}.options.log, a log of jobs."
        model = delay_of(delay)
        told = f"{section}.options.log={log} has no job of kind {model.job} that takes time; one is needed at least."
        yield len(model.table) > 0, told


def _most(config: Config, key: str) -> tuple[int, str]:
    """Largest number of workers that the rest of a configuration allows, and the keys that limit it."""
    if key == "platform.actors":
        prices = config.prices
        return prices.actor_vms * prices.actor_vm_slots, "prices.actor_vms times prices.actor_vm_slots"
    platform = config.platform
    gradients = minibatches_per_round(config) * config.system.fragments_in_flight
    return min(
        (platform.gpus * platform.slots_per_gpu, "platform.gpus times platform.slots_per_gpu"),
        (gradients, "minibatches at a time (algorithm.epochs times algorithm.minibatches)"),
    )


def delay_of(config: DelayConfig) -> Any:
    """Delay model of a configuration section."""
    return register.delay[config.kind](config.seconds, config.options)


class Chance(Delay):
    """Uniform numbers in [0, 1), from which failures are drawn."""

    noise = "uniform"

    def durations(self, noise: Any, xp: ModuleType = np) -> Any:
        return noise


class Stream:
    """Stream of durations of one kind of work, drawn a block at a time.

    >>> stream = Stream(Pareto(2.0, {"alpha": 1.5}), seed=7, entity="learner")
    >>> drawn = stream.take(100)
    >>> min(drawn) >= 2.0, max(drawn) > 10.0  # at least `seconds`, and stragglers
    (True, True)
    >>> stream.restore(42)
    >>> next(stream) == drawn[42]
    True

    Args:
      model: the delay model.
      seed: seed of the run this timeline belongs to.
      entity: one of `ENTITIES`; different entities draw independent durations.
    """

    def __init__(self, model: Delay, seed: int, entity: str):
        self.model = model
        self.key = (seed, ENTITIES.index(entity))
        self.count = 0
        self._blocks: dict[int, list[Any]] = {}  # recent blocks, for `at`
        self._left: list[Any] = []  # rest of the block, in reverse order, so that `pop` returns the next one

    def __next__(self) -> Any:
        if not self._left:
            self._draw()
        self.count += 1
        return self._left.pop()

    def take(self, size: int) -> list[Any]:
        """Next `size` durations of the stream."""
        taken: list[Any] = []
        while len(taken) < size:
            if not self._left:
                self._draw()
            more = self._left[: -(size - len(taken)) - 1 : -1]
            del self._left[-len(more) :]
            self.count += len(more)
            taken += more
        return taken

    def at(self, first: int, size: int) -> list[Any]:
        """Durations `first`, ..., `first + size - 1` of the stream, wherever it stands."""
        taken: list[Any] = []
        while len(taken) < size:
            number, offset = divmod(first + len(taken), BLOCK)
            if number not in self._blocks:
                if len(self._blocks) == MOST_BLOCKS:
                    del self._blocks[min(self._blocks)]
                self._blocks[number] = self._block(number)
            taken += self._blocks[number][offset : offset + size - len(taken)]
        return taken

    def _draw(self) -> None:
        number, offset = divmod(self.count, BLOCK)
        self._left = self._block(number)[: offset - BLOCK - 1 : -1]

    def _block(self, number: int) -> list[Any]:
        """Durations number * BLOCK, ..., (number + 1) * BLOCK - 1 of the stream, in its unit."""
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([*self.key, number])))
        return self._measured(_checked(self.model, self.model.block(generator, number)))

    def _measured(self, seconds: np.ndarray) -> list[Any]:
        """Block of durations in the stream's unit: seconds."""
        block: list[float] = seconds.tolist()
        return block

    def state(self) -> Any:
        return self.count

    def restore(self, state: Any) -> None:
        self.count, self._left = state, []


class TickStream(Stream):
    """Stream of durations of one kind of work in ticks: each is rounded to whole nanoseconds once.

    >>> next(TickStream(Constant(0.3), seed=7, entity="learner"))
    300000000
    """

    def _measured(self, seconds: np.ndarray) -> list[int]:
        return ticks_of(seconds)


def stream_of(delays: DelaysConfig, entity: str, seed: int) -> TickStream:
    """Stream of a run's durations of one kind of work; the simulator and live runs draw the same.

    Args:
      delays: delay models of the run.
      entity: learner, actor, aggregate, loader or scaling.
      seed: seed of the run.
    """
    return TickStream(delay_of(getattr(delays, entity)), seed, entity)
