"""Old keys of options, which this release still reads.

`system.options` held the options of the rule, the weights, the admission policy and all corrections,
`algorithm.options` also those of masks, and `run.options` those of all loggers. An old option goes to every named
object that has it. Stored runs are converted silently. Keys that a user gives warn once per process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.optioned import options_of
from stellaris_jax.config.options import PLACES, Place
from stellaris_jax.config.schema import Knob
from stellaris_jax.config.tree import Config

OLD = {key: Knob(key, dict[str, Any], "") for key in ("system.options", "run.options")}
"""Keys that the schema no longer has."""
SHARED = "algorithm.options"
"""Key that once had the options of masks, too."""


Names = Callable[[Place], Collection[str]]
"""Function that returns the names that a configuration gives at a place."""


def _places(old: str) -> list[Place]:
    return [place for place in PLACES if f"{place.section}.options" == old]


def _owners(old: str, option: str, names: Names) -> list[tuple[Place, str]]:
    """Objects that get an option of an old key: the named ones that have it, else all registered ones that have it.

    An option that none of the named objects has is perhaps of one whose plug-in is not imported. An option of no object
    gets the first place and an empty name, so that it is reported there.
    """
    places = _places(old)
    named = [(place, name) for place in places for name in names(place)]
    every = [(place, name) for place in places for name in place.kind]

    def having(owners: list[tuple[Place, str]]) -> list[tuple[Place, str]]:
        return [(place, name) for place, name in owners if option in options_of(place.kind.get(name))]

    unknown = [(place, name) for place, name in named if name not in place.kind]
    return having(named) or unknown or having(every) or [(places[0], "")]


def new_keys(key: str, names: Names) -> list[str]:
    """New keys of a dotted key that a user gives; the key itself unless it is old."""
    old = next((old for old in (*OLD, SHARED) if key.startswith(f"{old}.")), "")
    if not old:
        return [key]
    rest = key.removeprefix(f"{old}.")
    keys = [f"{place.options_key(name)}.{rest}" for place, name in _owners(old, rest.partition(".")[0], names)]
    return [key] if key in keys else list(dict.fromkeys(keys))


# What users give -----------------------------------------------------------------------------------------------------


def accept_old(node: DictConfig) -> None:
    """Let a tree of the schema hold old keys until `take_old`."""
    # Imported late, because an exported policy is loaded without OmegaConf.
    from omegaconf import DictConfig, OmegaConf, flag_override

    for key in OLD:
        section = OmegaConf.select(node, key.partition(".")[0])
        with flag_override(section, "struct", False):
            section["options"] = DictConfig({}, key_type=str, element_type=Any)


def take_old(node: Any) -> dict[str, Any]:
    """Remove old keys from a tree, and return their options by old dotted keys."""
    from omegaconf import DictConfig, OmegaConf, flag_override

    taken: dict[str, Any] = {}
    for key in OLD:
        section = OmegaConf.select(node, key.partition(".")[0])
        if isinstance(section, DictConfig) and "options" in section:
            options: Any = section["options"]
            options = OmegaConf.to_container(options, resolve=True) if isinstance(options, DictConfig) else options
            OLD[key].check(options)
            taken |= {f"{key}.{name}": value for name, value in options.items()}
            with flag_override(section, "struct", False):
                del section["options"]
    return taken


def with_old(config: Config, old: Mapping[str, Any], given: Collection[str]) -> tuple[Config, set[str]]:
    """Configuration with options of old keys, which replace others, but none whose new key is given.

    Args:
      config: configuration, its plug-ins imported.
      old: options by old dotted keys (`take_old`).
      given: dotted keys that the command line sets.

    Returns:
      The configuration, and the given keys with new keys for old ones.
    """
    names = _names(config)
    old = {**old, **{f"{SHARED}.{name}": value for name, value in config.algorithm.options.items()}}
    moved = _moved(old, config)
    own = {name: value for name, value in config.algorithm.options.items() if f"{SHARED}.{name}" not in moved}
    values = {key: old[was] for was, new in moved.items() for key in new if key not in given}
    return config.replace({SHARED: own, **values}), {key for was in given for key in new_keys(was, names)}


def renamed(values: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Values by dotted keys, with new keys for old ones.

    Args:
      values: values by dotted keys.
      config: configuration that they change.
    """
    changed = config.replace({key: value for key, value in values.items() if new_keys(key, _none) == [key]})
    moved = _moved(values, changed)
    return {new: value for key, value in values.items() for new in moved.get(key, [key])}


