"""Untrusted SQLite databases: the files next to a database are checked before SQLite opens it.

SQLite acts on those files. A rollback journal that ends with a super-journal record names another file, by any path:
SQLite rolls the journal back, then deletes that file. A transaction of one database writes no such record, so the
journal of a killed process is accepted.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from stellaris_jax.base import inputs, outputs

MAGIC = bytes.fromhex("d9d505f920a163d7")
"""Last bytes of a journal with a super-journal record; every journal begins with them as well."""
JOURNAL = "-journal"
ENDINGS = ("", JOURNAL, "-wal", "-shm")
"""Endings of the files that SQLite opens for a database."""
LEAST_RECORD = 16
"""Bytes of a super-journal record without its file name: a length, a checksum and the magic."""


def check_database(path: Path) -> None:
    """Raise OSError if opening a database, existing or new, could reach files other than its own."""
    place = os.path.abspath(path)
    if "?" in place or unquote(place) != place:
        raise OSError(errno.EINVAL, "its path holds ? or %, which SQLAlchemy reads as another path", str(path))
    for ending in ENDINGS:
        file = path.with_name(path.name + ending)
        outputs.refuse_links(file)
        with suppress(FileNotFoundError), inputs.open_regular(file) as opened:
            if ending == JOURNAL and opened.seek(0, os.SEEK_END) >= LEAST_RECORD:
                opened.seek(-len(MAGIC), os.SEEK_END)
                if opened.read() == MAGIC:
                    raise OSError(
                        errno.EINVAL,
                        f"its {file.name} names another file, which SQLite would delete; remove {file.name}",
                        str(path),
                    )
