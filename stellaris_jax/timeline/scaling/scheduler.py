"""MinionsRL's scheduler (AAAI'24, §3.2): a learned policy from the state of a training job to its number of actors.

Observations of a round are divided by scales of the job. In seconds, dollars and returns, the paper's state differs by
orders of magnitude (its code uses raw values), and a scheduler would not transfer to another job. A scheduler is a
file of weights; evaluating it needs only NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from stellaris_jax.base import inputs
from stellaris_jax.base.arrays import read_archive
from stellaris_jax.base.commands import command
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import rewriting
from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import completed
from stellaris_jax.config.schema import knob
from stellaris_jax.config.sections import ScalingConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.delays import delay_of
from stellaris_jax.timeline.scaling.limits import Limits, limits_of
from stellaris_jax.timeline.scaling.rules import RoundSummary, Scaling, greater_than_zero

FEATURES = 8
SHIPPED = Path(__file__).parent / "schedulers" / "cartpole.npz"
"""Scheduler that comes with the package, see its README."""
SHIPPED_FOR = "gymnax/CartPole-v1"
"""Environment of the training jobs on which the shipped scheduler was trained."""
LIMIT = 5.0
"""Largest absolute value of a feature; larger ones are clipped."""


def is_carried_over(config: Config) -> bool:
    """Whether a job uses the shipped scheduler on another environment than `SHIPPED_FOR`."""
    scaling = config.scaling
    return scaling.rule == "minionsrl" and not scaling.options.get("scheduler") and config.env.name != SHIPPED_FOR


class Scales(NamedTuple):
    """Scales of a training job, by which the scheduler's features are divided.

    Attributes:
      rounds: rounds K of the job.
      target: target return J.
      budget: budget B in dollars.
      seconds: seconds of a round whose jobs run one after the other.
      kl: target of the adaptive KL penalty.
    """

    rounds: float
    target: float
    budget: float
    seconds: float
    kl: float

    @classmethod
    def of(cls, config: Config) -> Scales:
        """Scales of the training job of a configuration."""
        algorithm, scaling, delays = config.algorithm, config.scaling, config.delays
        gradients = algorithm.epochs * algorithm.minibatches
        actor, learner, aggregate = (delay_of(job).typical for job in (delays.actor, delays.learner, delays.aggregate))
        seconds = actor + gradients * (learner + aggregate / config.platform.parameter_shards)
        return cls(config.rounds, scaling.target or 0.0, scaling.budget, max(seconds, 1e-6), algorithm.kl_target)


class SchedulerInput(NamedTuple):
    """State of a training job after a round, before scaling; numbers, or arrays of JAX.

    Attributes:
      round, loss, reward, kl, learner_seconds, actor_seconds, seconds: as in `RoundSummary`.
      left: rest of the budget, in dollars.
    """

    round: Any
    loss: Any
    reward: Any
    kl: Any
    learner_seconds: Any
    actor_seconds: Any
    seconds: Any
    left: Any


def features(scales: Scales, job: SchedulerInput, numpy: ModuleType = np) -> Any:
    """Scheduler state `[8]` after a round: (k, L, mean return, KL, P^l, mean P^a, P, b), on the job's scales.

    Loss and KL have no natural upper bound, so their logarithms are used.

    Args:
      scales: scales of the job.
      job: state of the job.
      numpy: `numpy` or `jax.numpy`.
    """
    state = numpy.stack(
        [
            job.round / scales.rounds,
            numpy.sign(job.loss) * numpy.log1p(numpy.abs(job.loss)),
            job.reward / scales.target,
            numpy.log1p(numpy.maximum(job.kl, 0.0) / scales.kl),
            job.learner_seconds / scales.seconds,
            job.actor_seconds / scales.seconds,
            job.seconds / scales.seconds,
            job.left / scales.budget,
        ]
    )
    return numpy.clip(state.astype(numpy.float32), -LIMIT, LIMIT)


class Scheduler(NamedTuple):
    """Dense tanh network with one output per number of actors; kernels `[in, out]`, biases `[out]`."""

    kernels: list[np.ndarray]
    biases: list[np.ndarray]

    @property
    def actors(self) -> int:
        """Largest number of actors that the scheduler can choose (I_max)."""
        return len(self.biases[-1])

    def __call__(self, state: np.ndarray) -> int:
        """Most likely number of actors for a state `[8]`, from 1 to I_max."""
        x = np.asarray(state, np.float32)
        for kernel, bias in zip(self.kernels[:-1], self.biases[:-1], strict=True):
            x = np.tanh(x @ kernel + bias)
        return int(np.argmax(x @ self.kernels[-1] + self.biases[-1])) + 1

    @property
    def digest(self) -> str:
        """SHA-256 of the weights."""
        return sha256(b"".join(x.tobytes() for x in (*self.kernels, *self.biases))).hexdigest()

    def save(self, path: Path) -> None:
        """Write the weights to a file, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        layers = zip(self.kernels, self.biases, strict=True)
        arrays = {f"{part}{i}": x for i, pair in enumerate(layers) for part, x in zip("kb", pair, strict=True)}
        with rewriting(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | Path, named: str = "scaling.options.scheduler") -> Scheduler:
        """Read a scheduler that `save` wrote.

        Args:
          path: the file.
          named: key or option of the path, for error messages.

        Raises:
          ConfigError: the file does not exist, or is no scheduler.
        """
        try:
            arrays = read_archive(path)
            count = len(arrays) // 2
            scheduler = cls([arrays[f"k{i}"] for i in range(count)], [arrays[f"b{i}"] for i in range(count)])
            scheduler._check()
        except FileNotFoundError as error:
            sentence = f"{named}={path} does not exist; {command('schedule')} makes one."
            raise ConfigError(sentence) from error
        except Exception as error:  # NumPy, zipfile and zlib raise many errors for damaged files
            raise ConfigError(f"{named}={path} is not a scheduler ({inputs.reason(error)}).") from error
        return scheduler

    def _check(self) -> None:
        """Raise ValueError unless the layers fit together, from `FEATURES` inputs on, and all numbers are finite."""
        width = FEATURES
        for i, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            if bias.ndim != 1 or kernel.shape != (width, len(bias)):
                raise ValueError(f"layer {i} has arrays {kernel.shape} and {bias.shape}, for {width} inputs")
            if not all(x.dtype.kind == "f" and np.isfinite(x).all() for x in (kernel, bias)):
                raise ValueError(f"layer {i} has numbers that are not finite")
            width = len(bias)
        if not self.kernels or not width:
            raise ValueError("it has no layers")


