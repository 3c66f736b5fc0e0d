"""Extreme Hessian eigenvalues by Lanczos, Nitro's curvature ratio of them, and the gradient noise scale."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris_jax.engine.curvature import extreme_eigenvalues, hessian_vector_product
from stellaris_jax.timeline.scaling.noise import noise_scale
from stellaris_jax.timeline.scaling.ratio import curvature_ratio

INPUTS, HIDDEN, SAMPLES = 3, 5, 16
PARAMS = INPUTS * HIDDEN + HIDDEN + HIDDEN + 1


def symmetric(spectrum: list[float], seed: int) -> np.ndarray:
    """A matrix `[P, P]` of the given eigenvalues `[P]` with random orthonormal eigenvectors, in double precision."""
    size = len(spectrum)
    vectors, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return np.asarray((vectors * spectrum) @ vectors.T)


@partial(jax.jit, static_argnames="steps")
def extremes(matrix: jax.Array, seed: int, steps: int) -> tuple[jax.Array, jax.Array]:
    return extreme_eigenvalues(lambda vector: matrix @ vector, jax.random.key(seed), len(matrix), steps)


@partial(jax.jit, static_argnames="steps")
def diagonal_extremes(spectrum: jax.Array, seed: int, steps: int) -> tuple[jax.Array, jax.Array]:
    """Products without a sum have rounding errors of their own: all entries of one eigenvalue have the same."""
    return extreme_eigenvalues(lambda vector: spectrum * vector, jax.random.key(seed), len(spectrum), steps)


SPECTRA = {
    "indefinite": [*np.linspace(-3.0, 2.0, 23), 7.0],
    "positive": list(np.linspace(0.5, 4.0, 24)),
    "negative": list(-np.geomspace(0.01, 10.0, 24)),
    "low rank": [-2.0, 0.7, 5.0, *[0.0] * 21],
    "rank one": [-4.0, *[0.0] * 23],
    "one": [0.3] * 24,
    "minus one": [-0.3] * 24,
    "zero": [0.0] * 24,
    "two values": [0.3] * 10 + [-0.1] * 14,
    "three values": [0.3] * 10 + [-0.1] * 9 + [0.77] * 5,
    "small": list(1e-6 * np.linspace(-3.0, 2.0, 24)),
    "large": list(1e6 * np.linspace(-3.0, 2.0, 24)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("steps", [24, 100])
@pytest.mark.parametrize("name", SPECTRA)
def test_extremes_of_a_known_spectrum(name: str, steps: int, seed: int) -> None:
    """As many steps as parameters, and more than there are; most of these break down before."""
    spectrum = np.asarray(SPECTRA[name], np.float32)
    expected = pytest.approx([spectrum.min(), spectrum.max()], abs=1e-5 * float(np.abs(spectrum).max()))
    assert [float(value) for value in extremes(symmetric(SPECTRA[name], seed), seed, steps)] == expected
    # Without sums the probe's Krylov space of few values is exhausted to the last bit.
    assert [float(value) for value in diagonal_extremes(spectrum, seed, steps)] == expected


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    values=st.lists(st.integers(-8, 8).map(lambda value: value / 4), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_repeated_eigenvalues(values: list[float], seed: int) -> None:
    """At most four distinct eigenvalues among eight, of which ten steps see no more than there are."""
    spectrum = [values[index % len(values)] for index in range(8)]
    found = [float(value) for value in extremes(symmetric(spectrum, seed), seed, 10)]
    assert found == pytest.approx([min(values), max(values)], abs=1e-4)


def test_few_steps_on_many_parameters() -> None:
    """Outliers of a spectrum are found in far fewer steps than parameters; Ritz values stay inside it."""
    size = 5000
    bulk = np.random.default_rng(0).normal(scale=0.05, size=size - 3)
    spectrum = jnp.asarray([*bulk, -1.0, 2.0, 3.0], jnp.float32)
    normal = np.random.default_rng(1).normal(size=size)
    mirror = jnp.asarray(normal / np.linalg.norm(normal), jnp.float32)

    def reflect(vector: jax.Array) -> jax.Array:
        return vector - 2.0 * mirror * (mirror @ vector)

    def product(vector: jax.Array) -> jax.Array:
        return reflect(spectrum * reflect(vector))

    low, high = jax.jit(lambda key: extreme_eigenvalues(product, key, size, 30))(jax.random.key(0))
    assert (float(low), float(high)) == pytest.approx((-1.0, 3.0), abs=1e-4)
    low, high = jax.jit(lambda key: extreme_eigenvalues(product, key, size, 2))(jax.random.key(0))
    assert -1.0 < low < high < 3.0


@pytest.mark.parametrize("seed", range(4))
def test_one_step_is_the_rayleigh_quotient_of_the_probe(seed: int) -> None:
    matrix = symmetric(SPECTRA["indefinite"], seed)
    probe = np.asarray(jax.random.rademacher(jax.random.key(seed), (24,)), np.float64)
    low, high = extremes(matrix, seed, 1)
    assert low == high
    assert float(low) == pytest.approx(probe @ matrix @ probe / 24, rel=1e-5)


@pytest.mark.parametrize("value", [-2.5, 0.0, 3.0])
def test_a_single_parameter(value: float) -> None:
    assert [float(found) for found in extremes(jnp.array([[value]]), 0, 100)] == [value, value]


@pytest.mark.parametrize(("size", "steps"), [(0, 5), (5, 0)])
def test_nothing_to_iterate_on_is_refused(size: int, steps: int) -> None:
    with pytest.raises(ValueError, match=f"at least one step on at least one parameter, not {steps} on {size}"):
        extreme_eigenvalues(lambda vector: vector, jax.random.key(0), size, steps)


@pytest.mark.parametrize(("bad", "steps"), [(np.nan, 1), (np.nan, 8), (np.inf, 1), (-np.inf, 8), (1e30, 8)])
def test_products_that_are_not_finite(bad: float, steps: int) -> None:
    """The products of 1e30 are finite, but their squared length is not."""
    matrix = symmetric(list(np.linspace(-1.0, 2.0, 8)), 0)
    matrix[3, 4] = matrix[4, 3] = bad
    assert all(math.isnan(value) for value in extremes(matrix, 0, steps))


def test_a_product_that_fails_after_the_first() -> None:
    """A later product that is not finite is no breakdown: what came before it must not pass for the spectrum."""
    spectrum = jnp.linspace(-1.0, 2.0, 12)
    probe = jax.random.rademacher(jax.random.key(0), (12,), dtype=float) / jnp.sqrt(12.0)

    def product(vector: jax.Array) -> jax.Array:
        return jnp.where(jnp.abs(vector @ probe) > 0.5, 1.0, jnp.nan) * spectrum * vector

    assert all(math.isnan(value) for value in extreme_eigenvalues(product, jax.random.key(0), 12, 6))


def test_a_batch_of_operators() -> None:
    """Under vmap and jit each operator has its own answer, whatever becomes of the others."""
    names = ["indefinite", "zero", "low rank", "one", "negative"]
    matrices = [np.float32(symmetric(SPECTRA[name], 7)) for name in names]
    batch = jnp.stack([*matrices, jnp.full((24, 24), jnp.nan), *matrices])
    keys = jax.random.split(jax.random.key(3), len(batch))

    @jax.jit
    @jax.vmap
    def find(matrix: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return extreme_eigenvalues(lambda vector: matrix @ vector, key, 24, 24)

    low, high = (np.asarray(ends) for ends in find(batch, keys))
    bad = len(names)
    assert np.isnan(low[bad]) and np.isnan(high[bad])
    expected = [(min(SPECTRA[name]), max(SPECTRA[name])) for name in names] * 2
    np.testing.assert_allclose(np.delete(np.stack([low, high], 1), bad, 0), expected, atol=1e-4)


def network_loss(params: jax.Array, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean squared error of a network with one tanh layer, `[P]` -> scalar; not convex."""
    first, bias, second, offset = jnp.split(params, [INPUTS * HIDDEN, INPUTS * HIDDEN + HIDDEN, PARAMS - 1])
    hidden = jnp.tanh(inputs @ first.reshape(INPUTS, HIDDEN) + bias)
    return jnp.mean((hidden @ second + offset[0] - targets) ** 2)


