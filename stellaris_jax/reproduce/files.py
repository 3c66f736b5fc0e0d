"""Tables that studies keep: CSV, read within bounds and replaced in one step; and locks beside them."""

from __future__ import annotations

import csv
import fcntl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from stellaris_jax.config import inputs
from stellaris_jax.config.outputs import appending, rewriting_text
from stellaris_jax.config.schema import ConfigError


def read_table(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV file, or of one that is packed by gzip (`.gz`), by the names in its first line.

    Raises ConfigError for a file that is damaged, no regular one, or larger than `inputs.TABLE`.
    """
    try:
        if path.suffix == ".gz":
            with closing(inputs.unpacked_lines(path, inputs.TABLE)) as lines:
                return list(csv.DictReader(line.decode() for line in lines))
        with inputs.open_text(path) as file:
            return list(csv.DictReader(file))
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {inputs.reason(error)}.") from None


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Replace a CSV file in one step."""
    with rewriting_text(path) as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


@contextmanager
def locked(path: Path, patient: bool = True) -> Iterator[bool]:
    """Hold the lock of a file or directory, a file `.NAME.lock` beside it, within the context.

    Args:
      path: what is locked; the directory that it is in is made.
      patient: wait for another process that holds the lock.

    Yields:
      Whether it is held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with appending(path.with_name(f".{path.name}.lock")) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if patient else fcntl.LOCK_NB))
            held = True
        except BlockingIOError:
            held = False
        yield held
