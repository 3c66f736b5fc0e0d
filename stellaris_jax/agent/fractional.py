"""Optimizers: Adam that takes a fraction of a step, and Adam's bias correction for a varying beta_1.

**Fractional steps** (`system.aggregation=fractional`). Adam ignores the scale of a gradient, so weights on gradients or
steps cannot limit an update fully. Under `factored`, a gradient of weight 1e-20 does not move the parameters itself.
But it enters the moments in full, and moves the parameters through the next step. Here an update of trust t is a
fraction t of an Adam step:

    m <- beta1^t m + (1 - beta1^t) g            v <- beta2^t v + (1 - beta2^t) g^2
    theta <- theta - t alpha m_hat / (sqrt(v_hat) + eps)

with bias corrections 1 - prod beta^t over all updates. At t = 1 it equals Adam to the bit; at t = 0 it changes nothing;
in between it is continuous. Several updates (k) of trust 1/k by one gradient give the same moments as one update of
trust 1.

**Varying beta_1.** Adam divides the mean of gradients by the sum of its weights, 1 - prod_k beta_1(k) over all steps k.
Optimizers compute this as 1 - beta_1^t with the current beta_1, which is correct only if beta_1 has never changed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from stellaris_jax.agent import Number

LEAST = 1e-12
"""Trust below which an update is skipped."""


class FractionalAdamState(NamedTuple):
    """State of `fractional_adam`.

    Attributes:
      mu: running means of gradients, in the parameters' structure.
      nu: running means of squared gradients, in the parameters' structure.
      steps: number of updates so far, without skipped ones; int32.
      taken: sum of their trust, float32; the product of beta^t is beta^taken.
    """

    mu: optax.Updates
    nu: optax.Updates
    steps: jax.Array
    taken: jax.Array


class FractionalOptimizer(optax.GradientTransformationExtraArgs):
    """Optimizer that takes fractions of a step: `update(gradient, state, params, trust=t)`, t a scalar."""


def fractional_adam(
    learning_rate: Number,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    max_grad_norm: Number = float("inf"),
) -> FractionalOptimizer:
    """Adam that takes a fraction of a step, after clipping the gradient's norm.

    >>> optimizer, params = fractional_adam(1.0), jnp.zeros(1)
    >>> for trust in (1.0, 0.25, 0.0):
    ...     optimizer.update(jnp.ones(1), optimizer.init(params), params, trust=trust)[0].round(4).tolist()
    [-1.0]
    [-0.25]
    [0.0]

    Args:
      learning_rate: size of a whole step (alpha).
      b1: decay of the mean of gradients per whole step (beta 1).
      b2: decay of the mean of squared gradients per whole step (beta 2).
      eps: epsilon of Adam.
      max_grad_norm: norm at which a gradient is clipped.
    """
    clip = optax.clip_by_global_norm(max_grad_norm)

    def init(params: optax.Params) -> FractionalAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return FractionalAdamState(zeros, zeros, jnp.zeros((), jnp.int32), jnp.zeros(()))

    def update(
        gradient: optax.Updates, state: FractionalAdamState, params: optax.Params | None = None, *, trust: Number
    ) -> tuple[optax.Updates, FractionalAdamState]:
        trust = jnp.asarray(trust, jnp.float32)
        gradient, _ = clip.update(gradient, clip.init(params), params)
        steps, taken = state.steps + 1, state.taken + trust
        mu = _moved(gradient, state.mu, b1, trust, 1)
        nu = _moved(gradient, state.nu, b2, trust, 2)
        first, second = (_bias(decay, steps, taken) for decay in (b1, b2))
        step = jax.tree.map(lambda m, v: m / first / (jnp.sqrt(v / second) + eps), mu, nu)
        updates = jax.tree.map(lambda x: trust * (-learning_rate * x), step)
        applied = trust >= LEAST
        moved = (updates, FractionalAdamState(mu, nu, steps, taken))
        skipped = (jax.tree.map(jnp.zeros_like, updates), state)
        return jax.tree.map(lambda new, old: jnp.where(applied, new, old), moved, skipped)  # type: ignore[no-any-return]

    return FractionalOptimizer(init, update)


def _moved(
    gradient: optax.Updates, moment: optax.Updates, decay: Number, trust: jax.Array, order: int
) -> optax.Updates:
    """Moment after an update: moved towards a gradient's power by the share 1 - decay^trust."""
    is_whole = trust == 1.0
    rate = jnp.where(is_whole, 1 - decay, -jnp.expm1(trust * jnp.log(decay)))
    keep = jnp.where(is_whole, decay, jnp.exp(trust * jnp.log(decay)))
    return jax.tree.map(lambda g, m: rate * (g**order) + keep * m, gradient, moment)


def _bias(decay: Number, steps: jax.Array, taken: jax.Array) -> jax.Array:
    """Bias correction 1 - decay^taken: optax's formula if all updates were whole, else one exact for small sums."""
    return jnp.where(taken == steps, 1 - decay**steps, -jnp.expm1(taken * jnp.log(decay)))


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
