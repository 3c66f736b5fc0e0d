"""The PPO loss (Schulman et al. 2017) with global importance-sampling truncation."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.agent.losses.algorithm import Algorithm
from stellaris_jax.agent.losses.common import (
    LossInputs,
    LossMetrics,
    clipped_surrogate,
    importance_ratio,
    is_truncated,
    total,
)
from stellaris_jax.agent.losses.truncation import truncated_ratio
from stellaris_jax.config.schema import knob
from stellaris_jax.registry import register


@register.algorithm("ppo")
class PPO(Algorithm):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    clip: float = knob(0.2, "clip range of the importance ratio (epsilon)", within="(0, inf)")
    value_clip: float = knob(0.2, "clip range of the value update; 0 turns it off", within="[0, inf)")

    def loss(self, inputs: LossInputs) -> tuple[jax.Array, LossMetrics]:
        """Clipped surrogate + value loss - entropy bonus + KL penalty, as means over the minibatch."""
        batch, value, hyper = inputs.batch, inputs.value, inputs.hyper
        log_ratio = inputs.log_prob - batch.log_prob
        ratio, weight = truncated_ratio(log_ratio, inputs.peer_log_ratio, hyper.rho, inputs.truncation)

        near = batch.value + jnp.clip(value - batch.value, -self.value_clip, self.value_clip)
        near = jnp.where(self.value_clip > 0.0, near, value)
        error = jnp.maximum(jnp.square(value - batch.target), jnp.square(near - batch.target))

        own = importance_ratio(log_ratio)
        terms = LossMetrics(
            policy_loss=-weight * clipped_surrogate(ratio, batch.advantage, self.clip),
            value_loss=0.5 * error,
            entropy=inputs.distribution.entropy(inputs.parameters),
            kl=inputs.distribution.kl(batch.distribution, inputs.parameters),
            clip_fraction=jnp.abs(own - 1.0) > self.clip,
            truncated_fraction=is_truncated(weight * ratio, own),
        )
        return total(terms, inputs)
