"""Places of options: each key that names registered objects, and the key below which their options stand.

A place with one name has the options right below its key: `system.rule=softsync`, `system.rule_options.c=4`. A place
with a list of names has a level for each: `system.corrections=[kl_gate]`, `system.correction_options.kl_gate.trust_kl`.
So every option has one owner. `config.optioned` says how a class declares options.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.near_miss import did_you_mean
from stellaris_jax.base.registry import Kind, register
from stellaris_jax.config.optioned import Optioned, as_number, completed, options_of
from stellaris_jax.config.schema import Knob, shown
from stellaris_jax.config.sections import NetworkConfig
from stellaris_jax.config.tree import Config, knobs, sections


class Owner(NamedTuple):
    """Registered object that a configuration names.

    Attributes:
      name: its name.
      thing: the object, usually a class.
      key: key of its options, such as `system.rule_options`.
      given: options that the configuration sets; empty if they are no mapping, which another check reports.
    """

    name: str
    thing: Any
    key: str
    given: dict[str, Any]

    @property
    def completed(self) -> dict[str, Any]:
        """Values of all its options."""
        return completed(self.thing, self.given)


@dataclass(frozen=True)
class Place:
    """Key that names registered objects, and the key of their options.

    Attributes:
      key: key with the name or the list of names.
      options: key of the options.
      kind: kind of the objects.
      listed: whether the key has a list of names.
    """

    key: str
    options: str
    kind: Kind
    listed: bool = False

    @property
    def section(self) -> str:
        """Section of both keys."""
        return self.key.rpartition(".")[0]

    def names(self, config: Config) -> tuple[str, ...]:
        """Names that the configuration gives."""
        named = attrgetter(self.key)(config)
        return named if isinstance(named, tuple) else (named,)

    def options_key(self, name: str) -> str:
        """Key of the options of one object."""
        return f"{self.options}.{name}" if self.listed else self.options

    def owners(self, config: Config) -> list[Owner]:
        """Named objects with their options; unknown names are skipped, since another check reports them."""
        return [
            Owner(name, self.kind[name], self.options_key(name), self.given(config, name))
            for name in self.names(config)
            if name in self.kind
        ]

    def given(self, config: Config, name: str) -> dict[str, Any]:
        """Options that the configuration sets for one object."""
        options = attrgetter(self.options)(config)
        if self.listed and isinstance(options, dict):
            options = options.get(name, {})
        return options if isinstance(options, dict) else {}

    def in_words(self, config: Config) -> str:
        """The key and its value, for a sentence."""
        names = ",".join(map(str, self.names(config)))
        return f"{self.key}=[{names}]" if self.listed else f"{self.key}={names}"


PLACES = (
    Place("network.policy", "network.options", register.policy),
    Place("algorithm.name", "algorithm.options", register.algorithm),
    Place("algorithm.advantage", "algorithm.advantage_options", register.advantage),
    Place("algorithm.optimizer", "algorithm.optimizer_options", register.optimizer),
    Place("algorithm.masks", "algorithm.mask_options", register.mask, listed=True),
    Place("system.rule", "system.rule_options", register.rule),
    Place("system.weights", "system.weight_options", register.weight),
    Place("system.admission", "system.admission_options", register.admission),
    Place("system.data_admission", "system.data_admission_options", register.data_admission),
    Place("system.corrections", "system.correction_options", register.correction, listed=True),
    Place("scaling.rule", "scaling.options", register.scaling),
    Place("delays.learner.kind", "delays.learner.options", register.delay),
    Place("delays.actor.kind", "delays.actor.options", register.delay),
    Place("delays.aggregate.kind", "delays.aggregate.options", register.delay),
    Place("delays.loader.kind", "delays.loader.options", register.delay),
    Place("delays.scaling.kind", "delays.scaling.options", register.delay),
    Place("run.loggers", "run.logger_options", register.logger, listed=True),
)


def complete(config: Config) -> Config:
    """Configuration with the options of all named objects written out.

    Options of other objects, which a preset may contain, are left out. Raises ConfigError for an option that no object
    has, or whose value is not accepted.
    """
    check_options(config)
    values: dict[str, Any] = {}
    for place in PLACES:
        own = {owner.name: owner.completed for owner in place.owners(config)}
        if place.listed:
            values[place.options] = {name: options for name, options in own.items() if options}
        elif own:
            (values[place.options],) = own.values()
    return config.replace(values)


def check_options(config: Config) -> None:
    """Raise ConfigError for an option that no object has, or whose value is not accepted."""
    for place in PLACES:
        knobs()[place.options].check(attrgetter(place.options)(config))
        if place.listed:
            _check_names(place, config)
        for owner in place.owners(config):
            for option, value in owner.given.items():
                _check(place, owner, option, value)


def _check_names(place: Place, config: Config) -> None:
    """Raise ConfigError unless all options of a list stand below the names of objects.

    Unknown names in the list itself are skipped, since another check reports them.
    """
    for name, given in attrgetter(place.options)(config).items():
        key = f"{place.options}.{name}"
        if name not in place.kind:
            if name in place.names(config):
                continue
            raise unknown_key(key)
        if not isinstance(given, dict):
            raise ConfigError(f"{key} must be a mapping of the options of {name}, not {shown(given)}.")


def _check(place: Place, owner: Owner, option: str, value: Any) -> None:
    own = options_of(owner.thing)
    if option in own:
        replace(own[option].knob, key=f"{owner.key}.{option}").check(as_number(own[option], value))
    elif place.listed or not any(option in options_of(thing) for _, thing in place.kind.items()):
        named = f"{place.key}=[{owner.name}]" if place.listed else f"{place.key}={owner.name}"
        meant = did_you_mean(option, own)
        raise ConfigError(f"{owner.key}.{option} is not an option of {named}{meant}")


def check_given(config: Config, keys: Iterable[str]) -> None:
    """Raise ConfigError for an option, such as `system.rule_options.decay`, that belongs to no named object.

    This is for options that the user gives, whole or in part. A preset's own may not apply, and `complete` leaves them
    out.
    """
    have = {f"{owner.key}.{option}" for _, owner in _owners(config) for option in options_of(owner.thing)}
    for key in sorted(keys):
        place = place_of(key)
        if place is None or not all(name in place.kind for name in place.names(config)):
            continue
        depth = place.options.count(".") + 2 + place.listed
        option = ".".join(key.split(".")[:depth])  # the key may lead into a mapping, which is no option's value
        if option in have:
            continue
        if owners := option_keys().get(option):
            others = " and ".join(f"{place.key}={f'[{name}]' if place.listed else name}" for name in owners)
            raise ConfigError(f"{option} belongs to {others}, not to {place.in_words(config)}.")


def settle(config: Config, given: Collection[str]) -> Config:
    """Configuration with the values that named objects settle, except keys that are `given`.

    Raises ConfigError for a value that is not possible.
    """
    for place, thing in _classes(config):
        for key, value, refusal in thing.settles(config, place.section):
            if key in given:
                continue
            if refusal:
                raise ConfigError(refusal)
            config = config.replace({key: value})
    return config


def conditions(config: Config) -> Iterator[tuple[bool, str]]:
    """Conditions of all objects that a configuration names."""
    for place, thing in _classes(config):
        yield from thing.conditions(config, place.section)
    for part, (name, options) in part_optimizers(config).items():
        alone = config.replace({"algorithm.optimizer": name, "algorithm.optimizer_options": options})
        for holds, message in register.optimizer[name].conditions(alone, "algorithm"):
            yield holds, message.replace("algorithm.optimizer=", f"algorithm.optimizers.{part}=")


def _owners(config: Config) -> Iterator[tuple[Place, Owner]]:
    return ((place, owner) for place in PLACES for owner in place.owners(config))


def _classes(config: Config) -> Iterator[tuple[Place, type[Optioned]]]:
    """Named classes that may have conditions, each with its place."""
    for place, owner in _owners(config):
        if isinstance(owner.thing, type) and issubclass(owner.thing, Optioned):
            yield place, owner.thing


def estimator_of(config: Config) -> str:
    """Name of the estimator of advantages: `algorithm.advantage`, or the algorithm's own one."""
    named, algorithm = config.algorithm.advantage, register.algorithm.get(config.algorithm.name)
    return getattr(algorithm, "advantage", named) if named == "own" else named


