"""A correction: gradients fade with the distance that the policy has come since they were fetched.

stellaris-jax train plugins=[correction.py] system.corrections=[fade] system.correction_options.fade.distance=0.5
"""

import jax.numpy as jnp

import stellaris_jax as sj


@sj.register.correction("fade")
class Fade(sj.Correction):
    """Weights times exp(-(|theta - theta_fetched| / distance)^2): a fresh gradient keeps all of its weight."""

    distance: float = sj.knob(1.0, "how far the policy may have come for a gradient to count 1/e", within="(0, inf)")

    def update(self, stack, state, context):
        squared = jnp.sum(jnp.square(context.newest_params - context.fetched), axis=1)
        return stack._replace(weights=stack.weights * jnp.exp(-squared / self.distance**2)), state
