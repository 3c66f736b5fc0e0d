"""Files that somebody else may have made: only regular files are opened, and no more is read than a limit allows.

A name in a run directory may be a pipe, a device, or a link to one: opening it could wait for ever, and reading it fill
all memory. Whatever a command reads from a directory that it is given goes through here. Errors are `OSError`s, so a
caller tells them as it tells of a missing file or a failing disk.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MIB = 2**20
DOCUMENT = 16 * MIB
"""Bytes of a configuration, a summary, or another document that is read whole."""
LINE = 64 * MIB
"""Bytes of one line of a file that is read line by line."""

KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | Path, limit: int | None = None) -> BinaryIO:
    """An open regular file; a link to one counts as the file.

    Args:
      path: the file.
      limit: bytes that it may have.

    Raises:
      OSError: the file is missing, something else than a regular file, or larger than the limit.
    """
    # Without O_NONBLOCK, opening a pipe that nobody writes to waits for ever. It changes nothing for regular files.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            kind = KINDS.get(stat.S_IFMT(about.st_mode), "no file")
            raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
        if limit is not None and about.st_size > limit:
            raise too_large(path, limit)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def too_large(path: str | Path, limit: int) -> OSError:
    """The error for a file that has, or unpacks to, more bytes than a limit."""
    return OSError(errno.EFBIG, f"it holds more than {limit / MIB:,.0f} MiB, the most that is read", str(path))


def read_bytes(path: str | Path, limit: int = DOCUMENT) -> bytes:
    """The contents of a regular file. Raises OSError, also where it has more than `limit` bytes."""
    with open_regular(path, limit) as file:
        data = file.read(limit + 1)  # it may have grown meanwhile, and files of /proc have no size
    if len(data) > limit:
        raise too_large(path, limit)
    return data


def read_text(path: str | Path, limit: int = DOCUMENT, errors: str = "strict") -> str:
    """The contents of a regular file in UTF-8. Raises OSError, and ValueError for other bytes."""
    return read_bytes(path, limit).decode("utf-8", errors)


def lines(path: str | Path, longest: int = LINE) -> Iterator[bytes]:
    """The lines of a regular file, one after the other, each with its line end. Raises OSError for one too long."""
    with open_regular(path) as file:
        while line := file.readline(longest + 1):
            if len(line) > longest:
                raise too_large(path, longest)
            yield line
