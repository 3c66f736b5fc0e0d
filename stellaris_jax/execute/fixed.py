"""Attributes that are set once and then refuse another value."""

from __future__ import annotations

from typing import Any, ClassVar


class Fixed:
    """Base of classes whose attributes named by `FIXED` are set once, because a new value would have no effect."""

    FIXED: ClassVar[tuple[str, ...]] = ()
    INSTEAD: ClassVar[str] = ""
    """Advice for the error message, as the end of a sentence."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.FIXED and name in vars(self):
            raise AttributeError(f"{type(self).__name__}.{name} cannot change: {self.INSTEAD}.")
        super().__setattr__(name, value)
