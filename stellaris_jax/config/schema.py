"""Configuration fields: dataclass fields with a help text, and checks of their values."""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.near_miss import did_you_mean
from stellaris_jax.base.registry import register


def knob(default: Any, help: str, *, choices: tuple[str, ...] = (), within: str = "", kind: str = "") -> Any:
    """A config field with its help text.

    Args:
      choices: the words accepted, where they are few.
      within: the interval a number must lie in, such as "(0, 1]"; for a list, every element of it.
      kind: the kind of registered things (see `stellaris_jax.base.registry`) whose names are accepted.
    """
    metadata = {"help": help, "choices": choices, "within": within, "registered": kind}
    if isinstance(default, dict):  # which a dataclass refuses for a default, and OmegaConf where it is frozen
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def group(kind: type, help: str, **defaults: Any) -> Any:
    """A nested group of config fields; `defaults` are of some of its members."""
    return field(default_factory=lambda: kind(**defaults), metadata={"help": help})


class Mapping(dict[str, Any]):
    """A mapping of a configuration, which is never changed; what is in it is frozen, too (see `frozen`)."""

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise TypeError("a configuration is never changed; make another, by config.replace({key: value})")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[Mapping], tuple[dict[str, Any]]]:
        return Mapping, (dict(self),)


def frozen(value: Any, depth: int = 0) -> Any:
    """Data that cannot be changed: lists are tuples, and mappings `Mapping`s, as deep as data may be nested."""
    if isinstance(value, list | tuple) and depth <= DEEPEST:
        return tuple(frozen(element, depth + 1) for element in value)
    if isinstance(value, dict) and depth <= DEEPEST:
        return Mapping({name: frozen(element, depth + 1) for name, element in value.items()})
    return value


def plain(value: Any, depth: int = 0) -> Any:
    """A copy of frozen data, or of a part of a configuration, in lists and dictionaries."""
    if isinstance(value, Section):
        return {entry.name: plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, list | tuple) and depth <= DEEPEST:
        return [plain(element, depth + 1) for element in value]
    if isinstance(value, dict) and depth <= DEEPEST:
        return {name: plain(element, depth + 1) for name, element in value.items()}
    return value


@dataclass(frozen=True)
class Section:
    """A part of a configuration: a dataclass of knobs, which is never changed, and can be hashed."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, list | tuple | dict):
                object.__setattr__(self, entry.name, frozen(value))


LAST_SEED = 2**32 - 1
"""Larger seeds would be smaller ones once more: JAX and NumPy take 32 bits of them."""
FLOAT32_MAX = 3.4e38
DEEPEST, LONGEST = 20, 120
"""How deep data may be nested, and how many characters of a value, and of a message, are shown."""

KINDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple[int, ...]: "a list of integers",
    tuple[float, ...]: "a list of numbers",
    tuple[str, ...]: "a list of texts",
    dict[str, Any]: "a mapping",
    float | None: "a number, or null",
    bool | None: "true, false, or null",
}


@dataclass(frozen=True)
class Knob:
    """What is known of one config field: its dotted key, its type (one of `KINDS`) and what `knob` was told."""

    key: str
    kind: Any
    help: str
    choices: tuple[str, ...] = ()
    within: str = ""
    registered: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The words accepted, where not any is."""
        return tuple(register[self.registered]) if self.registered else self.choices

    def check(self, value: Any) -> None:
        """Raise ConfigError unless `value` has the right type and is one of the values accepted."""
        if not _is_kind(value, self.kind):
            raise ConfigError(f"{self.key} must be {KINDS[self.kind]}, not {shown(plain(value))}.")
        check_data(self.key, value)
        if self.kind is float and isinstance(value, int) and abs(value) >= 2**31:
            # From Python; whatever is composed is a float. JAX computes with integers of 32 bits.
            raise ConfigError(f"{self.key} must be written as a float, {float(value):g}, not as the integer {value}.")
        for word in (value if isinstance(value, tuple) else [value]) if self.choices or self.registered else []:
            if word not in self.names:
                raise ConfigError(f"{self.key} must be {self._told(word)}")
        if self.registered and isinstance(value, tuple) and len(set(value)) < len(value):
            raise ConfigError(f"{self.key} must name nothing twice, unlike {shown(plain(value))}.")
        for number in (value if isinstance(value, tuple) else [value]) if self.within and value is not None else []:
            if not _is_within(number, self.within):
                raise ConfigError(f"{self.key} must be {self.accepted}, not {shown(number)}.")
            if isinstance(number, float) and not _is_within(number, self.within, _float32):
                rounded = f"{_float32(number):g} in 32 bits"
                raise ConfigError(f"{self.key} must be {self.accepted}, not {shown(number)}: {rounded}.")

    def _told(self, word: Any) -> str:
        """End of a sentence: the names that are accepted, and the one that `word` resembles."""
        names = list(self.names)
        if not names:
            key = f"plugins=[FILE] imports what registers a {self.registered}"
            return f"empty, not {shown(word)}: no {self.registered} is registered; {key}."
        number = "some" if self.kind == tuple[str, ...] else "one"
        return f"{number} of {', '.join(names)}, not {shown(word)}{did_you_mean(str(word), names)}"

    @property
    def accepted(self) -> str:
        """The values accepted, in words; empty where any of the right type is."""
        if self.names:
            return f"{'some' if self.kind == tuple[str, ...] else 'one'} of {', '.join(self.names)}"
        low, _, high = self.within[1:-1].partition(", ")
        if high == "inf":
            return f"at least {low}" if self.within[0] == "[" else f"greater than {low}"
        return f"in {self.within}" if self.within else ""


