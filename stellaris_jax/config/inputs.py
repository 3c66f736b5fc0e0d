"""Files that somebody else may have made: only regular files are opened, and no more is read than a limit allows.

A name in a run directory may be a pipe, a device, or a link to one: opening it could wait for ever, and reading it fill
all memory. Whatever a command reads from a directory that it is given goes through here. Errors are `OSError`s, so a
caller tells them as it tells of a missing file or a failing disk.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import zlib
from collections.abc import Generator, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, TextIO

MIB = 2**20
CONFIGURATION = MIB
"""Bytes of a configuration, or of another YAML file: reading YAML takes a second for every 100 kB."""
DOCUMENT = 16 * MIB
"""Bytes of a summary, a README, a picture, or another document that is read whole."""
TABLE = 256 * MIB
"""Bytes of a table of results, and of a log of jobs."""
METRICS = 1024 * MIB
"""Bytes of the metrics of one run."""
LINE = 16 * MIB
"""Bytes of one line of a file that is read line by line."""
UNPACKED = 16 * 1024 * MIB
"""Bytes that a compressed file may unpack to where it is read line by line."""
BLOCK = 2**14
"""Bytes of a compressed file that are read at once. Members of it are mostly shorter; what is left of a block is copied
for each of them."""

KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link",
}


def irregular(path: str | Path, mode: int) -> OSError:
    """The error for a file whose `st_mode` is not that of a regular file."""
    kind = KINDS.get(stat.S_IFMT(mode), "no file")
    return OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


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
            raise irregular(path, about.st_mode)
        if limit is not None and about.st_size > limit:
            raise too_large(path, limit)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_text(path: str | Path, limit: int = TABLE) -> TextIO:
    """An open regular file of text in UTF-8, with line ends as they stand. Raises OSError as `open_regular` does."""
    return io.TextIOWrapper(open_regular(path, limit), encoding="utf-8", newline="")


def too_large(path: str | Path, limit: int, what: str = "it holds") -> OSError:
    """The error for a file that has, or unpacks to, more bytes than a limit."""
    return OSError(errno.EFBIG, f"{what} more than {limit / MIB:,.0f} MiB, the most that is read", str(path))


def reason(error: Exception) -> str:
    """The words of an error, for a sentence: of a system's error without its number and its file."""
    found = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
    return found.rstrip(".") or type(error).__name__


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


def digest_of(path: str | Path) -> str:
    """SHA-256 of a regular file, in hexadecimal digits. Raises OSError."""
    digest = sha256()
    with open_regular(path) as file:
        while block := file.read(MIB):
            digest.update(block)
    return digest.hexdigest()


def lines(path: str | Path, limit: int = METRICS, longest: int = LINE) -> Iterator[bytes]:
    """The lines of a regular file, one after the other, each with its line end.

    Args:
      path: the file.
      limit: bytes that it may have.
      longest: bytes that a line may have.

    Raises:
      OSError: as `open_regular` does, and for a line that is too long.
    """
    with open_regular(path, limit) as file:
        while line := file.readline(longest + 1):
            if len(line) > longest:
                raise too_large(path, longest, "a line of it holds")
            yield line


def unpacked(path: str | Path, limit: int = UNPACKED) -> Generator[bytes, None, None]:
    """Blocks of what a gzip file of any number of members unpacks to, as far as it is whole.

    Time is linear in the file and in what is unpacked, memory constant.

    Raises:
      EOFError: after the last block, where the file is cut off or damaged.
      OSError: as `open_regular` does, and where it unpacks to more than `limit` bytes.
    """
    with open_regular(path) as file:
        member, total, rest, begun = zlib.decompressobj(wbits=31), 0, b"", False
        while data := rest or file.read(BLOCK):
            try:
                block = member.decompress(data, 4 * BLOCK)
            except zlib.error as error:
                raise EOFError(f"it is damaged: {error}") from None
            total += len(block)
            if total > limit:
                raise too_large(path, limit, "it unpacks to")
            if block:
                yield block
            rest, begun = member.unconsumed_tail, not member.eof
            if member.eof:
                rest, member = member.unused_data, zlib.decompressobj(wbits=31)
        if begun:
            raise EOFError("it is cut off")


def unpacked_lines(path: str | Path, limit: int = UNPACKED, longest: int = LINE) -> Generator[bytes, None, None]:
    """The lines of a gzip file, one after the other, without their line ends.

    Raises:
      EOFError: after the last whole line, where the file is cut off or damaged.
      OSError: as `unpacked` does, and for a line of more than `longest` bytes.
    """
    return _split(unpacked(path, limit), path, longest)


def _split(blocks: Iterable[bytes], path: str | Path, longest: int) -> Generator[bytes, None, None]:
    line = bytearray()
    for block in blocks:
        end, *others = block.split(b"\n")
        line += end
        if len(line) > longest:
            raise too_large(path, longest, "a line of it holds")
        if others:
            yield bytes(line)
            yield from others[:-1]
            line = bytearray(others[-1])
    if line:
        yield bytes(line)


def check_tree(directory: Path, limits: dict[str, int], largest: int | None = None) -> None:
    """Raise OSError unless all below a directory are regular files and directories, for a reader that is not ours.

    Args:
      directory: what is looked through. It may be a link; those below it are refused.
      limits: bytes that files of a name may have.
      largest: bytes that files of other names may have.
    """
    for folder, folders, names in os.walk(directory):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            about = os.lstat(path)
            if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
                raise irregular(path, about.st_mode)
            limit = limits.get(name, largest)
            if limit is not None and stat.S_ISREG(about.st_mode) and about.st_size > limit:
                raise too_large(path, limit)
