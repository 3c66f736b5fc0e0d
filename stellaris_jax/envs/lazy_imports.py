"""Lazy imports of packages that a suite needs only for pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Placeholder of a module, which imports it at the first access to an attribute."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            raise AttributeError(f"{self.__name__} is imported lazily, and {name} of it is not.")
        return getattr(import_module(self.__name__), name)


@contextmanager
def lazily(*modules: str) -> Iterator[None]:
    """Context in which imports of these modules are lazy; modules that are loaded already stay as they are.

    Args:
      modules: modules, or modules of a package as `package.module`, whose package is lazy, too.
    """
    later: dict[str, _Later] = {}
    for name in modules:
        package, _, module = name.partition(".")
        for each in dict.fromkeys((package, name)):
            if each not in sys.modules and each not in later and find_spec(package) is not None:
                later[each] = _Later(each)
                later[each].__spec__ = ModuleSpec(each, None)
        if module and package in later:
            setattr(later[package], module, later[name])
    sys.modules.update(later)
    try:
        yield
    finally:
        for name, placeholder in later.items():
            if sys.modules.get(name) is placeholder:
                del sys.modules[name]
