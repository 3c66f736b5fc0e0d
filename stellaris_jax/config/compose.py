"""Configurations from overrides: Hydra composition over `configs/`, with every mistake reported in one sentence.

Hydra provides groups, the override grammar and sweeps. This module adds three things. Overrides are checked against
the schema before Hydra sees them. Every environment of a suite is a choice of group `env`, even without a file
(`SuiteSource`). Remaining errors of Hydra are rewritten as a `ConfigError`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, get_origin

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stellaris_jax.base.commands import as_override
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.near_miss import did_you_mean
from stellaris_jax.config.continuation import GROUPS, keys_of, line_of, replayed, resumed, update
from stellaris_jax.config.old_options import OLD, take_old, with_old
from stellaris_jax.config.options import check_given, settle, unknown_key
from stellaris_jax.config.schema import Knob, shown
from stellaris_jax.config.shipped import AUTOMATIC, files_below, is_automatic, shipped_configs
from stellaris_jax.config.sources import OwnSource, SuiteSource
from stellaris_jax.config.stored import UNREADABLE, defaults, no_value, retold, typed
from stellaris_jax.config.sweeps import SWEEP_KEYS, SweepSettings
from stellaris_jax.config.tree import Config, knobs, sections
from stellaris_jax.config.trust import Trust, imported

NESTED = ("env", "experiment")
"""Groups whose files lie in subfolders: `env=gymnax/cartpole`."""
DEFAULT_ENV = "gymnax/cartpole"
"""Environment of `train.yaml`."""

PRIMARY = "train"

SUITE_AND_NAME = r"[^/]+/.+"
"""Pattern of an environment's name."""

SWEEP_SEEDS = 5
"""Default number of seeds of every point of a sweep: the fewest that an interval is drawn for."""

MOST_POINTS = 10_000
"""Most points of a sweep."""

LONGEST_LINE = 100_000
"""Most characters of an override; Hydra needs minutes for a million."""


def compose_config(overrides: Sequence[str] = (), config_dir: str | Path | None = None, trust: Trust = False) -> Config:
    """Compose a configuration with valid keys and types; `load_config` checks the values' meaning as well.

    Plug-ins are imported. Overrides and `config_dir` are trusted. A run that they name with `resume` or `trace` is not,
    and the code that it names needs consent.

    Args:
      overrides: overrides as on the command line, such as `["env=gymnax/acrobot", "seed=3"]`.
      config_dir: a directory laid out like `configs/`, with choices beyond the shipped ones.
      trust: what of a named run may be imported and connected to (see `config.trust`).

    Raises:
      ConfigError: an override or a value is invalid.
    """
    return compose_configs([overrides], config_dir, trust)[0]


def compose_configs(
    points: Sequence[Sequence[str]], config_dir: str | Path | None = None, trust: Trust = False
) -> list[Config]:
    """Compose several configurations, each as `compose_config` does."""
    with _composer(config_dir) as hydra:
        return [_composed(hydra, overrides, trust) for overrides in points]


def _composed(hydra: _Composer, overrides: Sequence[str], trust: Trust) -> Config:
    parsed = hydra.parse(overrides)
    for override in parsed:
        if override.is_sweep_override():
            raise ConfigError(
                f"{line_of(override)} has several values, and one is taken here; train -m trains them all, and [a,b] "
                "is a list."
            )
    named = [str(o.value()) for o in parsed if o.key_or_group == "resume"]
    if named:
        return resumed(named[-1], parsed, trust)
    given = {override.key_or_group: str(override.value()) for override in parsed}
    if given.get("executor") == "replay" and given.get("trace"):
        return replayed(given["trace"], parsed, trust)
    keys, node = keys_of(parsed), hydra.compose(parsed)
    if "env.name" in keys:
        _decide_by_spaces(hydra, parsed, keys, node)
    config, keys = with_old(imported(typed(node)), take_old(node), keys)
    check_given(config, keys)
    config = settle(config, keys)
    for section in ("system", "scaling"):
        rule, name = f"{section}.rule", f"{section}.name"
        if rule in keys and name not in keys:  # then the preset's name may not fit
            preset = hydra.compose([o for o in parsed if o.key_or_group != rule])
            if preset[section].rule != (chosen := attrgetter(rule)(config)):
                config = config.replace({name: f"rule {chosen}"})
    return config


def _decide_by_spaces(hydra: _Composer, parsed: Sequence[Override], keys: Collection[str], node: DictConfig) -> None:
    """Give `env.name=` the automatic settings of `env=`; everything else of the chosen preset stays."""
    name = node.env.name
    if not isinstance(name, str) or not re.fullmatch(SUITE_AND_NAME, name) or not is_automatic(name):
        return
    others = [o for o in parsed if o.key_or_group not in ("env", "env.name")]
    chosen = hydra.compose([*hydra.parse([as_override("env", name)]), *others])
    for key in AUTOMATIC:
        if f"env.{key}" not in keys:
            node.env[key] = chosen.env[key]


