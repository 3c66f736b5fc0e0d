"""An estimator of advantages: ranks of GAE's, which no outlier can spoil.

stellaris-jax train plugins=[advantage.py] algorithm.advantage=ranks algorithm.advantage_options.width=2
"""

import jax.numpy as jnp

import stellaris_jax as sj


@sj.register.advantage("ranks")
class Ranks(sj.GAE):
    """Ranks of GAE's advantages, from -`width` to `width`; GAE's targets for the critic."""

    relative = True  # centred already: no algorithm standardises it again
    width: float = sj.knob(1.0, "largest advantage", within="(0, inf)")

    def estimate(self, steps):
        """Arrays are `[T, N]`; `steps` also holds rewards, values, ends, and which steps are valid."""
        advantage, target = super().estimate(steps)
        flat = advantage.ravel() if steps.valid is None else jnp.where(steps.valid, advantage, jnp.inf).ravel()
        number = flat.size if steps.valid is None else jnp.sum(steps.valid)
        ranks = jnp.argsort(jnp.argsort(flat)) / jnp.maximum(number - 1, 1)
        return sj.Estimate(self.width * (2.0 * ranks - 1.0).reshape(advantage.shape), target)
