"""Checks of a checkpoint's array documents, before TensorStore allocates the memory they request.

Each array has a document `.zarray`, in its own directory or within Orbax's OCDBT files. The document states the
unpacked size of a chunk, independent of the array's size: a few bytes could unpack to more than all memory.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from stellaris_jax.base import inputs

MANIFEST = "manifest.ocdbt"
LARGEST = inputs.MIB
"""Largest size of a document, in bytes."""
MOST_CHUNKS = 2**12
"""Largest number of chunks of an array. Orbax writes one for each part that lay on its own device."""
SPARE = inputs.DOCUMENT
"""Bytes that a file may have beyond those of the arrays: indices and padding."""
PLAIN = re.compile(r"[<|][biuf]\d+", re.ASCII)
NARROW = re.compile(r"bfloat16|u?int[24]|float[468]_e\w+", re.ASCII)
"""Names of the dtypes that JAX adds to NumPy's."""


def templates(state: Path, most: int | None = None) -> list[jax.ShapeDtypeStruct]:
    """Shapes and dtypes of the arrays below `state`, which are named `0`, `1`, ...

    Args:
      state: directory that Orbax wrote a list of arrays to.
      most: largest number of arrays accepted.

    Raises:
      ValueError: an array is not stored in Orbax's format, or there are too many.
    """
    spec: dict[str, Any] = {"driver": "file", "path": f"{state}{os.sep}"}
    if os.path.lexists(state / MANIFEST):
        spec = {"driver": "ocdbt", "base": spec}
    store = ts.KvStore.open(spec).result()
    arrays: list[jax.ShapeDtypeStruct] = []
    while (text := _read(store, f"{len(arrays)}/.zarray")) is not None:
        if len(arrays) == most:
            raise ValueError(f"it holds more than {most} arrays")
        if _read(store, f"{len(arrays)}/zarr.json") is not None:
            raise ValueError(f"array {len(arrays)} has documents of two formats")
        try:
            arrays.append(_template(json.loads(text)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"array {len(arrays)} is not stored as checkpoints are") from None
    if _read(store, f"{len(arrays)}/zarr.json") is not None:
        raise ValueError(f"array {len(arrays)} is not stored as checkpoints are")
    return arrays


def check(state: Path, expected: list[Any]) -> None:
    """Raise ValueError unless the arrays below `state` have the shapes and dtypes of `expected`, in order."""
    stored = templates(state, len(expected))
    if len(stored) < len(expected):
        raise ValueError(f"it holds {len(stored)} of {len(expected)} arrays")
    for number, (got, wanted) in enumerate(zip(stored, expected, strict=True)):
        if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(
                f"array {number} is {got.dtype.name}{list(got.shape)}, not {wanted.dtype.name}{list(wanted.shape)}"
            )


def largest_file(expected: list[Any]) -> int:
    """Largest file size, in bytes, of a checkpoint of these arrays; compression may make them slightly larger."""
    return 2 * sum(math.prod(template.shape) * np.dtype(template.dtype).itemsize for template in expected) + SPARE


def _read(store: ts.KvStore, key: str) -> bytes | None:
    """Content of a document; None if there is none. Raises ValueError if it is too long, without reading it."""
    try:
        beyond = store.read(key, byte_range=slice(LARGEST, LARGEST + 1)).result()
    except ValueError:  # the document is shorter than the limit
        beyond = None
    if beyond is not None and beyond.state == "value":
        raise ValueError(f"{key} holds more than {LARGEST // inputs.MIB} MiB")
    result = store.read(key).result()
    return bytes(result.value) if result.state == "value" else None


def _template(document: dict[str, Any]) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array. Raises ValueError and others if Orbax would not write such a document."""
    shape, chunks, name = tuple(document["shape"]), tuple(document["chunks"]), document["dtype"]
    sizes = all(type(size) is int and size >= 0 for size in (*shape, *chunks))
    if not sizes or len(shape) != len(chunks) or not (PLAIN.fullmatch(name) or NARROW.fullmatch(name)):
        raise ValueError
    if any(not 1 <= chunk <= max(1, size) for chunk, size in zip(chunks, shape, strict=True)):
        raise ValueError
    if math.prod(-(-size // chunk) for chunk, size in zip(chunks, shape, strict=True)) > MOST_CHUNKS:
        raise ValueError
    if document["compressor"]["id"] != "zstd" or document["filters"] is not None or document["zarr_format"] != 2:
        raise ValueError
    return jax.ShapeDtypeStruct(shape, np.dtype(name))
