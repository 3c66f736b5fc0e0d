"""Search space: keys of the configuration, each with a range or a list of choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.near_miss import did_you_mean
from stellaris_jax.config.old_options import renamed
from stellaris_jax.config.options import known_knobs, place_of, value_of
from stellaris_jax.config.schema import Knob, shown
from stellaris_jax.config.stored import read_yaml
from stellaris_jax.config.tree import Config, knobs

if TYPE_CHECKING:
    import optuna

Values = dict[str, Any]
"""Values, keyed by dotted key."""


def space_files(folders: Sequence[Path]) -> dict[str, Path]:
    """Files of spaces in folders by their names; the last folder wins."""
    return {path.stem: path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.yaml"))}


def space_file(name: str, folders: Sequence[Path]) -> Path:
    """File of a space: a path that ends in .yaml, or a name in the folders. Raises ConfigError."""
    known = space_files(folders)
    path = Path(name) if name.endswith((".yaml", ".yml")) else known.get(name)
    if path is None:
        meant = did_you_mean(name, known)
        raise ConfigError(f"--space={name} is neither a .yaml file nor one of {', '.join(known)}{meant}")
    if not path.is_file():
        raise ConfigError(f"--space={name} does not exist.")
    return path


@dataclass(frozen=True)
class Dimension:
    """Dimension of a search space: `choices`, or numbers from `low` to `high`, both included.

    Attributes:
      key: dotted key of the configuration.
      is_integer: values are integers.
      low, high: ends of the range.
      log: values are drawn on a logarithmic scale.
      choices: accepted values; empty for a range.
    """

    key: str
    is_integer: bool = False
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Any, ...] = ()

    def suggest(self, trial: optuna.Trial) -> Any:
        """Value for a trial, drawn by its sampler."""
        if self.choices:
            return trial.suggest_categorical(self.key, self.choices)
        if self.is_integer:
            return trial.suggest_int(self.key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, log=self.log)

    def holds(self, value: Any) -> bool:
        """Whether the dimension contains a value."""
        return value in self.choices if self.choices else self.low <= value <= self.high

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values to validate for the whole dimension: both ends of the range, or every choice."""
        if self.choices:
            return self.choices
        return (int(self.low), int(self.high)) if self.is_integer else (self.low, self.high)


@dataclass(frozen=True)
class Space:
    """Search space.

    Attributes:
      dimensions: everything that a search varies.
    """

    dimensions: tuple[Dimension, ...]

    @classmethod
    def read(cls, path: Path, config: Config) -> Space:
        """Read the space of a file, for a configuration.

        Args:
          path: YAML file: `key: {low: 0.1, high: 10, log: true}` or `key: [choice, choice]`.
          config: configuration to tune; it must have every key and accept every end of a range.

        Raises:
          ConfigError: the file cannot be read, or a key cannot be varied.
        """
        tree = read_yaml(path)
        if not tree:
            raise ConfigError(f"{path} names nothing to search over.")
        return cls(tuple(_dimension(str(key), about, config, path) for key, about in _flat(tree).items()))

    def suggest(self, trial: optuna.Trial) -> Values:
        """Values for a trial."""
        return {dimension.key: dimension.suggest(trial) for dimension in self.dimensions}

    def of(self, config: Config) -> Values | None:
        """Values of a configuration; `None` if one is outside the space."""
        now = {dimension.key: next(iter(renamed({dimension.key: None}, config))) for dimension in self.dimensions}
        values = {key: value_of(config, new) for key, new in now.items()}
        return values if all(dimension.holds(values[dimension.key]) for dimension in self.dimensions) else None


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Values:
    """Flatten nested mappings to dotted keys; a mapping with `low` or `high` is a range and stays whole."""
    flat: Values = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and not {"low", "high"} & {*value}:
            flat |= _flat(value, f"{key}.")
        else:
            flat[key] = value
    return flat


def _dimension(key: str, about: Any, config: Config, path: Path) -> Dimension:
    knob = _knob(key, config, path)
    if isinstance(about, list):
        if len(about) < 2:
            raise ConfigError(f"{path}: {key} needs at least two choices.")
        dimension = Dimension(key, choices=tuple(about))
    elif isinstance(about, Mapping):
        if unknown := sorted({*map(str, about)} - {"low", "high", "log"}):
            raise ConfigError(f"{path}: {key} has {unknown[0]}; a range has low, high and log.")
        dimension = _range(key, dict(about), knob, path)
    else:
        raise ConfigError(f"{path}: {key} must be a range, as {{low: 0.1, high: 10}}, or a list, not {shown(about)}.")
    for value in dimension.ends:
        knob.check(float(value) if knob.kind is float and type(value) is int else value)
    return dimension


def _range(key: str, about: Values, knob: Knob, path: Path) -> Dimension:
    if knob.kind not in (int, float):
        raise ConfigError(f"{path}: {key} is no number; list its choices.")
    low, high, log = about.get("low"), about.get("high"), about.get("log", False)
    for value in (low, high):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{path}: {key} needs two numbers, low and high, not {shown(value)}.")
        if knob.kind is int and value != int(value):
            raise ConfigError(f"{path}: {key} is an integer, and {value} is none.")
    assert isinstance(low, int | float) and isinstance(high, int | float)
    if not low < high:
        raise ConfigError(f"{path}: low of {key}, {low}, must be below high, {high}.")
    if not isinstance(log, bool):
        raise ConfigError(f"{path}: log of {key} must be true or false, not {shown(log)}.")
    if log and low <= 0:
        raise ConfigError(f"{path}: {key} has no logarithm at {low}.")
    return Dimension(key, knob.kind is int, float(low), float(high), log)


def _knob(key: str, config: Config, path: Path) -> Knob:
    """Knob of a key, or of an option of a component that the configuration names."""
    (new, *_) = renamed({key: None}, config)
    known = {key: entry for key, entry in known_knobs(config).items() if entry.kind != dict[str, Any]}
    if new not in known:
        if place_of(new) is None and new.rpartition(".")[0] in knobs():
            raise ConfigError(f"{path}: {new} is an entry of a mapping, which no search can vary.")
        what = "no option of this configuration" if place_of(new) else "not a config key"
        raise ConfigError(f"{path}: {new} is {what}{did_you_mean(new, known)}")
    if key.partition(".")[0] in NOT_TUNED:
        raise ConfigError(f"{path}: {key} changes nothing of what is learned, or is what trials share.")
    return known[new]


NOT_TUNED = ("seed", "num_seeds", "total_steps", "evaluation", "checkpoint", "run", "resume", "plugins")
"""Keys, and groups of keys, that must be the same for all trials."""
