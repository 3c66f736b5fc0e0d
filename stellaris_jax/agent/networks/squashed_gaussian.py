"""Policy of SAC: a normal distribution squashed into the bounds of the actions, two critics, and a temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent.networks.actor_critic import INITIALIZATIONS, MLP
from stellaris_jax.agent.networks.distributions import DiagonalGaussian
from stellaris_jax.agent.networks.policy_network import DISTRIBUTION, PolicyNetwork
from stellaris_jax.agent.networks.recurrent import Carry, Past
from stellaris_jax.agent.networks.torsos import check_observation
from stellaris_jax.base.draws import in_one_row
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.sections import NetworkConfig
from stellaris_jax.envs.base import Box, Space

LOG_STD_RANGE = (-20.0, 2.0)
"""Bounds of log-deviations (Haarnoja et al. 2018)."""
EDGE = 1.0 - 1e-6
"""Largest scaled action whose inverse hyperbolic tangent is computed; that of 1 is infinite."""


class SquashedGaussian(DiagonalGaussian):
    """Normal distribution whose draws u become actions low + (tanh u + 1) (high - low) / 2, element by element.

    Parameters are means and log-deviations of u. Entropy and KL divergence have no closed form for tanh u. They are
    those of u, which for the divergence is the same.
    """

    def __init__(self, low: np.ndarray, high: np.ndarray):
        super().__init__(len(low))
        self.low, self.span = low, (high - low) / 2.0

    def perturb(self, parameters: jax.Array, noise: jax.Array) -> jax.Array:
        return self.action(jnp.tanh(super().perturb(parameters, noise)))

    def mode(self, parameters: jax.Array) -> jax.Array:
        return self.action(jnp.tanh(super().mode(parameters)))

    def log_prob(self, parameters: jax.Array, action: jax.Array) -> jax.Array:
        u = jnp.arctanh(jnp.clip(self.scaled(action), -EDGE, EDGE))
        return super().log_prob(parameters, u) - jnp.sum(_log_slope(u) + np.log(self.span), axis=-1)

    def action(self, scaled: jax.Array) -> jax.Array:
        """Action from one that is scaled to [-1, 1]."""
        return self.low + (scaled + 1.0) * self.span

    def scaled(self, action: jax.Array) -> jax.Array:
        """Action scaled to [-1, 1]."""
        return (action - self.low) / self.span - 1.0

    def drawn(self, parameters: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw: (scaled action `[B, n]`, its log-probability `[B]` as such), both with gradient."""
        mean, log_std = jnp.split(parameters, 2, axis=-1)
        noise = in_one_row(jax.random.normal, key, mean.shape)
        u = mean + jnp.exp(log_std) * noise
        normal = jnp.sum(-0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2.0 * math.pi), axis=-1)
        return jnp.tanh(u), normal - jnp.sum(_log_slope(u), axis=-1)


def _log_slope(u: jax.Array) -> jax.Array:
    """log(1 - tanh(u)^2), without cancellation."""
    return 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))


class SoftPolicy(PolicyNetwork):
    """Policy with values of any action, and draws that can be differentiated, as SAC needs it.

    Its tree has the part `temperature`, the logarithm of a positive number.
    """

    def drawn(self, tree: dict[str, Any], obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw: (action scaled to [-1, 1], `[B, n]`; its log-probability `[B]`)."""
        raise NotImplementedError

    def action_values(self, tree: dict[str, Any], obs: jax.Array, action: jax.Array) -> jax.Array:
        """Values `[2, B]` of actions scaled to [-1, 1], by two critics."""
        raise NotImplementedError

    def scaled(self, action: jax.Array) -> jax.Array:
        """Actions scaled to [-1, 1]."""
        raise NotImplementedError


@register.policy("squashed_gaussian_twin_q")
class SquashedGaussianTwinQ(SoftPolicy):
    """Gaussian policy within the bounds of a `Box`, and two critics; none shares parameters with another.

    Raises:
      ConfigError: actions are no `Box` with finite bounds, or the torso cannot read the observations.
    """

    def __init__(self, observation_space: Box, action_space: Space, config: NetworkConfig):
        super().__init__(observation_space, action_space, config)
        bounds = np.array([*action_space.low, *action_space.high]) if isinstance(action_space, Box) else None
        if bounds is None or not np.isfinite(bounds).all():
            raise ConfigError(
                f"network.policy={config.policy} needs a Box of actions with finite bounds, not {action_space}; "
                "algorithm=dqn is for Discrete."
            )
        check_observation(config.torso, observation_space.shape)
        self._start = INITIALIZATIONS[config.init]
        self._inner = (config.torso, tuple(config.hidden), config.activation, self._start.kernel(self._start.inner))
        self._actor = MLP(*self._inner, self.distribution.size, self._start.kernel(self._start.actor))
        # Actions join the features of images; without a torso they join the observations.
        self._torso = MLP(config.torso, (), *self._inner[2:]) if config.torso != "mlp" else None
        self._critic = MLP("mlp", *self._inner[1:], 1, self._start.kernel(self._start.critic))

    @cached_property
    def distribution(self) -> SquashedGaussian:
        """Distribution within the bounds of the actions."""
        space = self.action_space
        assert isinstance(space, Box), "actions are no Box"
        return SquashedGaussian(np.array(space.low, np.float32), np.array(space.high, np.float32))

    def init_tree(self, key: jax.Array) -> dict[str, Any]:
        obs, action = jnp.zeros((1, *self.observation_space.shape)), jnp.zeros((1, self.distribution.size // 2))
        actor_key, *keys = jax.random.split(key, 3)

        def critic(key: jax.Array) -> dict[str, Any]:
            torso_key, key = jax.random.split(key)
            features, tree = obs, {}
            if self._torso is not None:
                features, variables = self._torso.init_with_output(torso_key, obs)
                tree["torso"] = variables["params"]
            joined = self._joined(features, action)
            return {**tree, "values": self._critic.init(key, joined)["params"]}

        return {
            "actor": self._actor.init(actor_key, obs)["params"],
            "critic": jax.tree.map(lambda *x: jnp.stack(x), *map(critic, keys)),
            "temperature": jnp.zeros(()),
        }

    def act(self, tree: dict[str, Any], obs: jax.Array, carry: Carry) -> tuple[jax.Array, Carry]:
        return self.evaluate(tree, obs)[DISTRIBUTION], carry

    def evaluate(self, tree: dict[str, Any], obs: jax.Array, past: Past | None = None) -> Mapping[str, jax.Array]:
        """Parameters of the distribution."""
        made: Any = self._actor.apply({"params": tree["actor"]}, self.fractions(obs))
        mean, log_std = jnp.split(made, 2, axis=-1)
        return {DISTRIBUTION: jnp.concatenate([mean, jnp.clip(log_std, *LOG_STD_RANGE)], axis=-1)}

    def drawn(self, tree: dict[str, Any], obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.distribution.drawn(self.policy(tree, obs), key)

    def action_values(self, tree: dict[str, Any], obs: jax.Array, action: jax.Array) -> jax.Array:
        x = self.fractions(obs)

        def value(critic: dict[str, Any]) -> jax.Array:
            features: Any = x if self._torso is None else self._torso.apply({"params": critic["torso"]}, x)
            made: Any = self._critic.apply({"params": critic["values"]}, self._joined(features, action))
            values: jax.Array = made[:, 0]
            return values

        return jax.vmap(value)(tree["critic"])

    def scaled(self, action: jax.Array) -> jax.Array:
        return self.distribution.scaled(action)

    @staticmethod
    def _joined(features: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.concatenate([features.reshape(len(features), -1), action], axis=-1)
