"""Action distributions against SciPy, networks over flat parameter vectors, running statistics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris_jax.agent.networks import ActorCritic, normalizer
from stellaris_jax.agent.networks.distributions import Categorical, DiagonalGaussian, for_space
from stellaris_jax.agent.networks.policy_network import ALIGNMENT
from stellaris_jax.config.sections import NetworkConfig
from stellaris_jax.envs.base import Box, Discrete, Space

SAMPLES = 20_000
IMAGE = Box((4, 5), (0.0,) * 20, (1.0,) * 20)
LOGITS = np.random.default_rng(0).normal(0.0, 2.0, (2, 6, 4)).astype(np.float32)
GAUSSIANS = np.random.default_rng(1).normal(0.0, 0.7, (2, 6, 6)).astype(np.float32)  # 3 means, 3 log-deviations


def test_categorical_against_scipy() -> None:
    distribution, (p, q) = Categorical(4), scipy.special.softmax(LOGITS.astype(np.float64), axis=-1)
    for action in range(4):
        ours = distribution.log_prob(LOGITS[0], jnp.full(6, action))
        np.testing.assert_allclose(ours, np.log(p[:, action]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(distribution.entropy(LOGITS[0]), scipy.stats.entropy(p, axis=-1), rtol=1e-5)
    np.testing.assert_allclose(distribution.kl(*LOGITS), scipy.stats.entropy(p, q, axis=-1), rtol=1e-4)
    np.testing.assert_array_equal(distribution.mode(LOGITS[0]), p.argmax(-1))


def test_gaussian_against_scipy() -> None:
    distribution = DiagonalGaussian(3)
    (mean, other_mean), (log_std, other_log_std) = GAUSSIANS[..., :3], GAUSSIANS[..., 3:]
    action = np.random.default_rng(2).normal(size=(6, 3)).astype(np.float32)
    normal = scipy.stats.norm(mean.astype(np.float64), np.exp(log_std.astype(np.float64)))
    np.testing.assert_allclose(
        distribution.log_prob(GAUSSIANS[0], action), normal.logpdf(action).sum(-1), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(distribution.entropy(GAUSSIANS[0]), normal.entropy().sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(distribution.mode(GAUSSIANS[0]), mean)
    # KL = integral of p log(p / q), by Gauss-Hermite quadrature per dimension, exact for its quadratic integrand.
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    points = mean + np.exp(log_std) * nodes[:, None, None]
    log_q = scipy.stats.norm(other_mean, np.exp(other_log_std)).logpdf(points)
    expected = np.einsum("k,kbd->b", weights / weights.sum(), normal.logpdf(points) - log_q)
    np.testing.assert_allclose(distribution.kl(*GAUSSIANS), expected, rtol=1e-4)


@pytest.mark.parametrize(("distribution", "parameters"), [(Categorical(4), LOGITS), (DiagonalGaussian(3), GAUSSIANS)])
def test_kl_to_itself_is_zero(distribution: Categorical | DiagonalGaussian, parameters: np.ndarray) -> None:
    np.testing.assert_allclose(distribution.kl(parameters[0], parameters[0]), np.zeros(6), atol=1e-6)


def test_categorical_samples_have_the_probabilities() -> None:
    distribution, logits = Categorical(4), LOGITS[0, 0]
    noise = distribution.noise(jax.random.key(0), (SAMPLES,))
    counts = np.bincount(distribution.perturb(logits, noise), minlength=4)
    expected = SAMPLES * scipy.special.softmax(logits.astype(np.float64))
    assert scipy.stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-3


def test_gaussian_samples_have_the_moments() -> None:
    distribution, parameters = DiagonalGaussian(3), GAUSSIANS[0, 0]
    samples = distribution.perturb(parameters, distribution.noise(jax.random.key(1), (SAMPLES,)))
    for i, sample in enumerate(np.asarray(samples).T):
        fit = scipy.stats.kstest(sample, scipy.stats.norm(parameters[i], np.exp(parameters[3 + i])).cdf)
        assert fit.pvalue > 1e-3
    np.testing.assert_allclose(np.corrcoef(np.asarray(samples).T), np.eye(3), atol=0.03)


def test_action_spaces() -> None:
    assert for_space(Discrete(7)).size == 7
    assert for_space(Box((3,), (-1.0,) * 3, (1.0,) * 3)).size == 6
    with pytest.raises(ValueError, match=r"accepted: Discrete, MultiDiscrete, MultiBinary and Box vectors"):
        for_space(IMAGE)


@pytest.fixture(scope="module", params=[Discrete(3), Box((3,), (-1.0,) * 3, (1.0,) * 3)], ids=["discrete", "box"])
def network(request: pytest.FixtureRequest) -> ActorCritic:
    space: Space = request.param
    return ActorCritic(IMAGE, space, NetworkConfig(hidden=[16, 8], activation="relu"))


def test_initialisation_is_orthogonal(network: ActorCritic) -> None:
    """Gain sqrt(2) in hidden layers, 0.01 at the policy's output, 1 at the critic's; biases 0."""
    tree = network.unravel(network.init(jax.random.key(0)))
    for part, gains in {"actor": (2**0.5, 2**0.5, 0.01), "critic": (2**0.5, 2**0.5, 1.0)}.items():
        layers = [tree[part][f"Dense_{i}"] for i in range(3)]
        assert len(tree[part]) == 3
        for layer, gain in zip(layers, gains, strict=True):
            singular = np.linalg.svd(layer["kernel"], compute_uv=False)
            np.testing.assert_allclose(singular, gain, rtol=1e-4)
            assert not np.any(layer["bias"])
    if network.free_log_std:
        np.testing.assert_array_equal(tree["log_std"], np.zeros(3))
    first, second = (network.init(jax.random.key(seed)) for seed in (0, 1))
    assert not np.allclose(first, second)


def test_body_and_heads_are_drawn_independently() -> None:
    """Kernels of one shape, all normal before their columns are scaled: equal keys would make them parallel."""
    square = Box((16,), (-1.0,) * 16, (1.0,) * 16)
    settings = NetworkConfig(hidden=[16], shared=True, init="normc")
    network = ActorCritic(square, Discrete(16), settings)
    tree = network.unravel(network.init(jax.random.key(0)))
    body, actor = (np.ravel(tree[part]["Dense_0"]["kernel"]) for part in ("body", "actor"))
    critic = np.ravel(tree["critic"]["Dense_0"]["kernel"])
    assert abs(np.corrcoef(body, actor)[0, 1]) < 0.25
    for one in (np.reshape(body, (16, 16)), np.reshape(actor, (16, 16))):
        assert max(abs(np.corrcoef(column, critic)[0, 1]) for column in one.T) < 0.95


def test_parameters_are_one_flat_vector(network: ActorCritic) -> None:
    """Vectors of an aligned length; their padding stays zero, in parameters and in gradients."""
    flat = network.init(jax.random.key(0))
    assert flat.size % ALIGNMENT == 0 and flat.size - network.size < ALIGNMENT
    assert not np.any(flat[network.size :])
    other = jax.random.normal(jax.random.key(1), flat.shape)
    tree = network.unravel(other)
    assert sum(leaf.size for leaf in jax.tree.leaves(tree)) == network.size
    np.testing.assert_array_equal(network.ravel(tree), other.at[network.size :].set(0.0))
    np.testing.assert_array_equal(network.ravel(network.unravel(flat)), flat)


def test_forward_pass_against_numpy(network: ActorCritic) -> None:
    tree = network.unravel(0.3 * jax.random.normal(jax.random.key(0), network.init(jax.random.key(0)).shape))
    obs = np.random.default_rng(0).normal(size=(5, *IMAGE.shape)).astype(np.float32)

    def forward(part: str) -> np.ndarray:
        x = obs.reshape(5, -1)
        for i in range(3):
            x = x @ tree[part][f"Dense_{i}"]["kernel"] + tree[part][f"Dense_{i}"]["bias"]
            x = np.maximum(x, 0.0) if i < 2 else x
        return np.asarray(x)

    parameters = network.policy(tree, obs)
    np.testing.assert_allclose(parameters[:, :3], forward("actor"), rtol=1e-4, atol=1e-5)
    if network.free_log_std:
        np.testing.assert_array_equal(parameters[:, 3:], np.broadcast_to(tree["log_std"], (5, 3)))
    value = network.value(tree, obs)
    assert value.shape == (5,)
    np.testing.assert_allclose(value, forward("critic")[:, 0], rtol=1e-4, atol=1e-5)


def test_policy_and_critic_share_nothing(network: ActorCritic) -> None:
    tree, obs = network.unravel(network.init(jax.random.key(0))), jnp.ones((2, *IMAGE.shape))
    of_value = jax.grad(lambda tree: jnp.sum(network.value(tree, obs)))(tree)
    of_policy = jax.grad(lambda tree: jnp.sum(network.policy(tree, obs)))(tree)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves({k: v for k, v in of_value.items() if k != "critic"}))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(of_policy["critic"]))
    assert np.any(of_value["critic"]["Dense_0"]["kernel"]) and np.any(of_policy["actor"]["Dense_0"]["kernel"])


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.sampled_from([1, 2, 5, 40]), min_size=1, max_size=5))
def test_running_statistics_equal_those_of_the_whole_stream(seed: int, sizes: list[int]) -> None:
    generator = np.random.default_rng(seed)
    parts = [generator.normal(generator.normal(0, 3, 2), [0.5, 4.0], (size, 2)).astype(np.float32) for size in sizes]
    statistics = normalizer.init((2,))
    for part in parts:
        statistics = normalizer.update(statistics, part)
    stream = np.concatenate(parts).astype(np.float64)
    assert np.all(statistics.samples == len(stream))
    np.testing.assert_allclose(statistics.mean, stream.mean(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(statistics.variance, stream.var(0), rtol=1e-3, atol=1e-4)


def test_running_statistics_leave_non_finite_elements_out() -> None:
    generator = np.random.default_rng(0)
    parts = generator.normal([3.0, -2.0], [1.0, 2.0], (3, 50, 2)).astype(np.float32)
    for part, row, bad in ((0, 3, np.nan), (1, 7, np.inf), (1, 8, -np.inf)):
        parts[part, row, 0] = bad
    parts[2] = np.nan
    statistics = normalizer.init((2,))
    for part in parts:
        statistics = normalizer.update(statistics, part)
    stream = np.where(np.isfinite(parts), parts, np.nan).reshape(-1, 2)
    np.testing.assert_array_equal(statistics.samples, [97, 100])
    np.testing.assert_allclose(statistics.mean, np.nanmean(stream, 0), rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, np.nanvar(stream, 0), rtol=1e-5)


def test_normalize_and_rescale() -> None:
    statistics = normalizer.update(normalizer.init((2,)), np.float32([[1.0, 10.0], [3.0, 30.0]]))
    np.testing.assert_allclose(normalizer.normalize(statistics, np.float32([4.0, 10.0])), [2.0, -1.0], rtol=1e-5)
    np.testing.assert_allclose(normalizer.rescale(statistics, np.float32([4.0, -10.0])), [4.0, -1.0], rtol=1e-5)
    np.testing.assert_array_equal(normalizer.normalize(statistics, np.float32([1e6, -1e6])), [10.0, -10.0])
    np.testing.assert_array_equal(normalizer.rescale(statistics, np.float32([1e6, -1e6]), 5.0), [5.0, -5.0])
    fresh = normalizer.init((2,))
    np.testing.assert_allclose(normalizer.normalize(fresh, np.float32([0.5, -2.0])), [0.5, -2.0], rtol=1e-5)
