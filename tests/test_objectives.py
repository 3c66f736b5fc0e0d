"""Policy objectives and masks against their formulas in float64: gradients, which are all that a policy learns from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain, combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from objective_formulas import ACTIONS, DIMENSIONS, B, Data, apart, bapo_bounds, drawn, expected, score, surrogate
from settings import algorithm_of, hyper_of, numbers_and_options
from training import leaves, steps, tiny

from stellaris_jax import Trainer
from stellaris_jax.agent.losses.algorithm import Algorithm
from stellaris_jax.agent.losses.common import LossInputs, Metrics, Samples, Versions, drift, effective_sample_size
from stellaris_jax.agent.losses.masks import Mask, MaskInputs
from stellaris_jax.agent.losses.truncation import MODES
from stellaris_jax.agent.networks.distributions import Categorical, DiagonalGaussian
from stellaris_jax.base.registry import register

pytestmark = pytest.mark.usefixtures("shared_programs")

NEW = ["importance", "tis", "cispo", "sapo", "topr", "bapo", "decoupled", "a3po"]
OBJECTIVES = ["ppo", *NEW]
MASKS = ["icepop", "dppo", "opsm", "m2po", "m2po_clip"]
OPTIONS: dict[str, dict[str, float]] = {
    "ppo": {"clip": 0.45},
    "importance": {},
    "tis": {"weight_low": 0.4, "weight_cap": 1.3},
    "cispo": {"clip_low": 0.3, "clip_high": 0.9},
    "sapo": {"tau_positive": 0.5, "tau_negative": 3.0},
    "topr": {},
    "bapo": {"share": 0.85, "low_from": 0.3, "low_to": 0.8, "high_to": 1.6, "low_step": 0.07, "high_step": 0.11},
    "decoupled": {"clip": 0.5, "behaviour_cap": 1.2},
    "a3po": {"clip": 0.1, "behaviour_cap": 1.4},
    "icepop": {"ratio_low": 0.2, "ratio_high": 4.0},
    "dppo": {"tv_bound": 0.05},
    "opsm": {"opsm_bound": 1.0},
    "m2po": {"second_moment": 0.5},
    "m2po_clip": {"second_moment": 0.2, "least_low": 0.1, "least_high": 0.2},
}
"""Values beside the defaults."""
kinds = pytest.mark.parametrize("kind", ["discrete", "continuous"])

# What the package computes ----------------------------------------------------------------------------------------


@cache
def compiled(algorithm: Algorithm, masks: tuple[Mask, ...], kind: str, mode: str) -> Any:
    """(parameters, minibatch, hyper, peers, versions) -> ((loss, metrics), gradient), for all values of numbers."""
    distribution = Categorical(ACTIONS) if kind == "discrete" else DiagonalGaussian(DIMENSIONS)

    def loss(pi: jax.Array, batch: Samples, hyper: Any, peers: jax.Array, versions: Versions) -> Any:
        settings = (hyper, jnp.float32(0), 1, pi, batch.value, peers, mode, masks, versions)
        inputs = LossInputs(batch, distribution, *settings)
        value, metrics = algorithm.bound(hyper.options).loss(inputs)
        return value, {**metrics, **drift(inputs)}

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def computed(
    name: str,
    data: Data,
    options: dict[str, float],
    masks: tuple[str, ...] = (),
    mode: str = "none",
    rho: float = 1.0,
) -> tuple[float, Metrics, np.ndarray]:
    """The loss, which is the policy's alone, its metrics and its gradient `[B, D]`."""
    settings = algorithm_of(name, masks=masks, value_coefficient=0.0, entropy_coefficient=0.0, **options)
    algorithm, own = register.algorithm[name](options), tuple(register.mask[mask](options) for mask in masks)
    zeros = np.zeros(len(data.pi), np.float32)
    action = data.action.astype(np.int32 if data.kind == "discrete" else np.float32)
    arrays = (np.float32(x) for x in (data.mu, data.log_mu, zeros, data.advantage, zeros))
    batch = Samples(zeros[:, None], action, *arrays, valid=data.valid, target_policy=np.float32(data.prox))
    versions = Versions(*(np.int32(version) for version in data.versions))
    function = compiled(algorithm, own, data.kind, mode)
    inputs = (np.float32(data.pi), batch, hyper_of(settings, rho), np.float32(data.peers), versions)
    (loss, metrics), gradient = function(*inputs)
    return float(loss), metrics, np.asarray(gradient)


