"""Options: knobs of registered classes, declared as class attributes.

`config.options` says where the configuration sets them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar, Self, get_type_hints

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import RegistrationError
from stellaris_jax.config.schema import KINDS, Knob, frozen, shown
from stellaris_jax.config.tree import Config


class Optioned:
    """Base of registered classes whose knobs are options.

    >>> from stellaris_jax.config.schema import knob
    >>> class Quorum(Optioned):
    ...     share: float = knob(0.5, "share of the learners to wait for", within="(0, 1]")
    >>> Quorum().share, Quorum({"share": 1}).share
    (0.5, 1.0)

    Args:
      options: values of its knobs; those that are not given have their defaults.
    """

    def __init_subclass__(cls, **arguments: Any):
        super().__init_subclass__(**arguments)
        for name in (name for name, value in vars(cls).items() if isinstance(value, Field)):
            _check_declared(cls, name)

    def __init__(self, options: Mapping[str, Any] | None = None):
        vars(self).update(completed(type(self), options or {}))

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        """Conditions on a configuration that names this class, each with the error message for its violation.

        Args:
          config: the configuration.
          section: section of the key that names the class, such as `system` or `delays.learner`.
        """
        yield from ()

    @classmethod
    def settles(cls, config: Config, section: str) -> Iterator[tuple[str, Any, str]]:
        """Keys of the configuration with the values that they get unless an override sets them.

        Each comes with an error message, which is empty for a possible value. Raises ConfigError.

        Args:
          config: the configuration.
          section: section of the key that names the class, such as `delays.learner`.
        """
        yield from ()

    def state(self) -> dict[str, Any]:
        """Mutable state as JSON data: a copy, in which tuples are lists.

        Raises ConfigError for attributes that are no such data, which a checkpoint would lose.
        """
        mine: Any = type(self)
        fixed = {*options_of(mine), *self.FIXED}
        return {name: _data(mine, name, value) for name, value in vars(self).items() if name not in fixed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state()` returned."""
        vars(self).update({name: _data(type(self), name, value) for name, value in state.items()})

    FIXED: ClassVar[tuple[str, ...]] = ()
    """Attributes, besides the options, that never change."""


class Numbered(Optioned):
    """Registered class that is part of a compiled program.

    Options that are floats are arrays in the program, so that another value compiles nothing. All other options are
    constants. Two objects are equal if they have the same class and differ in floats alone.
    """

    def bound(self, values: Mapping[str, Any]) -> Self:
        """Copy with other values of its floats; unknown names are ignored."""
        bound = copy.copy(self)
        vars(bound).update({name: values[name] for name in numbers_of(type(self)) if name in values})
        return bound

    def _constants(self) -> tuple[Any, ...]:
        kind: Any = type(self)
        numbers = numbers_of(kind)
        return (kind, *(getattr(self, name) for name in options_of(kind) if name not in numbers))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbered) and self._constants() == other._constants()

    def __hash__(self) -> int:
        return hash(self._constants())


def _data(owner: type, name: str, value: Any) -> Any:
    """Copy of a value that survives a round trip through JSON, except that tuples become lists."""
    if isinstance(value, list | tuple):
        return [_data(owner, name, element) for element in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _data(owner, name, element) for key, element in value.items()}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ConfigError(
        f"{owner.__name__}.{name} is no JSON data (numbers, texts, lists, mappings with texts for keys), as all that "
        f"is saved with a run must be: {shown(value)}; name it in FIXED if it never changes, or override state() and "
        "restore()."
    )


def _check_declared(owner: type, name: str) -> None:
    """Raise RegistrationError for a knob whose type is no type of options, or whose name hides an attribute."""
    annotation = vars(owner).get("__annotations__", {}).get(name)
    try:
        scope = vars(sys.modules[owner.__module__])
        kind = get_type_hints(SimpleNamespace(__annotations__={name: annotation}), scope)[name]
    except (NameError, SyntaxError, TypeError):
        kind = None
    if annotation is None or kind not in KINDS:
        kinds = ", ".join(kind.__name__ if type(kind) is type else str(kind) for kind in KINDS)
        raise RegistrationError(
            f"the option {name} of {owner.__name__} needs a type, {name}: T = knob(...), one of {kinds}"
        )
    for base in owner.__mro__[1:]:
        own = vars(base)
        taken = name in own or name in own.get("__annotations__", {})
        if taken and not isinstance(own.get(name), Field):
            hides = f"{base.__name__}.{name}"
            raise RegistrationError(f"the option {name} of {owner.__name__} hides {hides}; call it otherwise")


@dataclass(frozen=True)
class Option:
    """Knob of a registered object.

    Attributes:
      knob: the knob.
      default: its default value.
    """

    knob: Knob
    default: Any


@cache
def options_of(thing: Any) -> dict[str, Option]:
    """Options of a registered object, those of its bases first; empty for objects other than classes."""
    if not isinstance(thing, type):
        return {}
    options = {}
    for base in reversed(thing.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, Field):
                default = value.default if value.default_factory is MISSING else value.default_factory()
                options[name] = Option(Knob(name, get_type_hints(base)[name], **value.metadata), default)
            elif name in options:  # another default
                options[name] = Option(options[name].knob, value)
    return options


def completed(thing: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of all options of a registered object: given ones, else defaults. Unknown names are left out.

    Numbers are converted to the option's kind: 1e3 to an integer, or 1 to a float. Lists become tuples.
    """
    values = {name: frozen(given.get(name, option.default)) for name, option in options_of(thing).items()}
    return {name: as_number(option, values[name]) for name, option in options_of(thing).items()}


def numbers_of(thing: Any, given: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Values of the float options of a registered object: given ones, else defaults."""
    floats = [name for name, option in options_of(thing).items() if option.knob.kind is float]
    values = completed(thing, given or {})
    return {name: values[name] for name in floats}


def as_number(option: Option, value: Any) -> Any:
    if option.knob.kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if option.knob.kind == tuple[float, ...] and isinstance(value, tuple):
        return tuple(float(number) if type(number) is int else number for number in value)
    if option.knob.kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
