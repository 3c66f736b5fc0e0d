"""An algorithm without a critic: reward-weighted regression, which imitates actions by the rewards that followed.

stellaris-jax train plugins=[algorithm.py] algorithm.name=rwr algorithm.options.temperature=0.3 system.truncation=none
"""

import jax.numpy as jnp

import stellaris_jax as sj
from stellaris_jax.agent.losses.common import total
from stellaris_jax.agent.losses.gae import linear_recurrence


@sj.register.algorithm("rwr")
class RewardWeightedRegression(sj.Algorithm):
    """Reward-weighted regression (Peters & Schaal 2007): exp(G / temperature) log pi, G the scaled return-to-go."""

    advantage = "none"
    truncations = ("none",)
    metrics = {"policy_loss": "loss of the policy", "entropy": "entropy in nats", "weight": "mean weight of a sample"}
    temperature: float = sj.knob(1.0, "how much better a return must be to count e times as much", within="(0, inf)")

    def fields(self, steps):
        """Sample fields of our own, from all steps `[T, N]` of a batch: discounted sums of later rewards."""
        going = jnp.where(steps.ends, 0.0, steps.gamma)
        returns = linear_recurrence(going, steps.reward, jnp.zeros_like(steps.reward[0]), reverse=True)
        return {"returns": (returns - returns.mean()) / (returns.std() + 1e-6)}

    def loss(self, inputs):
        """Each term has one number per sample `[B]`; `total` takes the means over the valid ones."""
        weight = jnp.exp(jnp.clip(inputs.batch.own["returns"] / self.temperature, -10.0, 3.0))
        entropy = inputs.distribution.entropy(inputs.parameters)
        return total({"policy_loss": -weight * inputs.log_prob, "entropy": entropy, "weight": weight}, inputs)
