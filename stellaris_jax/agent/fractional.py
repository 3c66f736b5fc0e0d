"""Adam that takes a fraction of a step: `system.aggregation=fractional`.

Adam ignores the scale of a gradient, so weights on gradients or steps cannot limit an update fully. Under `factored`, a
gradient of weight 1e-20 does not move the parameters itself. But it enters the moments in full, and moves the
parameters through the next step. Here an update of trust t is a fraction t of an Adam step:

    m <- beta1^t m + (1 - beta1^t) g            v <- beta2^t v + (1 - beta2^t) g^2
    theta <- theta - t alpha m_hat / (sqrt(v_hat) + eps)

with bias corrections 1 - prod beta^t over all updates. At t = 1 it equals Adam to the bit; at t = 0 it changes nothing;
in between it is continuous. k updates of trust 1/k by one gradient give the same moments as one update of trust 1.
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
