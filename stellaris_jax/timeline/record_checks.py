"""Type checks of recorded rounds: a trace is a file, so its values may have any type."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, get_type_hints

MOST = 2**31 - 1
"""Largest count: plans are arrays of 32-bit integers."""
T = TypeVar("T")


class Damaged(ValueError):
    """Error: a file holds a value that no run writes."""


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MOST * 1e9 and math.isfinite(value)


def _all(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


CHECKS: dict[Any, Callable[[Any], bool]] = {
    int: _is_count,
    float: _is_number,
    float | None: lambda value: value is None or _is_number(value),
    bool: lambda value: isinstance(value, bool),
    str: lambda value: isinstance(value, str),
    list[int]: _all(_is_count),
    list[float]: _all(_is_number),
}
"""Check of a value by the type of its field; fields of other types hold records that were checked before."""


def made(kind: Callable[..., T], data: Mapping[str, Any], **parts: Any) -> T:
    """Record built from values of a file, each checked by the type of its field.

    Args:
      kind: class of the record.
      data: values of its fields.
      parts: further values, which have been checked.

    Raises:
      Damaged: a value is of another type, negative where it is a count, or not finite.
      TypeError: a value belongs to no field, or a required field is missing.

    >>> from stellaris_jax.timeline.records import Gradient
    >>> made(Gradient, {"fragment": 0, "minibatch": 1, "learner": 2, "version": -3})
    Traceback (most recent call last):
    ...
    stellaris_jax.timeline.record_checks.Damaged: version is -3
    """
    checks = _checks(kind)
    for key, value in data.items():
        if key in checks and not checks[key](value):
            raise Damaged(f"{key} is {json.dumps(value)[:40]}")
    return kind(**data, **parts)


@cache
def _checks(kind: Any) -> dict[str, Callable[[Any], bool]]:
    return {key: CHECKS[hint] for key, hint in get_type_hints(kind).items() if hint in CHECKS}
