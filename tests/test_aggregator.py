"""Staleness-weighted aggregation (Eq. 4): its arithmetic, its modes, what it does with bad gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from stellaris_jax.agent.fractional import fractional_adam
from stellaris_jax.engine.aggregator import MODES, StalenessWeightedState, staleness_weighted
from stellaris_jax.engine.mesh import AXIS, make_mesh
from stellaris_jax.timeline.weights import Power

ALPHA = 0.1
WIDTH = 3  # slots per wave in these tests
PARAMS = {"kernel": np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3), "bias": np.ones(3, np.float32)}

examples = settings(deadline=None, max_examples=30)


def stack(seed: int, size: int) -> dict[str, np.ndarray]:
    """Random gradients `[size, ...]` like `PARAMS`."""
    generator = np.random.default_rng(seed)
    return {k: generator.standard_normal((size, *p.shape)).astype(np.float32) for k, p in PARAMS.items()}


def adam_of(mode: str) -> Any:
    """Adam as a mode takes it."""
    return fractional_adam if mode == "fractional" else optax.adam


PLAIN = tuple(mode for mode in MODES if mode != "fractional")
"""Modes that take any optimizer."""


@cache
def compiled(kind: str, mode: str) -> tuple[optax.GradientTransformationExtraArgs, Any]:
    inner = {"sgd": optax.sgd, "adam": adam_of(mode)}[kind](ALPHA)
    transformation = staleness_weighted(inner, mode)
    return transformation, jax.jit(transformation.update)


def run(
    kind: str,
    mode: str,
    gradients: dict[str, np.ndarray],
    weights: Any,
    *,
    waves: list[int] | None = None,
    step_scale: float = 1.0,
    state: StalenessWeightedState | None = None,
    params: Any = PARAMS,
) -> tuple[Any, StalenessWeightedState]:
    """Aggregate one group, cut into waves of the given lengths, each padded to whole stacks of `WIDTH` slots."""
    transformation, update = compiled(kind, mode)
    state = transformation.init(params) if state is None else state
    weights = np.asarray(weights, np.float32)
    size = len(weights)
    done = 0
    for wave in waves or [size]:
        part = slice(done, done + wave)
        done += wave
        empty = -wave % WIDTH
        # What lies in an empty slot is the gradient of some minibatch, so it must be ignored, not be zero.
        filler = {k: np.full((empty, *p.shape), 7.0, np.float32) for k, p in PARAMS.items()}
        padded = {k: np.concatenate([gradients[k][part], filler[k]]) for k in PARAMS}
        padded_weights = np.concatenate([weights[part], np.zeros(empty, np.float32)])
        updates, state = update(
            padded, state, params, weights=padded_weights, size=np.int32(size * (done == size)), step_scale=step_scale
        )
        if done < size:
            assert all(not np.any(u) for u in jax.tree.leaves(updates))
        params = optax.apply_updates(params, updates)
    assert done == size
    return params, state


def moved(params: Any) -> np.ndarray:
    """The step taken from `PARAMS`, as one vector."""
    return np.concatenate([np.ravel(params[k] - PARAMS[k]) for k in PARAMS])


def same(first: Any, second: Any, **tolerance: float) -> None:
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, **{"rtol": 2e-5, "atol": 1e-6, **tolerance})


def test_staleness_8_and_root_3_halve_the_step() -> None:
    weight = Power({"root": 3}).weight(8)
    assert weight == 0.5
    gradients = stack(0, 1)
    for kind, modes in {"sgd": PLAIN, "adam": ("factored", "sequential", "fractional")}.items():
        for mode in modes:
            fresh, _ = run(kind, mode, gradients, [1.0])
            stale, _ = run(kind, mode, gradients, [weight])
            assert np.all(np.abs(moved(fresh)) > 1e-4)
            np.testing.assert_allclose(moved(stale), 0.5 * moved(fresh), rtol=1e-5, atol=1e-7)
    updates, _ = compiled("sgd", "factored")[1](
        gradients, compiled("sgd", "factored")[0].init(PARAMS), PARAMS, weights=np.float32([weight]), size=np.int32(1)
    )
    for name, update in updates.items():
        np.testing.assert_array_equal(update, np.float32(-ALPHA) * np.float32(0.5) * gradients[name][0])


@examples
@given(
    seed=st.integers(0, 2**32 - 1),
    weights=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=7),
    mode=st.sampled_from(["factored", "gradient"]),
)
def test_equation_4_under_gradient_descent(seed: int, weights: list[float], mode: str) -> None:
    gradients = stack(seed, len(weights))
    params, _ = run("sgd", mode, gradients, weights)
    size = len(weights)
    for name, start in PARAMS.items():
        steps = [ALPHA * w * g.astype(np.float64) for w, g in zip(weights, gradients[name], strict=True)]
        np.testing.assert_allclose(params[name], start - sum(steps) / size, rtol=2e-5, atol=1e-6)


@examples
@given(seed=st.integers(0, 2**32 - 1), data=st.data(), mode=st.sampled_from(["factored", "gradient"]))
def test_waves_of_a_group_add_up(seed: int, data: st.DataObject, mode: str) -> None:
    waves = data.draw(st.lists(st.integers(1, WIDTH), min_size=1, max_size=4))
    size = sum(waves)
    weights = np.random.default_rng(seed).uniform(0.1, 1.0, size)
    gradients = stack(seed, size)
    at_once, whole = run("adam", mode, gradients, weights)
    in_waves, parts = run("adam", mode, gradients, weights, waves=waves)
    # Adam's first step divides a gradient by its own size, so its sign is sharp: compare where it is not rounding.
    same(at_once, in_waves, atol=1e-4)
    same(whole.inner, parts.inner)
    assert not np.any(moved({k: v + PARAMS[k] for k, v in parts.total.items()})) and parts.weight_sum == 0.0


def test_factored_feeds_the_optimizer_the_weighted_mean() -> None:
    gradients, weights = stack(1, 4), np.array([1.0, 0.5, 0.7, 0.2])
    params, state = run("adam", "factored", gradients, weights)
    adam = optax.adam(ALPHA)
    mean = {k: np.average(g, axis=0, weights=weights) for k, g in gradients.items()}
    updates, inner = adam.update(mean, adam.init(PARAMS), PARAMS)
    same(params, {k: PARAMS[k] + np.mean(weights) * updates[k] for k in PARAMS})
    same(state.inner, inner)


def test_adam_ignores_a_common_factor_in_gradient_mode_only() -> None:
    gradients, weights = stack(2, 4), np.array([1.0, 0.5, 0.7, 0.2])
    steps = {
        mode: [moved(run("adam", mode, gradients, factor * weights)[0]) for factor in (1.0, 0.25)] for mode in MODES
    }
    np.testing.assert_allclose(steps["gradient"][1], steps["gradient"][0], rtol=1e-4)
    np.testing.assert_allclose(steps["factored"][1], 0.25 * steps["factored"][0], rtol=1e-4)
    np.testing.assert_allclose(steps["sequential"][1], 0.25 * steps["sequential"][0], rtol=1e-4)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_sequential_is_a_loop_of_optimizer_steps(kind: str) -> None:
    weights = [1.0, 0.5, 0.7, 0.2, 0.9]
    gradients = stack(3, len(weights))
    optimizer = {"sgd": optax.sgd, "adam": optax.adam}[kind](ALPHA)
    params: Any = PARAMS
    inner = optimizer.init(params)
    for i, weight in enumerate(weights):
        updates, inner = optimizer.update({k: g[i] for k, g in gradients.items()}, inner, params)
        params = {k: params[k] + 0.5 * weight * updates[k] for k in params}
    for waves in ([5], [3, 2], [1, 1, 3]):
        ours, state = run(kind, "sequential", gradients, weights, waves=waves, step_scale=0.5)
        same(ours, params)
        same(state.inner, inner)


def test_sequential_shows_the_optimizer_the_moved_parameters() -> None:
    decay = optax.chain(optax.add_decayed_weights(0.3), optax.sgd(ALPHA))
    gradients, weights = stack(4, 3), np.float32([1.0, 0.5, 0.25])
    transformation = staleness_weighted(decay, "sequential")
    state = transformation.init(PARAMS)
    updates, _ = transformation.update(gradients, state, PARAMS, weights=weights, size=np.int32(3))
    params: Any = PARAMS
    for i, weight in enumerate(weights):
        params = {k: p - ALPHA * weight * (gradients[k][i] + 0.3 * p) for k, p in params.items()}
    same(optax.apply_updates(PARAMS, updates), params)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_nonfinite_gradient_gets_weight_0_and_is_counted(mode: str, bad: float) -> None:
    weights = np.array([0.5, 1.0, 0.8, 0.3])
    gradients = stack(5, 4)
    broken = {k: g.copy() for k, g in gradients.items()}
    broken["bias"][1, 2] = bad
    broken["kernel"][3, 0, 0] = bad
    params, state = run("adam", mode, broken, weights, waves=[2, 2])
    assert state.rejected == 2
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((params, state)))
    adam = optax.adam(ALPHA)
    if mode == "sequential":
        expected, _ = run("adam", mode, {k: g[[0, 2]] for k, g in gradients.items()}, weights[[0, 2]])
    else:
        # The rejected gradients still count in H.
        total = {k: 0.5 * g[0] + 0.8 * g[2] for k, g in gradients.items()}
        divisor, step = (4.0, 1.0) if mode == "gradient" else (1.3, 1.3 / 4)
        updates, _ = adam.update({k: g / divisor for k, g in total.items()}, adam.init(PARAMS), PARAMS)
        expected = {k: PARAMS[k] + step * updates[k] for k in PARAMS}
    same(params, expected)
    # The count goes on over groups; an empty slot is never counted.
    _, state = run("adam", mode, broken, [1.0, 1.0, 0.0, 0.0], state=state)
    assert state.rejected == 3


@pytest.mark.parametrize("mode", MODES)
def test_a_group_without_a_finite_gradient_makes_no_step(mode: str) -> None:
    params, state = run("adam", mode, stack(6, 2), [1.0, 1.0])
    broken = {k: np.full_like(g, np.nan) for k, g in stack(7, 3).items()}
    after, bad_state = run("adam", mode, broken, [1.0, 0.5, 0.7], state=state, params=params)
    for a, b in zip(jax.tree.leaves((after, bad_state.inner)), jax.tree.leaves((params, state.inner)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert bad_state.rejected == 3 and bad_state.weight_sum == 0.0
    # The next group is as if the bad one had never been.
    good = stack(8, 2)
    same(
        run("adam", mode, good, [1.0, 0.5], state=bad_state, params=after)[0],
        run("adam", mode, good, [1.0, 0.5], state=state, params=params)[0],
    )


@pytest.mark.parametrize("mode", MODES)
def test_sharded_over_four_devices_equals_unsharded(mode: str) -> None:
    """8 slots on 4 devices, one slot empty and one gradient broken; every device ends with the same state."""
    gradients, weights = stack(9, 8), np.float32([1.0, 0.5, 0.7, 0.2, 0.9, 0.3, 0.6, 0.0])
    gradients["bias"][2, 0] = np.nan
    alone = staleness_weighted(adam_of(mode)(ALPHA), mode)
    expected = alone.update(gradients, alone.init(PARAMS), PARAMS, weights=weights, size=np.int32(7))

    sharded = staleness_weighted(adam_of(mode)(ALPHA), mode, AXIS)

    def update(gradients: Any, weights: jax.Array) -> Any:
        result = sharded.update(gradients, sharded.init(PARAMS), PARAMS, weights=weights, size=jnp.int32(7))
        return jax.tree.map(lambda x: x[None], result)

    spread = jax.shard_map(
        update, mesh=make_mesh(4), in_specs=(PartitionSpec(AXIS),) * 2, out_specs=PartitionSpec(AXIS), check_vma=False
    )
    result = jax.jit(spread)(gradients, weights)
    assert expected[1].rejected == 1
    for device in range(4):
        same(jax.tree.map(lambda x, d=device: x[d], result), expected)


@pytest.mark.parametrize("mode", MODES)
def test_step_scale_multiplies_the_step_alone(mode: str) -> None:
    """A learning-rate schedule scales what is added to the parameters, never the optimizer's moments."""
    gradients, weights = stack(10, 3), [1.0, 0.5, 0.8]
    full, state = run("adam", mode, gradients, weights)
    part, scaled = run("adam", mode, gradients, weights, step_scale=0.3)
    np.testing.assert_allclose(moved(part), 0.3 * moved(full), rtol=1e-4, atol=1e-6)
    same(state.inner, scaled.inner)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mode 'mean' is unknown; accepted: factored, gradient, sequential"):
        staleness_weighted(optax.sgd(ALPHA), "mean")
