"""gymnasium wrappers that a configuration names: `env.kwargs.wrappers=[gymnasium.wrappers.FlattenObservation]`.

An entry is a class by its dotted path, or a mapping of its `name` and its arguments. Classes that `gymnasium.wrappers`
exports come with gymnasium. Every other path is third-party code, and `config.trust` asks consent for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.schema import plain, shown

KEY = "env.kwargs.wrappers"
ARGUMENT = "wrappers"
"""Argument of `env=gymnasium/...` that lists wrappers, innermost first."""
EXPORTED = re.compile(r"gymnasium\.wrappers\.([A-Z]\w*)", re.ASCII)
WRITES = ("RecordVideo",)
"""Wrappers of gymnasium that write files, which needs consent as code does."""
PATH = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)\.([A-Za-z_]\w*)", re.ASCII)


class GymWrapper(NamedTuple):
    """Gymnasium wrapper that a configuration names.

    Attributes:
      path: dotted path of its class.
      arguments: keyword arguments besides the environment.
    """

    path: str
    arguments: dict[str, Any]

    @property
    def exported(self) -> str | None:
        """Name under which `gymnasium.wrappers` exports the class; None for code that needs consent."""
        match = EXPORTED.fullmatch(self.path)
        return match[1] if match and match[1] not in WRITES else None

    @property
    def module(self) -> str:
        """Module that the class is imported from."""
        return self.path.rpartition(".")[0]


def wrappers_of(kwargs: Mapping[str, Any]) -> list[GymWrapper]:
    """Wrappers that `env.kwargs` names. Raises ConfigError unless they form a valid list."""
    given, wrappers = kwargs.get(ARGUMENT, ()), []
    for entry in given if isinstance(given, list | tuple) else [given]:
        name, arguments = entry, dict[str, Any]()
        if isinstance(entry, Mapping):
            arguments = {key: plain(value) for key, value in entry.items() if key != "name"}
            name = entry.get("name")
        if not isinstance(given, list | tuple) or not isinstance(name, str) or not PATH.fullmatch(name):
            raise ConfigError(
                f"{KEY}={shown(plain(given))} must be a list of dotted paths, or of mappings with name and arguments: "
                "[gymnasium.wrappers.FlattenObservation, {name: gymnasium.wrappers.RepeatAction, num_repeats: 4}]."
            )
        wrappers.append(GymWrapper(name, arguments))
    return wrappers
