"""Corrections of gradients by what has happened since their learners fetched a policy, before they are aggregated.

They stand in optax's form, an initial state and an update, and combine: `system.corrections=[delay_compensation,
kl_gate]` applies one after the other. None changes when anything happens. To add one, subclass `Correction` and
register it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import LossMetrics
from stellaris_jax.config.options import Numbered
from stellaris_jax.config.renamed import warn_renamed
from stellaris_jax.config.schema import knob
from stellaris_jax.registry import register


class Stack(NamedTuple):
    """Gradients `[L, P]` of one group, or some of them, and their weights `[L]`: 0 for an empty place."""

    gradients: jax.Array
    weights: jax.Array

    def norms(self) -> jax.Array:
        """Euclidean norms `[L]` of the gradients."""
        return jnp.sqrt(jnp.sum(jnp.square(self.gradients), axis=1))


class Context(NamedTuple):
    """What a correction may look at beside the stack.

    Attributes:
      staleness: versions that each gradient is behind, int32 `[L]`.
      fetched: policy that each gradient was computed on, `[L, P]`.
      newest_params: policy that the gradients are applied to, `[P]`.
      metrics: metrics of the gradients' losses, each `[L]`.
      kl: mean KL(fetched || newest) over each minibatch, `[L]`; `None` unless a correction declares `needs_kl`.
      axis: mesh axis that the stack is sharded over, if it is.
    """

    staleness: jax.Array
    fetched: jax.Array
    newest_params: jax.Array
    metrics: LossMetrics
    kl: jax.Array | None = None
    axis: str | None = None

    @property
    def newest(self) -> jax.Array:
        """Old name of `newest_params`."""
        warn_renamed("Context.newest", "newest_params")
        return self.newest_params

    def sum(self, values: jax.Array, stack: Stack) -> tuple[jax.Array, jax.Array]:
        """The sum of values `[L, ...]` over all gradients that count, of all devices, and how many there are."""
        counted = stack.weights > 0
        shape = counted.shape + (1,) * (values.ndim - 1)
        total = jnp.sum(jnp.where(counted.reshape(shape), values, 0.0), axis=0)
        number = jnp.sum(counted, dtype=jnp.float32)
        if self.axis is not None:
            total, number = jax.lax.psum((total, number), self.axis)
        return total, number


class Average(NamedTuple):
    """An exponential moving average, corrected for its beginning at 0, and the weight behind it."""

    total: jax.Array
    weight: jax.Array

    @classmethod
    def start(cls, like: jax.Array) -> Average:
        """Of nothing yet."""
        return cls(jnp.zeros_like(like), jnp.zeros(()))

    def add(self, value: jax.Array, memory: jax.Array, counts: jax.Array) -> Average:
        """With a value more, if it `counts`."""
        share = 1.0 - memory
        added = Average(memory * self.total + share * value, memory * self.weight + share)
        chosen: Average = jax.tree.map(lambda new, old: jnp.where(counts, new, old), added, self)
        return chosen

    @property
    def value(self) -> jax.Array:
        """The average; 0 of nothing."""
        return self.total / jnp.where(self.weight > 0.0, self.weight, 1.0)


class GroupAverage(NamedTuple):
    """An average over groups of gradients, however many waves a group is computed in: what a group comes to is gathered
    here, and counts from the next group on."""

    groups: Average
    total: jax.Array
    number: jax.Array

    @classmethod
    def start(cls, like: jax.Array) -> GroupAverage:
        """Of nothing yet."""
        return cls(Average.start(like), jnp.zeros_like(like), jnp.zeros(()))

    def gather(self, values: jax.Array, stack: Stack, context: Context) -> GroupAverage:
        """With values `[L, ...]` of the group's gradients more."""
        total, number = context.sum(values, stack)
        return self._replace(total=self.total + total, number=self.number + number)

    def close(self, memory: jax.Array, counts: jax.Array) -> GroupAverage:
        """With the mean of the group that ends here, if that `counts`."""
        mean = self.total / jnp.maximum(self.number, 1.0)
        groups = self.groups.add(mean, memory, counts & (self.number > 0.0))
        return GroupAverage(groups, *(jnp.where(counts, 0.0, x) for x in (self.total, self.number)))

    @property
    def value(self) -> jax.Array:
        """The average of the groups before this one; 0 of nothing."""
        return self.groups.value


class Correction(Numbered):
    """The base of all corrections, which changes nothing. A correction leaves fresh gradients as they are, to the bit,
    unless its docstring says why not.

    State is a pytree of arrays, the same on all devices.
    """

    needs_kl: ClassVar[bool] = False
    """It asks for `Context.kl`: two forward passes of the policy per gradient."""

    def init(self, params: jax.Array) -> Any:
        """The state before the first gradient; `params` `[P]`."""
        return ()

    def update(self, stack: Stack, state: Any, context: Context) -> tuple[Stack, Any]:
        """The corrected stack, and the next state."""
        return stack, state

    def published(self, state: Any, step: jax.Array, counts: jax.Array) -> Any:
        """The state after the parameters have moved by `step` `[P]`; nothing has happened unless it `counts`."""
        return state

    def numbers(self, hyper: Hyper, state: Any) -> Hyper:
        """The optimizer's numbers of the next step."""
        return hyper


