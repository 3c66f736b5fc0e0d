"""Output files: checked before the work that produces them, then replaced atomically.

Files are never written through a link at their own path. The directory may be untrusted, and a link in it may lead to
any file of the user's. Directories may be links.
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

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError

LONGEST_STEM = 40
"""Characters of a file's name that its temporary file's name begins with."""


def cache_folder() -> Path | None:
    """Folder of this package in the user's cache (`XDG_CACHE_HOME`, `~/.cache`); `None` without a home directory."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return root / "stellaris_jax"


def check_output(option: str, path: Path) -> None:
    """Make the directory of an output file and check that the file can be written. Raises ConfigError if it cannot."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError
        _refuse_irregular(path)
        _probe(path.parent)
    except OSError:
        raise ConfigError(f"{option}={path} cannot be written.") from None


def check_directory(option: str, path: Path) -> None:
    """Make an output directory. Raises ConfigError if files cannot be written to it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        _probe(path)
    except OSError:
        raise ConfigError(f"{option}={path} cannot be written.") from None


def _probe(directory: Path) -> None:
    """Raise OSError unless a file can be made in a directory; permission bits alone do not tell, above all for root."""
    with tempfile.TemporaryFile(dir=directory):
        pass


def _refuse_irregular(path: Path) -> None:
    """Raise OSError for a path that exists and is no regular file, or that lies in `/dev`.

    Links are followed. A file in the place of a device would replace the device for all programs.
    """
    if os.path.realpath(path.parent) == "/dev":
        raise OSError(errno.EINVAL, "/dev is no place for files", str(path))
    with suppress(FileNotFoundError):
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            raise inputs.irregular(path, about.st_mode)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context of a hidden, empty file in the folder of `path`, which replaces `path` at the end.

    The hidden file has the same ending and an unpredictable name. If `path` is a link, the link is replaced. After an
    exception `path` is unchanged and the hidden file is deleted. Raises OSError.
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
    """Context of an open, empty file that atomically replaces `path` at the end; see `replacing`."""
    with replacing(path) as fresh, open_for_update(fresh) as file:
        yield file


@contextmanager
def rewriting_text(path: Path) -> Iterator[TextIO]:
    """Context of an open, empty text file that atomically replaces `path` at the end; see `replacing`.

    The encoding is UTF-8; line ends are written unchanged.
    """
    with rewriting(path) as file, io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
        yield text


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's contents atomically. Raises OSError."""
    with rewriting(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def open_for_update(path: str | Path, flags: int = 0) -> BinaryIO:
    """Open file for reading and writing in place, such as a log or a lock; created if missing.

    Args:
      path: the file.
      flags: further flags of `os.open`, such as `os.O_APPEND`.

    Raises:
      OSError: the path is a link or no regular file, or cannot be written.
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
    """Open file for appending. Raises OSError as `open_for_update` does."""
    return open_for_update(path, os.O_APPEND)


def copy(source: Path, target: Path, limit: int) -> None:
    """Copy a file over another atomically. Raises OSError, also if `source` has more than `limit` bytes."""
    with inputs.open_regular(source, limit) as file, rewriting(target) as copied:
        while block := file.read(inputs.MIB):
            copied.write(block)


def refuse_links(*paths: Path) -> None:
    """Raise OSError if one of the paths is a link, since other packages would write through it."""
    for path in paths:
        if path.is_symlink():
            raise _link(path)


def _link(path: Path) -> OSError:
    return OSError(errno.ELOOP, f"{path.name} is a link, through which nothing is written", str(path))
