"""PPO (Schulman et al. 2017) from data to the step, and the base of algorithms with another policy objective.

1. **Collect** (`engine.rollout`). N environments step T times with the behaviour policy mu. Observations, actions,
   rewards, ends, log mu(a|s) and the critic's V(s) are kept.
2. **Advantages** (`agent.advantages`, once per batch). Generalised advantage estimation:

       delta_t = r_t + gamma V(s_{t+1}) - V(s_t),    A_t = delta_t + gamma lambda A_{t+1},    G_t = A_t + V(s_t)

   Termination cuts V(s_{t+1}), and both ends cut A_{t+1}. A is then standardised over the batch.
3. **Loss** (`PolicyObjective.loss`, for each minibatch, with the policy pi that its learner has fetched). With the
   importance ratio R = pi(a|s) / mu(a|s), truncated to R' (Eq. 2 of Stellaris, `losses.truncation`):

       L = -mean[min(R' A, clip(R', 1 - eps, 1 + eps) A)] + c_v mean[(V - G)^2] / 2 - c_e mean[H(pi)] + c_k mean[KL]

4. **Update** (`engine.aggregator`). Gradients g_i of several learners are one step of the optimizer (Eq. 4 of
   Stellaris). Their weights w_i fall with staleness:

       theta <- theta - alpha_0 (mean_i w_i) Adam(sum_i w_i g_i / sum_i w_i)
"""

from __future__ import annotations

from collections.abc import Iterator

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
from stellaris_jax.config.tree import Config


class PolicyObjective(Algorithm):
    """Base of algorithms with PPO's advantages, critic and regularisers, and another policy objective."""

    advantage = "gae"
    standardises = True
    value_clip: Number = knob(0.2, "clip range of the value update; 0 turns it off", within="[0, inf)")

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        yield from super().conditions(config, section)
        named, kinds = config.algorithm.advantage, register.advantage.items()
        able = [name for name, kind in kinds if "advantage" in kind.gives]
        yield (
            named in able or named not in register.advantage,
            f"algorithm.name={config.algorithm.name} needs advantages, which algorithm.advantage={named} does not "
            f"give; accepted: {', '.join(able)}.",
        )

    def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        """Objective of each sample to maximise, `[B]`; `ratio` is pi / mu after Eq. 2."""
        raise NotImplementedError

    def is_clipped(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        """Whether the objective clips a sample's ratio pi / mu, bool `[B]`; the mean is the clip fraction."""
        return jnp.zeros_like(ratio, bool)

    def loss(self, inputs: LossInputs) -> tuple[jax.Array, Metrics]:
        """Objective + value loss - entropy bonus + KL penalty, as means over the minibatch."""
        batch, value, hyper = inputs.batch, inputs.value, inputs.hyper
        log_ratio = inputs.log_prob - batch.log_prob  # log R
        # R', and a weight if R' only scales the objective.
        ratio, weight = truncated_ratio(log_ratio, inputs.peer_log_ratio, hyper.rho, inputs.truncation)

        critic = {}  # (V - G)^2 / 2, or that of V moved by at most value_clip, whichever is larger
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
