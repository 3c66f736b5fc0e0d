"""A target network: PPO with a penalty towards a running mean of its versions.

stellaris-jax train plugins=[target.py] algorithm.name=ema_ppo algorithm.options.target_rate=0.05
"""

import stellaris_jax as sj
from stellaris_jax.agent.losses.common import mean
from stellaris_jax.agent.losses.ppo import PPO


@sj.register.algorithm("ema_ppo")
class EmaPPO(sj.PolyakTarget, PPO):
    """PPO's loss, and `penalty` times KL(target network's policy || the learner's)."""

    penalty: float = sj.knob(0.5, "weight of the penalty towards the mean of versions", within="[0, inf)")

    def loss(self, inputs):
        loss, metrics = super().loss(inputs)
        kl = inputs.distribution.kl(inputs.batch.target_policy, inputs.parameters)
        return loss + self.penalty * mean(kl, inputs.batch.valid), metrics
