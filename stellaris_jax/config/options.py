"""Options: the knobs of registered objects, set below the key that names the object."""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, replace
from functools import cache
from itertools import groupby
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, ClassVar, Self, get_type_hints

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.near_miss import did_you_mean
from stellaris_jax.base.registry import Kind, RegistrationError, register
from stellaris_jax.config.schema import KINDS, Knob, frozen, shown
from stellaris_jax.config.tree import Config, knobs, sections


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

        `section` is the section of the options, such as `system`.
        """
        yield from ()

    @classmethod
    def settles(cls, config: Config, section: str) -> Iterator[tuple[str, Any, str]]:
        """Keys of the configuration with the values that they get unless an override sets them.

        Each comes with an error message, which is empty for a possible value. `section` is the section of the options,
        such
        as `delays.learner`. Raises ConfigError.
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
    return options


def completed(thing: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of all options of a registered object: given ones, else defaults. Unknown names are left out.

    Numbers are converted to the option's kind: 1e3 to an integer, or 1 to a float. Lists become tuples.
    """
    values = {name: frozen(given.get(name, option.default)) for name, option in options_of(thing).items()}
    return {name: _number(option, values[name]) for name, option in options_of(thing).items()}


def numbers_of(thing: Any, given: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Values of the float options of a registered object: given ones, else defaults."""
    floats = [name for name, option in options_of(thing).items() if option.knob.kind is float]
    values = completed(thing, given or {})
    return {name: values[name] for name in floats}


def _number(option: Option, value: Any) -> Any:
    if option.knob.kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if option.knob.kind == tuple[float, ...] and isinstance(value, tuple):
        return tuple(float(number) if type(number) is int else number for number in value)
    if option.knob.kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


@dataclass(frozen=True)
class Place:
    """Key that names registered objects, and the section that sets their options.

    Attributes:
      section: section with the `options`.
      key: key with the name or names.
      kind: kind of the objects.
    """

    section: str
    key: str
    kind: Kind

    def names(self, config: Config) -> tuple[str, ...]:
        """Names that the configuration gives: one, or all of a list."""
        named = attrgetter(self.key)(config)
        return named if isinstance(named, tuple) else (named,)

    def things(self, config: Config) -> list[Any]:
        """Objects behind the names; unknown names are skipped, since another check reports them."""
        return [self.kind[name] for name in self.names(config) if name in list(self.kind)]

    def in_words(self, config: Config) -> str:
        """The key and its value, for a sentence."""
        named = attrgetter(self.key)(config)
        return f"{self.key}={named}" if isinstance(named, str) else f"{self.key}=[{','.join(map(str, named))}]"

    def options(self, config: Config) -> dict[str, Any]:
        """Options that the configuration sets; empty if they are no mapping, which another check reports."""
        options = attrgetter(f"{self.section}.options")(config)
        return options if isinstance(options, dict) else {}


PLACES = (
    Place("algorithm", "algorithm.name", register.algorithm),
    Place("algorithm", "algorithm.masks", register.mask),
    Place("system", "system.rule", register.rule),
    Place("system", "system.weights", register.weight),
    Place("system", "system.admission", register.admission),
    Place("system", "system.corrections", register.correction),
    Place("scaling", "scaling.rule", register.scaling),
    Place("delays.learner", "delays.learner.kind", register.delay),
    Place("delays.actor", "delays.actor.kind", register.delay),
    Place("delays.aggregate", "delays.aggregate.kind", register.delay),
    Place("delays.scaling", "delays.scaling.kind", register.delay),
    Place("run", "run.loggers", register.logger),
)


def complete(config: Config) -> Config:
    """Configuration with the options of all named objects written out.

    Options of other rules than the chosen one, which a preset may contain, are left out. Raises ConfigError for an
    option
    that no object has, or whose value is not accepted.
    """
    check_options(config)
    values = {}
    for places, things in _named(config):
        key = f"{places[0].section}.options"
        if isinstance(given := attrgetter(key)(config), dict):  # else the check of the knob reports it
            values[key] = {name: value for thing in things for name, value in completed(thing, given).items()}
    return config.replace(values)


def check_options(config: Config) -> None:
    """Raise ConfigError for an option that no object has, or whose value is not accepted."""
    for places, things in _named(config):
        for option, value in places[0].options(config).items():
            _check(option, value, things, places, config)


def check_given(config: Config, keys: Iterable[str]) -> None:
    """Raise ConfigError for an option, such as `system.options.decay`, that belongs to no named object.

    This is for options that the user gives. A preset's own may not apply, and `complete` leaves them out.
    """
    for places, things in _named(config):
        prefix = f"{places[0].section}.options."
        known = len(things) == sum(len(place.names(config)) for place in places)
        for key in sorted(key for key in keys if key.startswith(prefix) and known):
            option = key.removeprefix(prefix)
            if any(option in options_of(thing) for thing in things):
                continue
            registered = [(f"{place.key}={name}", thing) for place in places for name, thing in place.kind.items()]
            owners = [owner for owner, thing in registered if option in options_of(thing)]
            if owners:
                named = " and ".join(place.in_words(config) for place in places)
                raise ConfigError(f"{key} belongs to {' and '.join(owners)}, not to {named}.")


def settle(config: Config, given: Collection[str]) -> Config:
    """Configuration with the values that named objects settle, except keys that are `given`.

    Raises ConfigError for a value that is not possible.
    """
    for place in PLACES:
        for thing in (cls for cls in place.things(config) if isinstance(cls, type) and issubclass(cls, Optioned)):
            for key, value, refusal in thing.settles(config, place.section):
                if key in given:
                    continue
                if refusal:
                    raise ConfigError(refusal)
                config = config.replace({key: value})
    return config


def _named(config: Config) -> Iterator[tuple[list[Place], list[Any]]]:
    """Places of every section, with the objects that a configuration names there; unknown names are skipped."""
    for _, group in groupby(PLACES, key=lambda place: place.section):
        places = list(group)
        yield places, [thing for place in places for thing in place.things(config)]


def _check(option: str, value: Any, things: list[Any], places: list[Place], config: Config) -> None:
    key = f"{places[0].section}.options.{option}"
    for known in (options_of(thing) for thing in things):
        if option in known:
            replace(known[option].knob, key=key).check(_number(known[option], value))
            return
    if not any(option in options_of(thing) for place in places for _, thing in place.kind.items()):
        named = " and ".join(place.in_words(config) for place in places)
        meant = did_you_mean(option, [name for thing in things for name in options_of(thing)])
        raise ConfigError(f"{key} is not an option of {named}{meant}")


def conditions(config: Config) -> Iterator[tuple[bool, str]]:
    """Conditions of all objects that a configuration names."""
    for place in PLACES:
        for thing in place.things(config):
            if isinstance(thing, type) and issubclass(thing, Optioned):
                yield from thing.conditions(config, place.section)
    # The loader's delays are no `Place`, because results are stored by the options of places.
    loader = register.delay.get(config.delays.loader.kind)
    if isinstance(loader, type) and issubclass(loader, Optioned):
        yield from loader.conditions(config, "delays.loader")


def value_of(config: Config, key: str) -> Any:
    """Value of a key, or of an option such as `system.options.decay`."""
    section, separator, option = key.partition(".options.")
    if not separator:
        return attrgetter(key)(config)
    things = [thing for place in PLACES if place.section == section for thing in place.things(config)]
    given = attrgetter(f"{section}.options")(config)
    return next(completed(thing, given)[option] for thing in things if option in options_of(thing))


def option_keys() -> dict[str, list[str]]:
    """Keys of all options, such as `system.options.decay`, with the names of the objects that have them."""
    owners: dict[str, list[str]] = {}
    for place in PLACES:
        for name, thing in place.kind.items():
            for option in options_of(thing):
                owners.setdefault(f"{place.section}.options.{option}", []).append(name)
    return owners


def unknown_key(key: str) -> ConfigError:
    """Error for a dotted key that the schema does not have."""
    options = option_keys()
    # A likely misspelling: system.softsync_c for system.options.c of the rule softsync.
    spelt = {
        f"{option.partition('.options.')[0]}.{name}_{option.rpartition('.')[2]}": option
        for option, names in options.items()
        for name in names
    }
    meant = f"; did you mean {spelt[key]}?" if key in spelt else did_you_mean(key, [*knobs(), *sections(), *options])
    return ConfigError(f"{key} is not a config key{meant}")
