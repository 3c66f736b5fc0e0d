"""PPO (Schulman et al. 2017) and the base of algorithms with its critic; global importance-sampling truncation."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.algorithm import Algorithm
from stellaris_jax.agent.losses.common import (
    LossInputs,
    Metrics,
    clipped_surrogate,
    importance_ratio,
    is_truncated,
    total,
)
from stellaris_jax.agent.losses.truncation import truncated_ratio
from stellaris_jax.base.registry import register
from stellaris_jax.config.schema import knob


class PolicyObjective(Algorithm):
    """Base of algorithms with PPO's advantages, critic and regularisers, and another policy objective."""

    value_clip: Number = knob(0.2, "clip range of the value update; 0 turns it off", within="[0, inf)")

    def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        """Objective of each sample to maximise, `[B]`; `ratio` is pi / mu after Eq. 2."""
        raise NotImplementedError

    def is_clipped(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        """Whether the objective clips a sample's ratio pi / mu, bool `[B]`; the mean is the clip fraction."""
        return jnp.zeros_like(ratio, bool)

    def loss(self, inputs: LossInputs) -> tuple[jax.Array, Metrics]:
        """Objective + value loss - entropy bonus + KL penalty, as means over the minibatch."""
        batch, value, hyper = inputs.batch, inputs.value, inputs.hyper
        log_ratio = inputs.log_prob - batch.log_prob
        ratio, weight = truncated_ratio(log_ratio, inputs.peer_log_ratio, hyper.rho, inputs.truncation)

        critic = {}
        if value is not None and batch.target is not None:
            near = batch.value + jnp.clip(value - batch.value, -self.value_clip, self.value_clip)
            near = jnp.where(self.value_clip > 0.0, near, value)
            critic["value_loss"] = 0.5 * jnp.maximum(jnp.square(value - batch.target), jnp.square(near - batch.target))

        untruncated = importance_ratio(log_ratio)
        terms = {
            "policy_loss": -weight * self.objective(ratio, inputs),
            **critic,
            "entropy": inputs.distribution.entropy(inputs.parameters),
            "kl": inputs.distribution.kl(batch.distribution, inputs.parameters),
            "clip_fraction": self.is_clipped(untruncated, inputs),
            "truncated_fraction": is_truncated(weight * ratio, untruncated),
        }
        return total(terms, inputs)


@register.algorithm("ppo")
class PPO(PolicyObjective):
    """Proximal policy optimisation (Schulman et al. 2017): min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)."""

    clip: Number = knob(0.2, "clip range of the importance ratio (epsilon)", within="(0, inf)")

    def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        return clipped_surrogate(ratio, inputs.batch.advantage, self.clip)

    def is_clipped(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        return jnp.abs(ratio - 1.0) > self.clip
