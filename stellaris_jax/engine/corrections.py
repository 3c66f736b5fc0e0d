"""Corrections of stale gradients before their aggregation, for example by the policy's change since the fetch.

Corrections have optax's form, an initial state and an update, and can be combined:
`system.corrections=[delay_compensation, kl_gate]` applies them in order. Corrections do not change the timeline. To add
one, subclass `Correction` and register it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import Metrics, effective_sample_size
from stellaris_jax.base.registry import register
from stellaris_jax.base.renamed import warn_renamed
from stellaris_jax.config.buffer import buffer_options
from stellaris_jax.config.optioned import Numbered
from stellaris_jax.config.options import part_optimizers
from stellaris_jax.config.schema import knob
from stellaris_jax.config.tree import Config


class Stack(NamedTuple):
    """Stacked gradients of one group, or a part of it.

    Attributes:
      gradients: the gradients, `[L, P]`.
      weights: their weights, `[L]`; 0 marks an empty place.
    """

    gradients: jax.Array
    weights: jax.Array

    def norms(self) -> jax.Array:
        """Euclidean norms `[L]` of the gradients."""
        return jnp.sqrt(jnp.sum(jnp.square(self.gradients), axis=1))


class Context(NamedTuple):
    """Context of a correction: staleness, policies and metrics of the stacked gradients.

    Attributes:
      staleness: staleness of each gradient in versions, int32 `[L]`.
      fetched: policy that each gradient was computed on, `[L, P]`.
      newest_params: policy that the gradients are applied to, `[P]`.
      metrics: metrics of the gradients' losses by name, each `[L]`.
      kl: mean KL(fetched || newest) over each minibatch, `[L]`; `None` unless a correction declares `needs_kl`.
      axis: mesh axis over which the stack is sharded; `None` on one device.
    """

    staleness: jax.Array
    fetched: jax.Array
    newest_params: jax.Array
    metrics: Metrics
    kl: jax.Array | None = None
    axis: str | None = None

    @property
    def newest(self) -> jax.Array:
        """Old name of `newest_params`."""
        warn_renamed("Context.newest", "newest_params")
        return self.newest_params

    def sum(self, values: jax.Array, stack: Stack) -> tuple[jax.Array, jax.Array]:
        """Sum of values `[L, ...]` over all gradients of positive weight, on all devices, and their number."""
        counted = stack.weights > 0
        shape = counted.shape + (1,) * (values.ndim - 1)
        total = jnp.sum(jnp.where(counted.reshape(shape), values, 0.0), axis=0)
        number = jnp.sum(counted, dtype=jnp.float32)
        if self.axis is not None:
            total, number = jax.lax.psum((total, number), self.axis)
        return total, number


class Average(NamedTuple):
    """Exponential moving average, corrected for its start at 0.

    Attributes:
      total: weighted sum of the values.
      weight: sum of the weights.
    """

    total: jax.Array
    weight: jax.Array

    @classmethod
    def start(cls, like: jax.Array) -> Average:
        """Average of no values."""
        return cls(jnp.zeros_like(like), jnp.zeros(()))

    def add(self, value: jax.Array, decay: Number, counts: jax.Array) -> Average:
        """Average with one more value, if `counts`."""
        share = 1.0 - decay
        added = Average(decay * self.total + share * value, decay * self.weight + share)
        chosen: Average = jax.tree.map(lambda new, old: jnp.where(counts, new, old), added, self)
        return chosen

    @property
    def value(self) -> jax.Array:
        """Value of the average; 0 without any values."""
        return self.total / jnp.where(self.weight > 0.0, self.weight, 1.0)


class GroupAverage(NamedTuple):
    """Average over groups of gradients, each computed in one or more waves; a group counts from the next group on.

    Attributes:
      groups: average over complete groups.
      total: sum over the current group's gradients so far.
      number: number of the current group's gradients so far.
    """

    groups: Average
    total: jax.Array
    number: jax.Array

    @classmethod
    def start(cls, like: jax.Array) -> GroupAverage:
        """Average of no groups."""
        return cls(Average.start(like), jnp.zeros_like(like), jnp.zeros(()))

    def gather(self, values: jax.Array, stack: Stack, context: Context) -> GroupAverage:
        """Average with values `[L, ...]` of more gradients of the current group."""
        total, number = context.sum(values, stack)
        return self._replace(total=self.total + total, number=self.number + number)

    def close(self, decay: Number, counts: jax.Array) -> GroupAverage:
        """Average with the mean of the current group, which ends here if `counts`."""
        mean = self.total / jnp.maximum(self.number, 1.0)
        groups = self.groups.add(mean, decay, counts & (self.number > 0.0))
        return GroupAverage(groups, *(jnp.where(counts, 0.0, x) for x in (self.total, self.number)))

    @property
    def value(self) -> jax.Array:
        """Average of the groups before this one; 0 without any."""
        return self.groups.value


class Correction(Numbered):
    """Base of all corrections, which changes nothing.

    A correction leaves fresh gradients unchanged to the bit, unless its docstring says why not. State is a pytree of
    arrays, the same on all devices.
    """

    needs_kl: ClassVar[bool] = False
    """Whether the correction needs `Context.kl`, which takes two forward passes of the policy per gradient."""

    needs_ratios: ClassVar[bool] = False
    """Whether the correction needs importance ratios, which losses on a replay buffer do not have."""

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        named, name = ",".join(config.system.corrections), config.algorithm.name
        yield (
            not (cls.needs_ratios or cls.needs_kl) or buffer_options(config) is None,
            f"system.corrections=[{named}] is not possible with algorithm.name={name}: {cls.__name__} compares the "
            "learner's policy with the one that acted, which a replay buffer does not keep.",
        )

    def init(self, params: jax.Array) -> Any:
        """State before the first gradient; `params` `[P]`."""
        return ()

    def update(self, stack: Stack, state: Any, context: Context) -> tuple[Stack, Any]:
        """Corrected stack, and the next state.

        A stack may be empty, all its weights 0. Then the state must stay what it is.
        """
        return stack, state

    def published(self, state: Any, step: jax.Array, counts: jax.Array) -> Any:
        """State after an update of the parameters by `step` `[P]`; unchanged unless `counts`."""
        return state

    def numbers(self, hyper: Hyper, state: Any) -> Hyper:
        """Hyper-parameters of the optimizer for the next step."""
        return hyper


@register.correction("delay_compensation")
class DelayCompensation(Correction):
    """Delay compensation: g + lambda g g (theta - theta_fetched) (DC-ASGD, Zheng et al. 2017, Eq. 10).

    This is a first-order estimate of the gradient at the newest policy, with the squared gradient in place of the
    Hessian. With `compensation_memory` above 0, lambda is divided element by element by the root of the running mean
    of g g, this gradient included. This is DC-ASGD-a (Section 6; the paper's m is 0.95, and its lambda then 2).
    """

    compensation: Number = knob(0.04, "strength of the compensation (lambda_0 of DC-ASGD)", within="[0, inf)")
    compensation_memory: Number = knob(
        0.0, "decay of the mean of squared gradients that scales it (m of DC-ASGD-a); 0: constant", within="[0, 1)"
    )

    def init(self, params: jax.Array) -> Any:
        return GroupAverage.start(params)

    def update(self, stack: Stack, state: Any, context: Context) -> tuple[Stack, Any]:
        g, decay = stack.gradients, self.compensation_memory
        # As in the paper, this mean is not corrected for its start at 0.
        mean_square = decay * state.groups.total + (1.0 - decay) * jnp.square(g)
        scale = jnp.where(decay > 0.0, jax.lax.rsqrt(mean_square + 1e-7), 1.0)
        moved = context.newest_params - context.fetched
        compensated = g + self.compensation * scale * g * g * moved
        return stack._replace(gradients=compensated), state.gather(jnp.square(g), stack, context)

    def published(self, state: Any, step: jax.Array, counts: jax.Array) -> Any:
        return state.close(self.compensation_memory, counts)


@register.correction("gap_aware")
class GapAware(Correction):
    """Gap-Aware (Barkai et al. 2020): g / (1 + |theta - theta_fetched| / C), element by element.

    C is the running mean of each parameter's absolute change in a step.
    """

    gap_memory: Number = knob(0.99, "decay of the mean of how far a step moves each parameter (of C)", within="[0, 1)")

    def init(self, params: jax.Array) -> Any:
        return Average.start(params)

    def update(self, stack: Stack, state: Any, context: Context) -> tuple[Stack, Any]:
        moved = jnp.abs(context.newest_params - context.fetched)
        gap = moved / jnp.maximum(state.value, jnp.finfo(moved.dtype).tiny)
        return stack._replace(gradients=stack.gradients / (1.0 + jnp.where(moved > 0.0, gap, 0.0))), state

    def published(self, state: Any, step: jax.Array, counts: jax.Array) -> Any:
        return state.add(jnp.abs(step), self.gap_memory, counts)


@register.correction("less_momentum")
class LessMomentum(Correction):
    """Lower momentum for stale gradients, because asynchrony adds implicit momentum (Mitliagkas et al. 2016).

    The formula is ours. Adam's momentum gives the gradients in a step a mean age of beta_1 / (1 - beta_1) versions, and
    the mean staleness s adds to it. So beta_1 is lowered until the sum equals the mean age without staleness, but not
    below 0.

    >>> momentum = jnp.float32(0.9)  # nine versions
    >>> [round(float(LessMomentum.lowered(momentum, jnp.float32(s))), 3) for s in (0, 1, 8, 9, 20)]
    [0.9, 0.889, 0.5, 0.0, 0.0]

    Adam's bias correction uses the beta_1 of every step (`stellaris_jax.agent.fractional`).
    """

    momentum_memory: Number = knob(0.99, "decay of the mean of staleness that lowers momentum", within="[0, 1)")

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        optimizer = config.algorithm.optimizer
        used = {optimizer, *(name for name, _ in part_optimizers(config).values())}
        having = [name for name, kind in register.optimizer.items() if kind.has_momentum]
        yield (
            not used.isdisjoint(having) or optimizer not in register.optimizer,
            f"system.corrections=[less_momentum] lowers algorithm.adam_b1, which algorithm.optimizer={optimizer} does "
            f"not use; accepted: {', '.join(having)}.",
        )

    def init(self, params: jax.Array) -> Any:
        return GroupAverage.start(jnp.zeros(()))

    def update(self, stack: Stack, state: Any, context: Context) -> tuple[Stack, Any]:
        return stack, state.gather(context.staleness.astype(jnp.float32), stack, context)

    def published(self, state: Any, step: jax.Array, counts: jax.Array) -> Any:
        return state.close(self.momentum_memory, counts)

    def numbers(self, hyper: Hyper, state: Any) -> Hyper:
        return hyper._replace(adam_b1=self.lowered(hyper.adam_b1, state.value))

    @staticmethod
    def lowered(momentum: Number, staleness: jax.Array) -> jax.Array:
        """Lowered beta_1 for a mean staleness."""
        age = jnp.maximum(momentum / (1.0 - momentum) - staleness, 0.0)
        return jnp.where(staleness > 0.0, age / (1.0 + age), momentum)


@register.correction("kl_gate")
class KLGate(Correction):
    """KL gate (ours): weights times exp(-KL / kappa), independent of the number of versions.

    KL is that from the fetched to the newest policy on the gradient's own minibatch; it takes two forward passes.
    `system=parallax` is pure asynchrony (`system=async`) with this gate at trust_kl=0.01.
    """

    needs_kl = True
    trust_kl: Number = knob(0.02, "KL at which a gradient counts 1/e (kappa), in nats", within="(0, inf)")

    def update(self, stack: Stack, state: Any, context: Context) -> tuple[Stack, Any]:
        assert context.kl is not None, "the context has no KL"
        trust = jnp.exp(-jnp.maximum(context.kl, 0.0) / self.trust_kl)
        return stack._replace(weights=jnp.where(context.staleness > 0, stack.weights * trust, stack.weights)), state


@register.correction("norm_ratio")
class NormRatio(Correction):
    """Clip of a stale gradient's norm, at a multiple of the mean norm of earlier groups (ours)."""

    norm_ratio: Number = knob(1.0, "the longest a stale gradient may be, in mean norms", within="(0, inf)")
    norm_memory: Number = knob(0.99, "decay of the mean of norms", within="[0, 1)")

    def init(self, params: jax.Array) -> Any:
        return GroupAverage.start(jnp.zeros(()))

    def update(self, stack: Stack, state: Any, context: Context) -> tuple[Stack, Any]:
        norms = stack.norms()
        longest = jnp.where(state.groups.weight > 0.0, self.norm_ratio * state.value, jnp.inf)
        factor = jnp.minimum(longest / jnp.maximum(norms, jnp.finfo(norms.dtype).tiny), 1.0)
        shortened = stack.gradients * jnp.where(context.staleness > 0, factor, 1.0)[:, None]
        return stack._replace(gradients=shortened), state.gather(norms, stack, context)

    def published(self, state: Any, step: jax.Array, counts: jax.Array) -> Any:
        return state.close(self.norm_memory, counts)


@register.correction("ess")
class EffectiveSampleSize(Correction):
    """Effective sample size (VCPO): weights times sqrt(min(1, ESS / ESS_0)).

    ESS = (sum R)^2 / (B sum R^2) is that of a gradient's own minibatch. Under `system.aggregation=factored` this scales
    the learning rate, as in VCPO. Ratios differ from 1 as soon as the learner's policy differs from the behaviour
    policy. So fresh gradients of later epochs are scaled, too, but gradients of on-policy data are not.
    """

    needs_ratios = True
    ess_reference: Number = knob(
        1.0, "effective sample size, as a share, that needs no correction (ESS_0)", within="(0, 1]"
    )

    def update(self, stack: Stack, state: Any, context: Context) -> tuple[Stack, Any]:
        share = jnp.sqrt(jnp.minimum(effective_sample_size(context.metrics) / self.ess_reference, 1.0))
        return stack._replace(weights=stack.weights * share), state


def kl_needed(corrections: tuple[Correction, ...]) -> bool:
    """Whether any of the corrections needs `Context.kl`."""
    return any(correction.needs_kl for correction in corrections)


def numbers_vary(corrections: Sequence[Correction]) -> bool:
    """Whether any correction changes the optimizer's hyper-parameters from step to step."""
    return any(type(correction).numbers is not Correction.numbers for correction in corrections)
