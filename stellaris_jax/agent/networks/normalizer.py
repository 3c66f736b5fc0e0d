"""Running mean and variance, updated once per fragment (Chan et al. 1983)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

CLIP, EPSILON = 10.0, 1e-8
"""Clip of normalised values, and the constant added to a variance."""


class RunningStatistics(NamedTuple):
    """Running statistics per element, in the shape of one sample.

    Attributes:
      samples: number of finite values so far.
      mean: their mean.
      variance: their variance.
    """

    samples: jax.Array
    mean: jax.Array
    variance: jax.Array


def init(shape: tuple[int, ...]) -> RunningStatistics:
    """Statistics without samples: mean 0, variance 1."""
    return RunningStatistics(jnp.zeros(shape), jnp.zeros(shape), jnp.ones(shape))


def update(statistics: RunningStatistics, batch: jax.Array) -> RunningStatistics:
    """Merge samples `[B, *shape]`; ignores non-finite elements."""
    finite = jnp.isfinite(batch)
    count = jnp.sum(finite, axis=0, dtype=jnp.float32)
    mean = jnp.sum(jnp.where(finite, batch, 0.0), axis=0) / jnp.maximum(count, 1.0)
    squares = jnp.sum(jnp.where(finite, jnp.square(batch - mean), 0.0), axis=0)
    total = statistics.samples + count
    delta = mean - statistics.mean
    share = count / jnp.maximum(total, 1.0)
    squares += statistics.samples * (statistics.variance + jnp.square(delta) * share)
    return RunningStatistics(
        total,
        statistics.mean + delta * share,
        jnp.where(count > 0, squares / jnp.maximum(total, 1.0), statistics.variance),
    )


def normalize(statistics: RunningStatistics, x: jax.Array, clip: float = CLIP) -> jax.Array:
    """Normalised values (x - mean) / deviation, clipped to +-`clip`."""
    return jnp.clip((x - statistics.mean) * jax.lax.rsqrt(statistics.variance + EPSILON), -clip, clip)


def rescale(statistics: RunningStatistics, x: jax.Array, clip: float = CLIP) -> jax.Array:
    """Rescaled values x / deviation, clipped to +-`clip`: for rewards, whose sign must not change."""
    return jnp.clip(x * jax.lax.rsqrt(statistics.variance + EPSILON), -clip, clip)
