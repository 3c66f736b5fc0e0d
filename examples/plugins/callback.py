"""A callback: training ends once gradients are too stale.

stellaris-jax train plugins=[callback.py] run.callbacks=[too_stale]
"""

import stellaris_jax as sj


@sj.register.callback("too_stale")
def too_stale(round_, record, trainer):
    """True, which ends the run, once the mean staleness of a round is above a quarter of the learners."""
    return record["staleness_mean"] > trainer.config.system.learners / 4