class Sweep(NamedTuple):
    """Plan of a multirun.

    Attributes:
      overrides: overrides of the sweep as a whole, with those of the sweep file.
      points: overrides of every point; a single point where nothing is swept, none where a sweep is resumed.
      directory: directory of the sweep, existing or new.
      resumed: whether the sweep is resumed.
      settings: how points are trained.
    """

    overrides: list[str]
    points: list[list[str]]
    directory: Path
    resumed: bool = False
    settings: SweepSettings = SweepSettings()


def load_sweep(overrides: Sequence[str], config_dir: str | Path | None = None) -> Sweep:
    """Expand swept values of the command line (`seed=0,1,2`) and of the chosen file of group `sweep`.

    A key of the command line replaces that of the file. A sweep that sets no seeds gets SWEEP_SEEDS of every point.

    Args:
      overrides: the command line's.
      config_dir: a directory with further choices.

    Raises:
      ConfigError: an override is invalid, or there are too many points.
    """
    with _composer(config_dir) as hydra:
        own = [line for line in overrides if line.lstrip("+").startswith("sweep.")]
        settings = SweepSettings.of(own)
        given = hydra.parse([line for line in overrides if line not in own])
        keys = {o.key_or_group for o in given}
        if "resume" in keys:
            if any(o.is_sweep_override() for o in given):
                raise ConfigError("The points of a sweep that is resumed are those it has; nothing can be swept over.")
            place = [str(o.value()) for o in given if o.key_or_group == "resume"][-1]
            others = [line_of(o) for o in given if o.key_or_group != "resume"]
            return Sweep(others, [], Path(place), resumed=True, settings=settings)
        if "run.dir" in keys:
            raise ConfigError("run.dir is not possible with -m: points lie in the directory of their sweep.")
        chosen = [o for o in given if o.key_or_group == "sweep" or o.is_hydra_override()]
        node = hydra.compose(chosen, hydra=True).hydra
        params = {key: value for key, value in (node.sweeper.params or {}).items() if key not in keys}
        if not {"seed", "num_seeds"} & {*keys, *params}:
            params["num_seeds"] = SWEEP_SEEDS
        merged = hydra.parse([f"{key}={value}" for key, value in params.items()]) + given
        points = list(itertools.islice(itertools.product(*(_values(o) for o in merged)), MOST_POINTS + 1))
        if len(points) > MOST_POINTS:
            raise ConfigError(f"This sweep has more than {MOST_POINTS} points; sweep over fewer values.")
        lines = [line_of(o) for o in merged]
        return Sweep(lines, [list(point) for point in points], Path(node.sweep.dir), settings=settings)


def choices(group: str, config_dir: str | Path | None = None) -> list[str]:
    """Choices of a config group such as `system`; files in subfolders as folder/name."""
    with _composer(config_dir) as hydra:
        return hydra.choices(group)


class _Composer:
    """Hydra, initialised on the config directories: parses and checks overrides, and composes."""

    def __init__(self, own: Path | None):
        self.files = files_below(own) + files_below(shipped_configs())
        self.search = (f"hydra.searchpath=['own://{own.resolve()}','suites://']",) if own else ()
        self.loader = GlobalHydra.instance().config_loader()

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """Overrides, checked against the schema and the files, in a form that Hydra accepts."""
        parser = OverridesParser.create(self.loader)
        parsed = []
        if isinstance(overrides, str) or not all(isinstance(line, str) for line in overrides):
            raise ConfigError(f"Overrides are a list of texts, as in ['seed=3'], not {shown(overrides)}.")
        for line in overrides:
            if len(line) > LONGEST_LINE:
                raise ConfigError(f"{shown(line)} is too long an override; write it into a file of --config-dir.")
            try:
                (override,) = parser.parse_overrides([line])
                self._check(override)
                if not override.is_sweep_override():
                    OmegaConf.create([override.value()])  # references are well formed
                parsed += parser.parse_overrides([_normal(override, line)])
            except ConfigError:
                raise
            except (HydraException, OmegaConfBaseException, RecursionError, ValueError):  # endless integers
                advice = "write key=value" if "=" not in line else "quote the value, as in key='a, b'"
                raise ConfigError(f"{shown(line)} is not an override; {advice}.") from None
        return parsed

    def _check(self, override: Override) -> None:
        key = override.key_or_group
        if override.is_hydra_override():
            return
        if override.is_delete():
            raise ConfigError(f"~{key} is not possible; keys can be set, but not removed.")
        if override.package is not None:
            raise unknown_key(f"{key}@{override.package}")
        if key in GROUPS:
            for choice in _values(override):
                self._check_choice(key, choice.removeprefix(f"{key}="))
        elif key in sections():
            if not isinstance(override.value(), dict):
                raise no_value(key)
        elif key in SWEEP_KEYS:
            raise ConfigError(f"{key} is for sweeps; add -m.")
        elif (known := _knob_of(key)) is None:
            raise unknown_key(key)
        elif get_origin(known.kind) is tuple and isinstance(override.value(), dict):
            known.check(override.value())  # raises, since a mapping cannot be merged into a list

    def _check_choice(self, group: str, choice: str) -> None:
        if group == "env":
            if not re.fullmatch(SUITE_AND_NAME, choice):
                raise ConfigError(f"env={choice} must be suite/name, such as env=gymnax/cartpole.")
            return
        options = self.choices(group)
        if choice not in options:
            raise ConfigError(f"{group}={choice} is not one of {', '.join(options)}{did_you_mean(choice, options)}")

    def _tuned(self, chosen: dict[str, str]) -> list[Override]:
        """Choice of the tuned values of an algorithm: for the environment, or for any."""
        if "tuned" in chosen or "algorithm" not in chosen:
            return []
        algorithm, names = chosen["algorithm"], self.choices("tuned")
        of_env = f"{algorithm}_{chosen.get('env', DEFAULT_ENV).replace('/', '_')}"
        name = next((name for name in (of_env, algorithm) if name in names), None)
        return [] if name is None else self.parse([f"tuned={name}"])

    def choices(self, group: str) -> list[str]:
        folders = [""]
        if group in NESTED:
            folders = [f"{name}/" for name in self._list(group, ObjectType.GROUP)]
        return [folder + name for folder in folders for name in self._list(f"{group}/{folder}", ObjectType.CONFIG)]

    def _list(self, group: str, kind: ObjectType) -> list[str]:
        return _listed(group.rstrip("/"), kind, self.search, self.files)

    def compose(self, overrides: Sequence[Override], hydra: bool = False) -> DictConfig:
        """Composed tree; with `hydra`, including Hydra's own settings.

        Hydra merges the chosen files first and sets single keys afterwards, so the merged files are cached.
        """
        chosen = [o for o in overrides if o.key_or_group in GROUPS or o.is_hydra_override()]
        chosen += self._tuned({o.key_or_group: str(o.value()) for o in chosen})
        lines = (*self.search, *map(line_of, chosen))
        try:
            node = deepcopy(_merged(lines, hydra, self.files))
        except ConfigError:
            raise
        except (HydraException, *UNREADABLE) as error:
            raise retold(error) from None
        for override in overrides:
            if override not in chosen:
                update(node, override)
        return node


