"""Old names that still work in this release; each use warns and names the new one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any


def warn_renamed(old: str, new: str) -> None:
    """Warn that a name has changed.

    Args:
      old: name that was used.
      new: name that replaces it.
    """
    warnings.warn(f"{old} is called {new} now; the next release drops the old name.", FutureWarning, stacklevel=3)


def renamed(module: str, names: Mapping[str, str], namespace: Mapping[str, Any]) -> Callable[[str], Any]:
    """Function `__getattr__` of a module, which finds objects by their old names.

    >>> getattr_ = renamed("shapes", {"Box": "Rectangle"}, {"Rectangle": "a rectangle"})
    >>> with warnings.catch_warnings(action="ignore"):
    ...     getattr_("Box")
    'a rectangle'

    Args:
      module: name of the module.
      names: new name of each old one.
      namespace: the module's `globals()`.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", names[name])
        return namespace[names[name]]

    return find