def problem(seed: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(parameters `[P]`, inputs, targets), all standard normal."""
    params, inputs, targets = jax.random.split(jax.random.key(seed), 3)
    return (
        jax.random.normal(params, (PARAMS,)),
        jax.random.normal(inputs, (SAMPLES, INPUTS)),
        jax.random.normal(targets, (SAMPLES,)),
    )


explicit_hessian = jax.jit(jax.hessian(network_loss))


@jax.jit
def network_product(params: jax.Array, inputs: jax.Array, targets: jax.Array, vector: jax.Array) -> jax.Array:
    return hessian_vector_product(lambda flat: network_loss(flat, inputs, targets), params, vector)


@jax.jit
def network_extremes(
    params: jax.Array, inputs: jax.Array, targets: jax.Array, key: jax.Array, sign: float
) -> tuple[jax.Array, jax.Array]:
    def objective(flat: jax.Array) -> jax.Array:
        return sign * network_loss(flat, inputs, targets)

    return extreme_eigenvalues(partial(hessian_vector_product, objective, params), key, PARAMS, 100)


@pytest.mark.parametrize("seed", range(4))
def test_hessian_vector_products_of_a_network(seed: int) -> None:
    vector = jax.random.normal(jax.random.key(100 + seed), (PARAMS,))
    expected = np.asarray(explicit_hessian(*problem(seed)), np.float64) @ np.asarray(vector, np.float64)
    product = network_product(*problem(seed), vector)
    np.testing.assert_allclose(product, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("seed", range(4))
def test_extremes_of_a_network(seed: int) -> None:
    """And those of the negated loss are theirs, negated and swapped: R of the objective is 1 / R of the loss."""
    eigenvalues = np.linalg.eigvalsh(np.asarray(explicit_hessian(*problem(seed)), np.float64))
    low, high = (float(end) for end in network_extremes(*problem(seed), jax.random.key(seed), 1.0))
    assert eigenvalues[0] < -0.01 < 0.01 < eigenvalues[-1]
    assert (low, high) == pytest.approx((eigenvalues[0], eigenvalues[-1]), abs=1e-5 * eigenvalues[-1])
    bottom, top = (float(end) for end in network_extremes(*problem(seed), jax.random.key(seed), -1.0))
    assert (-top, -bottom) == pytest.approx((low, high), rel=1e-4)
    product = curvature_ratio(low, high, "paper") * curvature_ratio(bottom, top, "paper")
    assert product == pytest.approx(1.0, rel=1e-3)


def test_a_batch_of_networks() -> None:
    """As for the versions of several learners."""
    problems = [problem(seed) for seed in range(3)]
    stacked = [jnp.stack(parts) for parts in zip(*problems, strict=True)]
    keys = jax.random.split(jax.random.key(0), 3)
    low, high = jax.vmap(network_extremes, in_axes=(0, 0, 0, 0, None))(*stacked, keys, 1.0)
    eigenvalues = np.stack([np.linalg.eigvalsh(np.asarray(explicit_hessian(*parts))) for parts in problems])
    np.testing.assert_allclose(low, eigenvalues[:, 0], rtol=1e-3)
    np.testing.assert_allclose(high, eigenvalues[:, -1], rtol=1e-3)


RATIOS = [
    # lambda_min, lambda_max: R of the paper, R of the artifact
    (-2.0, 6.0, 3.0, 6.01 / 2.01),
    (-4.0, 1.0, 0.25, 1.01 / 4.01),
    (-0.09, 0.19, 0.19 / 0.09, 2.0),
    (-1e-3, 5.0, 5000.0, 5.01 / 0.011),
    (-3.0, 0.0, 0.0, 0.01 / 3.01),
    (-3.0, -0.005, 0.0, 0.005 / 3.01),
    (-3.0, -1.0, 0.0, -0.99 / 3.01),
    (0.0, 0.0, math.inf, 1.0),
    (0.0, 2.0, math.inf, 201.0),
    (0.005, 2.0, math.inf, 402.0),
    (0.0101, 2.0, math.inf, math.inf),
    (0.5, 2.0, math.inf, math.inf),
    (-1e-320, 1e308, math.inf, math.inf),
    (math.nan, 1.0, math.nan, math.nan),
    (-1.0, math.nan, math.nan, math.nan),
    (-1.0, math.inf, math.nan, math.nan),
    (-math.inf, 1.0, math.nan, math.nan),
    (math.inf, math.inf, math.nan, math.nan),
]


@pytest.mark.parametrize(("smallest", "largest", "paper", "artifact"), RATIOS)
def test_curvature_ratios(smallest: float, largest: float, paper: float, artifact: float) -> None:
    for kind in (float, np.float64, jnp.float32) if abs(largest) < 1e30 else (float,):
        found = [curvature_ratio(kind(smallest), kind(largest), mode) for mode in ("paper", "artifact")]
        assert [type(ratio) for ratio in found] == [float, float]
        assert found == pytest.approx([paper, artifact], rel=1e-4 if kind is jnp.float32 else 1e-12, nan_ok=True)


def test_an_unknown_curvature_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode 'loss' is unknown; accepted: paper, artifact"):
        curvature_ratio(-1.0, 1.0, "loss")


NOISE = [
    # |G_small|^2, |G_big|^2, B_small, B_big: |G|^2, S, noise scale
    (5.0, 2.0, 10.0, 40.0, 1.0, 40.0, 40.0),  # (80 - 50) / 30; 3 / (1/10 - 1/40)
    (2.0, 5.0, 40.0, 10.0, 1.0, 40.0, 40.0),  # the sizes swapped
    (3.0, 3.0, 8.0, 64.0, 3.0, 0.0, 0.0),
    (2.0, 3.0, 1.0, 2.0, 4.0, -2.0, 0.0),  # less noise in the smaller batch
    (8.0, 1.0, 1.0, 8.0, 0.0, 8.0, math.nan),
    (9.0, 1.0, 1.0, 8.0, -1.0 / 7.0, 64.0 / 7.0, math.nan),
    (0.0, 0.0, 1.0, 8.0, 0.0, 0.0, math.nan),
    (5.0, 2.0, 16.0, 16.0, math.nan, math.nan, math.nan),
    (5.0, 2.0, 0.0, 16.0, math.nan, math.nan, math.nan),
    (5.0, 2.0, -4.0, 16.0, math.nan, math.nan, math.nan),
    (math.nan, 2.0, 4.0, 16.0, math.nan, math.nan, math.nan),
    (5.0, math.nan, 4.0, 16.0, math.nan, math.nan, math.nan),
    (math.inf, 2.0, 4.0, 16.0, math.nan, math.nan, math.nan),
    (5.0, 2.0, math.nan, 16.0, math.nan, math.nan, math.nan),
    (5.0, 2.0, 4.0, math.inf, math.nan, math.nan, math.nan),
]


@pytest.mark.parametrize(("small_sq", "big_sq", "small", "big", "squared", "trace", "scale"), NOISE)
def test_noise_scale_by_hand(
    small_sq: float, big_sq: float, small: float, big: float, squared: float, trace: float, scale: float
) -> None:
    found = noise_scale(small_sq, big_sq, small, big)
    assert found == pytest.approx((squared, trace, scale), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(("small", "big"), [(1, 16), (4, 32)])
def test_noise_scale_of_gaussian_gradients(small: int, big: int) -> None:
    """Gradients of one sample are N(g, Sigma): |G|^2 is |g|^2 and S is tr Sigma on average, here 6.25 and 32.5."""
    draws = 20_000
    mean = np.array([2.0, -1.5, 0.0, 0.0])
    root = np.array([[4.0, 0.0, 0.0, 0.0], [1.0, 3.0, 0.0, 0.0], [0.0, -2.0, 1.0, 0.0], [1.0, 0.0, 0.5, 0.5]])
    trace = float(np.trace(root @ root.T))
    assert (mean @ mean, trace) == (6.25, 32.5)
    samples = mean + np.random.default_rng(0).normal(size=(draws, big, 4)) @ root.T
    # The small batch is part of the big one, as a worker's is.
    small_sq = (samples[:, :small].mean(axis=1) ** 2).sum(axis=1)
    big_sq = (samples.mean(axis=1) ** 2).sum(axis=1)
    pairs = zip(small_sq.tolist(), big_sq.tolist(), strict=True)
    estimates = np.array([noise_scale(*pair, small, big)[:2] for pair in pairs])
    squared, spread = estimates.mean(axis=0)
    assert squared == pytest.approx(6.25, rel=0.03)
    assert spread == pytest.approx(trace, rel=0.03)
    # The squared length of one batch's gradient alone is off by tr Sigma / B.
    assert big_sq.mean() == pytest.approx(6.25 + trace / big, rel=0.03)
    assert abs(big_sq.mean() / 6.25 - 1.0) > 0.1
    # The expected squares give the noise scale itself.
    _, _, scale = noise_scale(small_sq.mean(), big_sq.mean(), small, big)
    assert scale == pytest.approx(trace / 6.25, rel=0.05)
