"""A loss: the plain policy gradient of A2C, weighted by nothing.

stellaris-jax train plugins=[loss.py] algorithm.name=a2c algorithm.options.most=5 system.truncation=none
"""

import jax.numpy as jnp

import stellaris_jax as sj
from stellaris_jax.agent.losses.common import total


@sj.register.algorithm("a2c")
class A2C(sj.Algorithm):
    """Policy gradient of the advantages that came with the data, and the squared error of the critic."""

    advantages = ("own", "gae", "nstep", "vtrace")  # those that give targets
    metrics = {"policy_loss": "loss of the policy", "value_loss": "loss of the critic", "entropy": "entropy in nats"}
    most: float = sj.knob(10.0, "advantages count no more than this, up or down", within="(0, inf)")

    def loss(self, inputs):
        """`self.most` is an array here: runs with other values of it share a compiled program."""
        batch = inputs.batch
        terms = {
            "policy_loss": -jnp.clip(batch.advantage, -self.most, self.most) * inputs.log_prob,
            "value_loss": 0.5 * jnp.square(inputs.value - batch.target),
            "entropy": inputs.distribution.entropy(inputs.parameters),
        }
        return total(terms, inputs)
