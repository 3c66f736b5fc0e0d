"""SAC (Haarnoja et al. 2018, arXiv 1812.05905) from data to the step.

1. **Collect.** Actors sample from the policy, a normal distribution squashed by tanh into the bounds of the actions;
   before learning starts they act uniformly at random.
2. **Replay.** As for DQN (`agent.losses.dqn`).
3. **Loss.** Three terms, each with its own parameters and all others held: critics Q_1, Q_2 with their target networks
   Q'_1, Q'_2; the policy pi; the temperature alpha. With a' drawn from pi(.|s') and a~ from pi(.|s):

       y = R + gamma^n (min_i Q'_i(s', a') - alpha log pi(a'|s'))
       L = mean[sum_i (Q_i(s, a) - y)^2 / 2]
         + mean[alpha log pi(a~|s) - min_i Q_i(s, a~)]
         + mean[-alpha (log pi(a~|s) + H)]

   H is the entropy that the policy should have, minus the number of action dimensions by default. Log-probabilities are
   those of actions scaled to [-1, 1].
4. **Update.** As for PPO: gradients of several learners are one step of the optimizer; the target network follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.common import Metrics
from stellaris_jax.agent.losses.off_policy import OffPolicy, ReplayInputs
from stellaris_jax.agent.networks.squashed_gaussian import SoftPolicy
from stellaris_jax.base.registry import register
from stellaris_jax.config.schema import knob
from stellaris_jax.config.tree import Config


@register.algorithm("sac")
class SAC(OffPolicy):
    """Soft actor-critic with two critics and a learned temperature."""

    own_policy = "squashed_gaussian_twin_q"
    draws = True
    metrics: ClassVar[Mapping[str, str]] = {
        **OffPolicy.metrics,
        "policy_loss": "loss of the policy",
        "entropy": "entropy of the policy, in nats, for actions scaled to [-1, 1]",
        "temperature": "weight of the entropy (alpha)",
    }
    target_entropy: Number = knob(
        -1.0, "entropy that the policy should have, in nats per action dimension", within="(-inf, inf)"
    )

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        yield from super().conditions(config, section)
        name = config.network.policy
        able = [other for other, kind in register.policy.items() if issubclass(kind, SoftPolicy)]
        yield (
            name in able or name not in register.policy,
            f"algorithm.name={config.algorithm.name} needs values of any action, which network.policy={name} does not "
            f"compute; accepted: {', '.join(able)}.",
        )

    def loss(self, inputs: ReplayInputs) -> tuple[jax.Array, Metrics]:
        """Losses of critics, policy and temperature, as means over the minibatch."""
        batch, network, tree, after = inputs.batch, inputs.network, inputs.tree, inputs.transition
        held = jax.lax.stop_gradient(tree)
        temperature, held_temperature = (jnp.exp(parameters["temperature"]) for parameters in (tree, held))
        next_key, key = jax.random.split(inputs.key)

        next_action, next_log_prob = network.drawn(held, after.next_obs, next_key)
        next_value = jnp.min(network.action_values(inputs.target, after.next_obs, next_action), axis=0)
        target = after.reward + after.discount * (next_value - held_temperature * next_log_prob)
        values = network.action_values(tree, batch.obs, network.scaled(batch.action))
        critic = inputs.mean(0.5 * jnp.sum(jnp.square(values - jax.lax.stop_gradient(target)), axis=0))

        action, log_prob = network.drawn(tree, batch.obs, key)
        value = jnp.min(network.action_values(held, batch.obs, action), axis=0)
        policy = inputs.mean(held_temperature * log_prob - value)

        wanted = self.target_entropy * batch.action.shape[-1]
        temperature_loss = -temperature * inputs.mean(jax.lax.stop_gradient(log_prob) + wanted)
        means = {
            "value_loss": critic,
            "q_value": inputs.mean(values[0]),
            "policy_loss": policy,
            "entropy": -inputs.mean(log_prob),
            "temperature": temperature,
        }
        return critic + policy + temperature_loss, jax.lax.stop_gradient(means)
