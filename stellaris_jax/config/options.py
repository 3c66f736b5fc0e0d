"""Options: the knobs of what is registered, set below the key that names it."""

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

from stellaris_jax.config.near_miss import did_you_mean
from stellaris_jax.config.schema import KINDS, ConfigError, Knob, frozen, shown
from stellaris_jax.config.tree import Config, knobs, sections
from stellaris_jax.registry import Kind, RegistrationError, register


class Optioned:
    """Something registered whose own knobs are its options.

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
        """What a configuration that names it must fulfil, each with the sentence to say where it does not hold.

        `section` is where its options are, such as `system`.
        """
        yield from ()

    @classmethod
    def settles(cls, config: Config, section: str) -> Iterator[tuple[str, Any, str]]:
        """Keys of the configuration with the values that they have unless an override gives them.

        Each comes with the sentence to refuse the value with, which is empty for a value that is possible. `section` is
        where its options are, such as `delays.learner`. Raises ConfigError.
        """
        yield from ()

    def state(self) -> dict[str, Any]:
        """Everything that changes, as JSON data: a copy, in which tuples are lists.

        Raises ConfigError for what is no such data, and would be lost with a checkpoint.
        """
        mine: Any = type(self)
        fixed = {*options_of(mine), *self.FIXED}
        return {name: _data(mine, name, value) for name, value in vars(self).items() if name not in fixed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state()` returned."""
        vars(self).update({name: _data(type(self), name, value) for name, value in state.items()})

    FIXED: ClassVar[tuple[str, ...]] = ()
    """Attributes beside the options that never change."""


class Numbered(Optioned):
    """Something registered that stands in a compiled program.

    Options that are floats shape no program: in it they are arrays, and another value compiles nothing. All others are
    constants there. Two are equal if they are of one class and differ in floats alone.
    """

    def bound(self, values: Mapping[str, Any]) -> Self:
        """The same with other values of its numbers; of what it does not have nothing is taken."""
        other = copy.copy(self)
        vars(other).update({name: values[name] for name in numbers_of(type(self)) if name in values})
        return other

    def _constants(self) -> tuple[Any, ...]:
        kind: Any = type(self)
        numbers = numbers_of(kind)
        return (kind, *(getattr(self, name) for name in options_of(kind) if name not in numbers))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbered) and self._constants() == other._constants()

    def __hash__(self) -> int:
        return hash(self._constants())


def _data(owner: type, name: str, value: Any) -> Any:
    """A copy of a value that comes back as it is from a file of JSON, but for tuples."""
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
    """Raise RegistrationError for a knob without a type that options can have, or with a name that means something."""
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
    """A knob of something registered, and its default."""

    knob: Knob
    default: Any


@cache
def options_of(thing: Any) -> dict[str, Option]:
    """The options of something registered, those of its bases first; nothing of what has none."""
    if not isinstance(thing, type):
        return {}
    found = {}
    for base in reversed(thing.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, Field):
                default = value.default if value.default_factory is MISSING else value.default_factory()
                found[name] = Option(Knob(name, get_type_hints(base)[name], **value.metadata), default)
    return found


