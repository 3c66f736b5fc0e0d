"""Style of all pictures: Matplotlib's defaults, without any `matplotlibrc`, with texts drawn literally.

Matplotlib reads a `matplotlibrc` in the current folder, which is untrusted and could make it run LaTeX. Names of runs,
settings and environments may contain `$` and `_`, which are no formulas.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib

DRAWING = threading.RLock()
"""Lock of all drawing: several runs may end at once, and Matplotlib is not thread-safe."""
_DRAWS = threading.local()


@contextmanager
def drawing() -> Iterator[None]:
    """Context, and decorator, of all code that makes, measures or saves a figure.

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
    """Matplotlib's defaults of all settings that differ from them, except the backend, which draws on screens."""
    current, defaults = matplotlib.rcParams, matplotlib.rcParamsDefault
    return {
        key: value
        for key, value in dict.items(defaults)
        if not key.startswith("backend") and dict.get(current, key) != value
    }
