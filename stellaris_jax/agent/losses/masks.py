"""Masks and weights of samples by the distance of the learner's policy from the behaviour policy.

Masks multiply the policy's term of any algorithm's loss, have no gradient, and can be combined:
`algorithm.masks=[icepop,m2po]`. Masked samples still count in the mean, so masking makes the gradient smaller. To add
one, subclass `Mask` and register it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.base.registry import register
from stellaris_jax.base.renamed import renamed
from stellaris_jax.config.optioned import Numbered
from stellaris_jax.config.options import has_sequences
from stellaris_jax.config.schema import knob
from stellaris_jax.config.tree import Config


class MaskInputs(NamedTuple):
    """Inputs of a mask, arrays `[B]` without gradient.

    Attributes:
      log_prob: log pi(a|s) of the learner's policy.
      behaviour: log mu(a|s) of the behaviour policy.
      advantage: advantage that the loss uses; V-trace's under IMPALA and IMPACT, zeros if there are none.
      valid: whether a sample is learned from, bool.
      discrete: whether actions have probabilities instead of densities.
      steps: steps T of a minibatch of sequences `[T, n]`, flattened; `None` for others.
    """

    log_prob: jax.Array
    behaviour: jax.Array
    advantage: jax.Array
    valid: jax.Array
    discrete: bool
    steps: int | None = None

    @property
    def log_ratio(self) -> jax.Array:
        """log R = log(pi / mu)."""
        return self.log_prob - self.behaviour


__getattr__ = renamed(__name__, {"Seen": "MaskInputs"}, globals())


def sequence_means(x: jax.Array, valid: jax.Array | None, steps: int) -> tuple[jax.Array, jax.Array]:
    """Means over the valid steps of sequences, and whether they have any, `[n]`; `x` is `[T, n]`, flattened."""
    by_step = x.reshape(steps, -1)
    used = jnp.ones_like(by_step, bool) if valid is None else valid.reshape(steps, -1)
    count = jnp.sum(used, axis=0)
    return jnp.sum(jnp.where(used, by_step, 0.0), axis=0) / jnp.maximum(count, 1), count > 0


class Mask(Numbered):
    """Base of all masks, which keeps all samples."""

    signed: ClassVar[bool] = True
    """Whether it reads advantages, which an algorithm may not have."""

    def weight(self, seen: MaskInputs) -> jax.Array:
        """Weight of each sample, `[B]`; 1 on policy."""
        return jnp.ones_like(seen.log_prob)


@register.mask("icepop")
class IcePop(Mask):
    """Mask of samples whose ratio pi / mu is out of bounds (IcePop, 2025)."""

    signed = False
    ratio_low: Number = knob(0.5, "the least importance ratio that is learned from", within="[0, 1]")
    ratio_high: Number = knob(2.0, "the largest importance ratio that is learned from", within="[1, inf)")

    def weight(self, seen: MaskInputs) -> jax.Array:
        ratio = jnp.exp(seen.log_ratio)
        return ((ratio >= self.ratio_low) & (ratio <= self.ratio_high)).astype(jnp.float32)


@register.mask("dppo")
class TotalVariation(Mask):
    """Mask of samples that would push a probability further out of a total-variation trust region (DPPO-TV).

    These have A > 0 and pi - mu > delta, or A < 0 and mu - pi > delta. For densities, (pi - mu) / (2 mu) replaces
    pi - mu; its mean size over mu is the total variation, too. In the paper the mask replaces PPO's clip:
    `algorithm=importance`. Together with PPO's clip of epsilon, a delta of epsilon or more has no effect on discrete
    actions.
    """

    tv_bound: Number = knob(0.2, "the most a probability may differ (delta)", within="(0, 1]")

    def weight(self, seen: MaskInputs) -> jax.Array:
        if seen.discrete:
            beyond = jnp.exp(seen.log_prob) - jnp.exp(seen.behaviour)
        else:
            beyond = 0.5 * (jnp.exp(seen.log_ratio) - 1.0)
        return 1.0 - (jnp.sign(seen.advantage) * beyond > self.tv_bound)


@register.mask("opsm")
class OffPolicySequence(Mask):
    """Off-policy sequence masking (DeepSeek-V3.2): mask of samples with A < 0 and log(mu / pi) > delta.

    These actions had a negative advantage and have become unlikely. DeepSeek uses the mean of log(mu / pi) over a
    sequence (`by_sequence`, for policies with memory); otherwise each action is one sample.
    """

    by_sequence: bool = knob(False, "mask whole sequences, by their mean log(mu / pi)")
    opsm_bound: Number = knob(
        0.2, "the most log(mu / pi) of an action of negative advantage (delta)", within="(0, inf)"
    )

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        yield (
            config.algorithm.mask_options.get("opsm", {}).get("by_sequence") is not True or has_sequences(config),
            "algorithm.mask_options.opsm.by_sequence=true needs minibatches of whole sequences, which a policy with "
            "memory has, and algorithms that learn from sequences; accepted: false.",
        )

    def weight(self, seen: MaskInputs) -> jax.Array:
        behind = -seen.log_ratio
        if self.by_sequence:
            assert seen.steps is not None, "minibatches hold no sequences"
            behind = jnp.tile(sequence_means(behind, seen.valid, seen.steps)[0], seen.steps)
        return 1.0 - ((seen.advantage < 0.0) & (behind > self.opsm_bound))


@register.mask("m2po")
class SecondMoment(Mask):
    """Second-moment mask, as AReaL has M2PO (Zheng et al. 2025).

    The samples of largest (log R)^2 are masked, whatever their advantages, until its mean over kept samples is at most
    tau. It replaces PPO's clip: `algorithm=importance`. The mask `m2po_clip` is that of the authors' code.

    >>> ratios = jnp.log(jnp.array([1.0, 1.1, 0.9, 3.0]))
    >>> zeros, yes = jnp.zeros(4), jnp.ones(4, bool)
    >>> SecondMoment().weight(MaskInputs(ratios, zeros, zeros, yes, discrete=True)).tolist()
    [1.0, 1.0, 1.0, 0.0]
    """

    signed = False
    second_moment: Number = knob(0.04, "the most that the mean of (log R)^2 may be (tau)", within="(0, inf)")

    def weight(self, seen: MaskInputs) -> jax.Array:
        square = jnp.where(seen.valid, jnp.square(seen.log_ratio), jnp.inf)
        order = jnp.argsort(square)
        means = jnp.cumsum(square[order]) / jnp.arange(1, len(order) + 1)
        number = jnp.sum(means <= self.second_moment)  # the means ascend, too
        return (jnp.argsort(order) < number).astype(jnp.float32)


@register.mask("m2po_clip")
class SecondMomentClip(Mask):
    """Clip by the second moment, as the authors of M2PO have it (Zheng et al. 2025; their code, af54a3e).

    Only samples that have moved with their advantage count: A > 0 and R > 1, or A < 0 and R < 1. Their |log R| is
    capped where the mean of the capped (log R)^2 reaches tau, and samples beyond the cap are masked. Ratios from
    1 - `least_low` to 1 + `least_high` are never masked. It replaces PPO's clip: `algorithm=importance`.

    >>> ratios, up = jnp.log(jnp.array([1.4, 1.6, 0.1, 3.0])), jnp.ones(4)
    >>> SecondMomentClip().weight(MaskInputs(ratios, 0 * up, up, up == 1, discrete=True)).tolist()
    [1.0, 0.0, 1.0, 0.0]
    """

    second_moment: Number = knob(0.04, "the most that the mean of the capped (log R)^2 may be (tau)", within="(0, inf)")
    least_low: Number = knob(0.3, "how far below 1 a ratio is never masked", within="[0, 1)")
    least_high: Number = knob(0.5, "how far above 1 a ratio is never masked", within="[0, inf)")

    def weight(self, seen: MaskInputs) -> jax.Array:
        counted = seen.valid & (jnp.sign(seen.advantage) * seen.log_ratio > 0.0)
        number = jnp.sum(counted)
        square = jnp.sort(jnp.where(counted, jnp.square(seen.log_ratio), jnp.inf))
        place = jnp.arange(len(square))
        finite = jnp.where(place < number, square, 0.0)
        # Sum of all squares if each were at most the one at this place; it ascends.
        capped = jnp.cumsum(finite) + finite * (number - 1 - place)
        below = jnp.sum((place < number) & (capped <= self.second_moment * number))
        cap = jnp.where(below > 0, jnp.sqrt(finite[jnp.maximum(below - 1, 0)]), 0.0)
        least = jnp.where(seen.log_ratio > 0.0, jnp.log1p(self.least_high), -jnp.log1p(-self.least_low))
        return 1.0 - (counted & (jnp.abs(seen.log_ratio) > jnp.maximum(cap, least)))
