"""Global importance-sampling truncation (Eq. 2): R' = min(min_i pi_i / mu, rho) over all learners in flight.

Applied literally inside PPO's own minimum, Eq. 2 removes the gradient of most samples. So the use of R' is a mode:

- `weight`: PPO's clipped surrogate times stop_gradient(R' / R): the trust region stays, the magnitude is truncated.
- `surrogate`: R' replaces R, as printed. The gradient flows where R itself is the minimum, ties included.
- `artifact`: the released code, which has a lower clamp: R' = min(R, max(min_i R_i, rho)), ties split in half.
- `none`: R' = R.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.common import importance_ratio

MODES = ("weight", "surrogate", "artifact", "none")
TIE = 1e-5
"""Relative difference up to which two ratios count as equal. Log-probabilities recomputed with other batch shapes or
devices differ by rounding, and at rho = 1 every sample of a fresh learner is a tie."""


def truncated_ratio(
    log_ratio: jax.Array, peer_log_ratio: jax.Array | None, rho: Number, mode: str
) -> tuple[jax.Array, jax.Array]:
    """Ratio R' for the surrogate, and a weight without gradient that multiplies the surrogate.

    >>> log_ratio, others = jnp.log(jnp.array([2.0, 0.5])), jnp.log(jnp.array([1.0, 1.0]))
    >>> ratio, weight = truncated_ratio(log_ratio, others, rho=1.0, mode="weight")
    >>> (ratio * weight).round(3).tolist()
    [1.0, 0.5]

    Eq. 2 lowers the weight of actions that a learner in flight has come to avoid (0.25); the released code does not:

    >>> for mode in ("surrogate", "artifact"):
    ...     truncated_ratio(log_ratio, jnp.log(jnp.array([0.25, 0.25])), rho=1.0, mode=mode)[0].round(3).tolist()
    [0.25, 0.25]
    [1.0, 0.5]

    Args:
      log_ratio: log(pi_j / mu) of the learner's own policy, `[B]`, with gradient.
      peer_log_ratio: min over the other learners' policies of log(pi_i / mu), `[B]`; `None` or +inf without any.
      rho: the threshold.
      mode: one of `MODES`.

    Returns:
      (ratio `[B]`, weight `[B]`).

    Raises:
      ValueError: the mode is unknown.
    """
    ratio = importance_ratio(log_ratio)
    if mode == "none":
        return ratio, jnp.ones_like(ratio)
    detached = jax.lax.stop_gradient(ratio)
    peers = detached if peer_log_ratio is None else jax.lax.stop_gradient(importance_ratio(peer_log_ratio))
    smallest = jnp.minimum(detached, peers)
    if mode == "artifact":
        cap = jnp.maximum(smallest, rho)
        half = 0.5 * (ratio + cap)
        below = jnp.where(detached < cap, ratio, cap)
        return jnp.where(jnp.abs(detached - cap) <= TIE * cap, half, below), jnp.ones_like(ratio)
    truncated = jnp.minimum(smallest, rho)
    if mode == "weight":
        return ratio, truncated / jnp.maximum(detached, jnp.finfo(detached.dtype).tiny)
    if mode == "surrogate":
        return jnp.where(detached <= truncated * (1.0 + TIE), ratio, truncated), jnp.ones_like(ratio)
    raise ValueError(f"truncation mode {mode!r} is unknown; accepted: {', '.join(MODES)}")
