"""Parameter function: staleness-weighted aggregation (Eq. 4) around any optax optimizer.

Eq. 4 reads  theta <- theta - (1/H) * sum_i alpha_0 w_i g_i.  Under Adam a common factor on the gradient cancels. So
Adam on the weighted sum would silently drop the paper's modulation of the learning rate. `factored` splits the
equation into a direction and a step size instead:

    direction from  sum_i w_i g_i / sum_i w_i      (weight of each gradient relative to the others)
    step size       alpha_0 * (sum_i w_i / H)      (mean weight of the group)

Under plain gradient descent this is exactly Eq. 4. Under Adam it scales the group's step, but not the group's
contribution to the moments. So a gradient of almost no weight, alone in its group, still moves the parameters through
the next step. In mode `fractional` the optimizer takes a fraction of a step, moments included (`agent.fractional`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stellaris_jax.agent import Number
from stellaris_jax.agent.fractional import FractionalOptimizer
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.optimizers import MODES, optimizer_of, sound_steps
from stellaris_jax.engine.corrections import Context, Correction, Stack, numbers_vary
from stellaris_jax.engine.spec import ProgramSpec


class StalenessWeightedState(NamedTuple):
    """State of the current group and of the optimizer.

    Attributes:
      total: sum of w_i g_i so far; in mode `sequential` the sum of the group's steps.
      weight_sum: sum of w_i so far.
      rejected: number of non-finite gradients since the run began.
      inner: state of the optimizer.
      corrections: states of the corrections.
    """

    total: optax.Updates
    weight_sum: jax.Array
    rejected: jax.Array
    inner: optax.OptState
    corrections: tuple[Any, ...] = ()

    @property
    def left_out(self) -> jax.Array:
        """Number of non-finite gradients, and of the optimizer's steps that were not finite, since the run began."""
        return self.rejected + getattr(self.inner, "skipped", 0)


def _scale(tree: Any, factor: Number) -> Any:
    return jax.tree.map(lambda x: factor * x, tree)


def rows(vector: jax.Array, like: jax.Array) -> jax.Array:
    """Vector `[N]` reshaped to broadcast against arrays `[N, ...]` such as `like`."""
    return vector.reshape(vector.shape + (1,) * (like.ndim - 1))


def _finite(stack: Stack) -> tuple[Stack, jax.Array]:
    """Stack whose gradients and weights are 0 for non-finite gradients, and the number of those."""
    gradients, weights = stack
    squares = [jnp.sum(jnp.square(g), axis=range(1, g.ndim)) for g in jax.tree.leaves(gradients)]
    finite = jnp.isfinite(sum(squares[1:], squares[0]))
    rejected = jnp.sum((weights > 0) & ~finite, dtype=jnp.int32)
    gradients = jax.tree.map(lambda g: jnp.where(rows(finite, g), g, 0.0), gradients)
    return Stack(gradients, jnp.where(finite, weights, 0.0)), rejected


