"""Damage to the files of a run, and contents that take the place of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

Damage = Callable[[Path, np.random.Generator], None]
CONTENTS = {
    "binary": bytes(range(128, 256)),
    "zeros": bytes(100),
    "another encoding": "name: Gänge".encode("latin-1"),
    "holds itself": b"name: &a [*a]",
    "holds itself, deeper": b"env: {kwargs: &k {x: *k}}",
    "nested deeply": b"[" * 10_000,
    "a list": b"- 1",
    "a number": b"3",
    "no key": b"null: 3",
    "half a reference": b"name: '${'",
    "an endless integer": b"softsync_c: " + b"9" * 5000,
    "two documents": b"name: a\n---\nname: b",
    "code": b"name: !!python/object/apply:os.getcwd []",
}
"""Contents that are no configuration."""


def deleted(path: Path, draw: np.random.Generator) -> None:
    path.unlink()


def emptied(path: Path, draw: np.random.Generator) -> None:
    path.write_bytes(b"")


def cut(path: Path, draw: np.random.Generator) -> None:
    path.write_bytes(path.read_bytes()[: int(draw.integers(1, max(2, path.stat().st_size - 1)))])


def flipped(path: Path, draw: np.random.Generator, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for place in draw.integers(0, len(data), bits):
        data[place] ^= 1 << int(draw.integers(8))
    path.write_bytes(data)


def riddled(path: Path, draw: np.random.Generator) -> None:
    """One bit is flipped in every thousand bytes."""
    flipped(path, draw, 1 + path.stat().st_size // 1000)


def a_directory(path: Path, draw: np.random.Generator) -> None:
    path.unlink()
    path.mkdir()


def binary(path: Path, draw: np.random.Generator) -> None:
    path.write_bytes(draw.bytes(300))
