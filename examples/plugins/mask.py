"""A mask of samples: nothing is learned from actions that were unlikely when they were taken.

stellaris-jax train plugins=[mask.py] algorithm.masks=[unlikely] algorithm.mask_options.unlikely.least=0.05
"""

import jax.numpy as jnp

import stellaris_jax as sj


@sj.register.mask("unlikely")
class Unlikely(sj.Mask):
    """Drops actions of a probability, or density, below `least`; ratios to those are the largest."""

    least: float = sj.knob(0.01, "the least probability of an action that is learned from", within="[0, inf)")

    def weight(self, seen):
        return (jnp.exp(seen.behaviour) >= self.least).astype(jnp.float32)