@register.correction("delay_compensation")
class DelayCompensation(Correction):
    """g + lambda g g (theta - theta_fetched), the gradient where the policy is now, to first order, with the squared
    gradient in the place of the Hessian (DC-ASGD, Zheng et al. 2017, Eq. 10).

    With `compensation_memory` above 0 lambda is divided by the root of the running mean of g g, element by element,
    this gradient's included (DC-ASGD-a, Section 6; the paper's m is 0.95, and its lambda then 2).
    """

    compensation: float = knob(0.04, "strength of the compensation (lambda_0 of DC-ASGD)", within="[0, inf)")
    compensation_memory: float = knob(
        0.0, "decay of the mean of squared gradients that scales it (m of DC-ASGD-a); 0: constant", within="[0, 1)"
    )

    def init(self, params: jax.Array) -> Any:
        return GroupAverage.start(params)

    def update(self, stack: Stack, state: Any, context: Context) -> tuple[Stack, Any]:
        g, memory = stack.gradients, self.compensation_memory
        # Not corrected for its beginning at 0, as in the paper.
        mean_square = memory * state.groups.total + (1.0 - memory) * jnp.square(g)
        scale = jnp.where(memory > 0.0, jax.lax.rsqrt(mean_square + 1e-7), 1.0)
        moved = context.newest_params - context.fetched
        compensated = g + self.compensation * scale * g * g * moved
        return stack._replace(gradients=compensated), state.gather(jnp.square(g), stack, context)

    def published(self, state: Any, step: jax.Array, counts: jax.Array) -> Any:
        return state.close(self.compensation_memory, counts)


@register.correction("gap_aware")
class GapAware(Correction):
    """g / (1 + |theta - theta_fetched| / C), element by element, with C the mean of how far a step has moved each
    parameter so far (Gap-Aware, Barkai et al. 2020)."""

    gap_memory: float = knob(0.99, "decay of the mean of how far a step moves each parameter (of C)", within="[0, 1)")

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
    """Lower momentum where gradients are stale, for asynchrony adds its own (Mitliagkas et al. 2016; formula ours).

    The mean age of what a step is made of is beta_1 / (1 - beta_1) versions by Adam's momentum, and the mean staleness
    s on top of it. beta_1 is lowered until both together are what beta_1 alone would be, as far as it goes.

    >>> momentum = jnp.float32(0.9)  # nine versions
    >>> [round(float(LessMomentum.lowered(momentum, jnp.float32(s))), 3) for s in (0, 1, 8, 9, 20)]
    [0.9, 0.889, 0.5, 0.0, 0.0]

    Adam's bias correction goes by beta_1 of every step (`stellaris_jax.agent.momentum`).
    """

    momentum_memory: float = knob(0.99, "decay of the mean of staleness that lowers momentum", within="[0, 1)")

    def init(self, params: jax.Array) -> Any:
        return GroupAverage.start(jnp.zeros(()))

    def update(self, stack: Stack, state: Any, context: Context) -> tuple[Stack, Any]:
        return stack, state.gather(context.staleness.astype(jnp.float32), stack, context)

    def published(self, state: Any, step: jax.Array, counts: jax.Array) -> Any:
        return state.close(self.momentum_memory, counts)

    def numbers(self, hyper: Hyper, state: Any) -> Hyper:
        return hyper._replace(adam_b1=self.lowered(hyper.adam_b1, state.value))

    @staticmethod
    def lowered(momentum: jax.Array, staleness: jax.Array) -> jax.Array:
        """beta_1 at a mean staleness."""
        age = jnp.maximum(momentum / (1.0 - momentum) - staleness, 0.0)
        return jnp.where(staleness > 0.0, age / (1.0 + age), momentum)


@register.correction("kl_gate")
class KLGate(Correction):
    """Trust by how far the policy has come since, whatever the number of versions: weights times exp(-KL / kappa).

    KL is that of the fetched to the newest policy on the gradient's own minibatch; it takes two forward passes. (Ours.)
    `system=parallax` is pure asynchrony (`system=async`) with this gate at trust_kl=0.01.
    """

    needs_kl = True
    trust_kl: float = knob(0.02, "KL at which a gradient counts 1/e (kappa), in nats", within="(0, inf)")

    def update(self, stack: Stack, state: Any, context: Context) -> tuple[Stack, Any]:
        assert context.kl is not None, "the context has no KL"
        trust = jnp.exp(-jnp.maximum(context.kl, 0.0) / self.trust_kl)
        return stack._replace(weights=jnp.where(context.staleness > 0, stack.weights * trust, stack.weights)), state


@register.correction("norm_ratio")
class NormRatio(Correction):
    """A stale gradient is no longer than so many times the mean norm of the groups before its own (ours)."""

    norm_ratio: float = knob(1.0, "the longest a stale gradient may be, in mean norms", within="(0, inf)")
    norm_memory: float = knob(0.99, "decay of the mean of norms", within="[0, 1)")

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
    """Weights times sqrt(min(1, ESS / ESS_0)), with ESS = (sum R)^2 / (B sum R^2) of a gradient's own minibatch (VCPO).

    Under `system.aggregation=factored` that scales the learning rate, as there. Ratios differ from 1 as soon as a
    policy is not the one that acted, so a fresh gradient of later epochs is scaled, too; one of data on policy is not.
    """

    ess_reference: float = knob(
        1.0, "effective sample size, as a share, that needs no correction (ESS_0)", within="(0, 1]"
    )

    def update(self, stack: Stack, state: Any, context: Context) -> tuple[Stack, Any]:
        share = jnp.sqrt(jnp.minimum(context.metrics.ess / self.ess_reference, 1.0))
        return stack._replace(weights=stack.weights * share), state


def kl_needed(corrections: tuple[Correction, ...]) -> bool:
    """Whether any of them asks for `Context.kl`."""
    return any(correction.needs_kl for correction in corrections)


def numbers_vary(corrections: Sequence[Correction]) -> bool:
    """Whether any correction changes the optimizer's numbers from step to step."""
    return any(type(correction).numbers is not Correction.numbers for correction in corrections)