def completed(thing: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all options of something registered: those given, else defaults. What it does not know is left out.

    Numbers are of the kind that the option has: 1e3 is an integer where one is asked for, and 1 a float; lists are
    tuples.
    """
    values = {name: frozen(given.get(name, option.default)) for name, option in options_of(thing).items()}
    return {name: _number(option, values[name]) for name, option in options_of(thing).items()}


def numbers_of(thing: Any, given: Mapping[str, Any] | None = None) -> dict[str, float]:
    """The options of something registered that are floats, with their values: those given, else defaults."""
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
    """Where a configuration names something registered (`key`), and sets its options (`section` and `.options`)."""

    section: str
    key: str
    kind: Kind

    def names(self, config: Config) -> tuple[str, ...]:
        """What the configuration names: one, or as many as a list has."""
        named = attrgetter(self.key)(config)
        return named if isinstance(named, tuple) else (named,)

    def things(self, config: Config) -> list[Any]:
        """What stands behind the names; of unknown ones their own check speaks."""
        return [self.kind[name] for name in self.names(config) if name in list(self.kind)]

    def told(self, config: Config) -> str:
        """The key and what it names, for a sentence."""
        named = attrgetter(self.key)(config)
        return f"{self.key}={named}" if isinstance(named, str) else f"{self.key}=[{','.join(map(str, named))}]"

    def options(self, config: Config) -> dict[str, Any]:
        """What it sets; nothing where that is no mapping, of which its own check speaks."""
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
    """The configuration with the options of everything that it names written out.

    An option of another rule than the one in force, which a preset may bring along, is left out. Raises ConfigError for
    an option that nothing has, or whose value is not accepted.
    """
    check_options(config)
    values = {}
    for places, things in _named(config):
        key = f"{places[0].section}.options"
        if isinstance(given := attrgetter(key)(config), dict):  # of anything else the check of its knob speaks
            values[key] = {name: value for thing in things for name, value in completed(thing, given).items()}
    return config.replace(values)


def check_options(config: Config) -> None:
    """Raise ConfigError for an option that nothing has, or whose value is not accepted."""
    for places, things in _named(config):
        for option, value in places[0].options(config).items():
            _check(option, value, things, places, config)


def check_given(config: Config, keys: Iterable[str]) -> None:
    """Raise ConfigError for an option, such as `system.options.decay`, that belongs to nothing that is named.

    This is for those that somebody asks for: of a preset's, `complete` leaves out what does not belong.
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
                named = " and ".join(place.told(config) for place in places)
                raise ConfigError(f"{key} belongs to {' and '.join(owners)}, not to {named}.")


def settle(config: Config, given: Collection[str]) -> Config:
    """The configuration with the values that what it names settles, of all keys but those that are `given`.

    Raises ConfigError for a value that is not possible.
    """
    for place in PLACES:
        for thing in (one for one in place.things(config) if isinstance(one, type) and issubclass(one, Optioned)):
            for key, value, refusal in thing.settles(config, place.section):
                if key in given:
                    continue
                if refusal:
                    raise ConfigError(refusal)
                config = config.replace({key: value})
    return config


def _named(config: Config) -> Iterator[tuple[list[Place], list[Any]]]:
    """For every section, its places and what a configuration names there; of unknown names their own check speaks."""
    for _, group in groupby(PLACES, key=lambda place: place.section):
        places = list(group)
        yield places, [thing for place in places for thing in place.things(config)]


def _check(option: str, value: Any, things: list[Any], places: list[Place], config: Config) -> None:
    key = f"{places[0].section}.options.{option}"
    for known in (options_of(thing) for thing in things):
        if option in known:
            replace(known[option].knob, key=key).check(_number(known[option], value))
            return
    if not any(option in options_of(other) for place in places for _, other in place.kind.items()):
        named = " and ".join(place.told(config) for place in places)
        meant = did_you_mean(option, [name for thing in things for name in options_of(thing)])
        raise ConfigError(f"{key} is not an option of {named}{meant}")


def conditions(config: Config) -> Iterator[tuple[bool, str]]:
    """What everything that a configuration names asks of it."""
    for place in PLACES:
        for thing in place.things(config):
            if isinstance(thing, type) and issubclass(thing, Optioned):
                yield from thing.conditions(config, place.section)
    # Options of the loader's delays are no place: results are kept by the options that places have.
    loader = register.delay.get(config.delays.loader.kind)
    if isinstance(loader, type) and issubclass(loader, Optioned):
        yield from loader.conditions(config, "delays.loader")


def value_of(config: Config, key: str) -> Any:
    """The value of a key, or of an option such as `system.options.decay`."""
    section, found, option = key.partition(".options.")
    if not found:
        return attrgetter(key)(config)
    things = [thing for place in PLACES if place.section == section for thing in place.things(config)]
    given = attrgetter(f"{section}.options")(config)
    return next(completed(thing, given)[option] for thing in things if option in options_of(thing))


def option_keys() -> dict[str, list[str]]:
    """Every option's key, as `system.options.decay`, with the names of what has it."""
    found: dict[str, list[str]] = {}
    for place in PLACES:
        for name, thing in place.kind.items():
            for option in options_of(thing):
                found.setdefault(f"{place.section}.options.{option}", []).append(name)
    return found


def unknown_key(key: str) -> ConfigError:
    """The error for a dotted key that the schema does not have."""
    options = option_keys()
    # As somebody may put it: system.softsync_c for system.options.c, which softsync has.
    spelt = {
        f"{option.partition('.options.')[0]}.{name}_{option.rpartition('.')[2]}": option
        for option, names in options.items()
        for name in names
    }
    meant = f"; did you mean {spelt[key]}?" if key in spelt else did_you_mean(key, [*knobs(), *sections(), *options])
    return ConfigError(f"{key} is not a config key{meant}")
