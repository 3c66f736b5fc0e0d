"""Documents of a checkpoint's arrays, checked before TensorStore takes the memory that they ask for.

Each array has a document `.zarray`, in a directory of its own or within Orbax's OCDBT files. It says how large a chunk
is once it is unpacked, whatever the array's size: a few bytes could unpack to more than all memory.
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

from stellaris_jax.config import inputs

MANIFEST = "manifest.ocdbt"
LARGEST = inputs.MIB
"""Bytes that a document may have."""
MOST_CHUNKS = 2**12
"""Chunks that an array may have. Orbax writes one for each part of it that lay on a device of its own."""
SPARE = inputs.DOCUMENT
"""Bytes that a file may have beyond those of the arrays: indices, and padding."""
PLAIN = re.compile(r"[<|][biuf]\d+", re.ASCII)
NARROW = re.compile(r"bfloat16|u?int[24]|float[468]_e\w+", re.ASCII)
"""Types by the names that JAX adds to NumPy's."""


def templates(state: Path, most: int | None = None) -> list[jax.ShapeDtypeStruct]:
    """Shapes and types of the arrays below `state`, which are named `0`, `1`, ...

    Args:
      state: the directory that Orbax wrote a list of arrays to.
      most: arrays that there may be.

    Raises:
      ValueError: an array is not stored as Orbax does it, or there are too many.
    """
    spec: dict[str, Any] = {"driver": "file", "path": f"{state}{os.sep}"}
    if os.path.lexists(state / MANIFEST):
        spec = {"driver": "ocdbt", "base": spec}
    store = ts.KvStore.open(spec).result()
    found: list[jax.ShapeDtypeStruct] = []
    while (text := _read(store, f"{len(found)}/.zarray")) is not None:
        if len(found) == most:
            raise ValueError(f"it holds more than {most} arrays")
        if _read(store, f"{len(found)}/zarr.json") is not None:
            raise ValueError(f"array {len(found)} has documents of two formats")
        try:
            found.append(_template(json.loads(text)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"array {len(found)} is not stored as checkpoints are") from None
    if _read(store, f"{len(found)}/zarr.json") is not None:
        raise ValueError(f"array {len(found)} is not stored as checkpoints are")
    return found


def check(state: Path, expected: list[Any]) -> None:
    """Raise ValueError unless the arrays below `state` have the shapes and types of `expected`, one for one."""
    stored = templates(state, len(expected))
    if len(stored) < len(expected):
        raise ValueError(f"it holds {len(stored)} of {len(expected)} arrays")
    for number, (one, other) in enumerate(zip(stored, expected, strict=True)):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            raise ValueError(
                f"array {number} is {one.dtype.name}{list(one.shape)}, not {other.dtype.name}{list(other.shape)}"
            )


def largest_file(expected: list[Any]) -> int:
    """Bytes that a file of a checkpoint of these arrays may have: compression may make them a little larger."""
    return 2 * sum(math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in expected) + SPARE


def _read(store: ts.KvStore, key: str) -> bytes | None:
    """A document; None where there is none. Raises ValueError where it is too long, without reading it."""
    try:
        beyond = store.read(key, byte_range=slice(LARGEST, LARGEST + 1)).result()
    except ValueError:  # so long it is not
        beyond = None
    if beyond is not None and beyond.state == "value":
        raise ValueError(f"{key} holds more than {LARGEST // inputs.MIB} MiB")
    result = store.read(key).result()
    return bytes(result.value) if result.state == "value" else None


def _template(document: dict[str, Any]) -> jax.ShapeDtypeStruct:
    """The shape and type of an array. Raises ValueError and others for what Orbax does not write."""
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
