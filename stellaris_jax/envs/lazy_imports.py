"""Lazy imports of packages that a suite needs only for pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Placeholder of a module, which imports it at the first access to an attribute."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


@contextmanager
def lazily(*modules: str) -> Iterator[None]:
    """Context in which imports of these modules are lazy; modules that are loaded already stay as they are."""
    later = {}
    for name in modules:
        if name not in sys.modules and (spec := find_spec(name)) is not None:
            later[name] = _Later(name)
            later[name].__spec__ = spec
    sys.modules.update(later)
    try:
        yield
    finally:
        for name, module in later.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
