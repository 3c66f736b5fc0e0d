"""Running mean and variance, merged a fragment at a time (Chan et al. 1983)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class RunningStatistics(NamedTuple):
    """count: samples seen; mean, variance: per element, of the shape of one sample."""

    count: jax.Array
    mean: jax.Array
    variance: jax.Array


def init(shape: tuple[int, ...]) -> RunningStatistics:
    """No samples yet: mean 0, variance 1."""
    return RunningStatistics(jnp.zeros(()), jnp.zeros(shape), jnp.ones(shape))


def update(statistics: RunningStatistics, samples: jax.Array) -> RunningStatistics:
    """Merge samples `[B, *shape]`. A non-finite sample element counts as the mean: it moves nothing but the count."""
    samples = jnp.where(jnp.isfinite(samples), samples, statistics.mean)
    mean, variance, count = samples.mean(0), samples.var(0), samples.shape[0]
    total = statistics.count + count
    delta = mean - statistics.mean
    squares = statistics.variance * statistics.count + variance * count
    squares += jnp.square(delta) * statistics.count * count / total
    return RunningStatistics(total, statistics.mean + delta * count / total, squares / total)


def normalize(statistics: RunningStatistics, x: jax.Array, clip: float = 10.0) -> jax.Array:
    """(x - mean) / deviation, clipped to +-`clip`."""
    return jnp.clip((x - statistics.mean) * jax.lax.rsqrt(statistics.variance + 1e-8), -clip, clip)


def rescale(statistics: RunningStatistics, x: jax.Array, clip: float = 10.0) -> jax.Array:
    """x / deviation, clipped to +-`clip`: for rewards, whose sign must stay."""
    return jnp.clip(x * jax.lax.rsqrt(statistics.variance + 1e-8), -clip, clip)
