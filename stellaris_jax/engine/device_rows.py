"""Rows of an array that several devices hold together: each has an equal part of consecutive rows.

Inside `shard_map` a device sees its own part. Without a mesh axis the array is whole.
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")


def gathered(tree: T, axis: str, along: int = 0) -> T:
    """Arrays of all devices, one after the other along one of their own axes.

    Args:
      tree: this device's arrays.
      axis: mesh axis of the devices.
      along: axis of the arrays.
    """
    whole: T = jax.tree.map(lambda x: jax.lax.all_gather(x, axis, axis=along, tiled=True), tree)
    return whole


def total(part: Any, axis: str | None) -> int:
    """Rows that all devices hold of an array, of which this device has `part`."""
    return len(part) * (1 if axis is None else jax.lax.axis_size(axis))


def take(stored: Any, rows: jax.Array, axis: str | None) -> Any:
    """Rows of arrays, whichever device holds them.

    Args:
      stored: arrays `[R, ...]`, or this device's part `[R / devices, ...]`.
      rows: the rows, `[...]`; devices may ask for different ones, but for equally many; clipped to those there are.
      axis: mesh axis of the devices; `None` if the arrays are whole.

    Returns:
      Arrays `[..., ...]`, exactly as they are stored.
    """
    if axis is None:
        return jax.tree.map(lambda x: jnp.take(x, rows, axis=0, mode="clip"), stored)
    wanted = jax.lax.all_gather(rows, axis)

    def found(part: jax.Array) -> jax.Array:
        places = jnp.clip(wanted, 0, total(part, axis) - 1) - jax.lax.axis_index(axis) * len(part)
        own = (places >= 0) & (places < len(part))
        bits = _as_bits(jnp.take(part, places, axis=0, mode="clip"))
        bits = jnp.where(own.reshape(own.shape + (1,) * (bits.ndim - own.ndim)), bits, 0)
        # One device has each row and the others have zeros, so that the sum of the bits is the row.
        summed = jax.lax.psum_scatter(bits, axis, scatter_dimension=0)
        return _from_bits(summed, part.dtype)

    return jax.tree.map(found, stored)


def put(stored: Any, new: Any, first: jax.Array, axis: str | None) -> Any:
    """Arrays with consecutive rows replaced, from `first` on; every device knows all new rows `[M, ...]`."""
    if axis is None:
        return jax.tree.map(lambda x, part: jax.lax.dynamic_update_slice_in_dim(x, part, first, axis=0), stored, new)

    def written(part: jax.Array, rows: jax.Array) -> jax.Array:
        places = first + jnp.arange(len(rows)) - jax.lax.axis_index(axis) * len(part)
        beyond = jnp.where(places < 0, len(part), places)  # a negative index would count from the end
        return part.at[beyond].set(rows, mode="drop")

    return jax.tree.map(written, stored, new)


def _as_bits(x: jax.Array) -> jax.Array:
    """Array as unsigned integers of the same width: sums of numbers would lose the sign of a zero."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    return jax.lax.bitcast_convert_type(x, unsigned)


def _from_bits(bits: jax.Array, dtype: Any) -> jax.Array:
    """Inverse of `_as_bits`."""
    return bits.astype(bool) if dtype == jnp.bool_ else jax.lax.bitcast_convert_type(bits, dtype)
