"""V-trace against NumPy and rlax; the losses of IMPALA and IMPACT against NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from settings import algorithm_of, hyper_of, loss_of, numbers_and_options

from stellaris_jax.agent.losses.common import LossInputs, Samples, Steps
from stellaris_jax.agent.losses.vtrace import minibatch_vtrace, vtrace
from stellaris_jax.agent.networks.distributions import Categorical
from stellaris_jax.base.registry import register
from stellaris_jax.config.sections import AlgorithmConfig
from stellaris_jax.config.tree import knobs
from stellaris_jax.timeline import MinibatchLayout, minibatch_order

examples = settings(deadline=None, max_examples=30)
seeds = st.integers(0, 2**32 - 1)
lambdas = st.sampled_from([0.0, 0.9, 1.0])
bars = st.sampled_from([0.7, 1.0, 3.0])


# V-trace ----------------------------------------------------------------------------------------------------------


class Fragment(NamedTuple):
    """Two environments, nine steps: arrays `[T, n]`."""

    log_ratio: np.ndarray
    reward: np.ndarray
    value: np.ndarray
    next_value: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def ours(data: Fragment, *settings_: Any, valid: Any = None) -> tuple[jax.Array, jax.Array]:
    steps = Steps(data.reward, data.next_value, data.terminated, data.truncated)
    return vtrace(data.log_ratio, data.value, steps, *settings_, valid=valid)


def fragment(seed: int) -> Fragment:
    generator = np.random.default_rng(seed)
    floats = generator.normal(size=(4, 9, 2)).astype(np.float32)
    ends = generator.random((2, 9, 2)) < 0.2  # both at once, too
    return Fragment(*floats, *ends)


def sum_vtrace(
    data: Fragment, gamma: float, trace_lambda: float, rho_bar: float, c_bar: float, valid: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Targets and advantages by the definition, sums over the later steps of every step's episode, in float64."""
    ratio = np.exp(data.log_ratio.astype(np.float64))
    ends = data.terminated | data.truncated | ~valid
    bootstrap = gamma * np.where(data.terminated, 0.0, data.next_value)
    target, advantage = data.value.astype(np.float64), np.zeros(data.value.shape)
    for t, n in np.argwhere(valid):
        trace, k, later = 1.0, t, 0.0
        while True:
            error = min(rho_bar, ratio[k, n]) * (data.reward[k, n] + bootstrap[k, n] - data.value[k, n])
            target[t, n] += trace * error
            # What of it the state after t contributes: the same sum, begun one step later.
            later += 0.0 if k == t else trace / min(c_bar, ratio[t, n]) * error
            trace *= gamma * trace_lambda * min(c_bar, ratio[k, n])
            if ends[k, n] or k == len(ratio) - 1 or not valid[k + 1, n]:
                break
            k += 1
        advantage[t, n] = data.reward[t, n] + bootstrap[t, n] - data.value[t, n] + later
    return target, advantage


@examples
@given(seed=seeds, gamma=st.sampled_from([0.0, 0.9, 1.0]), trace_lambda=lambdas, rho_bar=bars, c_bar=bars)
def test_vtrace_is_the_sum(seed: int, gamma: float, trace_lambda: float, rho_bar: float, c_bar: float) -> None:
    data, settings_ = fragment(seed), (gamma, trace_lambda, rho_bar, c_bar)
    expected = sum_vtrace(data, *settings_, np.ones((9, 2), bool))
    for found, theirs in zip(ours(data, *settings_), expected, strict=True):
        np.testing.assert_allclose(found, theirs, rtol=1e-4, atol=1e-4)


@examples
@given(seed=seeds, trace_lambda=lambdas)
def test_dead_transitions_contribute_nothing(seed: int, trace_lambda: float) -> None:
    """Host environments: the step after an episode's last is dead, whatever it holds."""
    data, settings_ = fragment(seed), (0.9, trace_lambda, 1.0, 1.0)
    valid = np.ones((9, 2), bool)
    for n in range(2):
        for t in range(1, 9):
            valid[t, n] = not (valid[t - 1, n] and (data.terminated | data.truncated)[t - 1, n])
    dead = ~valid
    data = data._replace(terminated=data.terminated & valid, truncated=data.truncated & valid)
    target, advantage = ours(data, *settings_, valid=valid)
    for found, theirs in zip((target, advantage), sum_vtrace(data, *settings_, valid), strict=True):
        np.testing.assert_allclose(found, theirs, rtol=1e-4, atol=1e-4)
    assert not np.any(np.asarray(advantage)[dead])
    broken = [np.where(dead, np.nan, x) for x in (data.reward, data.next_value)]
    again, _ = ours(data._replace(reward=broken[0], next_value=broken[1]), *settings_, valid=valid)
    np.testing.assert_array_equal(again, target)


