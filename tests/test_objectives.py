"""Policy objectives and masks against their formulas in float64: gradients, which are all that a policy learns from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain, combinations
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from settings import algorithm_of, hyper_of, numbers_and_options
from training import leaves, steps, tiny

from stellaris_jax import Trainer
from stellaris_jax.agent.losses.algorithm import Algorithm
from stellaris_jax.agent.losses.common import LossInputs, LossMetrics, Samples, Versions
from stellaris_jax.agent.losses.masks import Mask, MaskInputs
from stellaris_jax.agent.losses.truncation import MODES
from stellaris_jax.agent.networks.distributions import Categorical, DiagonalGaussian
from stellaris_jax.base.registry import register
from stellaris_jax.config.options import completed

pytestmark = pytest.mark.usefixtures("shared_programs")

B, ACTIONS, DIMENSIONS = 24, 4, 2
NEW = ["importance", "tis", "cispo", "sapo", "topr", "bapo", "decoupled", "a3po"]
OBJECTIVES = ["ppo", *NEW]
MASKS = ["icepop", "dppo", "opsm", "m2po"]
VERSIONS = (23, 11)
"""Of the learner and of the behaviour policy; the learner's is no multiple of any interval below but 23."""
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
}
"""Values beside the defaults."""
kinds = pytest.mark.parametrize("kind", ["discrete", "continuous"])

# Policies in float64 ----------------------------------------------------------------------------------------------


def log_prob(kind: str, theta: np.ndarray, action: np.ndarray) -> np.ndarray:
    """log pi(a|s) `[B]`."""
    if kind == "discrete":
        return scipy.special.log_softmax(theta, axis=1)[np.arange(len(theta)), action]
    mean, log_std = np.split(theta, 2, axis=1)
    return scipy.stats.norm.logpdf(action, mean, np.exp(log_std)).sum(axis=1)


def score(kind: str, theta: np.ndarray, action: np.ndarray) -> np.ndarray:
    """The gradient of log pi(a|s) by the policy's parameters `[B, D]`."""
    if kind == "discrete":
        return np.eye(theta.shape[1])[action] - scipy.special.softmax(theta, axis=1)
    mean, log_std = np.split(theta, 2, axis=1)
    z = (action - mean) / np.exp(log_std)
    return np.concatenate([z / np.exp(log_std), z**2 - 1.0], axis=1)


class Data(NamedTuple):
    """A minibatch: parameters of pi, mu and pi_prox, what was sampled, and versions of pi and mu."""

    kind: str
    pi: np.ndarray
    mu: np.ndarray
    prox: np.ndarray
    action: np.ndarray
    advantage: np.ndarray
    peers: np.ndarray
    valid: np.ndarray | None = None
    versions: tuple[int, int] = VERSIONS

    @property
    def log_mu(self) -> np.ndarray:
        return log_prob(self.kind, self.mu, self.action)

    @property
    def log_ratio(self) -> np.ndarray:
        return log_prob(self.kind, self.pi, self.action) - self.log_mu

    @property
    def counted(self) -> np.ndarray:
        """What there is to learn from, bool `[B]`."""
        return np.ones(len(self.pi), bool) if self.valid is None else self.valid


def single(x: np.ndarray) -> np.ndarray:
    """Rounded to float32, for both sides to start from the same numbers."""
    return x.astype(np.float32).astype(np.float64)


def drawn(kind: str, seed: int, partly: bool = False) -> Data:
    """Policies from very near to far away, log-ratios up to 3 and beyond; a third is invalid, or nothing."""
    random = np.random.default_rng(seed)
    size = ACTIONS if kind == "discrete" else 2 * DIMENSIONS
    width = np.full(size, 2.2) if kind == "discrete" else np.repeat([1.1, 0.35], DIMENSIONS)
    spread = random.uniform(0.0, 1.0, (B, 1)) * width
    mu = single(0.6 * random.normal(size=(B, size)))
    pi, prox = (single(mu + spread * random.normal(size=mu.shape)) for _ in range(2))
    if kind == "discrete":
        action = np.argmax(mu + random.gumbel(size=mu.shape), axis=1)
    else:
        mean, log_std = np.split(mu, 2, axis=1)
        action = single(random.normal(mean, np.exp(log_std)))
    advantage = single(random.normal(-0.1, 1.0, B))
    valid = random.random(B) < 0.67 if partly else None
    return Data(kind, pi, mu, prox, action, advantage, single(random.normal(0.0, 0.5, B)), valid)


