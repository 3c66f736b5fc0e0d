"""Optimizers of policies: what turns an aggregated gradient into a step. To add one, subclass and register it.

Optimizers work on the vector of all parameters `[P]`. One that needs their matrices says so with `elementwise = False`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stellaris_jax.agent import Number
from stellaris_jax.agent.fractional import FractionalOptimizer, fractional_adam, varying_momentum
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks.policy_network import PolicyNetwork
from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import Numbered
from stellaris_jax.config.schema import knob
from stellaris_jax.config.tree import Config

MODES = ("factored", "gradient", "sequential", "fractional")
"""Modes of aggregation; see `stellaris_jax.engine.aggregator`."""


class Optimizer(Numbered):
    """Optimizer with options, which `algorithm.optimizer_options` sets.

    >>> class Plain(Optimizer):
    ...     def transformation(self, hyper):
    ...         return optax.sgd(hyper.learning_rate)
    >>> Plain.aggregations
    ('factored', 'gradient', 'sequential')
    """

    elementwise: ClassVar[bool] = True
    """Whether each parameter's step depends on that parameter's gradients alone, or on the norm of all."""

    aggregations: ClassVar[tuple[str, ...]] = MODES[:3]
    """Modes of `system.aggregation` that go with it. Mode `fractional` needs the method `fractional`."""

    has_momentum: ClassVar[bool] = False
    """Whether it uses `Hyper.adam_b1` as Adam does, with the bias correction 1 - beta_1^t. Corrections may then change
    beta_1 from step to step: each step is multiplied by what makes that 1 - prod_k beta_1(k)."""

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        name, mode = f"algorithm.optimizer={config.algorithm.optimizer}", config.system.aggregation
        yield (
            mode in cls.aggregations,
            f"system.aggregation={mode} is not possible with {name}; accepted: {', '.join(cls.aggregations)}.",
        )

    def transformation(self, hyper: Hyper) -> optax.GradientTransformation:
        """optax's form of it, with the base learning rate (alpha_0) `hyper.learning_rate`."""
        raise NotImplementedError

    def fractional(self, hyper: Hyper) -> FractionalOptimizer:
        """Form that takes fractions of a step, clipping included."""
        raise NotImplementedError


@register.optimizer("adam")
class Adam(Optimizer):
    """Adam (Kingma & Ba 2015), with `algorithm.adam_b1`, `adam_b2` and `adam_eps`."""

    aggregations = MODES
    has_momentum = True

    def transformation(self, hyper: Hyper) -> optax.GradientTransformation:
        return optax.adam(hyper.learning_rate, b1=hyper.adam_b1, b2=hyper.adam_b2, eps=hyper.adam_eps)

    def fractional(self, hyper: Hyper) -> FractionalOptimizer:
        numbers = (hyper.learning_rate, hyper.adam_b1, hyper.adam_b2, hyper.adam_eps)
        return fractional_adam(*numbers, max_grad_norm=hyper.max_grad_norm)


@register.optimizer("sgd")
class SGD(Optimizer):
    """Gradient descent, with momentum if wanted. Mode `factored` is then Eq. 4 literally."""

    momentum: Number = knob(0.0, "share of the last step that is added to the next one; 0: none", within="[0, 1)")

    def transformation(self, hyper: Hyper) -> optax.GradientTransformation:
        return optax.chain(optax.trace(self.momentum), optax.scale(-1.0 * hyper.learning_rate))


@register.optimizer("rmsprop")
class RMSProp(Optimizer):
    """RMSProp (Tieleman & Hinton 2012)."""

    decay: Number = knob(0.99, "decay of the mean of squared gradients", within="[0, 1)")
    eps: Number = knob(1e-5, "what is added to the mean of squares before its root", within="(0, inf)")

    def transformation(self, hyper: Hyper) -> optax.GradientTransformation:
        return optax.rmsprop(hyper.learning_rate, decay=self.decay, eps=self.eps)


def optimizer_of(
    optimizer: Optimizer,
    hyper: Hyper,
    network: PolicyNetwork,
    aggregation: str = "factored",
    varying: bool = False,
    parts: Sequence[tuple[str, Optimizer]] = (),
) -> optax.GradientTransformation:
    """Optimizer of parameter vectors `[P]`, after clipping the aggregated gradient's norm.

    Args:
      optimizer: the optimizer.
      hyper: hyper-parameters.
      network: policy, whose matrices an optimizer may need.
      aggregation: `system.aggregation`; under `fractional` the optimizer takes fractions of a step.
      varying: whether beta_1 may differ from step to step; the bias correction then uses the beta_1 of all steps.
      parts: optimizers of parts of the policy that have their own. All clip by the norm of the whole gradient.
    """
    whole = _single(optimizer, hyper, network, aggregation, varying)
    if parts:
        numbers = ((part, own, hyper._replace(optimizer=hyper.part_optimizers[part])) for part, own in parts)
        others = {part: _single(own, its, network, aggregation, varying) for part, own, its in numbers}
        whole = of_parts(whole, network, others)
    return by_part(whole, network, hyper.rate_factors) if hyper.rate_factors else whole


