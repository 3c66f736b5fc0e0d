"""Packages that a suite imports for its pictures alone, loaded when something of them is first used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module until something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


@contextmanager
def lazily(*modules: str) -> Iterator[None]:
    """Within the context, importing these modules costs nothing; what is loaded already stays as it is."""
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
