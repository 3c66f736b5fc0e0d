"""Action values of DQN: a network with one output per action, which acts by the largest."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from stellaris_jax.agent.networks.actor_critic import INITIALIZATIONS, MLP
from stellaris_jax.agent.networks.policy_network import DISTRIBUTION, PolicyNetwork
from stellaris_jax.agent.networks.recurrent import Carry, Past
from stellaris_jax.agent.networks.torsos import check_observation
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.schema import knob
from stellaris_jax.config.sections import NetworkConfig
from stellaris_jax.envs.base import Box, Discrete, Space

Q_VALUES = "q_values"
"""Output of a policy: action values `[B, A]`."""
NEVER = -1e9
"""Logit of an action that is not taken."""


@register.policy("q_network")
class QNetwork(PolicyNetwork):
    """Network of action values Q(s, a); its policy takes the action of the largest value.

    Raises:
      ConfigError: actions are not `Discrete`, or the torso cannot read the observations.
    """

    outputs = (DISTRIBUTION, Q_VALUES)
    dueling: bool = knob(False, "Q is a state's value plus advantages without their mean (Wang et al. 2016)")

    def __init__(self, observation_space: Box, action_space: Space, config: NetworkConfig):
        super().__init__(observation_space, action_space, config)
        if not isinstance(action_space, Discrete):
            raise ConfigError(
                f"network.policy={config.policy} needs Discrete actions, not {action_space}; algorithm=sac is for Box."
            )
        check_observation(config.torso, observation_space.shape)
        start = INITIALIZATIONS[config.init]
        body = partial(MLP, config.torso, tuple(config.hidden), config.activation, start.kernel(start.inner))
        out = start.kernel(start.critic)
        self._networks = {"q": body(action_space.n, out)}
        if self.dueling:
            head = partial(MLP, "mlp", (), config.activation, start.kernel(start.inner))
            self._networks = {"body": body(), "value": head(1, out), "advantage": head(action_space.n, out)}

    def init_tree(self, key: jax.Array) -> dict[str, Any]:
        tree, x = {}, jnp.zeros((1, *self.observation_space.shape))
        for part_key, (name, network) in zip(
            jax.random.split(key, len(self._networks)), self._networks.items(), strict=True
        ):
            outputs, variables = network.init_with_output(part_key, x)
            tree[name] = variables["params"]
            x = outputs if name == "body" else x
        return tree

    def act(self, tree: dict[str, Any], obs: jax.Array, carry: Carry) -> tuple[jax.Array, Carry]:
        return self.evaluate(tree, obs)[DISTRIBUTION], carry

    def evaluate(self, tree: dict[str, Any], obs: jax.Array, past: Past | None = None) -> Mapping[str, jax.Array]:
        """Action values, and logits of the policy that takes the largest."""
        values = self._values(tree, self.fractions(obs))
        best = values == jnp.max(values, axis=-1, keepdims=True)
        return {DISTRIBUTION: jnp.where(best, 0.0, NEVER), Q_VALUES: values}

    def _values(self, tree: dict[str, Any], x: jax.Array) -> jax.Array:
        def output(name: str, x: jax.Array) -> jax.Array:
            made: jax.Array = self._networks[name].apply({"params": tree[name]}, x)  # type: ignore[assignment]
            return made

        if not self.dueling:
            return output("q", x)
        features = output("body", x)
        advantage = output("advantage", features)
        return output("value", features) + advantage - jnp.mean(advantage, axis=-1, keepdims=True)
