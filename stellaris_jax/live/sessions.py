"""Folders that Ray leaves behind for each local cluster; those of this user's dead runs are removed."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from stellaris_jax.base.inputs import read_text
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.live.keeper import alive, process_stat

OWNER = "stellaris-jax.owner"
"""Owner file in the folder of a cluster that this package started: machine, process namespace, number and start time of
the driver."""
LATEST = "session_latest"
"""Ray's link to the newest folder."""


def claim(session: Path) -> None:
    """Mark the folder of a cluster as started by this process."""
    stat = process_stat(os.getpid())
    if stat is not None:
        with suppress(OSError):
            write_atomically(session / OWNER, " ".join([*_place(), str(os.getpid()), stat[1]]) + "\n")


def remove(session: Path) -> None:
    """Remove the folder of a cluster that has ended, and Ray's link to it."""
    shutil.rmtree(session, ignore_errors=True)
    latest = session.parent / LATEST
    with suppress(OSError):
        if latest.is_symlink() and Path(os.readlink(latest)).name == session.name:
            latest.unlink()


def clear(folder: Path) -> list[Path]:
    """Remove the folders of clusters that dead runs of this user have started; returns them.

    Folders without an owner file, of other users, or of live runs are left alone.
    """
    removed = []
    for session in sorted(folder.glob("session_*")):
        try:
            if session.is_symlink() or session.stat().st_uid != os.getuid():
                continue
            *place, number, started = read_text(session / OWNER).split()
            if place != _place():
                continue
            in_use = bool(alive({(int(number), started)})) or _is_used(session)
        except (OSError, ValueError):
            continue
        if not in_use:
            remove(session)
            removed.append(session)
    return removed


def _place() -> list[str]:
    """Scope of process numbers: the machine, and the process namespace, because containers may share folders."""
    return [os.uname().nodename, os.readlink("/proc/self/ns/pid")]


def _is_used(session: Path) -> bool:
    """Whether a running program has the cluster's folder among its arguments."""
    name = session.name.encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if name in (entry / "cmdline").read_bytes():
                    return True
    return False