def assert_close(ours: np.ndarray, reference: np.ndarray, name: str = "") -> None:
    np.testing.assert_allclose(ours, reference, rtol=5e-4, atol=2e-6, err_msg=name)


def settings_of(*names: str) -> Iterator[dict[str, float]]:
    """The defaults, and the other values of all these."""
    yield {}
    yield dict(chain.from_iterable(OPTIONS[name].items() for name in names))


# Off policy -------------------------------------------------------------------------------------------------------


@kinds
def test_drawn_policies_are_near_and_far(kind: str) -> None:
    """The other tests rely on this; the reference's scores are gradients of its log-probabilities."""
    log_ratios = np.concatenate([drawn(kind, seed).log_ratio for seed in range(3)])
    assert log_ratios.min() < -2.5 and log_ratios.max() > 1.4 and np.mean(np.abs(log_ratios) < 0.2) > 0.1
    data = drawn(kind, 0)
    unweighted = expected("topr", data._replace(advantage=np.ones(B)), {})
    np.testing.assert_allclose(unweighted, -score(kind, data.pi, data.action) / B, rtol=1e-6, atol=1e-8)


def test_dppo_takes_the_place_of_a_clip() -> None:
    """Beside a clip of its own size it masks only what is clipped already, where actions have probabilities."""
    for seed in range(3):
        data = drawn("discrete", seed)
        clipped = computed("ppo", data, {})[2]
        np.testing.assert_array_equal(computed("ppo", data, {}, ("dppo",))[2], clipped)
        free = computed("importance", data, {}, ("dppo",))[2]
        assert not np.allclose(free, clipped) and not np.allclose(free, computed("importance", data, {})[2])


