"""Ring buffers of numbered items: policy versions and fragments."""

from __future__ import annotations

from typing import Any, NamedTuple


class Ring(NamedTuple):
    """Ring buffer whose slots hold the last items; numbers and slots may be arrays, element by element.

    >>> Ring(4).slot(6), Ring(4).behind(6, slot=1)
    (2, 1)

    Attributes:
      length: number of slots.
    """

    length: int

    def slot(self, number: Any) -> Any:
        """Slot of an item by its number."""
        return number % self.length

    def behind(self, newest: Any, slot: Any) -> Any:
        """Items that have followed the one in a slot, up to number `newest`."""
        return (newest - slot) % self.length
