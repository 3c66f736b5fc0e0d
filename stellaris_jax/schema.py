"""What config fields are made of: dataclass fields with a help text, and the check of their values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from stellaris_jax.near_miss import did_you_mean


class ConfigError(ValueError):
    """A configuration that cannot run; the message is one sentence naming the key, the value and what is accepted."""


class RunError(RuntimeError):
    """A run that could not go on, or ended without a result; the message is one sentence."""


def knob(default: Any, help: str, *, choices: tuple[str, ...] = (), within: str = "") -> Any:
    """A config field with its help text. Mutable defaults (dict, list) are copied per instance.

    Args:
      choices: the words accepted, where they are few.
      within: the interval a number must lie in, such as "(0, 1]"; for a list, every element of it.
    """
    metadata = {"help": help, "choices": choices, "within": within}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def group(kind: type, help: str, **defaults: Any) -> Any:
    """A nested group of config fields; `defaults` are of some of its members."""
    return field(default_factory=lambda: kind(**defaults), metadata={"help": help})


KINDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    list[int]: "a list of integers",
    list[float]: "a list of numbers",
    dict[str, Any]: "a mapping",
}


@dataclass(frozen=True)
class Knob:
    """What is known of one config field: its dotted key, its type (one of `KINDS`) and what `knob` was told."""

    key: str
    kind: Any
    help: str
    choices: tuple[str, ...]
    within: str

    def check(self, value: Any) -> None:
        """Raise ConfigError unless `value` has the right type and is one of the values accepted."""
        if not _is_kind(value, self.kind):
            raise ConfigError(f"{self.key} must be {KINDS[self.kind]}, not {value!r}.")
        if self.choices and value not in self.choices:
            raise ConfigError(f"{self.key} must be {self.accepted}, not {value!r}{did_you_mean(value, self.choices)}")
        for number in (value if isinstance(value, list) else [value]) if self.within else []:
            if not _is_within(number, self.within):
                raise ConfigError(f"{self.key} must be {self.accepted}, not {number!r}.")

    @property
    def accepted(self) -> str:
        """The values accepted, in words; empty where any of the right type is."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        low, _, high = self.within[1:-1].partition(", ")
        if high == "inf":
            return f"at least {low}" if self.within[0] == "[" else f"greater than {low}"
        return f"in {self.within}" if self.within else ""


def _is_kind(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_is_kind(element, get_args(kind)[0]) for element in value)
    return isinstance(value, get_origin(kind) or kind)


def _is_within(number: float, interval: str) -> bool:
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    return low < number < high or (number == low and interval[0] == "[") or (number == high and interval[-1] == "]")


def walk(kind: type, prefix: str = "") -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Dotted key, type and metadata of every field below a dataclass, groups before their members."""
    hints = get_type_hints(kind)
    for entry in fields(kind):
        yield prefix + entry.name, hints[entry.name], dict(entry.metadata)
        if is_dataclass(hints[entry.name]):
            yield from walk(hints[entry.name], f"{prefix}{entry.name}.")
