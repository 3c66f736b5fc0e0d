"""Tables of studies: CSV files, read within limits and replaced atomically, with lock files."""

from __future__ import annotations

import csv
import fcntl
import gzip
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import appending, rewriting_text, write_atomically

Row = TypeVar("Row")


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file, or of one compressed by gzip (`.gz`), by the names in its first line.

    Raises ConfigError for a file that is damaged, not regular, or larger than `inputs.TABLE`.
    """
    try:
        if path.suffix == ".gz":
            with closing(inputs.unpacked_lines(path, inputs.TABLE)) as lines:
                return list(csv.DictReader(line.decode() for line in lines))
        with inputs.open_text(path) as file:
            return list(csv.DictReader(file))
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {inputs.reason(error)}.") from None


def read_rows(path: Path, parse: Callable[[dict[str, str]], Row]) -> list[Row]:
    """Records made of the lines of a CSV file, which `read_table` reads.

    Args:
      path: the file.
      parse: makes a record of the cells of a line; it raises KeyError for a missing column and ValueError for damage.

    Raises:
      ConfigError: the file cannot be read, or a line is damaged.
    """
    rows = []
    for number, cells in enumerate(read_table(path), 1):
        try:
            if None in cells or None in cells.values():
                raise ValueError("it has more or fewer cells than the header")
            rows.append(parse(cells))
        except KeyError as error:
            raise ConfigError(f"{path} cannot be read: it has no column {error.args[0]}.") from None
        except ValueError as error:
            problem = f"row {number} is damaged ({inputs.reason(error)}); remove it, or put the file back"
            raise ConfigError(f"{path} cannot be read: {problem}.") from None
    return rows


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Replace a CSV file atomically."""
    with rewriting_text(path) as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def write_packed(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Replace a CSV file compressed by gzip atomically; equal rows give equal bytes. Its folder is made."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, gzip.compress(text.getvalue().encode(), mtime=0))


def replace_block(text: str, begin: str, end: str, block: str) -> str:
    """Text with a new block between two lines; unchanged if it lacks one of them."""
    before, _, remainder = text.partition(begin)
    _, has_end, after = remainder.partition(end)
    return f"{before}{begin}\n{block}\n{end}{after}" if has_end else text


@contextmanager
def locked(path: Path, patient: bool = True) -> Iterator[bool]:
    """Context that holds the lock of a file or directory, the file `.NAME.lock` in the same directory.

    Args:
      path: file or directory to lock; its parent directory is made.
      patient: whether to wait for another process that holds the lock.

    Yields:
      Whether the lock is held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with appending(path.with_name(f".{path.name}.lock")) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if patient else fcntl.LOCK_NB))
            held = True
        except BlockingIOError:
            held = False
        yield held
