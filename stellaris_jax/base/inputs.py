"""Untrusted input files: regular files only, read up to a size limit.

A name in a run directory may be a pipe, a device, or a link to one. Opening it could block for ever, and reading it
could fill all memory. Commands therefore read the directories that they are given through this module. Errors are
`OSError`s, so callers report them as they report a missing file or a failing disk.
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
"""Size limit of a configuration or another YAML file, in bytes. Parsing YAML takes a second per 100 kB."""
DOCUMENT = 16 * MIB
"""Size limit of a document that is read whole, such as a summary, a README or a picture, in bytes."""
TABLE = 256 * MIB
"""Size limit of a table of results or a log of jobs, in bytes."""
METRICS = 1024 * MIB
"""Size limit of the metrics of one run, in bytes."""
LINE = 16 * MIB
"""Size limit of one line of a file that is read line by line, in bytes."""
UNPACKED = 16 * 1024 * MIB
"""Size limit of the contents of a compressed file that is read line by line, in bytes."""
BLOCK = 2**14
"""Bytes of a compressed file that are read at once. Most members are shorter, and each copies the rest of its block."""

KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link",
}


def irregular(path: str | Path, mode: int) -> OSError:
    """Error for a file whose `st_mode` is not that of a regular file."""
    kind = KINDS.get(stat.S_IFMT(mode), "no file")
    return OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def open_regular(path: str | Path, limit: int | None = None) -> BinaryIO:
    """Open regular file, for reading; a link to one counts as the file.

    Args:
      path: the file.
      limit: bytes that it may have.

    Raises:
      OSError: the file is missing, something else than a regular file, or larger than the limit.
    """
    # Without O_NONBLOCK, opening a pipe without a writer blocks for ever. Regular files ignore the flag.
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
    """Open regular file of UTF-8 text, with line ends unchanged. Raises OSError as `open_regular` does."""
    return io.TextIOWrapper(open_regular(path, limit), encoding="utf-8", newline="")


def too_large(path: str | Path, limit: int, what: str = "it holds") -> OSError:
    """Error for a file that has, or unpacks to, more bytes than a limit."""
    return OSError(errno.EFBIG, f"{what} more than {limit / MIB:,.0f} MiB, the most that is read", str(path))


def reason(error: Exception) -> str:
    """Message of an error, for use in a sentence. A system error's number and file are left out."""
    text = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
    return text.rstrip(".") or type(error).__name__


def read_bytes(path: str | Path, limit: int = DOCUMENT) -> bytes:
    """Contents of a regular file. Raises OSError, also for more than `limit` bytes."""
    with open_regular(path, limit) as file:
        data = file.read(limit + 1)  # the file may have grown meanwhile, and files of /proc have no size
    if len(data) > limit:
        raise too_large(path, limit)
    return data


def read_text(path: str | Path, limit: int = DOCUMENT, errors: str = "strict") -> str:
    """Contents of a regular UTF-8 file. Raises OSError, and ValueError for other encodings."""
    return read_bytes(path, limit).decode("utf-8", errors)


def digest_of(path: str | Path) -> str:
    """SHA-256 of a regular file, in hexadecimal digits. Raises OSError."""
    digest = sha256()
    with open_regular(path) as file:
        while block := file.read(MIB):
            digest.update(block)
    return digest.hexdigest()


def lines(path: str | Path, limit: int = METRICS, longest: int = LINE) -> Iterator[bytes]:
    """Lines of a regular file, in order, with their line ends.

    Args:
      path: the file.
      limit: bytes that it may have.
      longest: bytes that a line may have.

    Raises:
      OSError: as `open_regular` does, and for a line that is too long.
    """
    with open_regular(path, limit) as file:
        number = 0
        while line := file.readline(longest + 1):
            number += 1
            if len(line) > longest:
                raise too_large(path, longest, f"line {number} holds")
            yield line


def unpacked(path: str | Path, limit: int = UNPACKED) -> Generator[bytes, None, None]:
    """Blocks of the contents of a gzip file of any number of members.

    Time is linear in the sizes of the file and its contents; memory is constant.

    Raises:
      EOFError: after the last block, if the file is cut off or damaged.
      OSError: as `open_regular` does, and for contents of more than `limit` bytes.
    """
    with open_regular(path) as file:
        member, total, remaining, in_member = zlib.decompressobj(wbits=31), 0, b"", False
        while data := remaining or file.read(BLOCK):
            try:
                block = member.decompress(data, 4 * BLOCK)
            except zlib.error as error:
                raise EOFError(f"it is damaged: {error}") from None
            total += len(block)
            if total > limit:
                raise too_large(path, limit, "it unpacks to")
            if block:
                yield block
            remaining, in_member = member.unconsumed_tail, not member.eof
            if member.eof:
                remaining, member = member.unused_data, zlib.decompressobj(wbits=31)
        if in_member:
            raise EOFError("it is cut off")


def unpacked_lines(path: str | Path, limit: int = UNPACKED, longest: int = LINE) -> Generator[bytes, None, None]:
    """Lines of a gzip file, in order, without their line ends.

    Raises:
      EOFError: after the last whole line, if the file is cut off or damaged.
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
    """Raise OSError unless a directory holds only regular files and directories, at any depth.

    Another package, which checks nothing, reads the directory afterwards.

    Args:
      directory: root of the tree. It may be a link; links below it are refused.
      limits: size limit by file name, in bytes.
      largest: size limit of all other files, in bytes.
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
