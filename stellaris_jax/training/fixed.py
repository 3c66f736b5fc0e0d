"""Attributes that are read once, and refuse another value."""

from __future__ import annotations

from typing import Any, ClassVar


class Fixed:
    """A base of classes whose attributes named by `FIXED` are set once: another value would change nothing."""

    FIXED: ClassVar[tuple[str, ...]] = ()
    INSTEAD: ClassVar[str] = ""
    """Advice, as the end of a sentence."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.FIXED and name in vars(self):
            raise AttributeError(f"{type(self).__name__}.{name} cannot change: {self.INSTEAD}.")
        super().__setattr__(name, value)