def is_recurrent(config: Config) -> bool:
    """Whether the policy has memory: by `network.memory`, or one of its own."""
    policy = register.policy.get(config.network.policy)
    return config.network.memory != "none" or getattr(policy, "recurrent", False) is True


def part_optimizers(config: Config) -> dict[str, tuple[str, dict[str, Any]]]:
    """Names and given options of the optimizers that parts of the policy have (`algorithm.optimizers`).

    Raises ConfigError for one that is neither a name nor a mapping with a name, and for unknown names and options.
    """
    found = {}
    for part, value in config.algorithm.optimizers.items():
        key = f"algorithm.optimizers.{part}"
        given = {"name": value} if isinstance(value, str) else value
        name = given.get("name") if isinstance(given, dict) else None
        if not isinstance(name, str) or not isinstance(given, dict):
            raise ConfigError(f"{key}={shown(value)} must be a name, or a mapping with a name and options.")
        if name not in register.optimizer:
            raise ConfigError(f"{key}={shown(name)} is not registered; accepted: {', '.join(register.optimizer)}.")
        options = {option: number for option, number in given.items() if option != "name"}
        accepted = options_of(register.optimizer[name])
        if "name" in accepted:
            raise ConfigError(f"{key}={name} has an option called name, which a part's optimizer cannot have.")
        for option in options:
            if option not in accepted:
                known = f"; accepted: {', '.join(accepted)}." if accepted else ", which has none."
                raise ConfigError(f"{key}.{option} is no option of {name}{known}")
        for option, value_ in completed(register.optimizer[name], options).items():
            replace(accepted[option].knob, key=f"{key}.{option}").check(value_)
        found[part] = (name, options)
    return found


