"""Global importance-sampling truncation (Eq. 2) in its four modes, through the PPO loss it sits in."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from settings import algorithm_of, hyper_of, loss_of

from stellaris_jax import ConfigError, load_config
from stellaris_jax.agent.losses.common import LossInputs, Metrics, Samples, Steps, Versions
from stellaris_jax.agent.losses.masks import Mask, MaskInputs
from stellaris_jax.agent.losses.truncation import MODES, truncated_ratio
from stellaris_jax.base.registry import register
from stellaris_jax.config.sections import AlgorithmConfig

CLIP = 0.3
examples = settings(deadline=None, max_examples=100)
ratios = st.floats(0.05, 8.0)


class LogProb:
    """A distribution whose only parameter is the log-probability of the action taken."""

    size = 1

    def log_prob(self, parameters: jax.Array, action: jax.Array) -> jax.Array:
        return parameters[:, 0]

    def entropy(self, parameters: jax.Array) -> jax.Array:
        return jnp.zeros(parameters.shape[0])

    def kl(self, first: jax.Array, second: jax.Array) -> jax.Array:
        return jnp.zeros(first.shape[0])


@cache
def compiled(mode: str, peers: bool) -> Any:
    """(log pi, min_i log pi_i, log mu, A, rho) -> loss metrics and the policy loss's gradient by log pi."""

    def loss(log_pi: jax.Array, others: jax.Array, log_mu: jax.Array, advantage: jax.Array, rho: jax.Array) -> Any:
        zeros = jnp.zeros_like(log_pi)
        batch = Samples(zeros[:, None], zeros, log_mu[:, None], log_mu, zeros, advantage, zeros)
        numbers = hyper_of()._replace(rho=rho)
        peer_log_ratio = others - log_mu if peers else None
        settings = (numbers, jnp.float32(0.0), 1, log_pi[:, None], zeros, peer_log_ratio, mode)
        inputs = LossInputs(batch, LogProb(), *settings)
        return loss_of(algorithm_of(clip=CLIP), inputs)

    return jax.jit(jax.grad(loss, has_aux=True))


def gradient(own: float, others: list[float], advantage: float, mode: str, rho: float = 1.0) -> tuple[float, Metrics]:
    """d/dlog pi of the surrogate (what is maximised) for one sample, and the loss metrics."""
    log_mu = np.float32([-1.3])
    smallest = np.log(np.float32([min(others, default=np.inf)])) + log_mu
    log_pi = np.log(np.float32([own])) + log_mu
    result, metrics = compiled(mode, bool(others))(log_pi, smallest, log_mu, np.float32([advantage]), np.float32(rho))
    return -float(result[0]), metrics


def naive_gradient(own: float, others: list[float], advantage: float, rho: float = 1.0) -> float:
    """Eq. 2 written down with nested minima, as automatic differentiation takes them: ties are split in half."""

    def surrogate(log_ratio: jax.Array) -> jax.Array:
        ratio = jnp.minimum(jnp.minimum(jnp.exp(log_ratio), min(others)), rho)
        return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)

    return float(jax.grad(surrogate)(jnp.log(jnp.float32(own))))