def staleness_weighted(
    inner: optax.GradientTransformation,
    mode: str = "factored",
    axis_name: str | None = None,
    corrections: Sequence[Correction] = (),
) -> optax.GradientTransformationExtraArgs:
    """Aggregate stacks of gradients, weighted by staleness, and pass the result on to `inner`.

    `update(gradients, state, params, *, weights, size, step_scale)` takes a stack of L gradients (every leaf has a
    leading axis `[L]`) and `weights` `[L]` (0 for an empty place in the stack). The argument `size` is H if this stack
    completes a group of H gradients, else 0. Between completions the updates are zero.
    `step_scale` multiplies the step (the learning-rate schedule). Corrections need a `context`, too. A non-finite
    gradient gets weight 0 and is counted in `rejected`; it still counts in H. A group without a finite gradient makes
    no step.

    >>> aggregator = staleness_weighted(optax.sgd(1.0))
    >>> params = jnp.zeros(1)
    >>> gradients, weights = jnp.array([[1.0], [3.0]]), jnp.array([1.0, 0.5])
    >>> state = aggregator.init(params)
    >>> updates, _ = aggregator.update(gradients, state, params, weights=weights, size=jnp.int32(2))
    >>> updates.tolist()  # -(1 * 1 + 0.5 * 3) / 2
    [-1.25]

    Adam ignores the scale of a gradient. In mode `factored`, a stale gradient alone in its group still makes a smaller
    step. In mode `gradient`, where the weight only scales Adam's input, it makes a full step. In both modes it enters
    Adam's moments in full:

    >>> for mode in ("factored", "gradient"):
    ...     aggregator = staleness_weighted(optax.adam(1.0), mode)
    ...     stale = {"weights": jnp.array([0.5]), "size": jnp.int32(1)}
    ...     aggregator.update(jnp.ones((1, 1)), aggregator.init(params), params, **stale)[0].round(3).tolist()
    [-0.5]
    [-1.0]

    Args:
      inner: the optimizer, with its base learning rate (alpha_0); a `FractionalOptimizer` in mode `fractional`.
      mode: one of four. Mode `factored`: see the module. In mode `gradient`, weights scale only the gradient, so Adam
        ignores a common factor. Mode `sequential` makes one optimizer step of size alpha_0 w_i per gradient, in order,
        as in the released code. Mode `fractional` makes a fraction sum_i w_i / H of one step for the whole group.
      axis_name: mesh axis over which the stack is sharded; the state stays equal on all its devices.
      corrections: corrections of gradients and weights, applied in order before the aggregation; gradients are then
        arrays `[L, P]`.

    Returns:
      optax's pair of `init(params)` and the `update` above.

    Raises:
      ValueError: the mode is unknown, or cannot use this optimizer.
    """
    if mode not in MODES:
        raise ValueError(f"aggregation mode {mode!r} is unknown; accepted: {', '.join(MODES)}")
    if (mode == "fractional") != isinstance(inner, FractionalOptimizer):
        raise ValueError(f"aggregation mode {mode!r} cannot use this optimizer: fractional_adam goes with fractional")
    optimizer = optax.with_extra_args_support(inner)

    def init(params: optax.Params) -> StalenessWeightedState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        states = tuple(correction.init(params) for correction in corrections)
        return StalenessWeightedState(zeros, jnp.zeros(()), jnp.zeros((), jnp.int32), inner.init(params), states)

    def update(
        gradients: optax.Updates,
        state: StalenessWeightedState,
        params: optax.Params,
        *,
        weights: jax.Array,
        size: jax.Array,
        step_scale: Number = 1.0,
        context: Context | None = None,
        **_: Any,
    ) -> tuple[optax.Updates, StalenessWeightedState]:
        stack, rejected = _finite(Stack(gradients, weights))
        if corrections:
            assert context is not None, "corrections need a context"
            before, states = stack.weights, []
            for correction, correction_state in zip(corrections, state.corrections, strict=True):
                stack, after = correction.update(stack, correction_state, context)
                states.append(after)
            # A rejected gradient stays rejected, even if a correction changes its weight.
            sound = jnp.isfinite(stack.weights)
            rejected += jnp.sum((before > 0) & ~sound, dtype=jnp.int32)
            stack, more = _finite(stack._replace(weights=jnp.where(sound & (before > 0), stack.weights, 0.0)))
            rejected += more
            state = state._replace(corrections=tuple(states))
        if axis_name is not None:
            rejected = jax.lax.psum(rejected, axis_name)
        state = state._replace(rejected=rejected + state.rejected)
        updates, state = aggregate(stack, state, params, size, step_scale)
        pairs = zip(corrections, state.corrections, strict=True)
        published = [correction.published(before, updates, size > 0) for correction, before in pairs]
        return updates, state._replace(corrections=tuple(published))

    def grouped(
        stack: Stack, state: StalenessWeightedState, params: optax.Params, size: jax.Array, step_scale: Number
    ) -> tuple[optax.Updates, StalenessWeightedState]:
        weights = stack.weights
        wave = jax.tree.map(lambda g: jnp.sum(rows(weights, g) * g, axis=0), stack.gradients)
        weight_sum = jnp.sum(weights)
        if axis_name is not None:
            wave, weight_sum = jax.lax.psum((wave, weight_sum), axis_name)
        total = jax.tree.map(jnp.add, state.total, wave)
        weight_sum += state.weight_sum

        def complete(_: None) -> tuple[optax.Updates, optax.Updates, jax.Array, optax.OptState]:
            count, unit = size.astype(weight_sum.dtype), jnp.ones_like(weight_sum)
            direction = _scale(total, 1.0 / (count if mode == "gradient" else weight_sum))
            step = weight_sum / count if mode == "factored" else unit
            trust = {"trust": weight_sum / count} if mode == "fractional" else {}
            updates, inner_state = optimizer.update(direction, state.inner, params, **trust)
            zeros = jax.tree.map(jnp.zeros_like, total)
            return _scale(updates, step_scale * step), zeros, jnp.zeros_like(weight_sum), inner_state

        def hold(_: None) -> tuple[optax.Updates, optax.Updates, jax.Array, optax.OptState]:
            # A complete group may have no finite gradient: then `total` and `weight_sum` are zero already.
            return jax.tree.map(jnp.zeros_like, params), total, weight_sum, state.inner

        updates, total, weight_sum, inner_state = jax.lax.cond((size > 0) & (weight_sum > 0), complete, hold, None)
        return updates, state._replace(total=total, weight_sum=weight_sum, inner=inner_state)

    def sequential(
        stack: Stack, state: StalenessWeightedState, params: optax.Params, size: jax.Array, step_scale: Number
    ) -> tuple[optax.Updates, StalenessWeightedState]:
        if axis_name is not None:
            stack = jax.lax.all_gather(stack, axis_name, tiled=True)

        def step(
            carry: tuple[optax.Updates, optax.OptState], row: Stack
        ) -> tuple[tuple[optax.Updates, optax.OptState], None]:
            gradient, weight = row

            def apply(carry: tuple[optax.Updates, optax.OptState]) -> tuple[optax.Updates, optax.OptState]:
                moved, inner_state = carry
                updates, inner_state = optimizer.update(gradient, inner_state, jax.tree.map(jnp.add, params, moved))
                return jax.tree.map(jnp.add, moved, _scale(updates, step_scale * weight)), inner_state

            return jax.lax.cond(weight > 0, apply, lambda carry: carry, carry), None

        (total, inner_state), _ = jax.lax.scan(step, (state.total, state.inner), stack)
        complete = size > 0
        updates = jax.tree.map(lambda t: jnp.where(complete, t, 0.0), total)
        total = jax.tree.map(lambda t: jnp.where(complete, 0.0, t), total)
        return updates, state._replace(total=total, inner=inner_state)

    aggregate = sequential if mode == "sequential" else grouped
    return optax.GradientTransformationExtraArgs(init, update)


def aggregator_of(
    spec: ProgramSpec, network: PolicyNetwork, axis: str | None, hyper: Hyper
) -> optax.GradientTransformationExtraArgs:
    """Parameter function of one seed."""
    corrections = [one.bound(options) for one, options in zip(spec.corrections, hyper.corrections, strict=True)]
    vary, parts = numbers_vary(corrections), spec.part_optimizers
    optimizer = optimizer_of(spec.optimizer, hyper, network, spec.aggregation, vary, parts)
    every = [spec.optimizer, *(own for _, own in parts)]
    if not all(type(one).__module__.startswith("stellaris_jax.") for one in every):
        optimizer = sound_steps(optimizer)  # finite gradients may be all that is finite of a plug-in's steps
    return staleness_weighted(optimizer, spec.aggregation, axis, corrections)
