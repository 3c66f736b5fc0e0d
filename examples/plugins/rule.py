"""A rule of aggregation: once a share of the learners has delivered.

stellaris-jax train plugins=[rule.py] system.rule=quorum system.rule_options.share=0.25
"""

import stellaris_jax as sj


@sj.register.rule("quorum")
class Quorum(sj.Rule):
    """Waits for a share of the learners."""

    share: float = sj.knob(0.5, "share of the learners to wait for", within="(0, 1]")

    def ready(self, staleness, view):
        return len(staleness) >= self.share * view.learners
