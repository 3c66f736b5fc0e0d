"""Hostile files: pipes, devices, links, and files that are larger than they look."""

from __future__ import annotations

import os
import socket
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 2**20


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.mkdir()


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # names of sockets are short


def linked_pipe(path: Path) -> None:
    os.mkfifo(path.with_name(f"{path.name}-pipe"))
    path.symlink_to(path.with_name(f"{path.name}-pipe"))


SPECIAL: dict[str, Callable[[Path], None]] = {
    "a pipe": pipe, "a device": endless, "a directory": directory, "a socket": listener,
}  # fmt: skip
"""By what a message calls them."""


def sparse(path: Path, size: int) -> None:
    """A file of so many bytes that takes no room."""
    with open(path, "wb") as file:
        file.truncate(size)


def bomb(repeats: int, line: bytes = b"\0" * 8 * MIB) -> bytes:
    """A gzip file of as many members that hold the same."""
    packer = zlib.compressobj(wbits=31)
    return (packer.compress(line) + packer.flush()) * repeats


def png(width: int, height: int, rows: int | None = None) -> bytes:
    """A black picture, of which as many rows are there as it says, or others."""
    body = zlib.compress(b"\0" * (width + 1) * (height if rows is None else rows))
    chunks = {b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0), b"IDAT": body, b"IEND": b""}
    parts = (
        struct.pack(">I", len(x)) + name + x + struct.pack(">I", zlib.crc32(name + x)) for name, x in chunks.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@contextmanager
def little_memory(limit: int = 40 * MIB) -> Iterator[None]:
    """Fails where more than so many bytes are taken within."""
    tracemalloc.start()
    try:
        yield
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < limit, f"{peak / MIB:.0f} MiB"