@lru_cache(maxsize=256)
def _merged(lines: tuple[str, ...], hydra: bool, files: tuple[Any, ...]) -> DictConfig:
    """Tree of merged config files, cached until the files change."""
    node = compose(PRIMARY, list(lines), return_hydra_config=hydra)
    OmegaConf.set_struct(node, False)
    return node


@lru_cache(maxsize=64)
def _listed(group: str, kind: ObjectType, search: tuple[str, ...], files: tuple[Any, ...]) -> list[str]:
    """Names in a group, cached until the files change."""
    return GlobalHydra.instance().config_loader().get_group_options(group, kind, PRIMARY, list(search))


SCHEMA = "schema"
_stored: list[Any] = []


def _store_schema() -> None:
    """Register keys and types with Hydra unless they are; other users of Hydra share its store."""
    store = ConfigStore.instance()
    if not _stored or store.repo.get(f"{SCHEMA}.yaml") is not _stored[0]:
        store.store(name=SCHEMA, node=defaults())
        _stored[:] = [store.repo[f"{SCHEMA}.yaml"]]


@contextmanager
def _composer(config_dir: str | Path | None) -> Iterator[_Composer]:
    """Context in which Hydra is initialised; an outer Hydra application, such as a sweep, is suspended."""
    _store_schema()
    for source in (SuiteSource, OwnSource):
        Plugins.instance().register(source)
    own = Path(config_dir) if config_dir else None
    if own and not own.is_dir():
        raise ConfigError(f"The config directory {config_dir} does not exist.")
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(shipped_configs()), version_base="1.3"):
            yield _Composer(own)
    finally:
        if outer is not None:
            GlobalHydra.instance().initialize(outer)


def _knob_of(key: str) -> Knob | None:
    """Config field that `key` sets, wholly or, for a mapping such as env.kwargs, in part."""
    entries = {**knobs(), **OLD}
    owner = next(
        (name for name, entry in entries.items() if get_origin(entry.kind) is dict and key.startswith(f"{name}.")), key
    )
    return entries.get(owner)


def _normal(override: Override, line: str) -> str:
    """Override in Hydra's form: `++` opens mappings for new keys, and 1e6 becomes an integer where one is needed."""
    if override.is_hydra_override():
        return line
    key, _, value = line.lstrip("+").partition("=")
    entry = _knob_of(key)
    if entry is None:
        return f"{key}={value}"
    if entry.kind is int:
        value = re.sub(r"(?<![\w.])\d+(\.\d*)?e\+?\d+(?![\w.])", _integer, value, flags=re.IGNORECASE)
    return f"++{key}={value}" if get_origin(entry.kind) is dict else f"{key}={value}"


def _integer(number: re.Match[str]) -> str:
    value = float(number[0])
    return str(int(value)) if value.is_integer() else number[0]


def _values(override: Override) -> list[str]:
    """One override per swept value; the override itself if it is not swept."""
    if not override.is_sweep_override():
        return [line_of(override)]
    if not override.is_discrete_sweep():
        raise ConfigError(f"{line_of(override)} is not a list of values, which a sweep needs.")
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
