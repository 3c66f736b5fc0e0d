"""Handlers of MuJoCo's warnings: each warning is printed once, and never written to a file.

Without a handler, MuJoCo appends warnings to `MUJOCO_LOG.TXT` in the current folder, and follows a link of that name.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

PRINTED: set[str] = set()
"""Warnings that were printed."""


def warn_once() -> None:
    """Make MuJoCo print each warning once per process from now on. A handler of the user is kept."""
    import mujoco

    def warn(message: str) -> None:
        if message not in PRINTED:
            PRINTED.add(message)
            print(f"warning: MuJoCo: {message}", file=sys.stderr)

    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(warn)


@contextlib.contextmanager
def warnings_to(handler: Callable[[str], object]) -> Iterator[None]:
    """Context in which a function handles MuJoCo's warnings.

    Afterwards the earlier handler is restored; without one, warnings are printed once each.
    """
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(handler)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
        warn_once()
