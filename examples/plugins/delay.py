"""A delay model: the machine is shared, and sometimes everything takes three times as long.

stellaris-jax train plugins=[delay.py] delays.learner.kind=shared delays.learner.options.busy=0.1
"""

import stellaris_jax as sj


@sj.register.delay("shared")
class Shared(sj.Delay):
    """`seconds`, or three times as many with the probability `busy`."""

    noise = "uniform"
    busy: float = sj.knob(0.2, "probability that somebody else is at work", within="[0, 1]")

    def durations(self, noise, xp):
        return self.seconds * xp.where(noise < self.busy, 3.0, 1.0)