def check_data(key: str, value: Any, depth: int = 0) -> None:
    """Raise ConfigError for data that could not be stored as YAML and computed with, named by its `key`.

    Numbers must be finite, in float32 and in 64 bits.
    """
    if isinstance(value, int):  # truth values among them
        if not -(2**63) <= value < 2**63:
            raise ConfigError(f"{key} must fit into 64 bits, unlike {shown(value)}.")
    elif isinstance(value, float):
        if not abs(value) <= FLOAT32_MAX:
            raise ConfigError(f"{key} must be finite and at most {FLOAT32_MAX:.1e}, not {shown(value)}.")
    elif isinstance(value, str):
        check_text(key, value)
    elif isinstance(value, dict) and depth < DEEPEST:
        for name, element in value.items():
            if not isinstance(name, str):
                raise ConfigError(f"{key} must have texts for keys, not {shown(name)}.")
            check_text(key, name)
            if len(name) > LONGEST:
                raise ConfigError(f"{key} must have keys of at most {LONGEST} characters, not {shown(name)}.")
            check_data(f"{key}.{name}", element, depth + 1)
    elif isinstance(value, (list, tuple)) and depth < DEEPEST:
        for element in value:
            check_data(key, element, depth + 1)
    elif value is not None:
        deep = f" nested up to {DEEPEST} deep" if depth >= DEEPEST else ""
        raise ConfigError(f"{key} must be made of numbers, texts, lists and mappings{deep}, not {shown(plain(value))}.")


def check_text(key: str, text: str) -> None:
    """Raise ConfigError for text with control characters, or that OmegaConf takes for a reference to something else."""
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise ConfigError(f"{key} must be text without control characters, not {shown(text)}.")
    if "${" in text or text == "???":
        raise ConfigError(f"{key} must be a value, not a reference to one as {shown(text)} is.")


def shown(value: Any) -> str:
    """A value in an error message: on one line, and not too long a one."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # an integer of thousands of digits; a list that holds itself
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _is_kind(value: Any, kind: Any) -> bool:
    if type(None) in get_args(kind):
        return value is None or _is_kind(value, get_args(kind)[0])
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is_kind(element, get_args(kind)[0]) for element in value)
    return isinstance(value, get_origin(kind) or kind)


def _float32(number: float) -> float:
    """What is left of a number in the 32 bits that the device computes with."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def _is_within(number: float, interval: str, read: Callable[[float], float] = float) -> bool:
    low, high = (read(float(bound)) for bound in interval[1:-1].split(","))
    number = read(float(number))
    return low < number < high or (number == low and interval[0] == "[") or (number == high and interval[-1] == "]")


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as one level of dotted keys. Lists and empty mappings are values."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(
            flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
        )
    return flat


def walk(kind: type, prefix: str = "") -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Dotted key, type and metadata of every field below a dataclass, groups before their members."""
    hints = get_type_hints(kind)
    for entry in fields(kind):
        yield prefix + entry.name, hints[entry.name], dict(entry.metadata)
        if is_dataclass(hints[entry.name]):
            yield from walk(hints[entry.name], f"{prefix}{entry.name}.")
