"""Matching names as people type them, and the sentences for names that match nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

from stellaris_jax.schema import ConfigError

LISTED = 100
_VERSION = re.compile(r"-v(\d+)$")


def match(name: str, options: Collection[str]) -> str | None:
    """The option meant by `name`, or `None`.

    Case and punctuation do not matter, and the version may be left out (the highest is then taken):
    `acrobot` means `Acrobot-v1`, `breakout_minatar` means `Breakout-MinAtar`. A version that is given
    must be the option's own, for versions are different tasks.
    """
    exact = [option for option in options if _plain(option) == _plain(name)]
    versions = [option for option in options if _plain(_VERSION.sub("", option)) == _plain(name)]
    return exact[0] if exact else max(versions, key=_version, default=None)


def suggest(name: str, options: Collection[str]) -> str:
    """`did you mean a or b?` where options resemble `name`, otherwise all of them, if they are not too many."""
    names = {_plain(option): option for option in options}
    near = [names[key] for key in difflib.get_close_matches(_plain(name), names, n=3, cutoff=0.5)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    if len(names) > LISTED:
        return f"none of the {len(names)} names there resembles it."
    return f"choose from {', '.join(sorted(names.values()))}."


def check_options(env: str, options: Mapping[str, Any], accepted: Collection[str]) -> None:
    """Raise `ConfigError` for the first key of `options` that the environment does not take."""
    for key in options:
        if key not in accepted:
            advice = suggest(key, accepted) if accepted else "it takes none."
            raise ConfigError(f"env.kwargs.{key} is not an option of {env}: {advice}")


def positive_int(key: str, value: Any) -> int:
    """`value` if it is an integer of at least 1, else `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"env.kwargs.{key}={value!r} must be an integer of at least 1.")
    return value


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _version(name: str) -> int:
    found = _VERSION.search(name)
    return int(found[1]) if found else 0
