"""gymnasium wrappers that a configuration names: `env.kwargs.wrappers=[gymnasium.wrappers.FlattenObservation]`.

An entry is a class by its dotted path, or a mapping of its `name` and its arguments. Classes that `gymnasium.wrappers`
exports come with gymnasium; every other path is code of somebody else's, which `config.trust` asks consent for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from stellaris_jax.config.schema import ConfigError, plain, shown

KEY = "env.kwargs.wrappers"
ARGUMENT = "wrappers"
"""Argument of `env=gymnasium/...` that lists wrappers, the first innermost."""
EXPORTED = re.compile(r"gymnasium\.wrappers\.([A-Z]\w*)", re.ASCII)
WRITES = ("RecordVideo",)
"""Wrappers of gymnasium that write files, and so need consent as code does."""
PATH = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)\.([A-Za-z_]\w*)", re.ASCII)


class GymWrapper(NamedTuple):
    """A wrapper that a configuration names.

    Attributes:
      path: the dotted path of its class.
      arguments: keyword arguments beside the environment.
    """

    path: str
    arguments: dict[str, Any]

    @property
    def exported(self) -> str | None:
        """The name under which `gymnasium.wrappers` exports it; None where it is code that needs consent."""
        found = EXPORTED.fullmatch(self.path)
        return found[1] if found and found[1] not in WRITES else None

    @property
    def module(self) -> str:
        """The module that the class is imported from."""
        return self.path.rpartition(".")[0]


def wrappers_of(kwargs: Mapping[str, Any]) -> list[GymWrapper]:
    """The wrappers that `env.kwargs` names, all or none of them.

    Raises ConfigError for what is no list of wrappers.
    """
    given, found = kwargs.get(ARGUMENT, ()), []
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
        found.append(GymWrapper(name, arguments))
    return found
