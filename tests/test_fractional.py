"""Fractions of an Adam step: Adam at trust 1, nothing at 0, and in between what parts of a step come to."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris_jax import ConfigError, load_config
from stellaris_jax.agent.fractional import fractional_adam
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.optimizers import Adam, optimizer_of
from stellaris_jax.engine.aggregator import staleness_weighted

NUMBERS = {"learning_rate": 3e-3, "b1": 0.9, "b2": 0.999, "eps": 1e-5}
SIZE = 17


def gradients(number: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.normal(size=(number, SIZE)) * 10.0 ** random.uniform(-4, 2, (number, 1))).astype(np.float32)


def moments(gradient: Any, trusts: Any, **numbers: float) -> Any:
    """The state after updates by one gradient."""
    optimizer = fractional_adam(**{**NUMBERS, **numbers})
    state = optimizer.init(jnp.zeros(SIZE))
    for trust in trusts:
        _, state = optimizer.update(gradient, state, jnp.zeros(SIZE), trust=jnp.float32(trust))
    return state


@pytest.mark.parametrize("traced", [False, True])
def test_whole_steps_are_adams_to_the_bit(traced: bool) -> None:
    """1,000 of them behind a clip that binds; numbers are constants, or arrays as in the engine."""
    numbers = {name: jnp.float32(value) if traced else value for name, value in NUMBERS.items()}
    clip = jnp.float32(0.5) if traced else 0.5

    def run(numbers: dict[str, Any], clip: Any, stack: jax.Array) -> Any:
        adam = optax.chain(optax.clip_by_global_norm(clip), optax.adam(**numbers))
        ours = fractional_adam(**numbers, max_grad_norm=clip)
        params = jnp.zeros(SIZE)

        def step(states: Any, gradient: jax.Array) -> Any:
            theirs, first = adam.update(gradient, states[0], params)
            mine, second = ours.update(gradient, states[1], params, trust=jnp.float32(1.0))
            return (first, second), (theirs, mine)

        return jax.lax.scan(step, (adam.init(params), ours.init(params)), stack)

    compute = jax.jit(run) if traced else partial(run, numbers, clip)
    (first, second), (theirs, mine) = compute(numbers, clip, gradients(1000)) if traced else compute(gradients(1000))
    np.testing.assert_array_equal(theirs, mine)
    np.testing.assert_array_equal(first[1][0].mu, second.mu)
    np.testing.assert_array_equal(first[1][0].nu, second.nu)


@pytest.mark.parametrize("parts", [2, 3, 7, 16, 64])
def test_parts_of_a_step_leave_the_moments_of_the_whole(parts: int) -> None:
    gradient = gradients(1)[0] / 100
    whole, cut = moments(gradient, [1.0]), moments(gradient, [1.0 / parts] * parts)
    for name in ("mu", "nu"):
        np.testing.assert_allclose(getattr(cut, name), getattr(whole, name), rtol=1e-5, atol=1e-6)
    assert float(cut.taken) == pytest.approx(1.0, abs=1e-6)


def reference(stack: np.ndarray, trusts: np.ndarray) -> np.ndarray:
    """The sum of updates, in float64, with the products of beta^t as they are written down."""
    mu = nu = np.zeros(SIZE)
    left1 = left2 = 1.0
    total = np.zeros(SIZE)
    for gradient, trust in zip(stack.astype(float), trusts, strict=True):
        if trust < 1e-12:
            continue
        keep1, keep2 = 0.9**trust, 0.999**trust
        left1, left2 = left1 * keep1, left2 * keep2
        mu = keep1 * mu + (1 - keep1) * gradient
        nu = keep2 * nu + (1 - keep2) * gradient**2
        total -= trust * 3e-3 * (mu / (1 - left1)) / (np.sqrt(nu / (1 - left2)) + 1e-5)
    return total


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12), st.integers(0, 1000))
def test_equals_its_formula(trusts: list[float], seed: int) -> None:
    optimizer, stack = fractional_adam(**NUMBERS), gradients(len(trusts), seed)
    state, total = optimizer.init(jnp.zeros(SIZE)), np.zeros(SIZE)
    for gradient, trust in zip(stack, trusts, strict=True):
        updates, state = optimizer.update(gradient, state, jnp.zeros(SIZE), trust=jnp.float32(trust))
        total += np.asarray(updates, float)
    np.testing.assert_allclose(total, reference(stack, np.asarray(trusts)), rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize("trust", [0.0, 1e-30, 1e-13, 1e-12, 1e-8])
def test_next_to_no_trust(trust: float) -> None:
    """Nothing below 1e-12; above it a step in proportion, and moments that are finite."""
    optimizer, gradient = fractional_adam(**NUMBERS), gradients(1)[0]
    before = moments(gradient, [1.0])
    updates, after = optimizer.update(gradient, before, jnp.zeros(SIZE), trust=jnp.float32(trust))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((updates, after)))
    assert np.abs(updates).max() <= 1.01 * trust * NUMBERS["learning_rate"]
    params = jnp.zeros(SIZE)
    fresh, state = optimizer.update(gradient, optimizer.init(params), params, trust=jnp.float32(trust))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((fresh, state)))
    if trust < 1e-12:
        assert not np.any(updates) and jax.tree.all(jax.tree.map(np.array_equal, before, after))
    else:
        assert np.any(updates)


def test_a_distrusted_gradient_hardly_enters_the_moments() -> None:
    """`factored` cannot promise this: its next step moves by the gradient in full."""
    quiet, loud = jnp.full(SIZE, 1e-3), jnp.full(SIZE, 10.0)
    optimizer = fractional_adam(**NUMBERS)
    state = moments(quiet, [1.0, 1.0])
    _, state = optimizer.update(loud, state, jnp.zeros(SIZE), trust=jnp.float32(1e-11))
    updates, _ = optimizer.update(quiet, state, jnp.zeros(SIZE), trust=jnp.float32(1.0))
    np.testing.assert_allclose(updates, -NUMBERS["learning_rate"], rtol=0.02)


@pytest.mark.parametrize("waves", [[4], [1, 3], [2, 2]])
def test_trust_is_the_groups_whatever_its_waves(waves: list[int]) -> None:
    """The mean of the weights is taken once, over all waves of the group."""
    stack, weights = gradients(4), np.float32([1.0, 0.5, 0.25, 0.125])
    inner = fractional_adam(**NUMBERS)
    aggregator = staleness_weighted(inner, "fractional")
    params = jnp.zeros(SIZE)
    state, done = aggregator.init(params), 0
    for wave in waves:
        part, done = slice(done, done + wave), done + wave
        size = jnp.int32(4 * (done == 4))
        updates, state = aggregator.update(stack[part], state, params, weights=weights[part], size=size)
    direction = (weights[:, None] * stack).sum(0) / weights.sum()
    expected, after = inner.update(direction, inner.init(params), params, trust=jnp.float32(weights.sum() / 4))
    np.testing.assert_allclose(updates, expected, rtol=1e-5)
    np.testing.assert_allclose(state.inner.mu, after.mu, rtol=1e-5)


def test_a_group_that_is_skipped_is_over() -> None:
    aggregator = staleness_weighted(fractional_adam(**NUMBERS), "fractional")
    params, stack = jnp.zeros(SIZE), gradients(2)
    state = aggregator.init(params)
    updates, state = aggregator.update(stack, state, params, weights=jnp.float32([1e-20, 1e-20]), size=jnp.int32(2))
    assert not np.any(updates) and not np.any(state.total) and float(state.weight_sum) == 0.0


def test_annealing_scales_the_step_alone() -> None:
    aggregator = staleness_weighted(fractional_adam(**NUMBERS), "fractional")
    params, stack = jnp.zeros(SIZE), gradients(1)
    one = {"weights": jnp.float32([0.5]), "size": jnp.int32(1)}
    whole, first = aggregator.update(stack, aggregator.init(params), params, **one)
    half, second = aggregator.update(stack, aggregator.init(params), params, step_scale=0.5, **one)
    np.testing.assert_allclose(half, whole / 2, rtol=1e-6)
    assert jax.tree.all(jax.tree.map(np.array_equal, first.inner, second.inner))


@pytest.mark.parametrize(("inner", "mode"), [(optax.sgd(0.1), "fractional"), (fractional_adam(0.1), "sequential")])
def test_only_an_optimizer_that_can_is_taken(inner: Any, mode: str) -> None:
    with pytest.raises(ValueError, match="fractional"):
        staleness_weighted(inner, mode)


def test_hyper_makes_the_optimizer_of_the_mode() -> None:
    config = load_config(["system.aggregation=fractional", "system=async", "algorithm.max_grad_norm=0"])
    optimizer: Any = optimizer_of(Adam(), Hyper.of(config), None, config.system.aggregation)  # type: ignore[arg-type]
    updates, _ = optimizer.update(jnp.ones(2), optimizer.init(jnp.zeros(2)), jnp.zeros(2), trust=jnp.float32(0.5))
    np.testing.assert_allclose(updates, -0.5 * config.algorithm.learning_rate, rtol=1e-4)
    with pytest.raises(ConfigError, match="fractional"):
        load_config(["system.aggregation=fraction"])
