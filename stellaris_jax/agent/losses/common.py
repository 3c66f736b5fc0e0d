"""Shared parts of all losses: training data, metrics, and the sum of per-sample terms to one loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from operator import mul
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.masks import Mask, MaskInputs, sequence_means
from stellaris_jax.agent.networks.distributions import Distribution
from stellaris_jax.agent.networks.recurrent import Carry, Past
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.renamed import renamed


class Steps(NamedTuple):
    """Data of every step for V-trace, with leading axes as in `Samples`.

    Attributes:
      reward: reward after clipping and scaling.
      next_value: value of the next observation before any reset, from the critic at collection time; `None` without a
        critic.
      terminated: whether the step ended the task.
      truncated: whether a time limit ended the episode with the step.
    """

    reward: jax.Array
    next_value: Any
    terminated: jax.Array
    truncated: jax.Array


class Transition(NamedTuple):
    """Part of a step in a replay buffer beyond observation and action, with leading axes as in `Samples`.

    Attributes:
      reward: discounted sum of the rewards of n steps, fewer at the end of an episode.
      discount: factor of the value of `next_obs`: gamma^n, or 0 if the task has ended.
      next_obs: observation after those steps, before any reset.
    """

    reward: jax.Array
    discount: jax.Array
    next_obs: jax.Array


class AdvantageInputs(NamedTuple):
    """Inputs of an estimator, arrays `[T, N]` over T steps of N environments.

    Attributes:
      reward: rewards after clipping and scaling.
      value: values of the observations; `None` without a critic.
      next_value: values of the next observations before any reset; `None` without a critic.
      terminated: whether the step ended the task, bool.
      truncated: whether a time limit ended the episode with the step, bool.
      valid: whether to learn from the step, bool; `None` if all steps are valid.
      log_ratio: log(pi / mu) of the learner's policy; `None` unless learners compute the estimate.
      gamma: discount of a step (`algorithm.gamma`).
      gae_lambda: decay of longer sums (`algorithm.gae_lambda`).
    """

    reward: jax.Array
    value: Any
    next_value: Any
    terminated: jax.Array
    truncated: jax.Array
    valid: jax.Array | None
    log_ratio: jax.Array | None
    gamma: Number
    gae_lambda: Number

    @property
    def ends(self) -> jax.Array:
        """Whether no later step of the same episode counts, bool: its end, or an invalid step."""
        ends = self.terminated | self.truncated
        return ends if self.valid is None else ends | ~self.valid


class Samples(NamedTuple):
    """Training data, one row per environment step, with leading axes `[B]` (or `[T, N]` before flattening).

    Minibatches of sequences are `[T, n]`, flattened. Networks with memory learn from sequences under every algorithm.

    Attributes:
      obs: observation, as the behaviour policy received it.
      action: action, as sampled.
      distribution: parameters of mu(.|s), the behaviour policy; `None` in a replay buffer.
      log_prob: log mu(a|s); `None` likewise.
      value: value from the critic at collection time; `None` without a critic.
      advantage: advantage; `None` if the algorithm needs none, or its loss computes them.
      target: target of the critic; `None` likewise, and without a critic.
      valid: whether to learn from the sample, bool; `None` if all samples are valid.
      steps: data of every step; `None` unless the algorithm learns from sequences.
      target_policy: parameters of pi_t(.|s), the target network's policy, which the learner adds if there is one.
      first: see `Past`; `None` without memory.
      carry: see `Past`, one row per sequence; `None` without memory.
      version: version of the behaviour policy, int32; `None` if all samples of a fragment have the same.
      own: the algorithm's own fields, by name; `None` without any.
      transition: rewards and what follows; `None` unless the algorithm learns from a replay buffer.
    """

    obs: jax.Array
    action: jax.Array
    distribution: Any
    log_prob: Any
    value: Any
    advantage: Any
    target: Any
    valid: jax.Array | None = None
    steps: Steps | None = None
    target_policy: jax.Array | None = None
    first: jax.Array | None = None
    carry: Carry = None
    version: jax.Array | None = None
    own: Any = None
    transition: Transition | None = None

    @property
    def past(self) -> Past | None:
        """Context of the sequences; `None` without memory."""
        return None if self.first is None else Past(self.carry, self.first)


class Versions(NamedTuple):
    """Version numbers of the learner's policy and of the behaviour policy, int32 scalars; or the latter by sample."""

    learner: jax.Array
    behaviour: jax.Array


