"""The PPO loss (Schulman et al. 2017) with global importance-sampling truncation."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.config import AlgorithmConfig
from stellaris_jax.losses.truncation import truncated_ratio
from stellaris_jax.networks.distributions import Distribution


class Samples(NamedTuple):
    """Training data, one row per environment step, leading axes `[B]` (or `[T, N]` before it is flattened).

    obs: as the policy saw it. action: as sampled. distribution: parameters of mu(.|s), the behaviour policy.
    log_prob: log mu(a|s). value, advantage, target: from the critic at collection time. valid: bool, false for what
    nothing is to be learned from; `None` where there is no such thing.
    """

    obs: jax.Array
    action: jax.Array
    distribution: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    valid: jax.Array | None = None


class LossMetrics(NamedTuple):
    """Means over a minibatch; `truncated_fraction` is the share of samples where R' < R."""

    policy_loss: jax.Array
    value_loss: jax.Array
    entropy: jax.Array
    kl: jax.Array
    clip_fraction: jax.Array
    truncated_fraction: jax.Array


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
    mean = partial(_mean, valid=batch.valid)
    log_ratio = distribution.log_prob(parameters, batch.action) - batch.log_prob
    ratio, weight = truncated_ratio(log_ratio, peer_log_ratio, rho, truncation)
    clipped = jnp.clip(ratio, 1.0 - algorithm.clip, 1.0 + algorithm.clip)
    surrogate = weight * jnp.minimum(ratio * batch.advantage, clipped * batch.advantage)
    policy_loss = -mean(surrogate)

    error = jnp.square(value - batch.target)
    if algorithm.value_clip > 0.0:
        near = batch.value + jnp.clip(value - batch.value, -algorithm.value_clip, algorithm.value_clip)
        error = jnp.maximum(error, jnp.square(near - batch.target))
    value_loss = 0.5 * mean(error)

    entropy = mean(distribution.entropy(parameters))
    kl = mean(distribution.kl(batch.distribution, parameters))
    loss = policy_loss + algorithm.value_coefficient * value_loss - algorithm.entropy_coefficient * entropy
    if algorithm.kl_coefficient > 0.0:
        loss += kl_coefficient * kl

    own = jnp.exp(log_ratio)
    used = weight * ratio
    metrics = LossMetrics(
        policy_loss=policy_loss,
        value_loss=value_loss,
        entropy=entropy,
        kl=kl,
        clip_fraction=mean(jnp.abs(own - 1.0) > algorithm.clip),
        truncated_fraction=mean(used < own * (1.0 - 1e-6)),
    )
    return loss, jax.tree.map(jax.lax.stop_gradient, metrics)


def _mean(x: jax.Array, valid: jax.Array | None) -> jax.Array:
    """Mean over a minibatch `[B]`, or over what is valid of it."""
    if valid is None:
        return jnp.mean(x)
    return jnp.sum(jnp.where(valid, x, 0.0)) / jnp.maximum(jnp.sum(valid), 1)


def adapt_kl_coefficient(coefficient: jax.Array, kl: jax.Array, target: float) -> jax.Array:
    """RLlib's rule: x 1.5 if the round's KL exceeds twice the target, x 0.5 if it is below half of it."""
    factor = jnp.where(kl > 2.0 * target, 1.5, jnp.where(kl < 0.5 * target, 0.5, 1.0))
    return coefficient * factor