def _moved(keys: Iterable[str], config: Config) -> dict[str, list[str]]:
    """New keys by old ones, with a warning. Raises ConfigError for an option that no object of a list has."""
    moved = {key: new for key in keys if (new := new_keys(key, _names(config))) != [key]}
    for key, new in moved.items():
        for place in PLACES:
            if place.listed and new[0].startswith(f"{place.options_key('')}."):
                raise ConfigError(f"{key} is not an option of {place.in_words(config)}.")
    _warn(moved)
    return moved


def _names(config: Config) -> Callable[[Place], tuple[str, ...]]:
    return lambda place: place.names(config)


def _none(place: Place) -> tuple[str, ...]:
    return ()


def _warn(moved: Mapping[str, list[str]]) -> None:
    if moved and not _warned:
        _warned.append(", ".join(f"{key} is called {' and '.join(new)} now" for key, new in moved.items()))
        warnings.warn(f"{_warned[0]}; the next release drops the old keys.", FutureWarning, stacklevel=5)


_warned: list[str] = []
"""The warning of this process, if there was one."""


# What runs have stored -----------------------------------------------------------------------------------------------


def migrated(node: dict[str, Any]) -> dict[str, Any]:
    """Stored configuration, as plain data, in the present layout; the same data if it is in that layout.

    An option that stands below its new key, too, has the value of that key.
    No plug-in is imported, so objects of plug-ins get the options that no other object has; see `corrected`.
    """
    if not _is_old(node):
        return node

    def names(place: Place) -> list[str]:
        section, _, leaf = place.key.rpartition(".")
        named = node[section].get(leaf, attrgetter(place.key)(Config()))
        return [name for name in (named if isinstance(named, list | tuple) else [named]) if isinstance(name, str)]

    new = dict(node)
    for old in (*OLD, SHARED):
        if (options := _options(node, old)) is None:
            continue
        section = old.partition(".")[0]
        new[section] = own = {key: value for key, value in node[section].items() if key != "options"}
        own |= {place.options.rpartition(".")[2]: {} for place in _places(old)}
        for option, value in options.items():
            for place, name in _owners(old, option, names):
                given = own[place.options.rpartition(".")[2]]
                (given.setdefault(name, {}) if place.listed and name else given)[option] = value
        for place in _places(old):
            leaf = place.options.rpartition(".")[2]
            if leaf != "options" and leaf in node[section]:
                own[leaf] = _merged(own[leaf], node[section][leaf])
    return new


def _merged(value: Any, over: Any) -> Any:
    """Nested mappings in one; where both have a value, the second one's."""
    if not (isinstance(value, dict) and isinstance(over, dict)):
        return over
    return value | {key: _merged(value.get(key), element) for key, element in over.items()}


def _options(node: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """Options of a section of plain data; None without any mapping."""
    section = node.get(key.partition(".")[0])
    options = section.get("options") if isinstance(section, dict) else None
    return options if isinstance(options, dict) else None


def corrected(config: Config, read: Callable[[], dict[str, Any]]) -> Config:
    """Configuration with the stored options that objects of plug-ins have, now that these are imported.

    Args:
      config: configuration that was read and perhaps changed.
      read: reads the stored configuration as plain data.
    """
    owners = [(place, owner) for place in PLACES for owner in place.owners(config) if _is_foreign(owner.thing)]
    if not owners or not _is_old(node := read()):
        return config
    for place, owner in owners:
        stored, own = _options(node, f"{place.section}.options") or {}, options_of(owner.thing)
        kept = {name: value for name, value in owner.given.items() if name in own or name not in stored}
        missing = {name: value for name, value in stored.items() if name in own and name not in kept}
        config = config.replace({owner.key: {**kept, **missing}})
    return config


def _is_foreign(thing: Any) -> bool:
    return not thing.__module__.startswith("stellaris_jax.")


def _is_old(node: Mapping[str, Any]) -> bool:
    return any(_options(node, old) is not None for old in OLD)


def first_layout(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Flat configuration by the keys that digests of stored runs are made of: old keys of options.

    Options of one old key with different values keep their new keys.
    """
    first: dict[str, Any] = {}
    for key, value in flat.items():
        old = _first_key(key)
        first[old if first.get(old, value) == value else key] = value
    filled = {old for old in (*OLD, SHARED) if any(key.startswith(f"{old}.") for key in first)}
    return {key: value for key, value in first.items() if key not in filled}


def _first_key(key: str) -> str:
    """Old key of an option, or of empty options; other keys as they are."""
    for place in (place for old in (*OLD, SHARED) for place in _places(old)):
        if key == place.options or key.startswith(f"{place.options}."):
            rest = key.removeprefix(place.options).removeprefix(".")
            option = rest.partition(".")[2] if place.listed else rest
            return f"{place.section}.options.{option}".removesuffix(".")
    return key
