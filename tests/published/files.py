"""Files of results, each read once."""

from __future__ import annotations

import csv
import functools
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
LONGEST = 10**9
"""Characters that a field of a table may have."""


@functools.cache
def table(name: str, *columns: str) -> tuple[dict[str, str], ...]:
    """Rows of a CSV file, which may be compressed: these columns, or all."""
    content = (RESULTS / name).read_bytes()
    text = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
    before = csv.field_size_limit(LONGEST)
    try:
        header, *lines = csv.reader(text.splitlines())
    finally:
        csv.field_size_limit(before)  # what other tests read with
    places = {column: header.index(column) for column in columns or header}
    return tuple({column: line[place] for column, place in places.items()} for line in lines)


@functools.cache
def document(name: str) -> Any:
    """Content of a JSON file; of a benchmark's file, its result."""
    content = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return content.get("result", content) if isinstance(content, dict) else content


def numbers(field: str) -> np.ndarray:
    """Numbers of a field of a table, which are separated by spaces."""
    return np.array(field.split(), float)
