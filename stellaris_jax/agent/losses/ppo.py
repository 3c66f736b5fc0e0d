"""The PPO loss (Schulman et al. 2017) with global importance-sampling truncation."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.agent.losses.common import (
    LossMetrics,
    Samples,
    clipped_surrogate,
    importance_ratio,
    is_truncated,
    total,
)
from stellaris_jax.agent.losses.truncation import truncated_ratio
from stellaris_jax.agent.networks.distributions import Distribution
from stellaris_jax.config.tree import AlgorithmConfig


def ppo_loss(
    distribution: Distribution,
    parameters: jax.Array,
    value: jax.Array,
    batch: Samples,
    peer_log_ratio: jax.Array | None,
    kl_coefficient: jax.Array,
    algorithm: AlgorithmConfig,
    truncation: str,
    rho: float,
) -> tuple[jax.Array, LossMetrics]:
    """Clipped surrogate + value loss - entropy bonus + KL penalty, as means over the minibatch.

    Args:
      distribution: the action distribution.
      parameters: its parameters under the learner's policy, `[B, D]`.
      value: the learner's critic on the minibatch, `[B]`.
      batch: the minibatch, `[B]`.
      peer_log_ratio: see `truncated_ratio`.
      kl_coefficient: weight of KL(mu || pi).
      algorithm: clip ranges and coefficients.
      truncation, rho: mode and threshold of Eq. 2.
    """
    log_ratio = distribution.log_prob(parameters, batch.action) - batch.log_prob
    ratio, weight = truncated_ratio(log_ratio, peer_log_ratio, rho, truncation)

    error = jnp.square(value - batch.target)
    if algorithm.value_clip > 0.0:
        near = batch.value + jnp.clip(value - batch.value, -algorithm.value_clip, algorithm.value_clip)
        error = jnp.maximum(error, jnp.square(near - batch.target))

    own = importance_ratio(log_ratio)
    terms = LossMetrics(
        policy_loss=-weight * clipped_surrogate(ratio, batch.advantage, algorithm.clip),
        value_loss=0.5 * error,
        entropy=distribution.entropy(parameters),
        kl=distribution.kl(batch.distribution, parameters),
        clip_fraction=jnp.abs(own - 1.0) > algorithm.clip,
        truncated_fraction=is_truncated(weight * ratio, own),
    )
    return total(terms, batch.valid, kl_coefficient, algorithm)
