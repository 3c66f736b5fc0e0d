"""What all losses share: training data, metrics, and how per-sample terms become one loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks.distributions import Distribution


class Steps(NamedTuple):
    """What V-trace needs of every step, leading axes as in `Samples`.

    reward: as it is learned from. next_value: the actor's critic on the observation the step led to, before any reset.
    """

    reward: jax.Array
    next_value: jax.Array
    terminated: jax.Array
    truncated: jax.Array


class Samples(NamedTuple):
    """Training data, one row per environment step, leading axes `[B]` (or `[T, N]` before it is flattened).

    obs: as the policy saw it. action: as sampled. distribution: parameters of mu(.|s), the behaviour policy.
    log_prob: log mu(a|s). value, advantage, target: from the critic at collection time. valid: bool, false for what
    nothing is to be learned from; `None` where there is no such thing. steps: `None` unless the algorithm learns from
    sequences, whose minibatches are `[T, n]`, flattened. target_policy: parameters of pi_t(.|s), the target network's
    policy, which the learner adds to the minibatch of an algorithm that has one.
    """

    obs: jax.Array
    action: jax.Array
    distribution: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    valid: jax.Array | None = None
    steps: Steps | None = None
    target_policy: jax.Array | None = None


class LossInputs(NamedTuple):
    """All that a loss is a function of; arrays are of one minibatch `[B]`.

    batch: the minibatch. distribution: the action distribution. hyper: clip ranges and coefficients. kl_coefficient:
    weight of the KL penalty, a scalar. steps: T of a minibatch of sequences. peer_log_ratio, truncation: of Eq. 2, see
    `truncated_ratio`. parameters: of `distribution`, under the learner's policy, `[B, D]`; value: the learner's critic
    on the minibatch: `None` until the network has been evaluated at the parameters that are differentiated.
    """

    batch: Samples
    distribution: Distribution
    hyper: Hyper
    kl_coefficient: jax.Array
    steps: int
    peer_log_ratio: jax.Array | None = None
    truncation: str = "none"
    parameters: Any = None
    value: Any = None

    @property
    def log_prob(self) -> jax.Array:
        """log pi(a|s) under the learner's policy, `[B]`."""
        return self.distribution.log_prob(self.parameters, self.batch.action)


class LossMetrics(NamedTuple):
    """Terms of a loss per sample `[B]`, or their means; `truncated_fraction` is the share of samples where R' < R."""

    policy_loss: jax.Array
    value_loss: jax.Array
    entropy: jax.Array
    kl: jax.Array
    clip_fraction: jax.Array
    truncated_fraction: jax.Array


LARGEST_LOG_RATIO = 80.0
"""Where importance ratios end: the exponential of 88.8 is no float32 any more, and 0 times it is not 0."""


def importance_ratio(log_ratio: jax.Array) -> jax.Array:
    """pi / mu from its logarithm, finite however far the policies are apart."""
    return jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_RATIO))


def clipped_surrogate(ratio: jax.Array, advantage: jax.Array, clip: jax.Array | float) -> jax.Array:
    """PPO's min(R A, clip(R, 1 - epsilon, 1 + epsilon) A), to be maximised (Schulman et al. 2017, Eq. 7)."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def is_truncated(used: jax.Array, own: jax.Array) -> jax.Array:
    """Whether the ratio R' that was used is below the learner's own R by more than rounding."""
    return used < own * (1.0 - 1e-6)


def total(terms: LossMetrics, inputs: LossInputs) -> tuple[jax.Array, LossMetrics]:
    """Policy loss + value loss - entropy bonus + KL penalty, and their means over what is valid of a minibatch.

    Args:
      terms: one term per sample, `[B]`.
      inputs: what they were made of.

    Returns:
      (loss, means), scalars; the means without gradient.
    """
    hyper = inputs.hyper
    means = LossMetrics(*(_mean(term, inputs.batch.valid) for term in terms))
    loss = means.policy_loss + hyper.value_coefficient * means.value_loss
    loss += inputs.kl_coefficient * means.kl - hyper.entropy_coefficient * means.entropy
    return loss, jax.tree.map(jax.lax.stop_gradient, means)


def _mean(x: jax.Array, valid: jax.Array | None) -> jax.Array:
    if valid is None:
        return jnp.mean(x)
    return jnp.sum(jnp.where(valid, x, 0.0)) / jnp.maximum(jnp.sum(valid), 1)


def adapt_kl_coefficient(coefficient: jax.Array, kl: jax.Array, target: jax.Array | float) -> jax.Array:
    """RLlib's rule: x 1.5 if the round's KL exceeds twice the target, x 0.5 if it is below half of it."""
    factor = jnp.where(kl > 2.0 * target, 1.5, jnp.where(kl < 0.5 * target, 0.5, 1.0))
    return coefficient * factor