def apart(data: Data, log_ratio: np.ndarray) -> Data:
    """The same with these log-ratios `[B]`: pi or mu, whichever is to be lower, gives the action up."""
    low, down = data.mu.copy(), np.abs(log_ratio)
    if data.kind == "discrete":
        every = np.arange(len(low))
        others = np.where(np.eye(ACTIONS, dtype=bool)[data.action], -np.inf, low)
        wanted = data.log_mu - down
        low[every, data.action] = scipy.special.logsumexp(others, axis=1) + wanted - np.log1p(-np.exp(wanted))
    else:
        deviation = np.exp(low[:, DIMENSIONS])
        z = (data.action[:, 0] - low[:, 0]) / deviation
        low[:, 0] = data.action[:, 0] - np.copysign(np.sqrt(z**2 + 2 * down), z) * deviation
    less = (log_ratio < 0)[:, None]
    return data._replace(pi=single(np.where(less, low, data.mu)), mu=single(np.where(less, data.mu, low)))


# The formulas -----------------------------------------------------------------------------------------------------


def surrogate(ratio: np.ndarray, advantage: np.ndarray, low: float, high: float) -> np.ndarray:
    """min(r A, clip(r, low, high) A)."""
    return np.minimum(ratio * advantage, np.clip(ratio, low, high) * advantage)


def bapo_bounds(ratio: np.ndarray, data: Data, c: SimpleNamespace) -> tuple[float, float]:
    """Of BAPO, moved until positive advantages have their share of the objective."""
    low, high, gains = c.low_from, c.high_from, data.advantage > 0
    while True:
        size = np.where(data.counted, np.abs(surrogate(ratio, data.advantage, low, high)), 0.0)
        if size[gains].sum() >= c.share * size.sum() or (low >= c.low_to and high >= c.high_to):
            return low, high
        if high < c.high_to:
            high = min(high + c.high_step, c.high_to)
        else:
            low = min(low + c.low_step, c.low_to)


def objective(name: str, log_pi: np.ndarray, fixed: np.ndarray, data: Data, c: SimpleNamespace) -> np.ndarray:
    """What each sample adds to the objective, `[B]`, at log pi; sg(x) is of `fixed`, which log pi moves away from."""
    advantage, log_mu = data.advantage, data.log_mu
    ratio, held = np.exp(log_pi - log_mu), np.exp(fixed - log_mu)
    if name == "ppo":
        return surrogate(ratio, advantage, 1 - c.clip, 1 + c.clip)
    if name == "importance":
        return ratio * advantage
    if name == "tis":
        return np.clip(held, c.weight_low, c.weight_cap) * advantage * log_pi
    if name == "cispo":
        return np.clip(held, 1 - c.clip_low, 1 + c.clip_high) * advantage * log_pi
    if name == "sapo":
        tau = np.where(advantage > 0, c.tau_positive, c.tau_negative)
        return scipy.special.expit(tau * (ratio - 1)) * 4 / tau * advantage
    if name == "topr":
        return np.where(advantage > 0, 1.0, np.clip(held, 0, 1)) * advantage * log_pi
    if name == "bapo":
        return surrogate(ratio, advantage, *bapo_bounds(held, data, c))
    if name == "decoupled":
        log_prox = log_prob(data.kind, data.prox, data.action)
    else:
        learner, behaviour = data.versions
        proximal = max(learner - learner % c.proximal_interval, behaviour)
        share = 0.0 if learner == behaviour else (proximal - behaviour) / (learner - behaviour)
        log_prox = log_mu + share * (fixed - log_mu)
    weight = np.minimum(np.exp(log_prox - log_mu), c.behaviour_cap)
    return weight * surrogate(np.exp(log_pi - log_prox), advantage, 1 - c.clip, 1 + c.clip)