@examples
@given(seed=seeds, trace_lambda=lambdas, rho_bar=bars)
def test_vtrace_against_rlax(seed: int, trace_lambda: float, rho_bar: float) -> None:
    """rlax knows terminations only, as a discount of 0, and a c_bar of 1."""
    data = fragment(seed)
    following = np.concatenate([data.value[1:], data.next_value[-1:]])
    data = data._replace(next_value=following, truncated=np.zeros((9, 2), bool))
    target, advantage = ours(data, 0.9, trace_lambda, rho_bar, 1.0)
    discount, ratio = np.where(data.terminated, 0.0, 0.9).astype(np.float32), np.exp(data.log_ratio)
    columns = (data.value, following, data.reward, discount, ratio)
    for n in range(2):
        row = [jnp.asarray(x[:, n]) for x in columns]
        theirs = rlax.vtrace_td_error_and_advantage(*row, trace_lambda, rho_bar, rho_bar)
        np.testing.assert_allclose(target[:, n] - data.value[:, n], theirs.errors, rtol=1e-4, atol=1e-4)
        weighted = np.minimum(ratio[:, n], rho_bar) * advantage[:, n]
        np.testing.assert_allclose(weighted, theirs.pg_advantage, rtol=1e-4, atol=1e-4)
        leaky = rlax.leaky_vtrace(*row, 1.0, trace_lambda, rho_bar)
        np.testing.assert_allclose(target[:, n] - data.value[:, n], leaky, rtol=1e-4, atol=1e-4)


