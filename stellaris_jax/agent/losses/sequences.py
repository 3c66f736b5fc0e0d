"""Objectives for completions: GRPO with DAPO's bounds, and GSPO's ratio of whole sequences.

A sequence is the steps of one environment in a fragment; on token tasks it is one completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.common import LossInputs, Metrics, importance_ratio, mean
from stellaris_jax.agent.losses.masks import sequence_means
from stellaris_jax.agent.losses.ppo import PolicyObjective
from stellaris_jax.base.registry import register
from stellaris_jax.config.schema import knob


class GroupRelative(PolicyObjective):
    """Base of objectives with group advantages, a clip range on each side, and a penalty towards a reference policy.

    The reference is the policy that the run starts from. The penalty is Schulman's estimate k3 = q - 1 - log q, where
    q = pi_ref / pi, times `reference_kl`.
    """

    advantage = "group"
    standardises = False
    clip_low: Number = knob(0.2, "how far the ratio may fall below 1 (epsilon_low)", within="(0, 1]")
    clip_high: Number = knob(
        0.2, "how far the ratio may rise above 1 (epsilon_high); DAPO's is 0.28", within="(0, inf)"
    )
    reference: bool = knob(False, "penalise the divergence from the policy that the run starts from")
    reference_kl: Number = knob(0.001, "weight of that penalty (beta of GRPO), with `reference`", within="[0, inf)")
    metrics: ClassVar[Mapping[str, str]] = {
        **PolicyObjective.metrics,
        "equal_groups": "share of samples with advantage 0, which teach nothing: those of groups with equal returns",
    }

    @property
    def target(self) -> str:  # type: ignore[override]
        """Target network: the reference policy, if there is a penalty."""
        return "reference" if self.reference else "none"

    def bounded(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        """Ratio that the bounds are on, `[B]`, from the ratio of each sample."""
        return ratio

    def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        ratio, advantage = self.bounded(ratio, inputs), inputs.batch.advantage
        clipped = jnp.clip(ratio, 1.0 - self.clip_low, 1.0 + self.clip_high)
        return jnp.minimum(ratio * advantage, clipped * advantage)

    def is_clipped(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        ratio = self.bounded(ratio, inputs)
        return (ratio < 1.0 - self.clip_low) | (ratio > 1.0 + self.clip_high)

    def loss(self, inputs: LossInputs) -> tuple[jax.Array, Metrics]:
        loss, metrics = super().loss(inputs)
        batch = inputs.batch
        equal = (jnp.abs(batch.advantage) < 1e-6).astype(batch.advantage.dtype)
        metrics = {**metrics, "equal_groups": jax.lax.stop_gradient(mean(equal, batch.valid))}
        if not self.reference:
            return loss, metrics
        assert batch.target_policy is not None, "the minibatch has no reference policy"
        before = inputs.distribution.log_prob(batch.target_policy, batch.action)
        log_ratio = jnp.clip(jax.lax.stop_gradient(before) - inputs.log_prob, -20.0, 20.0)
        penalty = jnp.exp(log_ratio) - 1.0 - log_ratio
        return loss + self.reference_kl * inputs.mean(penalty), metrics


@register.algorithm("grpo")
class GRPO(GroupRelative):
    """Group-relative policy optimisation (Shao et al. 2024), with DAPO's two bounds (Yu et al. 2025)."""


@register.algorithm("gspo")
class GSPO(GroupRelative):
    """Group sequence policy optimisation (Zheng et al. 2025): one ratio for a sequence, s = exp(mean_t log r_t).

    The clip ranges are those of a geometric mean over tokens, far smaller than a token's: 3e-4 and 4e-4 in the paper,
    for long completions.
    """

    sequences = True
    truncations = ("weight", "none")  # no term contains a token's pi / mu, so no other ratio can replace it
    clip_low: Number = knob(0.0003, "how far a sequence's ratio may fall below 1 (epsilon_low)", within="(0, 1]")
    clip_high: Number = knob(0.0004, "how far a sequence's ratio may rise above 1 (epsilon_high)", within="(0, inf)")

    def bounded(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        batch = inputs.batch
        mean_log_ratio, _ = sequence_means(inputs.log_prob - batch.log_prob, batch.valid, inputs.steps)
        return importance_ratio(jnp.tile(mean_log_ratio, inputs.steps))
