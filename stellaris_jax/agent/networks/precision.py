"""Arithmetic of actors: parameters rounded as inference engines round them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

INT8 = 127.0


def lowered(tree: Any, precision: str) -> Any:
    """Parameters as actors have them.

    `bfloat16` rounds all; networks that compute in their parameters' type then compute in it, too. `int8` rounds
    matrices to 255 levels for each output, and keeps everything else.

    >>> lowered({"kernel": jnp.array([[127.0, -254.0], [2.4, 3.1]])}, "int8")["kernel"].tolist()
    [[127.0, -254.0], [2.0, 4.0]]
    """
    if precision == "bfloat16":
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)
    return jax.tree.map(_levels, tree) if precision == "int8" else tree


def _levels(x: jax.Array) -> jax.Array:
    """Matrix `[inputs, outputs]` rounded to multiples of a 127th of each output's largest weight."""
    if x.ndim != 2:
        return x
    unit = jnp.max(jnp.abs(x), axis=0) / INT8
    return jnp.round(x / jnp.maximum(unit, jnp.finfo(x.dtype).tiny)) * unit