@kinds
@pytest.mark.parametrize("partly", [False, True], ids=["all", "partly"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradient_is_that_of_the_formula(name: str, partly: bool, kind: str) -> None:
    for seed in range(3):
        for options in settings_of(name):
            data = drawn(kind, seed, partly)
            _, _, gradient = computed(name, data, options)
            assert_close(gradient, expected(name, data, options), f"{seed}, {options}")
            assert np.any(gradient) and not np.any(gradient[~data.counted])


@kinds
@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradient_is_that_of_the_formula_far_away(name: str, kind: str) -> None:
    """Log-ratios of -3 to 3 in equal steps, at advantages of both signs."""
    log_ratio = np.linspace(-3.0, 3.0, B)
    data = apart(drawn(kind, 5), log_ratio)
    np.testing.assert_allclose(data.log_ratio, log_ratio, atol=1e-5)
    for options in settings_of(name):
        _, _, gradient = computed(name, data, options)
        assert_close(gradient, expected(name, data, options), str(options))


@pytest.mark.parametrize("partly", [False, True], ids=["all", "partly"])
@pytest.mark.parametrize("high", [1.2, 1.7, 2.3, None])
def test_bounds_of_bapo_stop_where_they_should(high: float | None, partly: bool) -> None:
    """At their start, at a step where there is just enough, and at their limits where there never is."""
    data = apart(drawn("discrete", 5, partly), np.linspace(-2.0, 2.0, B))
    ratio, gains = np.exp(data.log_ratio), data.advantage > 0
    share = 0.98
    if high is not None:
        size = np.abs(surrogate(ratio, data.advantage, 0.6, high - 0.01)) * data.counted
        share = size[gains].sum() / size.sum()
    options = {"share": share}
    c = numbers_and_options(algorithm_of("bapo", **options))
    bounds = bapo_bounds(ratio, data, c)
    assert bounds == pytest.approx((0.9, 3.0) if high is None else (0.6, high))
    if partly and high in (1.7, 2.3):
        assert bounds != bapo_bounds(ratio, data._replace(valid=None), c)
    _, metrics, gradient = computed("bapo", data, options)
    assert_close(gradient, expected("bapo", data, options))
    clipped = (ratio < bounds[0]) | (ratio > bounds[1])
    assert float(metrics["clip_fraction"]) == pytest.approx(clipped[data.counted].mean())


@pytest.mark.parametrize(
    ("versions", "interval"),
    [((23, 11), 16), ((23, 11), 4), ((23, 11), 1), ((23, 11), 23), ((23, 22), 16), ((9, 9), 4)],
)
def test_a3po_interpolates_by_versions(versions: tuple[int, int], interval: int) -> None:
    data = drawn("discrete", 1)._replace(versions=versions)
    options = {"proximal_interval": interval}
    _, _, gradient = computed("a3po", data, options)
    assert_close(gradient, expected("a3po", data, options))


@kinds
@pytest.mark.parametrize("mode", ["weight", "none"])
def test_truncation_weighs_truncated_importance_sampling(mode: str, kind: str) -> None:
    """sg(min(r, r_peers, rho) / r) in front of sg(clip(r, low, C)) A log pi, or nothing."""
    for seed in range(3):
        for options in settings_of("tis"):
            for rho in (0.6, 1.0, 1.7):
                data = drawn(kind, seed, partly=True)
                _, metrics, gradient = computed("tis", data, options, mode=mode, rho=rho)
                cap = rho if mode == "weight" else None
                assert_close(gradient, expected("tis", data, options, cap=cap), f"{seed}, {options}, {rho}")
                assert (float(metrics["truncated_fraction"]) > 0) == (mode == "weight")


@pytest.mark.parametrize("name", ["sapo", "bapo", "decoupled", "a3po"])
def test_truncation_weighs_other_objectives(name: str) -> None:
    data = drawn("discrete", 4, partly=True)
    for options in settings_of(name):
        _, _, gradient = computed(name, data, options, mode="weight", rho=0.9)
        assert_close(gradient, expected(name, data, options, cap=0.9))


# Masks ------------------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("masks", [*((name,) for name in MASKS), *combinations(MASKS, 2)], ids="+".join)
def test_masks_keep_what_they_should(masks: tuple[str, ...], kind: str) -> None:
    """Masked samples count in the mean, invalid ones do not."""
    shares = []
    for seed in range(3):
        for options in settings_of(*masks):
            data = drawn(kind, seed, partly=True)
            loss, metrics, gradient = computed("importance", data, options, masks)
            assert_close(gradient, expected("importance", data, options, masks), f"{seed}, {options}")
            assert loss == pytest.approx(float(metrics["policy_loss"]))
            shares.append(np.mean(np.any(gradient[data.counted], axis=1)))
    assert 0.0 < np.mean(shares) < 1.0


@pytest.mark.parametrize("name", ["tis", "bapo", "decoupled"])
def test_masks_multiply_any_objective(name: str) -> None:
    """All of the minibatch is there, and `valid` is `None`."""
    masks = ("icepop", "m2po")
    data = drawn("continuous", 3)
    for options in settings_of(name, *masks):
        _, _, gradient = computed(name, data, options, masks)
        assert_close(gradient, expected(name, data, options, masks), str(options))


def weights(name: str, log_ratio: list[float], **options: float) -> np.ndarray:
    """A mask's weights of samples at these log-ratios, all valid and of negative advantage."""
    zeros = jnp.zeros(len(log_ratio))
    seen = MaskInputs(jnp.float32(log_ratio), zeros, zeros - 1, zeros == 0, discrete=False)
    return np.asarray(register.mask[name](options).weight(seen))


def test_the_second_moment_may_be_too_large_everywhere() -> None:
    np.testing.assert_array_equal(weights("m2po", [1.0, 2.0, -3.0]), np.zeros(3))
    np.testing.assert_array_equal(weights("m2po", [1.0, 2.0, -3.0], second_moment=2.5), [1, 1, 0])


def test_the_second_moment_is_bounded_at_ties() -> None:
    """Equal observations and actions have equal ratios: the bound holds for whatever is kept, nonetheless."""
    log_ratio = [0.0, 0.25, 0.25, 0.25]
    square = np.square(log_ratio)
    weight = weights("m2po", log_ratio, second_moment=0.04)
    assert weight[0] == 1.0 and np.sum(weight * square) / np.sum(weight) <= 0.04


# On policy --------------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("masks", [(), tuple(MASKS)], ids=["plain", "masked"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_on_policy_all_objectives_are_the_policy_gradient(name: str, masks: tuple[str, ...], kind: str) -> None:
    """And all masks keep everything: A grad log pi remains, under Eq. 2, too."""
    data = drawn(kind, 2)
    data = data._replace(pi=data.mu, prox=data.mu, peers=np.zeros(B), versions=(7, 7))
    _, metrics, gradient = computed(name, data, {}, masks, mode="weight" if masks else "none")
    assert_close(gradient, -data.advantage[:, None] * score(kind, data.pi, data.action) / B)
    assert float(effective_sample_size(metrics)) == pytest.approx(1.0)
    assert float(metrics["tv"]) == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0 and metrics["truncated_fraction"] == 0.0


# Diagnostics ------------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("partly", [False, True], ids=["all", "partly"])
def test_drift_is_measured(partly: bool, kind: str) -> None:
    """Masks and truncation have no part in it."""
    for seed in range(3):
        data = drawn(kind, seed, partly)
        log_ratio = data.log_ratio[data.counted]
        ratio = np.exp(log_ratio)
        means = {
            "ratio": ratio.mean(),
            "ratio_square": (ratio**2).mean(),
            "k3": (ratio - 1 - log_ratio).mean(),
            "m2": (log_ratio**2).mean(),
            "tv": np.abs(ratio - 1).mean() / 2,
            "ess": ratio.mean() ** 2 / (ratio**2).mean(),
        }
        for masks, mode in (((), "none"), (tuple(MASKS), "weight")):
            _, metrics, _ = computed("importance", data, {}, masks, mode)
            assert {
                name: float({**metrics, "ess": effective_sample_size(metrics)}[name]) for name in means
            } == pytest.approx(means, rel=1e-4)


# Beyond float32 ---------------------------------------------------------------------------------------------------


FAR = 18


def extreme(kind: str) -> Data:
    """The first have log-ratios of 200 and -200 at positive, negative and no advantages, and three kinds of pi_prox."""
    near, row = drawn(kind, 6), np.arange(FAR)
    far = apart(near, np.where(np.arange(B) % 2, 200.0, -200.0))
    advantage, peers, (pi, mu, prox) = near.advantage.copy(), near.peers.copy(), near[1:4]
    advantage[:FAR] = np.array([1.5, -0.75, 0.0])[row // 2 % 3]
    peers[:FAR] = np.array([200.0, -200.0, 0.5])[row % 3]
    pi, mu = (np.where((np.arange(B) < FAR)[:, None], x, y) for x, y in ((far.pi, pi), (far.mu, mu)))
    prox = np.concatenate([pi[:6], mu[6:12], prox[12:]])
    return near._replace(pi=pi, mu=mu, prox=prox, advantage=advantage, peers=peers)


@kinds
@pytest.mark.parametrize("masks", [(), tuple(MASKS)], ids=["plain", "masked"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_nothing_is_lost_beyond_float32(name: str, masks: tuple[str, ...], kind: str) -> None:
    """Finite losses, metrics and gradients, and the near samples' gradients are those of the formula."""
    data = extreme(kind)
    assert data.log_ratio.max() > 190 and data.log_ratio.min() < -190
    loss, metrics, gradient = computed(name, data, {}, masks, mode="weight" if masks else "none")
    assert np.isfinite(loss) and np.isfinite(gradient).all()
    assert np.isfinite([*metrics.values()]).all() and np.isfinite(effective_sample_size(metrics))
    reference = expected(name, data, {}, masks, cap=1.0 if masks else None)
    assert_close(gradient[FAR:], reference[FAR:])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["tis", "bapo", "decoupled"])
def test_nothing_is_lost_under_any_truncation(name: str, mode: str) -> None:
    loss, metrics, gradient = computed(name, extreme("discrete"), {}, mode=mode)
    assert np.isfinite(loss) and np.isfinite(gradient).all() and np.isfinite([*metrics.values()]).all()


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_finite_beyond_float32(name: str) -> None:
    """Each alone, with everything out of reach."""
    for discrete in (False, True):
        for advantage in (1.0, -1.0, 0.0):
            log_pi, log_mu = jnp.float32([200.0, -200.0, 0.0]), jnp.zeros(3)
            seen = MaskInputs(log_pi, log_mu, jnp.full(3, advantage), jnp.ones(3, bool), discrete)
            weight = np.asarray(register.mask[name]().weight(seen))
            assert set(weight) <= {0.0, 1.0} and weight[2] == 1.0


# In the engine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEW)
def test_the_engine_trains_with_it(name: str) -> None:
    """Two rounds with stale learners under Eq. 2."""
    trainer = Trainer(tiny(f"algorithm.name={name}", "system.truncation=weight", steps(2)))
    start = np.array(trainer.state.params)
    records = trainer.run()
    trainer.close()
    assert sum(records[-1]["staleness_counts"][1:]) > 0
    assert not np.array_equal(trainer.state.params, start)
    assert all(np.isfinite(leaf).all() for leaf in leaves(trainer) if np.issubdtype(leaf.dtype, np.floating))
