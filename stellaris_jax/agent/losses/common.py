"""What all losses share: training data, metrics, and how per-sample terms become one loss."""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.masks import Mask, MaskInputs
from stellaris_jax.agent.networks.distributions import Distribution
from stellaris_jax.agent.networks.recurrent import Carry, Past


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
    policy, which the learner adds to the minibatch of an algorithm that has one. first, carry: of `Past`, for networks
    with memory, whose minibatches are sequences under every algorithm; of carry there is one row per sequence.
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
    first: jax.Array | None = None
    carry: Carry = None

    @property
    def past(self) -> Past | None:
        """What came before each step; `None` without memory."""
        return None if self.first is None else Past(self.carry, self.first)


class Versions(NamedTuple):
    """Numbers of the learner's policy and of the behaviour policy, int32 scalars."""

    learner: jax.Array
    behaviour: jax.Array


class LossInputs(NamedTuple):
    """All that a loss is a function of; arrays are of one minibatch `[B]`.

    batch: the minibatch. distribution: the action distribution. hyper: clip ranges and coefficients. kl_coefficient:
    weight of the KL penalty, a scalar. steps: T of a minibatch of sequences. peer_log_ratio, truncation: of Eq. 2,
    see `truncated_ratio`. masks: of samples. versions: of the policies. parameters: of
    `distribution`, under the learner's policy, `[B, D]`; value: the learner's critic on the minibatch: `None` until
    the network has been evaluated at the parameters that are differentiated.
    """

    batch: Samples
    distribution: Distribution
    hyper: Hyper
    kl_coefficient: jax.Array
    steps: int
    peer_log_ratio: jax.Array | None = None
    truncation: str = "none"
    masks: tuple[Mask, ...] = ()
    versions: Versions | None = None
    parameters: Any = None
    value: Any = None

    @property
    def log_prob(self) -> jax.Array:
        """log pi(a|s) under the learner's policy, `[B]`."""
        return self.distribution.log_prob(self.parameters, self.batch.action)


class LossMetrics(NamedTuple):
    """Terms of a loss per sample `[B]`, or their means; `truncated_fraction` is the share of samples where R' < R.

    What follows tells how far the learner's policy has come from the behaviour policy; `total` fills it in. ratio,
    ratio_square: R = pi / mu, and R^2. k3: R - 1 - log R, whose mean estimates KL(mu || pi) (Schulman 2020). m2: (log
    R)^2. tv: |R - 1| / 2, whose mean estimates the total variation.
    """

    policy_loss: jax.Array
    value_loss: jax.Array
    entropy: jax.Array
    kl: jax.Array
    clip_fraction: jax.Array
    truncated_fraction: jax.Array
    ratio: Any = 0.0
    ratio_square: Any = 0.0
    k3: Any = 0.0
    m2: Any = 0.0
    tv: Any = 0.0

    @property
    def ess(self) -> Any:
        """Effective sample size as a share of all samples, of means: E[R]^2 / E[R^2]; 1 on policy, and of nothing."""
        nothing = self.ratio_square == 0.0
        return (self.ratio**2 + nothing) / (self.ratio_square + nothing)

    def with_drift(self, log_ratio: jax.Array) -> LossMetrics:
        """With what log R `[B]` tells."""
        log_ratio = jnp.clip(jax.lax.stop_gradient(log_ratio), -LARGEST_SQUARED, LARGEST_SQUARED)
        ratio = jnp.exp(log_ratio)
        drift = {"k3": ratio - 1.0 - log_ratio, "m2": jnp.square(log_ratio), "tv": 0.5 * jnp.abs(ratio - 1.0)}
        return self._replace(ratio=ratio, ratio_square=jnp.square(ratio), **drift)


LARGEST_LOG_RATIO = 80.0
"""Where importance ratios end: the exponential of 88.8 is no float32 any more, and 0 times it is not 0."""

LARGEST_SQUARED = 20.0
"""Where log-ratios end that are only measured: the square of their ratio is summed up."""


def importance_ratio(log_ratio: jax.Array) -> jax.Array:
    """pi / mu from its logarithm, finite however far the policies are apart."""
    return jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_RATIO))


def clipped_surrogate(ratio: jax.Array, advantage: jax.Array, clip: jax.Array | float) -> jax.Array:
    """PPO's min(R A, clip(R, 1 - epsilon, 1 + epsilon) A), to be maximised (Schulman et al. 2017, Eq. 7)."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def is_truncated(used: jax.Array, own: jax.Array) -> jax.Array:
    """Whether the ratio R' that was used is below the learner's own R by more than rounding."""
    return used < own * (1.0 - 1e-6)


def total(terms: LossMetrics, inputs: LossInputs, advantage: jax.Array | None = None) -> tuple[jax.Array, LossMetrics]:
    """Policy loss + value loss - entropy bonus + KL penalty, and their means over what is valid of a minibatch.

    Args:
      terms: one term per sample, `[B]`.
      inputs: what they were made of.
      advantage: what the policy's term weighs actions by, `[B]`, where it is not that of the minibatch; masks go by
        its sign.

    Returns:
      (loss, means), scalars; the means without gradient.
    """
    hyper = inputs.hyper
    if inputs.masks:
        terms = terms._replace(policy_loss=terms.policy_loss * _kept(inputs, advantage))
    terms = terms.with_drift(inputs.log_prob - inputs.batch.log_prob)
    means = LossMetrics(*(mean(term, inputs.batch.valid) for term in terms))
    loss = means.policy_loss + hyper.value_coefficient * means.value_loss
    loss += inputs.kl_coefficient * means.kl - hyper.entropy_coefficient * means.entropy
    return loss, jax.tree.map(jax.lax.stop_gradient, means)


def _kept(inputs: LossInputs, advantage: jax.Array | None) -> jax.Array:
    """The product of all masks, `[B]`."""
    batch = inputs.batch
    valid = jnp.ones_like(batch.log_prob, bool) if batch.valid is None else batch.valid
    discrete = jnp.issubdtype(batch.action.dtype, jnp.integer)
    log_prob = jax.lax.stop_gradient(inputs.log_prob)
    advantage = batch.advantage if advantage is None else jax.lax.stop_gradient(advantage)
    seen = MaskInputs(log_prob, batch.log_prob, advantage, valid, discrete)
    weights = [mask.bound(inputs.hyper.options).weight(seen) for mask in inputs.masks]
    return reduce(mul, weights)


def mean(x: jax.Array, valid: jax.Array | None) -> jax.Array:
    """The mean of `[B]` over what is valid."""
    if valid is None:
        return jnp.mean(x)
    return jnp.sum(jnp.where(valid, x, 0.0)) / jnp.maximum(jnp.sum(valid), 1)


KL_COEFFICIENTS = (1e-16, 1e9)
"""Range of an adapted KL coefficient. Without one it ends at 0 after some 150 rounds of little KL, or at infinity after
some 230 of much, and no factor leads back. No coefficient that begins between 0.2 and 1 leaves it in 50 rounds."""


def adapt_kl_coefficient(coefficient: jax.Array, kl: jax.Array, target: jax.Array | float) -> jax.Array:
    """RLlib's rule: x 1.5 if the round's KL exceeds twice the target, x 0.5 if it is below half of it.

    The coefficient stays within `KL_COEFFICIENTS`; one that is 0 stays 0, for it turns the penalty off.
    """
    factor = jnp.where(kl > 2.0 * target, 1.5, jnp.where(kl < 0.5 * target, 0.5, 1.0))
    adapted = jnp.clip(coefficient * factor, *KL_COEFFICIENTS)
    return jnp.where(coefficient > 0.0, adapted, coefficient)
