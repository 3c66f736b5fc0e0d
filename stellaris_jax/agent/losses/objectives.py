"""Alternatives to PPO's clipped objective for stale data, with PPO's advantages and critic.

In all formulas r = pi / mu is the ratio after Eq. 2 (`system.truncation`), A is the advantage, and sg(x) is x without
its gradient. To add one, subclass `PolicyObjective` and register it as an algorithm.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.algorithm import TargetNetwork
from stellaris_jax.agent.losses.common import LossInputs, clipped_surrogate, importance_ratio
from stellaris_jax.agent.losses.ppo import PolicyObjective
from stellaris_jax.base.registry import register
from stellaris_jax.config.schema import knob


def weighted_log_prob(ratio: jax.Array, low: Number, high: Number, inputs: LossInputs) -> jax.Array:
    """Policy gradient with a bounded weight: sg(clip(r, low, high)) A log pi. Clipped samples keep a gradient."""
    return stop_gradient(jnp.clip(ratio, low, high)) * inputs.batch.advantage * inputs.log_prob


@register.algorithm("importance")
class Importance(PolicyObjective):
    """Importance-weighted policy gradient: r A, without a bound; masks may bound it."""

    def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        return ratio * inputs.batch.advantage


@register.algorithm("tis")
class TIS(PolicyObjective):
    """Truncated importance sampling (Ionides 2008): sg(clip(r, low, C)) A log pi; most current engines use C = 2."""

    weight_low: Number = knob(0.0, "the least importance weight", within="[0, 1]")
    weight_cap: Number = knob(2.0, "the largest importance weight (C)", within="[1, inf)")

    def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        return weighted_log_prob(ratio, self.weight_low, self.weight_cap, inputs)

    def is_clipped(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        return (ratio < self.weight_low) | (ratio > self.weight_cap)


@register.algorithm("cispo")
class CISPO(PolicyObjective):
    """CISPO (MiniMax-M1, 2025): sg(clip(r, 1 - e_low, 1 + e_high)) A log pi, PPO's bounds on the weight only."""

    clip_low: Number = knob(1.0, "how far the weight may fall below 1 (epsilon_low)", within="(0, 1]")
    clip_high: Number = knob(0.28, "how far the weight may rise above 1 (epsilon_high)", within="(0, inf)")

    def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        return weighted_log_prob(ratio, 1.0 - self.clip_low, 1.0 + self.clip_high, inputs)

    def is_clipped(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        return (ratio < 1.0 - self.clip_low) | (ratio > 1.0 + self.clip_high)


@register.algorithm("sapo")
class SAPO(PolicyObjective):
    """SAPO (Gao et al. 2025): sigmoid(tau (r - 1)) (4 / tau) A, a soft gate.

    Its slope is 1 on policy and decreases on both sides. tau depends on the sign of A.
    """

    tau_positive: Number = knob(1.0, "temperature of actions of positive advantage (tau_pos)", within="(0, inf)")
    tau_negative: Number = knob(1.05, "temperature of actions of negative advantage (tau_neg)", within="(0, inf)")

    def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        advantage = inputs.batch.advantage
        tau = jnp.where(advantage > 0.0, self.tau_positive, self.tau_negative)
        return jax.nn.sigmoid(tau * (ratio - 1.0)) * (4.0 / tau) * advantage


@register.algorithm("topr")
class TOPR(PolicyObjective):
    """TOPR (Le Roux et al. 2025): A log pi where A > 0, sg(clip(r, 0, 1)) A log pi elsewhere.

    Good actions are imitated at full weight; bad actions lose weight once they are unlikely. The paper uses the sign of
    the reward instead of the advantage.
    """

    truncations = ("weight", "surrogate", "none")  # artifact does not change ratios of at most rho

    def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        least = jnp.where(inputs.batch.advantage > 0.0, 1.0, 0.0)
        return weighted_log_prob(ratio, least, 1.0, inputs)


@register.algorithm("bapo")
class BAPO(PolicyObjective):
    """BAPO (Xi et al. 2025): PPO's surrogate with bounds that adapt to every minibatch.

    The bounds move until actions of positive advantage reach their share of the objective: first the upper bound, step
    by step to its limit, then the lower one (the released code uses the opposite order).
    """

    share: Number = knob(0.5, "least share of positive advantages in the sum of |objective|", within="[0, 1)")
    low_from: Number = knob(0.6, "lower bound on the ratio, at first", within="(0, 1]")
    low_to: Number = knob(0.9, "lower bound on the ratio, at last", within="(0, 1]")
    high_from: Number = knob(1.2, "upper bound on the ratio, at first", within="[1, inf)")
    high_to: Number = knob(3.0, "upper bound on the ratio, at last", within="[1, 100]")
    low_step: Number = knob(0.02, "how far the lower bound moves at a time", within="[0.001, 1]")
    high_step: Number = knob(0.05, "how far the upper bound moves at a time", within="[0.001, 10]")

    def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        low, high = self.bounds(stop_gradient(ratio), inputs)
        return self.clipped(ratio, low, high, inputs)

    def is_clipped(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        low, high = self.bounds(ratio, inputs)
        return (ratio < low) | (ratio > high)

    @staticmethod
    def clipped(ratio: jax.Array, low: jax.Array, high: jax.Array, inputs: LossInputs) -> jax.Array:
        """Clipped objective min(r A, clip(r, low, high) A)."""
        advantage = inputs.batch.advantage
        return jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)

    def bounds(self, ratio: jax.Array, inputs: LossInputs) -> tuple[jax.Array, jax.Array]:
        """Bounds for a minibatch: (low, high)."""
        positive = inputs.batch.advantage > 0.0

        def goes_on(bounds: tuple[jax.Array, jax.Array]) -> jax.Array:
            size = jnp.abs(self.clipped(ratio, *bounds, inputs))
            if inputs.batch.valid is not None:
                size = jnp.where(inputs.batch.valid, size, 0.0)
            short = jnp.sum(jnp.where(positive, size, 0.0)) < self.share * jnp.sum(size)
            return short & ((bounds[0] < self.low_to) | (bounds[1] < self.high_to))

        def moved(bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = bounds
            upper = high < self.high_to
            further = jnp.minimum(low + self.low_step, jnp.maximum(self.low_to, low))
            wider = jnp.minimum(high + self.high_step, jnp.maximum(self.high_to, high))
            return jnp.where(upper, low, further), jnp.where(upper, wider, high)

        start = (jnp.float32(self.low_from), jnp.float32(self.high_from))
        low, high = jax.lax.while_loop(goes_on, moved, start)
        return low, high


class Proximal(PolicyObjective):
    """Base of decoupled PPO: (pi_prox / mu) min(rho A, clip(rho, 1 - epsilon, 1 + epsilon) A), rho = pi / pi_prox.

    The trust region is around a proximal policy, and mu only affects the weight (Hilton et al. 2022; AReaL). AReaL
    leaves out samples whose pi_prox / mu exceeds its cap; here the weight is clipped at `behaviour_cap`.
    """

    truncations = ("weight", "none")  # no term contains pi / mu, so no other ratio can replace it

    clip: Number = knob(0.2, "clip range of the importance ratio (epsilon)", within="(0, inf)")
    behaviour_cap: Number = knob(5.0, "the most that pi_prox / mu weighs a sample", within="[1, inf)")

    def proximal_log_ratio(self, inputs: LossInputs) -> jax.Array:
        """Log-ratio log(pi_prox / mu) `[B]`, without gradient."""
        raise NotImplementedError

    def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        near = self.proximal_log_ratio(inputs)
        rho = importance_ratio(inputs.log_prob - inputs.batch.log_prob - near)
        weight = jnp.minimum(importance_ratio(near), self.behaviour_cap)
        return weight * clipped_surrogate(rho, inputs.batch.advantage, self.clip)

    def is_clipped(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
        rho = importance_ratio(inputs.log_prob - inputs.batch.log_prob - self.proximal_log_ratio(inputs))
        return jnp.abs(rho - 1.0) > self.clip


@register.algorithm("decoupled")
class Decoupled(Proximal, TargetNetwork):
    """Decoupled PPO (Hilton et al. 2022; AReaL) with a recomputed proximal policy; objective as in `Proximal`.

    Every `target_interval`-th version is a proximal policy; a learner uses the newest one at the time when its own
    policy was the newest. The cost is one forward pass of the policy per gradient.
    """

    def proximal_log_ratio(self, inputs: LossInputs) -> jax.Array:
        batch = inputs.batch
        assert batch.target_policy is not None, "the minibatch has no proximal policy"
        return stop_gradient(inputs.distribution.log_prob(batch.target_policy, batch.action) - batch.log_prob)


@register.algorithm("a3po")
class A3PO(Proximal):
    """Decoupled PPO with an interpolated instead of a computed proximal policy (A-3PO, 2025; AReaL):

        log pi_prox = log mu + a (log pi - log mu),    a = (v_prox - v_mu) / (v_pi - v_mu),

    where v are the versions. v_prox is the version that `decoupled` uses, but never older than mu. On data of the
    learner's own version, a is 0.
    """

    proximal_interval: int = knob(16, "versions from one proximal policy to the next", within="[1, 1e9]")

    def proximal_log_ratio(self, inputs: LossInputs) -> jax.Array:
        assert inputs.versions is not None, "the minibatch has no versions"
        learner, behaviour = inputs.versions
        lag = learner - behaviour
        near = jnp.maximum(lag - learner % self.proximal_interval, 0)
        share = near / jnp.maximum(lag, 1)
        return stop_gradient(share * (inputs.log_prob - inputs.batch.log_prob))
