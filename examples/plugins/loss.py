"""A loss: the plain policy gradient of A2C, weighted by nothing.

stellaris-jax train plugins=[loss.py] algorithm.name=a2c system.truncation=none
"""

import jax.numpy as jnp

import stellaris_jax as sj
from stellaris_jax.agent.losses.common import LossMetrics, total


def a2c_loss(inputs):
    """Policy gradient of the advantages that came with the data, and the squared error of the critic."""
    batch = inputs.batch
    nothing = jnp.zeros_like(inputs.value)
    terms = LossMetrics(
        policy_loss=-batch.advantage * inputs.log_prob,
        value_loss=0.5 * jnp.square(inputs.value - batch.target),
        entropy=inputs.distribution.entropy(inputs.parameters),
        kl=inputs.distribution.kl(batch.distribution, inputs.parameters),
        clip_fraction=nothing,
        truncated_fraction=nothing,
    )
    return total(terms, inputs)


sj.register.algorithm("a2c")(sj.Algorithm(a2c_loss))
