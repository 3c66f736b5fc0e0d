"""Configurations that continue a stored one: a run that is resumed, and a live run that is replayed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import plugin_path
from stellaris_jax.config.old_options import take_old, with_old
from stellaris_jax.config.options import check_given
from stellaris_jax.config.stored import UNREADABLE, from_yaml, retold, run_config, schema, typed
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import Trust, admit

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

GROUPS = (
    "env", "tuned", "preprocessing", "network", "algorithm", "system", "scaling", "platform", "delays", "prices",
    "experiment", "sweep",
)  # fmt: skip
"""Directories of `configs/`: a command line chooses one file of each, as in `system=ssp`."""

RESUMABLE = (
    "resume", "total_steps", "engine", "evaluation", "checkpoint", "run.progress", "run.loggers", "run.logger_options",
    "live",
)  # fmt: skip
"""Keys, and groups of keys, that may change when a run is resumed."""
OLD_RESUMABLE = "run.options"
"""Old key of options that may change, too: loggers' own."""


def replayed(trace: str, overrides: Sequence[Override], trust: Trust) -> Config:
    """Configuration of a replay: that of a live run, with overrides applied.

    Args:
      trace: directory of the live run, or its trace.
      overrides: single keys to change.
      trust: what the user allowed (see `config.trust`).

    Raises:
      ConfigError: there is no live run, or an override cannot be applied.
    """
    directory = Path(trace).parent if Path(trace).suffix == ".gz" else Path(trace)
    path = directory / "config.yaml"
    if not os.path.isfile(path):
        raise ConfigError(f"trace={trace} is of no run: there is no {path}.")
    stored = from_yaml(path)
    if stored.executor != "live":
        raise ConfigError(f"trace={trace} is of no live run: its executor is {stored.executor}.")
    node = schema(stored.replace({"run.dir": "", "resume": ""}))
    for override in overrides:
        if override.key_or_group in GROUPS:
            raise ConfigError(f"{line_of(override)} chooses a file; a replay takes single keys, such as system.rho=2.")
        update(node, override)
    keys = keys_of(overrides)
    config, keys = with_old(admit(typed(node), path, trust, training=True, typed=keys), take_old(node), keys)
    check_given(config, keys)
    return config


def resumed(directory: str, overrides: Sequence[Override], trust: Trust) -> Config:
    """Configuration of a resumed run: the stored one, with those overrides applied that may change.

    `plugins=[...]` may name plug-ins of the run again, which allows them.

    Args:
      directory: directory of the run.
      overrides: keys to change.
      trust: what the user allowed (see `config.trust`).

    Raises:
      ConfigError: there is no run, or an override may not change.
    """
    if not directory:
        raise ConfigError("resume= is empty; name the directory of the run, or leave it out to start a new one.")
    path = Path(directory) / "config.yaml"
    if os.path.isfile(path.with_name("sweep.yaml")):
        raise ConfigError(f"resume={directory} holds a sweep; add -m to go on with it.")
    run_config(directory, f"resume={directory}")
    stored = from_yaml(path)
    node = schema(stored)
    for override in overrides:
        key = override.key_or_group
        if key == "resume":  # the directory's name, which may look like a reference
            continue
        if key == "plugins" and {*map(plugin_path, _texts(override.value()))} <= {*map(plugin_path, stored.plugins)}:
            trust = trust if isinstance(trust, bool) and trust else [*(trust or ()), *_texts(override.value())]
            continue
        if not any(key == free or key.startswith(f"{free}.") for free in (*RESUMABLE, OLD_RESUMABLE)):
            raise ConfigError(f"{key} cannot change when a run is resumed; only {', '.join(RESUMABLE[1:])} can.")
        update(node, override)
    keys = keys_of(overrides) - {"plugins"}
    config, keys = with_old(admit(typed(node), path, trust, training=True, typed=keys), take_old(node), keys)
    check_given(config, keys)
    config = config.replace({"run.dir": directory, "resume": directory})
    if stored.algorithm.anneal and config.rounds != stored.rounds:
        raise ConfigError(
            f"total_steps={config.total_steps} is not possible: algorithm.anneal=true lowers the learning rate of "
            f"{directory} to zero at total_steps={stored.total_steps}, and that schedule is kept."
        )
    return config


def update(node: DictConfig, override: Override) -> None:
    """Apply an override to a tree. Raises ConfigError for a value that the key cannot have."""
    try:
        OmegaConf.update(node, override.key_or_group, override.value())
    except UNREADABLE as error:
        raise retold(error) from None


def line_of(override: Override) -> str:
    """Override as the user gave it, `key=value`."""
    return str(override.input_line)


def keys_of(overrides: Sequence[Override]) -> set[str]:
    """Dotted keys that overrides set."""
    return {key for override in overrides for key in _leaves(override.key_or_group, override.value())}


def _texts(value: object) -> list[str]:
    """Texts of a list, or the one text given in its place."""
    return list(map(str, value)) if isinstance(value, list) else [str(value)]


def _leaves(key: str, value: object) -> Iterator[str]:
    """Dotted keys that an override of `key` sets; a mapping sets each of its own, and an empty one its key."""
    if not isinstance(value, dict) or not value:
        yield key
        return
    for name, element in value.items():
        yield from _leaves(f"{key}.{name}", element)