def _single(
    optimizer: Optimizer, hyper: Hyper, network: PolicyNetwork, aggregation: str, varying: bool
) -> optax.GradientTransformation:
    """One optimizer of vectors `[P]`, with its options in `hyper.optimizer`."""
    bound = optimizer.bound(hyper.optimizer)
    if aggregation == "fractional":
        made: optax.GradientTransformation = bound.fractional(hyper)
    else:
        made = bound.transformation(hyper)
        if not bound.elementwise:
            made = of_matrices(made, network.ravel, network.unravel)
        made = optax.chain(optax.clip_by_global_norm(hyper.max_grad_norm), made)
    return varying_momentum(made, hyper.adam_b1) if varying and bound.has_momentum else made


def of_matrices(
    inner: optax.GradientTransformation,
    ravel: Callable[[Any], jax.Array],
    unravel: Callable[[jax.Array], Any],
) -> optax.GradientTransformation:
    """Optimizer of vectors `[P]` that an optimizer of trees of matrices makes."""

    def init(params: jax.Array) -> Any:
        return inner.init(unravel(params))

    def update(gradient: jax.Array, state: Any, params: jax.Array | None = None) -> tuple[jax.Array, Any]:
        updates, state = inner.update(unravel(gradient), state, None if params is None else unravel(params))
        return ravel(updates), state

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def by_part(
    inner: optax.GradientTransformation, network: PolicyNetwork, factors: Mapping[str, Number]
) -> optax.GradientTransformation:
    """Optimizer of vectors `[P]` whose steps of some parts of the policy are so many times as long."""

    def update(
        gradient: jax.Array, state: Any, params: jax.Array | None = None, **trust: Number
    ) -> tuple[jax.Array, Any]:
        updates, state = inner.update(gradient, state, params, **trust)

        def factors_of(name: str, part: Any) -> Any:
            return jax.tree.map(lambda x: jnp.full(x.shape, factors.get(name, 1.0), jnp.float32), part)

        parts = {name: factors_of(name, part) for name, part in network.template.items()}
        return updates * network.ravel(parts), state

    return type(inner)(inner.init, update)  # type: ignore[arg-type]


class PartsState(NamedTuple):
    """State of `of_parts`: that of the main optimizer, and those of parts by name."""

    main: Any
    parts: dict[str, Any]


def of_parts(
    main: optax.GradientTransformation, network: PolicyNetwork, others: Mapping[str, optax.GradientTransformation]
) -> optax.GradientTransformation:
    """Optimizer of vectors `[P]` that takes the steps of some parts of the policy from other optimizers."""

    def init(params: jax.Array) -> PartsState:
        return PartsState(main.init(params), {name: other.init(params) for name, other in others.items()})

    def update(
        gradient: jax.Array, state: PartsState, params: jax.Array | None = None, **trust: Number
    ) -> tuple[jax.Array, PartsState]:
        updates, first = main.update(gradient, state.main, params, **trust)
        states = {}
        for name, other in others.items():
            steps, states[name] = other.update(gradient, state.parts[name], params, **trust)
            updates = jnp.where(_belongs_to(network, name), steps, updates)
        return updates, PartsState(first, states)

    return type(main)(init, update)  # type: ignore[arg-type]


def _belongs_to(network: PolicyNetwork, part: str) -> jax.Array:
    """Whether a parameter belongs to a part of the policy, bool `[P]`."""
    filled = {
        name: jax.tree.map(lambda x, own=name == part: jnp.full(x.shape, own, jnp.float32), inner)
        for name, inner in network.template.items()
    }
    return network.ravel(filled) > 0.0


class SoundState(NamedTuple):
    """State of `sound_steps`: that of the optimizer, and the number of steps that were left out, int32."""

    inner: Any
    skipped: jax.Array


def sound_steps(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Optimizer of vectors `[P]` that leaves out steps which are not finite, and forgets what led to them.

    >>> optimizer = sound_steps(optax.scale(float("inf")))
    >>> step, state = optimizer.update(jnp.ones(1), optimizer.init(jnp.ones(1)))
    >>> step.tolist(), int(state.skipped)
    ([0.0], 1)
    """

    def init(params: jax.Array) -> SoundState:
        return SoundState(inner.init(params), jnp.zeros((), jnp.int32))

    def update(
        gradient: jax.Array, state: SoundState, params: jax.Array | None = None, **trust: Number
    ) -> tuple[jax.Array, SoundState]:
        updates, after = inner.update(gradient, state.inner, params, **trust)
        sound = jnp.all(jnp.isfinite(updates))
        kept = jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, state.inner)
        return jnp.where(sound, updates, 0.0), SoundState(kept, state.skipped + ~sound)

    return type(inner)(init, update)  # type: ignore[arg-type]
