"""Version ring: the last H policies, so that a learner can compute on the version that it fetched.

This is the paper's distributed cache. Version c is in slot c mod H; parameters are flat vectors `[P]`, so the
whole ring is one array `[H, P]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.timeline.ring import Ring


class Targets(NamedTuple):
    """Target networks that are made of the parameters.

    Attributes:
      newest: that of the newest version, `[P]`.
      ring: those of the last versions, `[H, P]`, in the slots of the version ring; `None` if all have the same.
    """

    newest: jax.Array
    ring: jax.Array | None

    @classmethod
    def of(cls, kind: str, params: jax.Array, length: int) -> Targets | None:
        """Target networks of a run that starts from a policy `[P]`; `None` for kinds that need none of these.

        Args:
          kind: the algorithm's `target`.
          params: the policy.
          length: length H of the version ring.
        """
        if kind not in ("reference", "polyak"):
            return None
        return cls(params, init(params, length) if kind == "polyak" else None)

    def published(self, version: jax.Array) -> Targets:
        """Targets whose ring holds that of the newest version."""
        return self if self.ring is None else self._replace(ring=publish(self.ring, version, self.newest))

    def fetch(self, slot: jax.Array) -> jax.Array:
        """Target network `[P]` of the version in a slot."""
        return self.newest if self.ring is None else fetch(self.ring, slot)


def moved(targets: Targets | None, params: jax.Array, is_new: jax.Array, options: Mapping[str, Any]) -> Targets | None:
    """Targets after a wave: if it has made a version, `params`, a share `target_rate` of the way towards it."""
    if targets is None or targets.ring is None:
        return targets
    nearer = targets.newest + options["target_rate"] * (params - targets.newest)
    return targets._replace(newest=jnp.where(is_new, nearer, targets.newest))


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
