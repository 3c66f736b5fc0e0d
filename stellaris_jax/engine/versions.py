"""Version ring: the last H policies, so that a learner can compute on the version that it fetched.

This is the paper's distributed cache. Version c is in slot c mod H; parameters are flat vectors `[P]`, so the
whole ring is one array `[H, P]`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.timeline.ring import Ring


def init(params: jax.Array, length: int) -> jax.Array:
    """Ring `[H, P]` with the initial policy in every slot."""
    return jnp.broadcast_to(params, (length, *params.shape)).copy()


def fetch(ring: jax.Array, slot: jax.Array) -> jax.Array:
    """Policy `[P]` in a slot."""
    return jax.lax.dynamic_index_in_dim(ring, slot, keepdims=False)


def lookup(ring: jax.Array, newest: jax.Array, params: jax.Array, slot: jax.Array) -> jax.Array:
    """Policy `[P]` in a slot, if the `newest` version, `params`, may not have been published yet."""
    return jnp.where(slot == Ring(len(ring)).slot(newest), params, fetch(ring, slot))


def behind(ring: jax.Array, newest: jax.Array, slot: jax.Array) -> jax.Array:
    """Staleness in versions of the policy in a slot; element by element for an array of slots."""
    return Ring(len(ring)).behind(newest, slot)  # type: ignore[no-any-return]


def previous(ring: jax.Array, newest: jax.Array) -> jax.Array:
    """Policy `[P]` before the `newest` version; the initial policy before the first update."""
    return fetch(ring, Ring(len(ring)).slot(newest - 1))


def publish(ring: jax.Array, version: jax.Array, params: jax.Array) -> jax.Array:
    """Write the policy `[P]` of a version into its slot.

    Publish before fetching: a write after a read in one loop body makes XLA copy the whole ring.
    """
    return jax.lax.dynamic_update_index_in_dim(ring, params, Ring(len(ring)).slot(version), 0)
