"""Memory: running means of features, each of a length of its own that is learned.

stellaris-jax train plugins=[memory.py] network.memory=means network.memory_size=32
"""

import flax.linen as nn
import jax.numpy as jnp

import stellaris_jax as sj


@sj.register.memory("means")
class Means(sj.Cell):
    """h' = k h + (1 - k) tanh(W x + b), with k between 0 and 1 for every unit."""

    def setup(self):
        self.inputs = nn.Dense(self.size, kernel_init=self.kernel_init)
        self.kept = self.param("kept", nn.initializers.uniform(4.0), (self.size,))

    def project(self, x):
        return jnp.tanh(self.inputs(x))

    def __call__(self, carry, x):
        kept = nn.sigmoid(self.kept)
        carry = kept * carry + (1.0 - kept) * x
        return carry, carry