def test_truncation_is_not_termination() -> None:
    """Two steps on policy, r = 1, V = 2, the first leading to a state of value 10; gamma = 0.5, lambda = 1, by hand.

    The second step's vs is 1 + 0.5 * 4 = 3. The first step's q is, going on: 1 + 0.5 * (10 + 3 - 2) = 6.5; truncated:
    1 + 0.5 * 10 = 6; terminated: 1. On policy vs = q. A NaN after the end stays where it is.
    """
    columns = {"going on": (0, 0, 6.5), "truncated": (0, 1, 6.0), "terminated": (1, 0, 1.0), "both": (1, 1, 1.0)}
    first, never = np.array(list(columns.values())).T, np.zeros(4)
    ones, next_value = np.ones((2, 4), np.float32), np.float32([[10.0] * 4, [4.0] * 4])
    ends = [np.array([row, never], bool) for row in first[:2]]
    target, advantage = ours(Fragment(0 * ones, ones, 2 * ones, next_value, *ends), 0.5, 1.0, 1.0, 1.0)
    np.testing.assert_allclose(target, [first[2], 3 * np.ones(4)], rtol=1e-6)
    np.testing.assert_allclose(advantage, target - 2.0, rtol=1e-6)
    reward = np.float32([[1.0] * 4, [np.nan] * 4])
    target, advantage = ours(Fragment(0 * ones, reward, 2 * ones, next_value, *ends), 0.5, 1.0, 1.0, 1.0)
    np.testing.assert_allclose(target[0], [np.nan, 6.0, 1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(advantage[0], [np.nan, 4.0, -1.0, -1.0], rtol=1e-6)


# The losses -------------------------------------------------------------------------------------------------------

LENGTH, ACTIONS = 4, 3
ROWS = 2 * LENGTH


class Inputs(NamedTuple):
    """Inputs of a loss: the learner's logits `[B, A]` and values `[B]`, and a minibatch of two sequences."""

    logits: np.ndarray
    value: np.ndarray
    batch: Samples


def inputs(seed: int) -> Inputs:
    generator = np.random.default_rng(seed)
    mu, noise, drift = generator.normal(size=(3, ROWS, ACTIONS)).astype(np.float32)
    target_policy = mu + 0.6 * noise
    logits = target_policy + 0.4 * drift
    action = generator.integers(0, ACTIONS, ROWS)
    value, reward, next_value, old = generator.normal(size=(4, ROWS)).astype(np.float32)
    ends = np.zeros((2, LENGTH, 2), bool)
    ends[0, 1, 0], ends[1, 2, 1] = True, True
    valid = np.ones((LENGTH, 2), bool)
    valid[3, 1] = False
    log_prob = scipy.special.log_softmax(mu, axis=-1)[np.arange(ROWS), action]
    steps = Steps(reward, next_value, *ends.reshape(2, ROWS))
    batch = Samples(np.zeros((ROWS, 1)), action, mu, log_prob, old, old, old, valid.reshape(ROWS), steps, target_policy)
    return Inputs(logits, value, batch)


OPTIONS: dict[str, dict[str, float]] = {
    "impala": {"c_bar": 0.9},
    "impact": {"clip": 0.3, "c_bar": 0.9, "impact_ratio": 1.2},
}


def numpy_targets(
    log_ratio: np.ndarray, value: np.ndarray, batch: Samples, algorithm: AlgorithmConfig
) -> tuple[np.ndarray, np.ndarray]:
    """V-trace of the minibatch: the next state's value is the learner's where it is in the sequence and not reset."""
    steps, shape = batch.steps, (LENGTH, 2)
    assert steps is not None and batch.valid is not None
    value, next_value = value.reshape(shape), steps.next_value.reshape(shape).copy()
    for t, n in np.ndindex(LENGTH - 1, 2):
        if not steps.truncated.reshape(shape)[t, n]:
            next_value[t, n] = value[t + 1, n]
    ends = (steps.terminated.reshape(shape), steps.truncated.reshape(shape))
    data = Fragment(log_ratio.reshape(shape), steps.reward.reshape(shape), value, next_value, *ends)
    c = numbers_and_options(algorithm)
    results = sum_vtrace(data, c.gamma, c.gae_lambda, c.rho_bar, c.c_bar, batch.valid.reshape(shape))
    return results[0].reshape(-1), results[1].reshape(-1)


def numpy_loss(
    name: str, moved: Inputs, fixed: Inputs, smallest: np.ndarray, mode: str, rho: float, algorithm: AlgorithmConfig
) -> dict[str, float]:
    """A loss in float64, one sample at a time, at the learner's `moved` outputs; what has no gradient is of `fixed`."""
    c, batch = numbers_and_options(algorithm), fixed.batch
    valid, rows = np.flatnonzero(batch.valid), np.arange(ROWS)
    log_pi_fixed = scipy.special.log_softmax(fixed.logits.astype(np.float64), axis=-1)[rows, batch.action]
    log_t = scipy.special.log_softmax(batch.target_policy.astype(np.float64), axis=-1)[rows, batch.action]
    traced = log_pi_fixed if name == "impala" else log_t
    goal, advantage = numpy_targets(traced - batch.log_prob, fixed.value, batch, algorithm)
    sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "truncated_fraction"), 0.0)
    for i in valid:
        pi = scipy.special.softmax(moved.logits[i].astype(np.float64))
        reference = batch.distribution[i] if name == "impala" else batch.target_policy[i]
        reference = scipy.special.softmax(reference.astype(np.float64))
        log_pi, log_mu = np.log(pi[batch.action[i]]), batch.log_prob[i]
        own = np.exp(log_pi_fixed[i] - log_mu)
        moving = np.exp(log_pi - log_mu)  # what has a gradient of R'
        eq2, limit = own, min(smallest[i], rho)
        if mode == "artifact":
            limit = max(min(own, smallest[i]), rho)
        if mode != "none":
            eq2 = min(own, limit)
        if mode == "artifact" and own == limit:
            moving = (moving + limit) / 2  # a tie is split in half
        elif mode in ("surrogate", "artifact") and own > limit:
            moving = limit
        if name == "impala":
            sums["policy_loss"] -= min(eq2, c.rho_bar) * advantage[i] * log_pi
            sums["clip_fraction"] += own > c.rho_bar
        else:
            anchor = min(np.exp(log_mu - log_t[i]), c.impact_ratio)
            ratio = anchor * moving
            gain = min(np.exp(log_t[i] - log_mu), c.rho_bar) * advantage[i]
            clipped = min(max(ratio, 1 - c.clip), 1 + c.clip)
            weight = eq2 / own if mode == "weight" else 1.0
            sums["policy_loss"] -= weight * min(ratio * gain, clipped * gain)
            sums["clip_fraction"] += abs(anchor * own - 1) > c.clip
        sums["value_loss"] += 0.5 * (moved.value[i] - goal[i]) ** 2
        sums["entropy"] -= float(pi @ np.log(pi))
        sums["kl"] += float(reference @ np.log(reference / pi))
        sums["truncated_fraction"] += eq2 < own * (1 - 1e-6)
    means = {key: total / len(valid) for key, total in sums.items()}
    means["loss"] = means["policy_loss"] + c.value_coefficient * means["value_loss"]
    means["loss"] += 0.7 * means["kl"] - c.entropy_coefficient * means["entropy"]
    return means


