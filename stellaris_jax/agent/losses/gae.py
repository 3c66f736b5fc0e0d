"""Linear recurrences over time and generalised advantage estimation (Schulman et al. 2016)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number


def decayed(decay: jax.Array, y: jax.Array) -> jax.Array:
    """Product decay * y, exactly 0 where the decay is 0, even if y is NaN."""
    return jnp.where(decay == 0.0, 0.0, decay * y)


def linear_recurrence(decay: jax.Array, x: jax.Array, initial: jax.Array, reverse: bool = False) -> jax.Array:
    """Recurrence y_t = x_t + decay_t * y_{t-1} along the leading axis (y_{t+1} if `reverse`), in logarithmic depth.

    A decay of 0 cuts the recurrence: earlier values do not reach y_t, not even NaNs.

    >>> decay, x = jnp.array([[0.5], [0.0], [0.5]]), jnp.array([[jnp.nan], [1.0], [1.0]])
    >>> linear_recurrence(decay, x, jnp.zeros(1))[:, 0].tolist()
    [nan, 1.0, 1.5]

    Args:
      decay, x: arrays `[T, N]`.
      initial: y before the first step (after the last if `reverse`), `[N]`.
      reverse: whether the recurrence runs backwards.
    """

    def combine(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return first[0] * second[0], second[1] + decayed(second[0], first[1])

    edge = -1 if reverse else 0
    x = x.at[edge].add(decayed(decay[edge], initial))
    return jax.lax.associative_scan(combine, (decay, x), reverse=reverse)[1]


def gae(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    gamma: Number,
    gae_lambda: Number,
) -> tuple[jax.Array, jax.Array]:
    """Advantages and value targets of a fragment.

    Termination cuts the bootstrap, and truncation keeps it. Both end the sum over later steps.

    >>> reward, value = jnp.ones((3, 1)), jnp.zeros((3, 1))
    >>> never = jnp.zeros((3, 1), bool)
    >>> advantage, target = gae(reward, value, value, never, never, gamma=0.5, gae_lambda=1.0)
    >>> advantage[:, 0].tolist()
    [1.75, 1.5, 1.0]
    >>> ends = jnp.array([[False], [True], [False]])
    >>> gae(reward, value, value + 8, ends, never, gamma=0.5, gae_lambda=1.0)[0][:, 0].tolist()  # terminated
    [5.5, 1.0, 5.0]
    >>> gae(reward, value, value + 8, never, ends, gamma=0.5, gae_lambda=1.0)[0][:, 0].tolist()  # truncated
    [7.5, 5.0, 5.0]

    Args:
      reward: rewards, `[T, N]` as all arrays.
      value: values of the observations.
      next_value: values of the next observations, before any reset.
      terminated, truncated: whether the episode ended with the step, and how.
      gamma: discount of a step.
      gae_lambda: decay of longer sums; 0 uses one step, 1 all steps.

    Returns:
      (advantages, value targets), `[T, N]` each.
    """
    bootstrap = jnp.where(terminated, 0.0, gamma * next_value)
    delta = reward + bootstrap - value
    decay = jnp.where(terminated | truncated, 0.0, gamma * gae_lambda)
    advantage = linear_recurrence(decay, delta, jnp.zeros_like(delta[0]), reverse=True)
    return advantage, advantage + value
