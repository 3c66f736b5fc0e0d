"""An admission policy: learners wait while the parameter function has enough to do.

stellaris-jax train plugins=[admission.py] system.admission=back_pressure system.admission_options.waiting=4
"""

import stellaris_jax as sj


@sj.register.admission("back_pressure")
class BackPressure(sj.Admission):
    """No learner starts while so many gradients wait; and none is kept that is older than that."""

    waiting: int = sj.knob(4, "gradients that may wait before no further learner starts", within="[1, inf)")

    def may_start(self, learner, view):
        return len(view.queue) < self.waiting

    def keeps(self, staleness, view):
        return staleness <= 4 * self.waiting
