"""A policy: a mixture of Gaussians over continuous actions, so that it may prefer several actions at once.

stellaris-jax train plugins=[policy.py] env=gymnax/pendulum network.policy=mixture network.options.components=3
"""

from functools import cached_property

import jax
import jax.numpy as jnp

import stellaris_jax as sj


class Mixture:
    """Mixture of diagonal Gaussians; the parameters `[..., D]` are logits, means and log-deviations of components."""

    def __init__(self, actions, components):
        self.actions, self.components, self.size = actions, components, components * (1 + 2 * actions)

    def parts(self, parameters):
        """Log-weights `[..., C]`, means and log-deviations `[..., C, n]`."""
        logits, rest = parameters[..., : self.components], parameters[..., self.components :]
        mean, log_std = jnp.split(rest.reshape(*rest.shape[:-1], self.components, -1), 2, axis=-1)
        return jax.nn.log_softmax(logits), mean, log_std

    def noise(self, key, shape):
        choice, action = jax.random.split(key)
        weights = jax.random.gumbel(choice, (*shape, self.components))
        return jnp.concatenate([weights, jax.random.normal(action, (*shape, self.actions))], axis=-1)

    def perturb(self, parameters, noise):
        weights, mean, log_std = self.parts(parameters)
        chosen = jax.nn.one_hot(jnp.argmax(weights + noise[..., : self.components], -1), self.components)[..., None]
        return jnp.sum(chosen * (mean + jnp.exp(log_std) * noise[..., None, self.components :]), axis=-2)

    def mode(self, parameters):
        return self.perturb(parameters, jnp.zeros((*parameters.shape[:-1], self.components + self.actions)))

    def log_prob(self, parameters, action):
        weights, mean, log_std = self.parts(parameters)
        each = jax.scipy.stats.norm.logpdf(action[..., None, :], mean, jnp.exp(log_std)).sum(-1)
        return jax.nn.logsumexp(weights + each, axis=-1)

    def entropy(self, parameters):  # an upper bound: the choice's entropy and the mean of the components'
        weights, _, log_std = self.parts(parameters)
        return jnp.sum(jnp.exp(weights) * (jnp.sum(log_std + 1.4189, -1) - weights), axis=-1)

    def kl(self, first, second):  # an upper bound: the components compared one by one
        (w, m, s), (v, k, t) = self.parts(first), self.parts(second)
        each = jnp.sum(t - s + 0.5 * (jnp.exp(2 * (s - t)) + jnp.square((m - k) * jnp.exp(-t)) - 1), axis=-1)
        return jnp.sum(jnp.exp(w) * (w - v + each), axis=-1)


@sj.register.policy("mixture")
class MixtureActorCritic(sj.ActorCritic):
    """Actor-critic whose policy is a mixture."""

    components: int = sj.knob(3, "Gaussians of the mixture", within="[1, 100]")
    distribution = cached_property(lambda self: Mixture(self.action_space.size, self.components))