def kept(name: str, data: Data, c: SimpleNamespace) -> np.ndarray:
    """Which samples a mask keeps, bool `[B]`."""
    log_ratio, advantage = data.log_ratio, data.advantage
    ratio = np.exp(log_ratio)
    if name == "icepop":
        return (c.ratio_low <= ratio) & (ratio <= c.ratio_high)
    if name == "dppo":
        gap = np.exp(data.log_mu + log_ratio) - np.exp(data.log_mu) if data.kind == "discrete" else (ratio - 1) / 2
        return ~((advantage > 0) & (gap > c.tv_bound) | (advantage < 0) & (-gap > c.tv_bound))
    if name == "opsm":
        return ~((advantage < 0) & (-log_ratio > c.opsm_bound))
    rest = sorted(np.flatnonzero(data.counted), key=lambda i: log_ratio[i] ** 2)
    while rest and np.mean(log_ratio[rest] ** 2) > c.second_moment:
        rest.pop()
    return np.isin(np.arange(len(ratio)), rest)


def expected(
    name: str,
    data: Data,
    options: dict[str, float],
    masks: tuple[str, ...] = (),
    cap: float | None = None,
) -> np.ndarray:
    """The gradient of the loss by the policy's parameters `[B, D]`, by central differences.

    cap: rho of Eq. 2, whose min(r, r_peers, rho) / r weighs every sample; `None`: there is no such weight.
    """
    c = SimpleNamespace(**completed(register.algorithm[name], options))
    factor = data.counted / data.counted.sum()
    for mask in masks:
        factor = factor * kept(mask, data, SimpleNamespace(**completed(register.mask[mask], options)))
    if cap is not None:
        ratio = np.exp(data.log_ratio)
        factor = factor * np.minimum(np.minimum(ratio, np.exp(data.peers)), cap) / ratio
    fixed, gradient = log_prob(data.kind, data.pi, data.action), np.empty_like(data.pi)
    for column in range(data.pi.shape[1]):
        step = 1e-6 * np.eye(data.pi.shape[1])[column]
        ends = (log_prob(data.kind, data.pi + sign * step, data.action) for sign in (1, -1))
        above, below = (objective(name, end, fixed, data, c) for end in ends)
        gradient[:, column] = -factor * (above - below) / 2e-6
    return gradient


# What the package computes ----------------------------------------------------------------------------------------


@cache
def compiled(algorithm: Algorithm, masks: tuple[Mask, ...], kind: str, mode: str) -> Any:
    """(parameters, minibatch, hyper, peers, versions) -> ((loss, metrics), gradient), for all values of numbers."""
    distribution = Categorical(ACTIONS) if kind == "discrete" else DiagonalGaussian(DIMENSIONS)

    def loss(pi: jax.Array, batch: Samples, hyper: Any, peers: jax.Array, versions: Versions) -> Any:
        settings = (hyper, jnp.float32(0), 1, pi, batch.value, peers, mode, masks, versions)
        inputs = LossInputs(batch, distribution, *settings)
        return algorithm.bound(hyper.options).loss(inputs)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def computed(
    name: str,
    data: Data,
    options: dict[str, float],
    masks: tuple[str, ...] = (),
    mode: str = "none",
    rho: float = 1.0,
) -> tuple[float, LossMetrics, np.ndarray]:
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
    """What the other tests rely on, and that the reference's scores are gradients of its log-probabilities."""
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
    assert float(metrics.clip_fraction) == pytest.approx(clipped[data.counted].mean())


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
                assert (float(metrics.truncated_fraction) > 0) == (mode == "weight")


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
    """What is masked counts in the mean, what is invalid does not."""
    shares = []
    for seed in range(3):
        for options in settings_of(*masks):
            data = drawn(kind, seed, partly=True)
            loss, metrics, gradient = computed("importance", data, options, masks)
            assert_close(gradient, expected("importance", data, options, masks), f"{seed}, {options}")
            assert loss == pytest.approx(float(metrics.policy_loss))
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
    assert float(metrics.ess) == pytest.approx(1.0) and float(metrics.tv) == pytest.approx(0.0, abs=1e-6)
    assert metrics.clip_fraction == 0.0 and metrics.truncated_fraction == 0.0


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
            assert {name: float(getattr(metrics, name)) for name in means} == pytest.approx(means, rel=1e-4)


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
    assert np.isfinite(metrics).all() and np.isfinite(metrics.ess)
    reference = expected(name, data, {}, masks, cap=1.0 if masks else None)
    assert_close(gradient[FAR:], reference[FAR:])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["tis", "bapo", "decoupled"])
def test_nothing_is_lost_under_any_truncation(name: str, mode: str) -> None:
    loss, metrics, gradient = computed(name, extreme("discrete"), {}, mode=mode)
    assert np.isfinite(loss) and np.isfinite(gradient).all() and np.isfinite(metrics).all()


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
