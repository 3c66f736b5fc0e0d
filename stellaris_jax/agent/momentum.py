"""Bias correction of Adam with a beta_1 that varies from step to step.

Adam divides the mean of gradients by the sum of its weights, 1 - prod_k beta_1(k) over all steps k. Optimizers compute
this as 1 - beta_1^t with the current beta_1, which is correct only if beta_1 has never changed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from stellaris_jax.agent import Number
from stellaris_jax.agent.fractional import LEAST


class VaryingMomentumState(NamedTuple):
    """State of `varying_momentum`.

    Attributes:
      inner: state of the optimizer.
      log_product: logarithm of the product of beta_1 over all steps, to the power of their trust; float32.
      taken: sum of the trust of all steps, float32; whole steps have trust 1.
      common: beta_1 of all steps so far; NaN before the first step and once two of them differ.
    """

    inner: optax.OptState
    log_product: jax.Array
    taken: jax.Array
    common: jax.Array


def varying_momentum(inner: optax.GradientTransformation, b1: Number) -> optax.GradientTransformationExtraArgs:
    """Adam with the bias correction 1 - prod_k beta_1(k) for a varying beta_1.

    As long as beta_1 is the same at every step, the updates equal those of `inner` to the bit.

    >>> params, gradient = jnp.zeros(1), jnp.ones(1)
    >>> state = varying_momentum(optax.adam(1.0, b1=0.9), 0.9).init(params)
    >>> for b1 in (0.9, 0.5):  # of equal gradients every step is the learning rate
    ...     updates, state = varying_momentum(optax.adam(1.0, b1=b1), b1).update(gradient, state, params)
    ...     updates.round(3).tolist()
    [-1.0]
    [-1.0]

    Args:
      inner: Adam with this step's beta_1, including the learning rate.
      b1: this step's beta_1, a scalar in [0, 1).

    Returns:
      An optimizer, fractional if `inner` is.
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: optax.Params) -> VaryingMomentumState:
        return VaryingMomentumState(inner.init(params), jnp.zeros(()), jnp.zeros(()), jnp.full((), jnp.nan))

    def update(
        gradient: optax.Updates, state: VaryingMomentumState, params: optax.Params | None = None, **trust: Number
    ) -> tuple[optax.Updates, VaryingMomentumState]:
        updates, inner_state = inner.update(gradient, state.inner, params, **trust)
        share, decay = jnp.asarray(trust.get("trust", 1.0), jnp.float32), jnp.asarray(b1, jnp.float32)
        same = (state.taken == 0.0) | (decay == state.common)
        taken, log_product = state.taken + share, state.log_product + share * jnp.log(decay)
        factor = jnp.where(same, 1.0, jnp.expm1(taken * jnp.log(decay)) / jnp.expm1(log_product))
        after = VaryingMomentumState(inner_state, log_product, taken, jnp.where(same, decay, jnp.nan))
        skipped = state._replace(inner=inner_state)
        after = jax.tree.map(lambda new, old: jnp.where(share >= LEAST, new, old), after, skipped)
        return jax.tree.map(lambda x: factor * x, updates), after

    return type(inner)(init, update)