class LossInputs(NamedTuple):
    """Inputs of a loss; arrays are those of one minibatch `[B]`.

    Attributes:
      batch: the minibatch.
      distribution: the action distribution.
      hyper: clip ranges and coefficients.
      kl_coefficient: weight of the KL penalty, a scalar.
      steps: T of a minibatch of sequences.
      parameters: parameters of `distribution` under the learner's policy, `[B, D]`.
      value: values from the learner's critic, `[B]`; `None` without a critic.
      peer_log_ratio: smallest log-ratio of other learners' policies (Eq. 2), see `truncated_ratio`.
      truncation: mode of the truncation (Eq. 2), see `truncated_ratio`.
      masks: masks of samples.
      versions: versions of the policies.
      outputs: other outputs of the learner's policy, by name, `[B, ...]`.
      loss_mean: mean of terms over samples, see `algorithm.loss_mean`.
    """

    batch: Samples
    distribution: Distribution
    hyper: Hyper
    kl_coefficient: Number
    steps: int
    parameters: jax.Array
    value: Any
    peer_log_ratio: jax.Array | None = None
    truncation: str = "none"
    masks: tuple[Mask, ...] = ()
    versions: Versions | None = None
    outputs: Mapping[str, jax.Array] = MappingProxyType({})
    loss_mean: str = "samples"

    def mean(self, x: jax.Array) -> jax.Array:
        """Mean of terms `[B]` over the valid samples as `loss_mean` says, a scalar."""
        valid = self.batch.valid
        if self.loss_mean == "samples":
            return mean(x, valid)
        if self.loss_mean == "constant":
            return jnp.mean(x if valid is None else jnp.where(valid, x, 0.0))
        return mean_of_sequences(x, valid, self.steps)

    @property
    def log_prob(self) -> jax.Array:
        """log pi(a|s) under the learner's policy, `[B]`."""
        return self.distribution.log_prob(self.parameters, self.batch.action)


Metrics = dict[str, jax.Array]
"""Metrics of a loss by name: terms `[B]`, one per sample, or their means."""
__getattr__ = renamed(__name__, {"LossMetrics": "Metrics"}, globals())

METRICS = {
    "policy_loss": "loss of the policy",
    "value_loss": "loss of the critic",
    "entropy": "entropy of the policy, in nats",
    "kl": "KL divergence of the penalty, in nats",
    "clip_fraction": "share of samples whose ratio the objective clips",
    "truncated_fraction": "share of samples where R' < R (Eq. 2)",
}
"""Metrics of PPO and its relatives."""
DRIFT = {
    "ratio": "R = pi / mu",
    "ratio_square": "R^2",
    "k3": "R - 1 - log R, whose mean estimates KL(mu || pi) (Schulman 2020)",
    "m2": "(log R)^2",
    "tv": "|R - 1| / 2, whose mean estimates the total variation",
}
"""Metrics of the distance of the learner's policy pi from the behaviour policy mu."""


def drift(inputs: LossInputs) -> Metrics:
    """Means of `DRIFT` over the valid samples, without gradient."""
    log_ratio = jax.lax.stop_gradient(inputs.log_prob - inputs.batch.log_prob)
    log_ratio = jnp.clip(log_ratio, -LARGEST_SQUARED, LARGEST_SQUARED)
    ratio = jnp.exp(log_ratio)
    terms = {
        "ratio": ratio,
        "ratio_square": jnp.square(ratio),
        "k3": ratio - 1.0 - log_ratio,
        "m2": jnp.square(log_ratio),
        "tv": 0.5 * jnp.abs(ratio - 1.0),
    }
    return means_of(terms, partial(mean, valid=inputs.batch.valid))


def effective_sample_size(metrics: Mapping[str, Any]) -> Any:
    """Effective sample size as a share of all samples: E[R]^2 / E[R^2]; 1 on policy and without samples."""
    ratio, square = metrics["ratio"], metrics["ratio_square"]
    empty = square == 0.0
    return (ratio**2 + empty) / (square + empty)


LARGEST_LOG_RATIO = 80.0
"""Upper bound of log-ratios: the exponential of 88.8 overflows float32, and 0 times infinity is NaN."""

LARGEST_SQUARED = 20.0
"""Upper bound of log-ratios in metrics, which sum the squares of ratios."""


def importance_ratio(log_ratio: jax.Array) -> jax.Array:
    """Importance ratio pi / mu from its logarithm, bounded so that it is always finite."""
    return jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_RATIO))


