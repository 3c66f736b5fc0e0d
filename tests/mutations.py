"""Mutations of JSON documents: every value, in turn, is another one or gone."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from typing import Any

GONE = object()
"""Value of a key that is missing."""
VALUES: dict[str, Any] = {
    "null": None, "text": "much", "negative": -3, "huge": 1e300, "long": 10**30, "nan": math.nan, "list": [1],
    "mapping": {"a": 1}, "true": True, "gone": GONE,
}  # fmt: skip
Path = tuple[Any, ...]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Paths of all values below a document: of a list the first and the last, for the others are alike."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = [(index, value[index]) for index in sorted({0, len(value) - 1}) if value]
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def mutated(document: Any, path: Path, value: Any) -> Any:
    """A copy of a document with another value at a path."""
    found = copy.deepcopy(document)
    node = found
    for key in path[:-1]:
        node = node[key]
    if value is GONE:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return found


def mutations(document: Any) -> Iterator[tuple[str, Any]]:
    """All mutations of a document, and what they are called."""
    for path in places(document):
        for name, value in VALUES.items():
            changed = mutated(document, path, value)
            if json.dumps(changed) != json.dumps(document):
                yield f"{'.'.join(map(str, path))} {name}", changed
