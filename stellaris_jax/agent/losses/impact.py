"""IMPACT loss (Luo et al. 2020) with global importance-sampling truncation."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.algorithm import TargetNetwork
from stellaris_jax.agent.losses.common import (
    LossInputs,
    Metrics,
    clipped_surrogate,
    importance_ratio,
    is_truncated,
    total,
)
from stellaris_jax.agent.losses.truncation import truncated_ratio
from stellaris_jax.agent.losses.vtrace import minibatch_vtrace
from stellaris_jax.agent.networks.policy_network import VALUE
from stellaris_jax.base.registry import register
from stellaris_jax.config.schema import knob


@register.algorithm("impact")
class IMPACT(TargetNetwork):
    """IMPACT (Luo et al. 2020): PPO's surrogate of min(mu / pi_t, `impact_ratio`) r with a target network pi_t.

    Advantages are V-trace's.
    """

    advantage = "none"  # the loss computes V-trace's
    advantages = ("own",)
    needs = (VALUE,)
    sequences = True
    clip: Number = knob(0.4, "clip range of the importance ratio (epsilon)", within="(0, inf)")
    rho_bar: Number = knob(1.0, "the most an importance ratio weights an error of V-trace (rho-bar)", within="(0, inf)")
    c_bar: Number = knob(1.0, "the most an importance ratio carries on from later (c-bar)", within="(0, inf)")
    impact_ratio: Number = knob(2.0, "the most that mu / pi_t counts in the importance ratio", within="(0, inf)")

    def loss(self, inputs: LossInputs) -> tuple[jax.Array, Metrics]:
        """PPO's clipped surrogate of the ratio min(mu / pi_t, `impact_ratio`) R', and value loss (V - vs)^2 / 2.

        pi_t is the policy of the target network: the surrogate's trust region is around it, V-trace corrects from mu
        towards it, and the penalty is on KL(pi_t || pi). R' is pi / mu, truncated by Eq. 2. Values come from the
        learner's critic. A learner uses the target network that was in force when its policy was the newest, even if
        its gradient is aggregated later.

        The minibatch holds whole sequences and the target network's policy.
        """
        batch, value, hyper = inputs.batch, inputs.value, inputs.hyper
        assert batch.target_policy is not None, "the minibatch has no target network's policy"
        target_log_ratio = inputs.distribution.log_prob(batch.target_policy, batch.action) - batch.log_prob
        target, advantage = minibatch_vtrace(target_log_ratio, inputs, self.rho_bar, self.c_bar)
        advantage *= jnp.minimum(importance_ratio(target_log_ratio), self.rho_bar)
        anchor = jnp.minimum(importance_ratio(-target_log_ratio), self.impact_ratio)

        log_ratio = inputs.log_prob - batch.log_prob
        ratio, weight = truncated_ratio(log_ratio, inputs.peer_log_ratio, hyper.rho, inputs.truncation)
        untruncated = importance_ratio(log_ratio)
        terms = {
            "policy_loss": -weight * clipped_surrogate(anchor * ratio, advantage, self.clip),
            "value_loss": 0.5 * jnp.square(value - target),
            "entropy": inputs.distribution.entropy(inputs.parameters),
            "kl": inputs.distribution.kl(batch.target_policy, inputs.parameters),
            "clip_fraction": jnp.abs(anchor * untruncated - 1.0) > self.clip,
            "truncated_fraction": is_truncated(weight * ratio, untruncated),
        }
        return total(terms, inputs, advantage)
