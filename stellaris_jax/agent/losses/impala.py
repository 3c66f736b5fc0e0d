"""V-trace actor-critic loss of IMPALA (Espeholt et al. 2018) with global importance-sampling truncation."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.algorithm import Algorithm
from stellaris_jax.agent.losses.common import LossInputs, Metrics, importance_ratio, is_truncated, total
from stellaris_jax.agent.losses.truncation import truncated_ratio
from stellaris_jax.agent.losses.vtrace import minibatch_vtrace
from stellaris_jax.agent.networks.policy_network import VALUE
from stellaris_jax.base.registry import register
from stellaris_jax.config.schema import knob


@register.algorithm("impala")
class IMPALA(Algorithm):
    """IMPALA's actor-critic (Espeholt et al. 2018): sg(min(rho-bar, r)) (q - V) log pi, with V-trace's targets."""

    advantage = "none"  # the loss computes V-trace's
    advantages = ("own",)
    needs = (VALUE,)
    sequences = True
    truncations = ("weight", "surrogate", "none")  # artifact does not change ratios of at most rho
    rho_bar: Number = knob(1.0, "the most an importance ratio weights an error of V-trace (rho-bar)", within="(0, inf)")
    c_bar: Number = knob(1.0, "the most an importance ratio carries on from later (c-bar)", within="(0, inf)")

    def loss(self, inputs: LossInputs) -> tuple[jax.Array, Metrics]:
        """Policy gradient rho_t log pi (q - V) and value loss (V - vs)^2 / 2 (Section 4.2), as means.

        The ratio min(rho_bar, R') is a weight without gradient here. So Eq. 2 applies literally, and the modes `weight`
        and `surrogate` are the same. Value targets use the learner's own ratio, not the truncated one.

        The minibatch holds whole sequences.
        """
        batch, value, hyper = inputs.batch, inputs.value, inputs.hyper
        log_prob = inputs.log_prob
        log_ratio = jax.lax.stop_gradient(log_prob) - batch.log_prob
        target, advantage = minibatch_vtrace(log_ratio, inputs, self.rho_bar, self.c_bar)
        ratio, weight = truncated_ratio(log_ratio, inputs.peer_log_ratio, hyper.rho, inputs.truncation)
        untruncated, used = importance_ratio(log_ratio), weight * ratio
        terms = {
            "policy_loss": -jnp.minimum(used, self.rho_bar) * advantage * log_prob,
            "value_loss": 0.5 * jnp.square(value - target),
            "entropy": inputs.distribution.entropy(inputs.parameters),
            "kl": inputs.distribution.kl(batch.distribution, inputs.parameters),
            "clip_fraction": untruncated > self.rho_bar,
            "truncated_fraction": is_truncated(used, untruncated),
        }
        return total(terms, inputs, advantage)
