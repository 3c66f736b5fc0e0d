"""A policy objective under PPO's advantages and critic: a quadratic penalty in the place of the clip.

stellaris-jax train plugins=[objective.py] algorithm.name=spo algorithm.options.radius=0.3
"""

import jax.numpy as jnp

import stellaris_jax as sj


@sj.register.algorithm("spo")
class SPO(sj.PolicyObjective):
    """r A - |A| (r - 1)^2 / (2 radius): the best ratio is 1 +- radius, by the sign of A (Xie et al. 2024)."""

    radius: float = sj.knob(0.2, "how far the ratio is to move (epsilon)", within="(0, inf)")

    def objective(self, ratio, inputs):
        advantage = inputs.batch.advantage
        return ratio * advantage - jnp.abs(advantage) * jnp.square(ratio - 1.0) / (2.0 * self.radius)
