"""Configurations as files and as Hydra's trees: written, read, and typed. Every mistake is reported in one sentence."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.old_options import accept_old, migrated, take_old
from stellaris_jax.config.options import unknown_key
from stellaris_jax.config.schema import DEEPEST, check_text, plain
from stellaris_jax.config.tree import Config, knobs, sections

LAST = "resume"
"""Key that `to_yaml` writes last; a file without it was cut off."""

UNREADABLE = (OSError, ValueError, OverflowError, RecursionError, yaml.YAMLError, OmegaConfBaseException)
"""Exceptions from reading a file that is no YAML, or no configuration."""


def to_yaml(config: Config) -> str:
    """Configuration as YAML, from which `from_yaml` makes an equal one."""
    return OmegaConf.to_yaml(OmegaConf.create(plain(config)))


def run_config(run_dir: str | Path, told: str = "") -> Path:
    """Path of the configuration of a run.

    Args:
      run_dir: directory of the run.
      told: name of the directory in the error, such as `init_from=DIR`; by default the directory.

    Raises:
      ConfigError: there is none. The error names a point if the directory is a sweep's.
    """
    path, told = Path(run_dir) / "config.yaml", told or str(run_dir)
    if os.path.isfile(path):  # false also for a path that is too long
        return path
    point = Path(run_dir, "0")
    if os.path.isfile(point / "config.yaml"):
        raise ConfigError(f"{told} is a sweep; name one of its runs, such as {point}.")
    raise ConfigError(f"{told} holds no run: there is no {path}.")


def from_yaml(path: str | Path) -> Config:
    """Read a configuration that `to_yaml` wrote. Keys that an earlier version lacked get their defaults.

    References to something else, such as `${oc.env:HOME}` or an alias, are refused and never resolved. No plug-in is
    imported (see `config.trust`). Raises ConfigError.
    """
    node = read_yaml(path)
    if not node:
        raise ConfigError(f"{path} cannot be read as a configuration: there are no keys in it.")
    try:
        for key, text in _texts(node):
            check_text(key, text)
        config = typed(OmegaConf.create(migrated(node)))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if LAST not in node:
        raise ConfigError(f"{path} is cut off: it has no {LAST}, which it was written with as its last key.")
    return config


def read_yaml(path: str | Path) -> dict[Any, Any]:
    """Mapping in a YAML file, with references unresolved; aliases are refused. Raises ConfigError."""
    try:
        text = inputs.read_text(path, inputs.CONFIGURATION)
        refuse_aliases(text)
        node = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
    except UNREADABLE as error:
        raise ConfigError(f"{path} cannot be read as a configuration: {_one_line(error)}") from None
    if not isinstance(node, dict):
        raise ConfigError(f"{path} cannot be read as a configuration: it is a list.")
    return node


def refuse_aliases(text: str | bytes) -> None:
    """Raise ValueError for YAML with aliases, since a few lines of them can expand beyond all memory.

    Raises RecursionError for YAML that is nested deeper than configuration data may be.
    """
    depth = 0
    for event in yaml.parse(text):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"line {event.start_mark.line + 1} has an alias, *{event.anchor}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > 2 * DEEPEST:
            raise RecursionError


def _texts(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a tree, after its dotted key."""
    if isinstance(node, str):
        yield key, node
    elif isinstance(node, dict):
        for name, value in node.items():
            yield from _texts(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value, key)


def schema(config: Config | None = None) -> DictConfig:
    """Keys, types and values of a configuration, by default the defaults, as a mutable tree; see `take_old`."""
    node: Any = OmegaConf.structured(Config)
    for section in ("", *sections()):
        OmegaConf.set_readonly(OmegaConf.select(node, section) if section else node, None)
    accept_old(node)
    return OmegaConf.merge(node, plain(config)) if config else node  # type: ignore[return-value]


@cache
def defaults() -> DictConfig:
    """Cached `schema()`, for callers that copy it."""
    return schema()


def typed(node: DictConfig) -> Config:
    """Configuration object of a composed or loaded tree. Imports nothing; old keys are left out."""
    for key in sections():
        if not isinstance(OmegaConf.select(node, key, default=DictConfig({})), DictConfig):
            raise no_value(key)
    try:
        merged = OmegaConf.merge(defaults(), node)
        take_old(merged)
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise retold(error) from None
    assert isinstance(config, Config)
    return config


def no_value(section: str) -> ConfigError:
    """Error for a group of keys that was given a value."""
    members = ", ".join(name for name in knobs() if name.startswith(f"{section}."))
    return ConfigError(f"{section} is a group of keys, not a value; set one of {members}.")


def retold(error: Exception) -> ConfigError:
    """Error of Hydra or OmegaConf, rewritten as one sentence about the key that it names, if any."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    key = re.sub(r"\[.*", "", str(cause.full_key)) if cause else ""
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)) and key:
        return unknown_key(key)
    if isinstance(cause, ValidationError) and key in knobs():
        return knobs()[key].wrong_kind(cause.value)
    where = re.search(r"full_key: ([\w.]+)", str(error))
    return ConfigError(f"{where[1]}: {_one_line(error)}" if where else _one_line(cause or error))


def _one_line(error: BaseException) -> str:
    """Error message on one line, without the details that OmegaConf adds on further lines."""
    if isinstance(error, RecursionError):
        return "it holds itself, or is nested too deeply."
    if isinstance(error, OSError):
        return f"{inputs.reason(error)}."
    return " ".join(re.sub(r"\n\s+\w+: .*|\n\s*\w+=.*", "", str(error)).split()).rstrip(".") + "."
