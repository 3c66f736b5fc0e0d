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
    """Configuration field, or option of a registered class.

    Args:
      default: default value.
      help: help text.
      choices: accepted words, if they are few.
      within: interval of accepted numbers, such as "(0, 1]"; for a list, of its elements.
      kind: kind of registered objects whose names are accepted (see `stellaris_jax.base.registry`).
    """
    metadata = {"help": help, "choices": choices, "within": within, "registered": kind}
    if isinstance(default, dict):  # dataclasses refuse mutable defaults, and OmegaConf frozen ones
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def group(kind: type, help: str, **defaults: Any) -> Any:
    """Section within a section; `defaults` replace default values of its fields."""
    return field(default_factory=lambda: kind(**defaults), metadata={"help": help})


class Mapping(dict[str, Any]):
    """Immutable mapping of a configuration; its values are frozen, too (see `frozen`)."""

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise TypeError("a configuration is immutable; config.replace({key: value}) makes another")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[Mapping], tuple[dict[str, Any]]]:
        return Mapping, (dict(self),)


def frozen(value: Any, depth: int = 0) -> Any:
    """Immutable copy of data: tuples for lists and `Mapping`s for mappings, down to the depth `DEEPEST`."""
    if isinstance(value, list | tuple) and depth <= DEEPEST:
        return tuple(frozen(element, depth + 1) for element in value)
    if isinstance(value, dict) and depth <= DEEPEST:
        return Mapping({name: frozen(element, depth + 1) for name, element in value.items()})
    return value


def plain(value: Any, depth: int = 0) -> Any:
    """Copy of frozen data, or of a section, in lists and dictionaries."""
    if isinstance(value, Section):
        return {entry.name: plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, list | tuple) and depth <= DEEPEST:
        return [plain(element, depth + 1) for element in value]
    if isinstance(value, dict) and depth <= DEEPEST:
        return {name: plain(element, depth + 1) for name, element in value.items()}
    return value


@dataclass(frozen=True)
class Section:
    """Part of a configuration: an immutable, hashable dataclass of knobs."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, list | tuple | dict):
                object.__setattr__(self, entry.name, frozen(value))


LAST_SEED = 2**32 - 1
"""Largest seed: JAX and NumPy use 32 bits of a seed, so larger ones would repeat smaller ones."""
FLOAT32_MAX = 3.4e38
DEEPEST, LONGEST = 20, 120
"""Greatest depth of nested data, and most characters of a value in a message."""

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
    """Configuration field or option.

    Attributes:
      key: dotted key.
      kind: type, one of `KINDS`.
      help: help text.
      choices: accepted words; empty if any are.
      within: interval of accepted numbers; empty if any are.
      registered: kind of registered objects whose names are accepted; empty otherwise.
    """

    key: str
    kind: Any
    help: str
    choices: tuple[str, ...] = ()
    within: str = ""
    registered: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Accepted words; empty if any are."""
        return tuple(register[self.registered]) if self.registered else self.choices

    def check(self, value: Any) -> None:
        """Raise ConfigError unless the value has the right type and is accepted."""
        if not _is_kind(value, self.kind):
            raise self.wrong_kind(plain(value))
        check_data(self.key, value)
        if self.kind is float and isinstance(value, int) and abs(value) >= 2**31:
            # Only Python code can give an integer here. JAX computes with integers of 32 bits.
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

    def wrong_kind(self, value: Any) -> ConfigError:
        """Error of a value of another type."""
        example = f", as {self.key}=[{value}]" if self.kind == tuple[str, ...] and isinstance(value, str) else ""
        return ConfigError(f"{self.key} must be {KINDS[self.kind]}{example}, not {shown(value)}.")

    def _told(self, word: Any) -> str:
        """End of a sentence: the accepted names, and the one most like the word."""
        names = list(self.names)
        if not names:
            key = f"plugins=[FILE] imports what registers a {self.registered}"
            return f"empty, not {shown(word)}: no {self.registered} is registered; {key}."
        number = "some" if self.kind == tuple[str, ...] else "one"
        near = did_you_mean(str(word), names)
        own = f"; a {self.registered} of your own needs plugins=[FILE.py]." if self.registered and near == "." else near
        return f"{number} of {', '.join(names)}, not {shown(word)}{own}"

    @property
    def accepted(self) -> str:
        """Accepted values, in words; empty if all of the right type are."""
        if self.names:
            return f"{'some' if self.kind == tuple[str, ...] else 'one'} of {', '.join(self.names)}"
        low, _, high = self.within[1:-1].partition(", ")
        if high == "inf":
            return f"at least {low}" if self.within[0] == "[" else f"greater than {low}"
        return f"in {self.within}" if self.within else ""


def check_data(key: str, value: Any, depth: int = 0) -> None:
    """Raise ConfigError, which names the key, for data that YAML cannot store or JAX cannot compute with.

    Numbers must be finite in float32, and integers have at most 64 bits.
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
    """Raise ConfigError for text with control characters, and for OmegaConf's references to other values."""
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise ConfigError(f"{key} must be text without control characters, not {shown(text)}.")
    if "${" in text or text == "???":
        raise ConfigError(f"{key} must be a value, not a reference to one as {shown(text)} is.")


def shown(value: Any) -> str:
    """Value for an error message: one line of at most `LONGEST` characters."""
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
    """Number rounded to the 32 bits that the device computes with."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def _is_within(number: float, interval: str, read: Callable[[float], float] = float) -> bool:
    low, high = (read(float(bound)) for bound in interval[1:-1].split(","))
    number = read(float(number))
    return low < number < high or (number == low and interval[0] == "[") or (number == high and interval[-1] == "]")


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mapping as one level of dotted keys. Lists and empty mappings are values."""
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
