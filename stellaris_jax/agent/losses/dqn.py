"""DQN (Mnih et al. 2015) from data to the step, with its usual improvements.

1. **Collect.** Actors take the action of the largest Q(s, a), or with probability epsilon a uniformly random one.
2. **Replay.** Each transition (s, a, R, gamma^n, s') of n steps goes to a replay buffer; minibatches are drawn from it
   uniformly.
3. **Loss.** With the target network Q':

       y = R + gamma^n Q'(s', argmax_a Q(s', a)),    L = mean[huber(Q(s, a) - y)]

   A terminated episode has no second term. Without `double` the maximum of Q' is taken (Mnih et al. 2015; double:
   van Hasselt et al. 2016).
4. **Update.** As for PPO: gradients of several learners are one step of the optimizer; the target network follows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.common import Metrics
from stellaris_jax.agent.losses.off_policy import OffPolicy, ReplayInputs
from stellaris_jax.agent.networks.q_network import Q_VALUES
from stellaris_jax.base.registry import register
from stellaris_jax.config.schema import knob


@register.algorithm("dqn")
class DQN(OffPolicy):
    """DQN with double Q-learning (van Hasselt et al. 2016); dueling networks are `network.options.dueling`.

    With `exploration_power` every environment has a probability of its own, as in Ape-X (Horgan et al. 2018):
    epsilon^(1 + power i / (N - 1)).
    """

    own_policy = "q_network"
    needs = (Q_VALUES,)
    exploration_start: Number = knob(1.0, "probability of a random action when learning starts", within="[0, 1]")
    exploration_end: Number = knob(0.05, "probability of a random action in the end (epsilon)", within="[0, 1]")
    exploration_steps: Number = knob(
        50_000.0, "env steps over which it falls, counted from the run's begin", within="[0, inf)"
    )
    exploration_power: Number = knob(
        0.0, "exponent of the last environment's probability, less one; 0: all have the same", within="[0, inf)"
    )
    double: bool = knob(True, "the next action is the learner's choice, valued by the target network; false: its own")
    huber: Number = knob(1.0, "error above which the loss grows linearly; inf is the square", within="(0, inf]")

    def exploration(self, steps: jax.Array, share: jax.Array) -> jax.Array:
        """Probability of a random action, `[n]`: falls linearly with the env steps."""
        progress = jnp.clip(steps / jnp.maximum(self.exploration_steps, 1.0), 0.0, 1.0)
        epsilon = self.exploration_start + progress * (self.exploration_end - self.exploration_start)
        return epsilon ** (1.0 + self.exploration_power * share)

    def loss(self, inputs: ReplayInputs) -> tuple[jax.Array, Metrics]:
        """Huber loss of the errors Q(s, a) - y, as the mean over the minibatch."""
        batch, network, after = inputs.batch, inputs.network, inputs.transition

        def q_values(tree: dict[str, jax.Array], obs: jax.Array) -> jax.Array:
            values: jax.Array = network.evaluate(tree, obs)[Q_VALUES]
            return values

        following = q_values(inputs.target, after.next_obs)
        chooses = jax.lax.stop_gradient(q_values(inputs.tree, after.next_obs)) if self.double else following
        best = jnp.take_along_axis(following, jnp.argmax(chooses, axis=-1)[:, None], axis=-1)[:, 0]
        target = jax.lax.stop_gradient(after.reward + after.discount * best)
        values = q_values(inputs.tree, batch.obs)
        chosen = jnp.sum(values * jax.nn.one_hot(batch.action, values.shape[-1]), axis=-1)
        error = chosen - target
        size = jnp.minimum(jnp.abs(error), self.huber)
        loss = inputs.mean(size * (jnp.abs(error) - 0.5 * size))
        return loss, jax.lax.stop_gradient({"value_loss": loss, "q_value": inputs.mean(chosen)})
