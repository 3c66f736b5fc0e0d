"""A torso: sines and cosines of the observation, for the dense layers to read.

stellaris-jax train plugins=[torso.py] network.torso=fourier
"""

import flax.linen as nn
import jax.numpy as jnp

import stellaris_jax as sj


@sj.register.torso("fourier")
class Fourier(nn.Module):
    """Learned Fourier features of vectors: `[B, D]` -> `[B, 32]`."""

    kernel_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, x):
        waves = nn.Dense(16, kernel_init=self.kernel_init)(x)
        return jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], axis=-1)
