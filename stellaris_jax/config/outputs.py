"""Files that are written: that they can be is found out before the work; afterwards they are replaced in one step.

Nothing is written through a link that lies where a file is to be: a directory that somebody else has made may have one
that leads to any file of the user's. Directories may be links.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from stellaris_jax.config import inputs
from stellaris_jax.config.schema import ConfigError

LONGEST_STEM = 40
"""Letters of a file's name that its temporary one begins with."""


def check_output(option: str, path: Path) -> None:
    """Make the directory of a file that will be written after much work. Raises ConfigError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError
        _refuse_irregular(path)
        _probe(path.parent)
    except OSError:
        raise ConfigError(f"{option}={path} cannot be written.") from None


def check_directory(option: str, path: Path) -> None:
    """Make a directory that files will be written to. Raises ConfigError if that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        _probe(path)
    except OSError:
        raise ConfigError(f"{option}={path} cannot be written.") from None


def _probe(directory: Path) -> None:
    """Raise OSError unless files can be made here; permissions are not the whole of it, least of all for root."""
    with tempfile.TemporaryFile(dir=directory):
        pass


def _refuse_irregular(path: Path) -> None:
    """Raise OSError where a path is, or leads to, something that exists and is no regular file, and for one in `/dev`:
    a file that took the place of a device would do so for all programs."""
    if os.path.realpath(path.parent) == "/dev":
        raise OSError(errno.EINVAL, "/dev is no place for files", str(path))
    with suppress(FileNotFoundError):
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            raise inputs.irregular(path, about.st_mode)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a hidden, empty file beside `path`, of the same ending, which takes its place when the context ends.

    It is made anew, under a name that nobody knows before. If `path` is a link, the link is replaced. Left by an
    exception, `path` is what it was and the other is gone. Raises OSError.
    """
    path = Path(path)
    _refuse_irregular(path)
    fresh = path.with_name(f".{path.stem[:LONGEST_STEM]}.{secrets.token_hex(4)}.tmp{path.suffix}")
    try:
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        yield fresh
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def rewriting(path: Path) -> Iterator[BinaryIO]:
    """Yields an empty file that takes the place of `path` in one step when the context ends; see `replacing`."""
    with replacing(path) as fresh, open_own(fresh) as file:
        yield file


@contextmanager
def rewriting_text(path: Path) -> Iterator[TextIO]:
    """Yields an empty file of text that takes the place of `path` in one step when the context ends; see `replacing`.

    It is in UTF-8, and line ends stay as they are written.
    """
    with rewriting(path) as file, io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
        yield text


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's contents in one step. Raises OSError."""
    with rewriting(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def open_own(path: str | Path, flags: int = 0) -> BinaryIO:
    """An open file that is read and written in place, such as one that grows, or a lock; made where there is none.

    Args:
      path: the file.
      flags: of `os.open`, beside those for reading, writing and making it: `os.O_APPEND`.

    Raises:
      OSError: it is a link or no regular file, or cannot be written.
    """
    always = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, always | flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise _link(Path(path)) from None
        raise
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise inputs.irregular(path, about.st_mode)
        return os.fdopen(descriptor, "ab" if flags & os.O_APPEND else "r+b")
    except BaseException:
        os.close(descriptor)
        raise


def appending(path: str | Path) -> BinaryIO:
    """An open file that grows. Raises OSError as `open_own` does."""
    return open_own(path, os.O_APPEND)


def copy(source: Path, target: Path, limit: int) -> None:
    """Replace a file by a copy of another, of at most `limit` bytes. Raises OSError."""
    with inputs.open_regular(source, limit) as file, rewriting(target) as copied:
        while block := file.read(inputs.MIB):
            copied.write(block)


def refuse_links(*paths: Path) -> None:
    """Raise OSError where one of the paths is a link: other packages would write through it."""
    for path in paths:
        if path.is_symlink():
            raise _link(path)


def _link(path: Path) -> OSError:
    return OSError(errno.ELOOP, f"{path.name} is a link, through which nothing is written", str(path))