def clipped_surrogate(ratio: jax.Array, advantage: jax.Array, clip: Number) -> jax.Array:
    """PPO's objective min(R A, clip(R, 1 - epsilon, 1 + epsilon) A), to maximise (Schulman et al. 2017, Eq. 7)."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def is_truncated(used: jax.Array, ratio: jax.Array) -> jax.Array:
    """Whether the used ratio R' is below the learner's ratio R by more than rounding."""
    return used < ratio * (1.0 - 1e-6)


def total(
    terms: Mapping[str, jax.Array], inputs: LossInputs, advantage: jax.Array | None = None
) -> tuple[jax.Array, Metrics]:
    """Total loss: policy loss + value loss - entropy bonus + KL penalty, as means over the valid samples.

    Args:
      terms: one term per sample, `[B]`, by name: `policy_loss`, and if there are any `value_loss`, `entropy`, `kl`.
        Other terms are only measured.
      inputs: inputs of the loss.
      advantage: advantages in the policy's term, `[B]`, if they differ from the minibatch's; masks use their sign.

    Returns:
      (loss, means), scalars; the means without gradient, over samples but for those of losses (`algorithm.loss_mean`).

    Raises:
      ConfigError: a term has another shape than `[B]`, or a mask needs advantages that there are not.
    """
    hyper, terms, rows = inputs.hyper, dict(terms), inputs.batch.log_prob.shape
    for name, term in {**terms, "advantage": inputs.batch.log_prob if advantage is None else advantage}.items():
        if jnp.shape(term) != rows:
            raise ConfigError(
                f"The loss's term {name} has the shape {[*jnp.shape(term)]}, not one number for each sample: {[*rows]}."
            )
    if inputs.masks:
        terms["policy_loss"] = terms["policy_loss"] * _mask_weights(inputs, advantage)
    means = means_of(terms, inputs.mean)
    measured = means
    if inputs.loss_mean != "samples":  # the loss's mean depends on lengths, and what is measured shall not
        plain = means_of(terms, partial(mean, valid=inputs.batch.valid))
        measured = {**plain, **{name: means[name] for name in ("policy_loss", "value_loss") if name in means}}
    coefficients = (hyper.value_coefficient, inputs.kl_coefficient, -hyper.entropy_coefficient)
    loss = means["policy_loss"]
    for name, weight in zip(("value_loss", "kl", "entropy"), coefficients, strict=True):
        if name in means:
            loss += weight * means[name]
    return loss, jax.tree.map(jax.lax.stop_gradient, measured)


def _mask_weights(inputs: LossInputs, advantage: jax.Array | None) -> jax.Array:
    """Product of all masks, `[B]`."""
    batch = inputs.batch
    valid = jnp.ones_like(batch.log_prob, bool) if batch.valid is None else batch.valid
    discrete = jnp.issubdtype(batch.action.dtype, jnp.integer)
    log_prob = jax.lax.stop_gradient(inputs.log_prob)
    advantage = batch.advantage if advantage is None else jax.lax.stop_gradient(advantage)
    if advantage is None:
        if signed := [type(mask).__name__ for mask in inputs.masks if mask.signed]:
            raise ConfigError(f"The mask {signed[0]} needs advantages, which this algorithm has not; leave it out.")
        advantage = jnp.zeros_like(log_prob)
    seen = MaskInputs(log_prob, batch.log_prob, advantage, valid, discrete, inputs.steps)
    masks = zip(inputs.masks, inputs.hyper.masks, strict=True)
    weights = [mask.bound(options).weight(seen) for mask, options in masks]
    return reduce(mul, weights)


def means_of(terms: Mapping[str, jax.Array], mean: Callable[[jax.Array], jax.Array]) -> Metrics:
    """Means of terms `[B]` by name. On accelerators one reduction computes all, where each would be a kernel."""
    if jax.default_backend() == "cpu":
        return {name: mean(term) for name, term in terms.items()}
    return dict(zip(terms, jax.vmap(mean)(jnp.stack([*terms.values()])), strict=True))


def mean(x: Number, valid: jax.Array | None) -> jax.Array:
    """Mean of `[B]` over the valid samples."""
    if valid is None:
        return jnp.mean(x)
    return jnp.sum(jnp.where(valid, x, 0.0)) / jnp.maximum(jnp.sum(valid), 1)


def mean_of_sequences(x: jax.Array, valid: jax.Array | None, steps: int) -> jax.Array:
    """Mean over sequences of the mean over their valid steps; `x` is `[T, n]`, flattened."""
    return mean(*sequence_means(x, valid, steps))


KL_COEFFICIENTS = (1e-16, 1e9)
"""Range of an adapted KL coefficient. Without it, the coefficient underflows to 0 after about 150 rounds of low KL, or
overflows after about 230 rounds of high KL, and cannot recover. A coefficient that starts between 0.2 and 1 stays
within the range for at least 50 rounds."""


def adapt_kl_coefficient(coefficient: jax.Array, kl: jax.Array, target: Number) -> jax.Array:
    """Adapted KL coefficient, by RLlib's rule: x 1.5 if the KL exceeds twice the target, x 0.5 below half of it.

    The coefficient stays within `KL_COEFFICIENTS`. A coefficient of 0, which turns the penalty off, stays 0.
    """
    factor = jnp.where(kl > 2.0 * target, 1.5, jnp.where(kl < 0.5 * target, 0.5, 1.0))
    adapted = jnp.clip(coefficient * factor, *KL_COEFFICIENTS)
    return jnp.where(coefficient > 0.0, adapted, coefficient)