@pytest.mark.parametrize(
    ("name", "mode"),
    [("impala", "none"), ("impala", "weight"), ("impala", "surrogate")]
    + [("impact", mode) for mode in ("none", "weight", "surrogate", "artifact")],
)
def test_loss_and_gradient_against_numpy(name: str, mode: str) -> None:
    algorithm = algorithm_of(name, rollout_length=LENGTH, kl_coefficient=0.2, **OPTIONS[name])
    rho, given_ = 0.95, inputs(0)
    smallest = np.exp(np.random.default_rng(1).normal(0.2, 0.3, ROWS)).astype(np.float32)

    def loss(logits: jax.Array, value: jax.Array) -> Any:
        peers = jnp.log(smallest)
        settings = (hyper_of(algorithm, rho), jnp.float32(0.7), LENGTH, logits, value, peers, mode)
        inputs = LossInputs(given_.batch, Categorical(ACTIONS), *settings)
        return loss_of(algorithm, inputs)

    differentiate = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (result, metrics), gradients = differentiate(given_.logits, given_.value)
    expected = numpy_loss(name, given_, given_, smallest, mode, rho, algorithm)
    found = {"loss": result, **metrics}
    assert {key: float(found[key]) for key in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert 0.0 < expected["clip_fraction"] < 1.0 and (expected["truncated_fraction"] > 0.0) == (mode != "none")

    # The gradient by central differences of the float64 loss; in it targets and weights are constants.
    for which, gradient in enumerate(gradients):
        for index in np.ndindex(gradient.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [given_.logits.astype(np.float64), given_.value.astype(np.float64)]
                moved[which][index] += step
                at = numpy_loss(name, Inputs(*moved, given_.batch), given_, smallest, mode, rho, algorithm)
                ends.append(at["loss"])
            assert float(gradient[index]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-3, abs=1e-5)


def test_impact_on_its_target_network_is_ppo() -> None:
    """With pi_t = mu, IMPACT is PPO on V-trace's targets, in every mode of truncation."""
    logits, value, batch = inputs(2)
    batch = batch._replace(target_policy=batch.distribution)
    algorithm = algorithm_of("impact", rollout_length=LENGTH, kl_coefficient=0.2)
    plain = algorithm_of("ppo", clip=0.4, value_clip=0.0)
    settings, network = (hyper_of(algorithm), 0.7, LENGTH), {"parameters": logits, "value": value}
    target, advantage = minibatch_vtrace(
        jnp.zeros(ROWS), LossInputs(batch, Categorical(ACTIONS), *settings, **network), 1.0, 1.0
    )
    same = batch._replace(target=target, advantage=advantage)
    peers = jnp.linspace(-0.5, 0.5, ROWS)
    for mode in ("weight", "surrogate", "artifact", "none"):
        (impact, _), (ppo, _) = (
            loss_of(
                which,
                LossInputs(data, Categorical(ACTIONS), *settings, **network, peer_log_ratio=peers, truncation=mode),
            )
            for which, data in ((algorithm, batch), (plain, same))
        )
        assert float(impact) == pytest.approx(float(ppo), rel=1e-5)


# The loader, the plan and the table -------------------------------------------------------------------------------


def test_the_data_loader_permutes_whole_environments() -> None:
    order = minibatch_order(3, 5, MinibatchLayout(epochs=2, minibatches=4, steps=16, envs=8, length=16))
    assert order.shape == (8, 32) and order.dtype == np.int32
    step, env = np.divmod(order.reshape(8, 16, 2), 8)
    np.testing.assert_array_equal(step, np.broadcast_to(np.arange(16)[:, None], step.shape))
    assert np.all(env == env[:, :1])
    for epoch in env[:, 0].reshape(2, 8):
        assert sorted(epoch) == list(range(8))
    # A permutation of the environments as it would be one of so many samples.
    np.testing.assert_array_equal(env[:, 0], minibatch_order(3, 5, MinibatchLayout(2, 4, 1, 8)))


def test_every_algorithm_of_the_schema_is_there() -> None:
    assert knobs()["algorithm.name"].names == tuple(register.algorithm)
