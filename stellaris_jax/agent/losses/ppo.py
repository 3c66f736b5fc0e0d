"""The PPO loss (Schulman et al. 2017) with global importance-sampling truncation."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.agent.losses.common import (
    LossInputs,
    LossMetrics,
    clipped_surrogate,
    importance_ratio,
    is_truncated,
    total,
)
from stellaris_jax.agent.losses.truncation import truncated_ratio


def ppo_loss(inputs: LossInputs) -> tuple[jax.Array, LossMetrics]:
    """Clipped surrogate + value loss - entropy bonus + KL penalty, as means over the minibatch."""
    batch, value, hyper = inputs.batch, inputs.value, inputs.hyper
    log_ratio = inputs.log_prob - batch.log_prob
    ratio, weight = truncated_ratio(log_ratio, inputs.peer_log_ratio, hyper.rho, inputs.truncation)

    near = batch.value + jnp.clip(value - batch.value, -hyper.value_clip, hyper.value_clip)
    near = jnp.where(jnp.isinf(hyper.value_clip), value, near)  # to the bit
    error = jnp.maximum(jnp.square(value - batch.target), jnp.square(near - batch.target))

    own = importance_ratio(log_ratio)
    terms = LossMetrics(
        policy_loss=-weight * clipped_surrogate(ratio, batch.advantage, hyper.clip),
        value_loss=0.5 * error,
        entropy=inputs.distribution.entropy(inputs.parameters),
        kl=inputs.distribution.kl(batch.distribution, inputs.parameters),
        clip_fraction=jnp.abs(own - 1.0) > hyper.clip,
        truncated_fraction=is_truncated(weight * ratio, own),
    )
    return total(terms, inputs)