@register.scaling("minionsrl")
class MinionsRL(Scaling):
    """Number of actors from a trained scheduler, within the budget.

    If the scheduler was trained for another number of actors, its choice counts as a share of that number. The first
    round uses the state of a job that has not started. Later, the number of actors is reduced to what the rest of the
    budget covers at the highest price per actor so far. Training ends if that is below the minimum, or if the rest is
    less than the price of the most expensive round (part of a round's price may not depend on its actors).
    """

    scheduler: str = knob("", "file of a trained scheduler; empty takes the one that comes with the package")
    FIXED: ClassVar[tuple[str, ...]] = (*Scaling.FIXED, "scales", "policy")

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        yield greater_than_zero(config, "target")
        yield greater_than_zero(config, "budget")
        if path := completed(cls, config.scaling.options)["scheduler"]:
            Scheduler.load(path)

    @classmethod
    def of(cls, config: Config) -> MinionsRL:
        return cls(config.scaling, limits_of(config), Scales.of(config))

    def __init__(self, config: ScalingConfig, limits: Limits, scales: Scales):
        super().__init__(config, limits)
        self.scales, self.policy = scales, Scheduler.load(self.scheduler or SHIPPED)
        self.digest = self.policy.digest
        self.reward, self.cost = 0.0, 0.0
        self.dearest_round, self.dearest_actor = 0.0, 0.0
        begin = SchedulerInput(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, left=config.budget)
        self.next = config.actors or self._scheduled(features(scales, begin))

    def _scheduled(self, state: np.ndarray) -> int:
        """Scheduler's choice for a state, scaled to the limits."""
        return self.limits.clip(self.policy(state) * self.limits.maximum / self.policy.actors)

    def choose(self, seen: RoundSummary) -> int:
        if math.isfinite(seen.reward):
            self.reward = seen.reward
        price = seen.cost_usd - self.cost
        self.cost, self.dearest_round = seen.cost_usd, max(self.dearest_round, price)
        self.dearest_actor = max(self.dearest_actor, price / seen.actors)
        left = self.config.budget - seen.cost_usd
        seconds = (seen.learner_seconds, seen.actor_seconds, seen.seconds)
        job = SchedulerInput(seen.round, seen.loss, self.reward, seen.kl, *seconds, left)
        chosen = self._scheduled(features(self.scales, job))
        affordable = int(left / self.dearest_actor) if self.dearest_actor > 0.0 else chosen
        self.finished = self.config.ends and (affordable < self.limits.minimum or left < self.dearest_round)
        return min(chosen, max(affordable, self.limits.minimum))

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["digest"] != self.digest:
            path = self.scheduler or SHIPPED
            raise ConfigError(f"scaling.options.scheduler={path} is not the scheduler that the run began with.")
        super().restore(state)
