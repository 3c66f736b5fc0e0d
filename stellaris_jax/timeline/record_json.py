"""JSON form of records in checkpoints and traces, with type checks for files whose values may have any type."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

MOST = 2**31 - 1
"""Largest count: plans are arrays of 32-bit integers."""
T = TypeVar("T")


class InvalidRecord(ValueError):
    """Error: a file holds a value that no run writes."""


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MOST * 1e9 and math.isfinite(value)


def _all(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


is_counts = _all(_is_count)
"""Whether a value is a list of counts."""
CHECKS: dict[Any, Callable[[Any], bool]] = {
    int: _is_count,
    float: _is_number,
    float | None: lambda value: value is None or _is_number(value),
    bool: lambda value: isinstance(value, bool),
    str: lambda value: isinstance(value, str),
    list[int]: is_counts,
    list[float]: _all(_is_number),
}
"""Check of a value by the type of its field; fields of other types hold records."""


def as_data(value: Any) -> Any:
    """JSON data of a record: a dictionary of its fields, with nested records and copies of lists."""
    if isinstance(value, list):
        return [as_data(part) for part in value]
    kind: Any = type(value)
    names = _field_names(kind)
    return {name: as_data(getattr(value, name)) for name in names} if names else value


def record_of(kind: Callable[..., T], data: Mapping[str, Any], checked: bool = False) -> T:
    """Record from what `as_data` returned, possibly through JSON; missing fields get their defaults.

    Args:
      kind: class of the record, a dataclass or a NamedTuple.
      data: values of its fields.
      checked: check the values, as `checked_record` does.
    """
    hints, values = _hints(kind), dict[str, Any]()
    for key, value in data.items():
        hint: Any = hints.get(key)
        if checked and hint in CHECKS and not CHECKS[hint](value):
            raise InvalidRecord(f"{key} is {json.dumps(value)[:40]}")
        part = next(filter(_field_names, get_args(hint)), None)
        if _field_names(hint):
            values[key] = record_of(hint, value, checked)
        elif part is not None:
            values[key] = [record_of(part, entry, checked) for entry in value]
        else:
            values[key] = value
    return kind(**values)


def checked_record(kind: Callable[..., T], data: Mapping[str, Any]) -> T:
    """Record built from values of a file, each checked by the type of its field.

    Args:
      kind: class of the record.
      data: values of its fields.

    Raises:
      InvalidRecord: a value is of another type, negative where it is a count, or not finite.
      TypeError: a value belongs to no field, or a required field is missing.

    >>> from stellaris_jax.timeline.records import Gradient
    >>> checked_record(Gradient, {"fragment": 0, "minibatch": 1, "learner": 2, "version": -3})
    Traceback (most recent call last):
    ...
    stellaris_jax.timeline.record_json.InvalidRecord: version is -3
    """
    return record_of(kind, data, checked=True)


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    """Names of a record's fields; empty for other types."""
    if is_dataclass(kind):
        return tuple(entry.name for entry in fields(kind) if entry.metadata.get("stored", True))
    names: tuple[str, ...] = getattr(kind, "_fields", ()) if isinstance(kind, type) else ()
    return names


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