TABLE = [
    # own ratio, others' ratios, advantage: gradient of PPO, artifact, Eq. 2 with nested minima, our surrogate
    (1.0, [1.0, 1.0], 1.0, 1.0, 0.5, 0.25, 1.0),
    (0.9, [1.2, 0.95], 1.0, 0.9, 0.9, 0.9, 0.9),
    (0.9, [1.2, 0.95], -1.0, -0.9, -0.9, -0.9, -0.9),
    (1.2, [0.8, 1.1], 1.0, 1.2, 0.0, 0.0, 0.0),
    (1.2, [1.3, 1.4], 1.0, 1.2, 0.6, 0.0, 0.0),
    (2.0, [2.5, 3.0], -1.0, -2.0, -1.0, 0.0, 0.0),
    (1.5, [1.1, 2.0], -1.0, -1.5, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize(("own", "others", "advantage", "ppo", "artifact", "naive", "surrogate"), TABLE)
def test_gradients_at_the_table_of_values(
    own: float, others: list[float], advantage: float, ppo: float, artifact: float, naive: float, surrogate: float
) -> None:
    weight = min(*others, own, 1.0) / own
    expected = {"none": ppo, "artifact": artifact, "surrogate": surrogate, "weight": weight * ppo}
    assert {mode: gradient(own, others, advantage, mode)[0] for mode in MODES} == pytest.approx(expected, rel=1e-5)
    assert naive_gradient(own, others, advantage) == pytest.approx(naive, rel=1e-5)


@examples
@given(own=ratios, others=st.lists(ratios, min_size=1, max_size=4), advantage=st.sampled_from([-2.0, 1.0]))
def test_surrogate_is_equation_2_but_for_ties(own: float, others: list[float], advantage: float) -> None:
    edges = [*others, 1.0, 1.0 - CLIP, 1.0 + CLIP]
    if all(abs(own - edge) > 1e-3 for edge in edges):
        ours, _ = gradient(own, others, advantage, "surrogate")
        assert ours == pytest.approx(naive_gradient(own, others, advantage), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("own", [0.8, 1.0])
def test_surrogate_keeps_the_whole_gradient_at_ties(own: float) -> None:
    """All learners on one version is the ordinary case: the naive form then loses half the gradient or more."""
    assert gradient(own, [own, own], 1.0, "surrogate")[0] == pytest.approx(own, rel=1e-5)
    assert naive_gradient(own, [own, own], 1.0) <= 0.5 * own + 1e-5


@examples
@given(
    own=ratios,
    others=st.lists(ratios, max_size=4),
    advantage=st.floats(-3.0, 3.0, allow_subnormal=False),
    rho=st.floats(0.3, 2.0),
)
def test_weight_mode_scales_the_gradient_of_ppo(own: float, others: list[float], advantage: float, rho: float) -> None:
    weight = min([own, *others, rho]) / own
    assert 0.0 < weight <= 1.0
    ours, metrics = gradient(own, others, advantage, "weight", rho)
    ppo, plain = gradient(own, others, advantage, "none", rho)
    assert ours == pytest.approx(weight * ppo, rel=1e-4, abs=1e-6)
    assert float(metrics["policy_loss"]) == pytest.approx(weight * float(plain["policy_loss"]), rel=1e-4, abs=1e-6)
    assert metrics["clip_fraction"] == plain["clip_fraction"]
    if abs(weight - 1.0) > 1e-4:
        assert metrics["truncated_fraction"] == 1.0


@examples
@given(own=ratios, others=st.lists(ratios, max_size=4), rho=st.floats(0.3, 2.0))
def test_what_replaces_the_ratio(own: float, others: list[float], rho: float) -> None:
    """R' = weight * ratio is min(min_i R_i, rho) in both paper modes, min(R, max(min_i R_i, rho)) in the artifact."""
    log_ratio = jnp.log(jnp.float32([own]))
    peers = jnp.log(jnp.float32([min(others)])) if others else None
    smallest = min([own, *others])
    expected = {"weight": min(smallest, rho), "surrogate": min(smallest, rho), "none": own}
    expected["artifact"] = min(own, max(smallest, rho))
    for mode in MODES:
        ratio, weight = truncated_ratio(log_ratio, peers, rho, mode)
        assert float(ratio[0] * weight[0]) == pytest.approx(expected[mode], rel=1e-5)
        # Peers with nothing to say are the same as none.
        if peers is None:
            absent = truncated_ratio(log_ratio, jnp.full_like(log_ratio, jnp.inf), rho, mode)
            np.testing.assert_array_equal(absent, (ratio, weight))


@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_no_truncation_ignores_peers_and_threshold(advantage: float) -> None:
    alone, _ = gradient(1.1, [], advantage, "none")
    assert alone == pytest.approx(1.1 * advantage, rel=1e-5)
    for others in ([0.01], [5.0, 0.5]):
        assert gradient(1.1, others, advantage, "none", rho=0.1)[0] == alone


@pytest.mark.parametrize("mode", MODES)
def test_peers_get_no_gradient(mode: str) -> None:
    def used(peers: jax.Array) -> jax.Array:
        ratio, weight = truncated_ratio(jnp.log(jnp.float32([1.2, 0.9])), peers, 1.0, mode)
        return jnp.sum(ratio * weight)

    np.testing.assert_array_equal(jax.grad(used)(jnp.log(jnp.float32([0.7, 1.1]))), np.zeros(2))


@pytest.mark.parametrize("mode", ["weight", "surrogate", "artifact"])
def test_vanishing_ratios_stay_finite(mode: str) -> None:
    """exp underflows to 0 for an action the learner's policy has all but given up."""
    for own, others in ((-200.0, 0.0), (-200.0, -200.0), (0.0, -200.0)):
        ratio, weight = truncated_ratio(jnp.float32([own]), jnp.float32([others]), 1.0, mode)
        assert np.isfinite(ratio[0]) and np.isfinite(weight[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("log_ratio", [88.0, 200.0])
def test_a_ratio_beyond_float32_loses_no_minibatch(log_ratio: float, advantage: float, mode: str) -> None:
    """One sample that is exp(200) times as likely now must not make the others' gradient, nor a metric, NaN."""
    log_pi, rho = jnp.float32([log_ratio, 0.0]), jnp.float32(1.0)
    others, log_mu = jnp.zeros(2), jnp.zeros(2)
    found, metrics = compiled(mode, True)(log_pi, others, log_mu, jnp.float32([advantage, 1.0]), rho)
    alone, _ = compiled(mode, True)(log_pi[1:], others[1:], log_mu[1:], jnp.ones(1), rho)
    assert np.isfinite(found).all() and np.isfinite([*metrics.values()]).all()
    assert float(found[1]) == pytest.approx(float(alone[0]) / 2)


@pytest.mark.parametrize("algorithm", ["impala", "impact"])
def test_a_target_beyond_float32_stays_finite(algorithm: str) -> None:
    zeros = jnp.zeros(2)
    steps = Steps(zeros, zeros, zeros > 0, zeros > 0)
    far = jnp.float32([[300.0], [-300.0]])
    batch = Samples(zeros[:, None], zeros, zeros[:, None], zeros, zeros, zeros, zeros, steps=steps, target_policy=far)
    settings = AlgorithmConfig(name=algorithm, rollout_length=2)

    def loss(log_pi: jax.Array) -> Any:
        rest = (hyper_of(settings)._replace(masks=({},)), jnp.float32(0.0), 2, log_pi[:, None], zeros, None, "weight")
        inputs = LossInputs(batch, LogProb(), *rest)
        return loss_of(settings, inputs)

    found, metrics = jax.grad(loss, has_aux=True)(jnp.float32([250.0, -250.0]))
    assert np.isfinite(found).all() and np.isfinite([*metrics.values()]).all()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode 'soft' is unknown; accepted: weight, surrogate, artifact, none"):
        truncated_ratio(jnp.zeros(1), None, 1.0, "soft")


@pytest.mark.parametrize("rounding", [-2e-7, 0.0, 2e-7])
@pytest.mark.parametrize(("mode", "expected"), [("surrogate", 1.0), ("artifact", 0.5)])
def test_ties_do_not_depend_on_rounding(mode: str, expected: float, rounding: float) -> None:
    """A fresh learner's ratio is 1 only up to rounding; at rho = 1 that must not decide over its gradient."""

    def ratio(log_ratio: jax.Array) -> jax.Array:
        return truncated_ratio(log_ratio, jnp.zeros(()), 1.0, mode)[0]

    assert float(jax.grad(ratio)(jnp.float32(rounding))) == pytest.approx(expected, abs=1e-5)


def means_and_gradient(name: str, mode: str) -> tuple[Metrics, np.ndarray]:
    """An algorithm's metrics and its gradient by log pi on a batch of ratios to both sides of 1, in one mode."""
    random = np.random.default_rng(0)
    rows, zeros = 64, jnp.zeros(64)
    log_mu, log_prox, others, pi = (jnp.float32(random.normal(0.0, 0.4, rows)) for _ in range(4))
    advantage = jnp.float32(random.normal(0.0, 1.0, rows))
    steps = Steps(advantage, zeros, zeros > 0, zeros > 0)
    batch = Samples(zeros[:, None], zeros, log_mu[:, None], log_mu, zeros, advantage, zeros, steps=steps)
    batch = batch._replace(target_policy=log_prox[:, None])
    settings = algorithm_of(name, rollout_length=2)
    rest = (hyper_of(settings)._replace(masks=({},)), jnp.float32(0.0), 2)
    numbers = Versions(jnp.int32(7), jnp.int32(3))

    def loss(log_pi: jax.Array) -> Any:
        return loss_of(
            settings,
            LossInputs(batch, LogProb(), *rest, log_pi[:, None], zeros, others - log_mu, mode, versions=numbers),
        )

    gradient, metrics = jax.grad(loss, has_aux=True)(pi)
    return metrics, np.asarray(gradient)


@pytest.mark.parametrize("mode", ["weight", "surrogate", "artifact"])
@pytest.mark.parametrize("name", sorted(name for name, kind in register.algorithm.items() if kind.data == "fresh"))
def test_what_is_told_to_be_truncated_is(name: str, mode: str) -> None:
    """Every algorithm's gradient differs from the one without truncation, or the algorithm refuses the mode."""
    metrics, gradient = means_and_gradient(name, mode)
    _, whole = means_and_gradient(name, "none")
    changes = bool(np.abs(gradient - whole).max() > 1e-6)
    assert float(metrics["truncated_fraction"]) > 0.2
    assert changes == (mode in register.algorithm[name].truncations)
    overrides = [f"algorithm.name={name}", f"system.truncation={mode}", "algorithm.minibatches=4", "env.num_envs=8"]
    if changes:
        load_config(overrides)
    else:
        with pytest.raises(ConfigError, match=f"{mode} changes nothing under algorithm.name={name}; accepted: weight"):
            load_config(overrides)


class Positive(Mask):
    """Keeps what is weighed positively."""

    def weight(self, seen: MaskInputs) -> jax.Array:
        return (seen.advantage > 0.0).astype(jnp.float32)


@pytest.mark.parametrize("name", ["impala", "impact"])
def test_masks_go_by_the_advantage_of_the_loss(name: str) -> None:
    """V-trace's, whatever GAE's sign: so every term that the mask keeps has the sign of a positive advantage."""
    random = np.random.default_rng(0)
    rows, zeros = 64, jnp.zeros(64)
    log_pi = jnp.float32(-random.uniform(0.1, 1.0, rows))
    reward = jnp.float32(random.normal(0.0, 1.0, rows))
    steps = Steps(reward, zeros, zeros > -1, zeros > 0)  # every step is the last: V-trace's advantage is the reward
    batch = Samples(zeros[:, None], zeros, log_pi[:, None], log_pi, zeros, -reward, zeros, steps=steps)
    batch = batch._replace(target_policy=log_pi[:, None])
    settings = algorithm_of(name, rollout_length=2)
    hyper = hyper_of(settings)._replace(masks=({},))
    rest = (hyper, jnp.float32(0.0), 2, log_pi[:, None], zeros, None, "none", (Positive(),))
    _, metrics = loss_of(settings, LossInputs(batch, LogProb(), *rest))
    kept = np.maximum(reward, 0.0)
    expected = np.mean(kept * -log_pi) if name == "impala" else -np.mean(kept)
    assert float(metrics["policy_loss"]) == pytest.approx(float(expected), rel=1e-5)
