"""A weight by staleness: full trust up to a bound, none beyond.

stellaris-jax train plugins=[weight.py] system.weights=cliff system.weight_options.edge=6
"""

import stellaris_jax as sj


@sj.register.weight("cliff")
class Cliff(sj.Weight):
    edge: int = sj.knob(8, "versions a gradient may be behind and still count", within="[0, inf)")

    def weight(self, staleness):
        return 1.0 if staleness <= self.edge else 0.0
