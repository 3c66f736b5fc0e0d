"""Untrusted NumPy files: no array takes more memory than the file has bytes for it."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from stellaris_jax.base import inputs

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods that NumPy uses. Others may take as much memory as the file asks for."""
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Header readers by format version. Version 3 is for arrays with named fields, which are not read."""


def read_array(file: BinaryIO, limit: int) -> np.ndarray:
    """Next array of an open file. The header is checked before memory is taken.

    Args:
      file: open file, positioned at the array's beginning.
      limit: largest size of the array in bytes, at most the size of the file.

    Raises:
      ValueError: there is no array, it holds Python objects, or it is larger than the limit or the file.
    """
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"version {version} of NumPy's format is not read")
    shape, fortran, dtype = HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size > limit:
        raise ValueError(f"an array of shape {shape} takes {size:,} bytes, more than the {limit:,} there are")
    data = bytearray(file.read(size))
    if len(data) < size:
        raise ValueError(f"it ends within an array of shape {shape}")
    return np.ndarray(shape, dtype, data, order="F" if fortran else "C")


def read_archive(path: str | Path, limit: int = inputs.DOCUMENT) -> dict[str, np.ndarray]:
    """Arrays of an `.npz` file by their names.

    Args:
      path: the file.
      limit: largest size of the file, and of all arrays together, in bytes.

    Raises:
      OSError: as `inputs.open_regular` does.
      ValueError: the arrays exceed the limit, or the file is damaged. `zipfile.BadZipFile` and others are raised, too.
    """
    with inputs.open_regular(path, limit) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > limit:
            raise inputs.too_large(path, limit, "it unpacks to")
        if not all(member.compress_type in METHODS for member in members):
            raise ValueError("it is packed in another way than NumPy's")
        arrays = {}
        for member in members:
            with archive.open(member) as packed:  # reads at most `file_size` bytes
                arrays[member.filename.removesuffix(".npy")] = read_array(packed, member.file_size)  # type: ignore[arg-type]
    return arrays
