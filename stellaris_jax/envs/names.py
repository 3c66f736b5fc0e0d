"""Tolerant matching of names, and error messages for unknown names and options."""

from __future__ import annotations

import difflib
import os
import re
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from traceback import walk_tb
from typing import Any

from stellaris_jax.base.commands import PACKAGE
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.schema import shown

LISTED = 100
LONGEST_ERROR = 200
"""Characters that are shown of what an error says."""
INTEGERS = 2**31
"""Exclusive upper bound of 32-bit integers in JAX."""
_OTHERS = tuple(f"{path}{os.sep}" for path in (PACKAGE, sysconfig.get_path("stdlib")))
"""Folders of code that is not the user's, in addition to installed packages."""
_VERSION = re.compile(r"-v(\d+)$")


def match(name: str, options: Collection[str]) -> str | None:
    """Option that `name` matches, or `None`.

    Case and punctuation are ignored, and without a version the highest one is taken:
    `acrobot` matches `Acrobot-v1`, `breakout_minatar` matches `Breakout-MinAtar`. A given version
    must match exactly, because versions are different tasks.

    >>> options = ["Acrobot-v1", "CartPole-v0", "CartPole-v1", "Breakout-MinAtar"]
    >>> [match(name, options) for name in ("cartpole", "cart_pole-v0", "breakout_minatar", "acrobot-v2")]
    ['CartPole-v1', 'CartPole-v0', 'Breakout-MinAtar', None]
    """
    exact = [option for option in options if _plain(option) == _plain(name)]
    versions = [option for option in options if _plain(_VERSION.sub("", option)) == _plain(name)]
    return exact[0] if exact else max(versions, key=_version, default=None)


def suggest(name: str, options: Collection[str]) -> str:
    """Suggestion for an unknown name: `did you mean a or b?`, or all options if none is similar and the list is short.

    >>> suggest("acrobat", ["Acrobot-v1", "CartPole-v1"]), suggest("chess", ["Acrobot-v1", "CartPole-v1"])
    ('did you mean Acrobot-v1?', 'choose from Acrobot-v1, CartPole-v1.')
    """
    names = {_plain(option): option for option in options}
    near = [names[key] for key in difflib.get_close_matches(_plain(name), names, n=3, cutoff=0.5)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    if len(names) > LISTED:
        return f"none of the {len(names)} names there resembles it."
    return f"choose from {', '.join(sorted(names.values()))}."


def retold(error: BaseException) -> str:
    """Message of an error of somebody else's code, on one line of bounded length."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")
    return text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}..."


def raised(error: BaseException) -> str:
    """Text of an error as from `retold`, with the file and line of the user's code in which it was raised.

    Code of this package, installed packages and Python's standard library is not the user's.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [(path, line) for path, line in frames if _is_users(path)]
    return retold(error) + (_place(*own[-1]) if own else "")


def users_place(function: Any) -> str:
    """File and line of a function of the user's own code, as the end of a sentence; empty for any other code."""
    code = getattr(function, "__code__", None)
    return _place(code.co_filename, code.co_firstlineno) if code is not None and _is_users(code.co_filename) else ""


def _place(path: str, line: int) -> str:
    return f"; {' '.join(path.split())}, line {line}"


def _is_users(path: str) -> bool:
    installed = path.startswith(_OTHERS) or not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep))
    return os.path.isabs(path) and not installed


def check_options(env: str, options: Mapping[str, Any], accepted: Collection[str]) -> None:
    """Raise `ConfigError` for the first key of `options` that the environment does not accept."""
    for key in options:
        if key not in accepted:
            advice = suggest(key, accepted) if accepted else "it takes none."
            raise ConfigError(f"env.kwargs.{key} is not an option of {env}: {advice}")


def positive_int(key: str, value: Any) -> int:
    """Return `value` if it is an integer of at least 1 and below 2**31, else raise `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < INTEGERS:
        raise ConfigError(f"env.kwargs.{key}={shown(value)} must be an integer of at least 1, and below 2**31.")
    return value


def like(key: str, value: Any, default: Any) -> Any:
    """Return `value` if it has the type of `default` (flag, text, range or number), else raise `ConfigError`."""
    if isinstance(default, bool):
        valid, kind = isinstance(value, bool), "true or false"
    elif isinstance(default, str):
        valid, kind = isinstance(value, str), "text"
    elif isinstance(default, tuple):
        pair = isinstance(value, Sequence) and len(value) == 2 and all(map(_is_number, value))
        valid, kind = pair and value[0] < value[1], "two numbers, the lower first"
    elif isinstance(default, int | float):
        valid, kind = _is_number(value), "a number, an integer of less than 32 bits"
    else:
        return value
    if not valid:
        raise ConfigError(f"env.kwargs.{key}={shown(value)} must be {kind}.")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < INTEGERS
    )


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _version(name: str) -> int:
    version = _VERSION.search(name)
    return int(version[1]) if version else 0
