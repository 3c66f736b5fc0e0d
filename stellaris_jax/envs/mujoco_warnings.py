"""MuJoCo's warnings: printed once each, and never written to a file.

Without a handler MuJoCo appends them to `MUJOCO_LOG.TXT` in the current folder, through a link that lies there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

PRINTED: set[str] = set()
"""Warnings that were printed."""


def warn_once() -> None:
    """Have MuJoCo print each warning once for this process, from now on. A handler of the user's stays."""
    import mujoco

    def warn(message: str) -> None:
        if message not in PRINTED:
            PRINTED.add(message)
            print(f"warning: MuJoCo: {message}", file=sys.stderr)

    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(warn)


@contextlib.contextmanager
def warnings_to(handler: Callable[[str], object]) -> Iterator[None]:
    """Hand MuJoCo's warnings to a function; afterwards they are handled as before, or printed once each."""
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(handler)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
        warn_once()
