"""A rule of aggregation: as soon as gradients of a share of the learners wait.

stellaris-jax train plugins=[rule.py] system.rule=quorum system.rule_options.share=0.25
"""

import stellaris_jax as sj


@sj.register.rule("quorum")
class Quorum(sj.Rule):
    """Aggregation as soon as gradients of a share of the learners wait; two gradients of one learner count once."""

    share: float = sj.knob(0.5, "share of the learners to wait for", within="(0, 1]")

    def ready(self, staleness, view):
        return len({gradient.learner for gradient in view.queue}) >= self.share * view.learners
