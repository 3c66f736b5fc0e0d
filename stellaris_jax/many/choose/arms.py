"""Candidates of a choice: systems, corrections and learning rates, and baselines on equal hardware."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.near_miss import did_you_mean
from stellaris_jax.config.schema import shown
from stellaris_jax.config.stored import read_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.delays import delay_of

SECTIONS = ("delays.learner", "delays.actor", "delays.aggregate", "delays.loader")
ALL_REDUCE, ONE_LEARNER = "all-reduce", "one learner"
BASELINES: dict[str, tuple[str, ...]] = {
    name: ("system=allreduce", "system.actors=barrier") for name in (ALL_REDUCE, ONE_LEARNER)
}
"""Overrides of the baselines, by name; they are judged whatever else a choice tries."""
MOST_DURATIONS = 512
"""Most durations of a scaled table, which is stored with every run and stands on command lines."""
LONGEST_NAME = 80
"""Largest number of letters in the name of a system, kind of actors, preset or correction."""
LIST = "{} must be a list of overrides, such as [system=async], not {}."


class Arm(NamedTuple):
    """System to choose from, perhaps with a correction.

    Attributes:
      name: name of system, actors and correction.
      system: the same without the correction.
      overrides: overrides of the arm.
      one_learner: whether its learners are one learner, data parallel over all of them (`one_learner`).
      baseline: whether it is judged however it compares.
    """

    name: str
    system: str
    overrides: tuple[str, ...]
    one_learner: bool = False
    baseline: bool = False

    @property
    def corrected(self) -> bool:
        """Whether the arm has a correction."""
        return self.name != self.system


class Candidate(NamedTuple):
    """Arm at a learning rate.

    Attributes:
      arm: the arm.
      learning_rate: the learning rate.
      config: checked configuration.
    """

    arm: Arm
    learning_rate: float
    config: Config

    @property
    def label(self) -> str:
        """Name and learning rate."""
        return f"{self.arm.name}, learning rate {self.learning_rate:g}"


class Space(NamedTuple):
    """Candidates of a choice, as a file lists them.

    Attributes:
      systems: overrides of each system, which is tried with all actors.
      actors: overrides of each kind of actors.
      presets: overrides of each system that is tried as it is.
      one_learner: names of systems whose learners are one learner, data parallel over all of them.
      corrections: overrides of each correction, tried with systems whose gradients or data are stale.
      learning_rates: factors on the configured learning rate.
    """

    systems: dict[str, tuple[str, ...]]
    actors: dict[str, tuple[str, ...]]
    presets: dict[str, tuple[str, ...]]
    one_learner: tuple[str, ...]
    corrections: dict[str, tuple[str, ...]]
    learning_rates: tuple[float, ...]

    @classmethod
    def read(cls, path: Path) -> Space:
        """Read a file. Raises ConfigError if it is not of the form of `configs/choose/default.yaml`."""
        tree = read_yaml(path)
        if unknown := sorted(set(map(str, tree)) - set(cls._fields)):
            raise ConfigError(f"{path}: {unknown[0]} is unknown{did_you_mean(unknown[0], cls._fields)}")
        named = {
            key: _named(tree.get(key), f"{path}: {key}") for key in ("systems", "actors", "presets", "corrections")
        }
        if not (named["systems"] or named["presets"]):
            raise ConfigError(f"{path}: systems is empty; it names systems, each with a list of overrides.")
        factors, alone = tree.get("learning_rates", [1.0]), tree.get("one_learner", [])
        if not (isinstance(factors, list) and factors and all(map(_is_factor, factors))):
            raise ConfigError(
                f"{path}: learning_rates must be factors on the configured rate, from 1e-9 to 1e9, such as "
                f"[0.3, 1, 3], not {shown(factors)}."
            )
        names = [*named["systems"], *named["presets"]]
        if not isinstance(alone, list):
            raise ConfigError(f"{path}: one_learner must be a list of names of systems, not {shown(alone)}.")
        for name in alone:
            if name not in names:
                raise ConfigError(f"{path}: one_learner has {shown(name)}, which is none of {', '.join(names)}.")
        space = cls(**named, one_learner=tuple(alone), learning_rates=tuple(map(float, factors)))
        counts = Counter(arm.name for arm in space.arms())
        if twice := next((name for name, count in counts.items() if count > 1), None):
            raise ConfigError(
                f"{path}: two candidates are called {shown(twice)}; names of systems, actors, presets and "
                "corrections must tell them apart."
            )
        return space

    def only(self, names: Sequence[str]) -> Space:
        """Space of some systems and presets, in any case of letters. Raises ConfigError for a name that is neither."""
        known = [*self.systems, *self.presets]
        wanted = {name.lower() for name in names}
        for name in names:
            if name.lower() not in map(str.lower, known):
                raise ConfigError(f"--systems: {name} is none of {', '.join(known)}{did_you_mean(name, known)}")
        systems, presets = (
            {name: given for name, given in own.items() if name.lower() in wanted}
            for own in (self.systems, self.presets)
        )
        return self._replace(systems=systems, presets=presets)

    def arms(self) -> list[Arm]:
        """Systems with their actors, and each with each correction; those without a correction come first."""
        named = [
            (f"{name}, {kind}" if kind else name, (*overrides, *actors), name in self.one_learner)
            for kind, actors in (self.actors or {"": ()}).items()
            for name, overrides in self.systems.items()
        ]
        named += [(name, overrides, name in self.one_learner) for name, overrides in self.presets.items()]
        own = [Arm(name, name, overrides, alone) for name, overrides, alone in named]
        names = {arm.name for arm in own}
        for name, overrides in BASELINES.items():
            own = [arm._replace(baseline=arm.baseline or arm.name == name) for arm in own]
            if name not in names:
                own.append(Arm(name, name, overrides, one_learner=name == ONE_LEARNER, baseline=True))
        own.sort(key=lambda arm: not arm.baseline)  # a small budget tries the first ones
        corrected = [
            arm._replace(name=f"{arm.name}, {name}", overrides=(*arm.overrides, *overrides), baseline=False)
            for name, overrides in self.corrections.items()
            for arm in own
        ]
        return [*own, *corrected]


def _is_factor(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 <= value <= 1e9


def _named(tree: Any, place: str) -> dict[str, tuple[str, ...]]:
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{place} must map names to lists of overrides, not {shown(tree)}.")
    for name, lines in tree.items():
        if not (isinstance(name, str) and name.isprintable() and len(name) <= LONGEST_NAME):
            raise ConfigError(
                f"{place}: {shown(name)} is no name; accepted: a text of at most {LONGEST_NAME} printable letters."
            )
        if not (name or place.endswith("actors")):
            raise ConfigError(f"{place}: a name is empty.")
        if not (
            isinstance(lines, list)
            and all(isinstance(line, str) and "=" in line and line.isprintable() for line in lines)
        ):
            raise ConfigError(LIST.format(f"{place}.{name}", shown(lines)))
    return {name: tuple(lines) for name, lines in tree.items()}


def rates(factors: Sequence[float]) -> list[float]:
    """Factors on the learning rate in the order in which they are tried: those closest to 1 first.

    >>> rates([0.1, 1, 3, 10])
    [1, 3, 10, 0.1]
    """
    return sorted(factors, key=lambda factor: (round(abs(math.log(factor)), 9), -factor))


def scaled(config: Config, factor: float, sections: Sequence[str] = SECTIONS) -> dict[str, Any]:
    """Values that multiply durations by a factor, by dotted key.

    Args:
      config: the configuration.
      factor: factor on all durations of the sections.
      sections: sections of delays.
    """
    values: dict[str, Any] = {}
    for section in sections:
        delay = attrgetter(section)(config)
        if table := getattr(delay_of(delay), "table", None):
            values[f"{section}.kind"] = "measured"
            values[f"{section}.options"] = {"table": tuple(factor * seconds for seconds in reduced(table))}
        else:
            values[f"{section}.seconds"] = factor * delay.seconds
    return values


def reduced(table: Sequence[float]) -> list[float]:
    """At most `MOST_DURATIONS` durations like those of a longer table: means of equal shares, from short to long.

    The mean of all is the same.
    """
    if len(table) <= MOST_DURATIONS:
        return list(table)
    ordered = np.sort(np.asarray(table, float))
    ends = np.linspace(0, len(ordered), MOST_DURATIONS + 1)
    sums = np.interp(ends, np.arange(len(ordered) + 1), np.concatenate([[0.0], np.cumsum(ordered)]))
    means: list[float] = (np.diff(sums) / np.diff(ends)).tolist()
    return means


def one_learner(config: Config) -> dict[str, Any]:
    """Values that make an all-reduce configuration one learner that is data parallel over as many devices.

    Each minibatch is split among the n devices: n times as many minibatches, each a part of 1/n of the seconds, and
    their mean gradient makes the update. So samples per update, updates and hardware are those of one learner with n
    devices.

    Raises ConfigError if a fragment cannot be cut into so many minibatches.
    """
    learners, minibatches = config.system.learners, config.algorithm.minibatches
    samples = config.env.num_envs * config.algorithm.rollout_length
    if samples % (minibatches * learners):
        raise ConfigError(
            f"algorithm.minibatches={minibatches} times system.learners={learners} do not divide the {samples} samples "
            "of a batch, so no minibatch can be split among the learners."
        )
    return {"algorithm.minibatches": minibatches * learners} | scaled(config, 1.0 / learners, ("delays.learner",))


def one_learner_overrides(config: Config) -> list[str]:
    """Overrides that `one_learner` made of a configuration, as on the command line."""
    lines = [f"algorithm.minibatches={config.algorithm.minibatches}"]
    delay = config.delays.learner
    if table := delay.options.get("table"):
        listed = ",".join(f"{seconds:.6g}" for seconds in table)
        return [*lines, "delays.learner.kind=measured", f"delays.learner.options={{table:[{listed}]}}"]
    return [*lines, f"delays.learner.seconds={delay.seconds:.6g}"]
