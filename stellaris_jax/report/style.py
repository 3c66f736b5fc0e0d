"""Style of all pictures: Matplotlib's own, whatever a `matplotlibrc` says, with texts drawn as they stand.

Matplotlib reads a `matplotlibrc` of the current folder, which may be a stranger's: it could have LaTeX run. Names of
runs, settings and environments may hold `$` and `_`, which are no formulas.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib

DRAWING = threading.RLock()
"""Lock that is held while something is drawn: several runs may end at once, and Matplotlib is for one thread."""
_DRAWS = threading.local()


@contextmanager
def drawing() -> Iterator[None]:
    """Context, and decorator, of everything that makes, measures or saves a figure.

    >>> with drawing():
    ...     matplotlib.rcParams["text.parse_math"]
    False
    """
    with DRAWING:
        if getattr(_DRAWS, "inside", False):
            yield
            return
        _DRAWS.inside = True
        try:
            with matplotlib.rc_context({**_undone(), "text.parse_math": False}):
                yield
        finally:
            _DRAWS.inside = False


def _undone() -> dict[Any, Any]:
    """Matplotlib's own values of the settings that differ from them; the backend, which draws on screens, aside."""
    now, own = matplotlib.rcParams, matplotlib.rcParamsDefault
    return {
        key: value for key, value in dict.items(own) if not key.startswith("backend") and dict.get(now, key) != value
    }