def memory_setting(network: NetworkConfig) -> str:
    """Key and value that give a policy memory."""
    return f"network.memory={network.memory}" if network.memory != "none" else f"network.policy={network.policy}"


def has_sequences(config: Config) -> bool:
    """Whether minibatches are whole sequences of environments instead of single samples."""
    algorithm = register.algorithm.get(config.algorithm.name)
    estimator = register.advantage.get(estimator_of(config))
    return is_recurrent(config) or getattr(algorithm, "sequences", False) or getattr(estimator, "by_learners", False)


def place_of(key: str) -> Place | None:
    """Place of an option's key; None for other keys."""
    return next((place for place in PLACES if key.startswith(f"{place.options}.")), None)


def value_of(config: Config, key: str) -> Any:
    """Value of a key, or of an option such as `system.rule_options.decay`."""
    if place_of(key) is None:
        return attrgetter(key)(config)
    return next(
        owner.completed[key.removeprefix(f"{owner.key}.")]
        for _, owner in _owners(config)
        if key.removeprefix(f"{owner.key}.") in options_of(owner.thing)
    )


def known_knobs(config: Config) -> dict[str, Knob]:
    """Every config field, and every option of a named object, by its dotted key."""
    known = dict(knobs())
    for _, owner in _owners(config):
        for name, option in options_of(owner.thing).items():
            known[f"{owner.key}.{name}"] = replace(option.knob, key=f"{owner.key}.{name}")
    return known


def option_keys() -> dict[str, list[str]]:
    """Keys of all options, such as `system.rule_options.decay`, with the names of the objects that have them."""
    owners: dict[str, list[str]] = {}
    for place in PLACES:
        for name, thing in place.kind.items():
            for option in options_of(thing):
                owners.setdefault(f"{place.options_key(name)}.{option}", []).append(name)
    return owners


def unknown_key(key: str) -> ConfigError:
    """Error for a dotted key that the schema does not have."""
    options = option_keys()
    # A likely misspelling: system.softsync_c for system.rule_options.c of the rule softsync.
    spelt = {
        f"{place.section}.{name}_{option.rpartition('.')[2]}": option
        for option, names in options.items()
        if (place := place_of(option))
        for name in names
    }
    meant = f"; did you mean {spelt[key]}?" if key in spelt else did_you_mean(key, [*knobs(), *sections(), *options])
    return ConfigError(f"{key} is not a config key{meant}")
