"""A scaling rule: half as many actors every so often, down to the fewest.

stellaris-jax train plugins=[scaling.py] scaling.rule=halving scaling.options.every=5
"""

import stellaris_jax as sj


@sj.register.scaling("halving")
class Halving(sj.Scaling):
    """Begins with all actors, and halves them."""

    every: int = sj.knob(5, "rounds between halvings", within="[1, inf)")

    def __init__(self, config, limits):
        super().__init__(config, limits)
        self.next = limits.maximum

    def choose(self, seen):
        return self.limits.clip(self.next / 2) if seen.round % self.every == 0 else self.next
