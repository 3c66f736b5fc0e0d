"""Agents: networks, losses and optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax

    Number = jax.Array | float
    """Float option or hyper-parameter: an array inside a compiled program, a float outside.

    At run time it is `float`, so `clip: Number = knob(0.2, "...")` declares an option that is a float.
    """
else:
    Number = float
