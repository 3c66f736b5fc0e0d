"""The PPO loss and generalised advantages against NumPy and rlax; the engine against an independent PPO."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from settings import algorithm_of, hyper_of, loss_of, numbers_and_options

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import LossInputs, Samples, adapt_kl_coefficient
from stellaris_jax.agent.losses.gae import gae, linear_recurrence
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.agent.networks.distributions import Categorical
from stellaris_jax.config.sections import AlgorithmConfig, EngineConfig, EnvConfig, NetworkConfig
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.keys import FragmentKeys
from stellaris_jax.engine.program import Engine, EngineInputs, EngineState, RoundMetrics
from stellaris_jax.engine.rollout import RolloutInputs, Trajectory, rollout
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.envs.registry import make
from stellaris_jax.timeline import MinibatchLayout, Timeline, build_plan, minibatch_order

examples = settings(deadline=None, max_examples=30)
seeds = st.integers(0, 2**32 - 1)

# Recurrences and advantages ---------------------------------------------------------------------------------------


@examples
@given(seed=seeds, reverse=st.booleans())
def test_linear_recurrence_is_the_loop(seed: int, reverse: bool) -> None:
    generator = np.random.default_rng(seed)
    decay, x = generator.uniform(-1.1, 1.1, (7, 3)), generator.normal(size=(7, 3))
    decay[generator.random((7, 3)) < 0.2] = 0.0
    y = initial = generator.normal(size=3)
    expected = np.empty_like(x)
    for t in reversed(range(7)) if reverse else range(7):
        expected[t] = y = x[t] + decay[t] * y
    result = jax.jit(linear_recurrence, static_argnums=3)(
        jnp.float32(decay), jnp.float32(x), jnp.float32(initial), reverse
    )
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def loop_gae(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> np.ndarray:
    """Generalised advantages of one environment, `[T]`, by the definition: a sum over each episode's later steps."""
    advantage, later = np.zeros(len(reward)), 0.0
    for t in reversed(range(len(reward))):
        bootstrap = 0.0 if terminated[t] else gamma * next_value[t]
        if terminated[t] or truncated[t]:
            later = 0.0
        later = reward[t] + bootstrap - value[t] + gamma * gae_lambda * later
        advantage[t] = later
    return advantage


@examples
@given(seed=seeds, gamma=st.sampled_from([0.0, 0.9, 1.0]), gae_lambda=st.sampled_from([0.0, 0.95, 1.0]))
def test_gae_is_the_loop(seed: int, gamma: float, gae_lambda: float) -> None:
    generator = np.random.default_rng(seed)
    reward, value, next_value = generator.normal(size=(3, 9, 4)).astype(np.float32)
    terminated, truncated = generator.random((2, 9, 4)) < 0.2  # both at once, too
    advantage, target = jax.jit(gae)(reward, value, next_value, terminated, truncated, gamma, gae_lambda)
    for n in range(4):
        row = (x[:, n] for x in (reward, value, next_value, terminated, truncated))
        expected = loop_gae(*row, gamma, gae_lambda)
        np.testing.assert_allclose(advantage[:, n], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(target[:, n], expected + value[:, n], rtol=1e-4, atol=1e-5)


def test_gae_against_rlax() -> None:
    """rlax knows terminations only, as a discount of 0."""
    generator = np.random.default_rng(0)
    reward = generator.normal(size=(20, 3)).astype(np.float32)
    value = generator.normal(size=(21, 3)).astype(np.float32)
    terminated = generator.random((20, 3)) < 0.2
    advantage, _ = gae(reward, value[:-1], value[1:], terminated, np.zeros_like(terminated), 0.97, 0.9)
    discount = np.where(terminated, 0.0, 0.97).astype(np.float32)
    reference = jax.vmap(rlax.truncated_generalized_advantage_estimation, in_axes=(1, 1, None, 1), out_axes=1)
    expected = jax.jit(reference)(reward, discount, 0.9, value)
    np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-5)


def test_truncation_is_not_termination() -> None:
    """Two steps, r = 1, V = 2, the first leading to a state of value 10; gamma = 0.5, lambda = 1, by hand.

    delta_1 = 1 + 0.5 * 4 - 2 = 1. The first step's advantage is, going on: 1 + 0.5 * 10 - 2 + 0.5 * 1 = 4.5;
    truncated: the same without what comes after = 4; terminated: 1 - 2 = -1, also if truncated at once.
    """
    columns = {"going on": (0, 0, 4.5), "truncated": (0, 1, 4.0), "terminated": (1, 0, -1.0), "both": (1, 1, -1.0)}
    first, never = np.array(list(columns.values())).T, np.zeros(4)
    ones = np.ones((2, 4), np.float32)
    next_value = np.float32([[10.0] * 4, [4.0] * 4])
    terminated, truncated = (np.array([row, never], bool) for row in first[:2])
    advantage, target = gae(ones, 2 * ones, next_value, terminated, truncated, 0.5, 1.0)
    np.testing.assert_allclose(advantage, [first[2], np.ones(4)], rtol=1e-6)
    np.testing.assert_allclose(target, advantage + 2.0, rtol=1e-6)


# The loss ---------------------------------------------------------------------------------------------------------

ROWS, ACTIONS = 12, 3


def numpy_loss(
    logits: np.ndarray, value: np.ndarray, batch: Samples, kl_coefficient: float, algorithm: AlgorithmConfig
) -> dict[str, float]:
    """The loss in float64, one sample at a time."""
    c = numbers_and_options(algorithm)
    sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "kl", "clip_fraction"), 0.0)
    for i in range(len(value)):
        pi, mu = scipy.special.softmax(logits[i]), scipy.special.softmax(batch.distribution[i].astype(np.float64))
        ratio = pi[batch.action[i]] / np.exp(batch.log_prob[i])
        advantage, target, old = batch.advantage[i], batch.target[i], batch.value[i]
        clipped = min(max(ratio, 1 - c.clip), 1 + c.clip)
        sums["policy_loss"] -= min(ratio * advantage, clipped * advantage)
        errors = [(value[i] - target) ** 2]
        if c.value_clip > 0:
            moved = min(max(value[i] - old, -c.value_clip), c.value_clip)
            errors.append((old + moved - target) ** 2)
        sums["value_loss"] += 0.5 * max(errors)
        sums["entropy"] -= float(pi @ np.log(pi))
        sums["kl"] += float(mu @ np.log(mu / pi))
        sums["clip_fraction"] += abs(ratio - 1) > c.clip
    means = {name: total / len(value) for name, total in sums.items()}
    means["loss"] = means["policy_loss"] + algorithm.value_coefficient * means["value_loss"]
    means["loss"] -= algorithm.entropy_coefficient * means["entropy"]
    means["loss"] += kl_coefficient * means["kl"]
    return means


def make_batch(seed: int) -> tuple[np.ndarray, np.ndarray, Samples]:
    generator = np.random.default_rng(seed)
    mu = generator.normal(size=(ROWS, ACTIONS)).astype(np.float32)
    logits = (mu + generator.normal(0.0, 0.4, mu.shape)).astype(np.float32)
    action = generator.integers(0, ACTIONS, ROWS)
    old, advantage = generator.normal(size=(2, ROWS)).astype(np.float32)
    value, target = (old + generator.normal(0.0, 0.5, (2, ROWS))).astype(np.float32)
    log_prob = scipy.special.log_softmax(mu, axis=-1)[np.arange(ROWS), action]
    return logits, value, Samples(np.zeros((ROWS, 1)), action, mu, log_prob, old, advantage, target)


@pytest.mark.parametrize(
    "algorithm",
    [
        AlgorithmConfig(),
        algorithm_of(clip=0.3, value_clip=0.0, value_coefficient=1.0, entropy_coefficient=0.0, kl_coefficient=0.2),
    ],
    ids=["default", "rllib"],
)
def test_loss_and_gradient_against_numpy(algorithm: AlgorithmConfig) -> None:
    logits, value, batch = make_batch(0)
    coefficient = 0.7  # what adaptation has made of kl_coefficient

    def loss(logits: jax.Array, value: jax.Array) -> Any:
        settings = (hyper_of(algorithm), jnp.float32(coefficient), 1)
        return loss_of(algorithm, LossInputs(batch, Categorical(ACTIONS), *settings, parameters=logits, value=value))

    (result, metrics), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(logits, value)
    expected = numpy_loss(logits, value, batch, coefficient, algorithm)
    ours = {"loss": result, **metrics}
    assert {name: float(ours[name]) for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert 0.0 < expected["clip_fraction"] < 1.0 and metrics["truncated_fraction"] == 0.0

    # The gradient by central differences of the float64 loss.
    inputs = [logits.astype(np.float64), value.astype(np.float64)]
    for which, gradient in enumerate(gradients):
        for index in np.ndindex(gradient.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [x.copy() for x in inputs]
                moved[which][index] += step
                ends.append(numpy_loss(*moved, batch, coefficient, algorithm)["loss"])
            assert float(gradient[index]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-3, abs=1e-5)


def test_policy_loss_and_gradient_against_rlax() -> None:
    logits, value, batch = make_batch(1)
    algorithm = AlgorithmConfig(value_coefficient=0.0, entropy_coefficient=0.0)

    def ours(logits: jax.Array) -> jax.Array:
        settings = (hyper_of(algorithm), jnp.float32(0), 1)
        return loss_of(algorithm, LossInputs(batch, Categorical(ACTIONS), *settings, parameters=logits, value=value))[0]

    def theirs(logits: jax.Array) -> jax.Array:
        log_prob = jax.nn.log_softmax(logits)[jnp.arange(ROWS), batch.action]
        return rlax.clipped_surrogate_pg_loss(jnp.exp(log_prob - batch.log_prob), batch.advantage, 0.2)

    (first, gradient), (second, reference) = (jax.value_and_grad(f)(jnp.asarray(logits)) for f in (ours, theirs))
    np.testing.assert_allclose(first, second, rtol=1e-5)
    np.testing.assert_allclose(gradient, reference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.0, 0.5), (0.0049, 0.5), (0.0051, 1.0), (0.0199, 1.0), (0.0201, 1.5), (3.0, 1.5)]
)
def test_kl_coefficient_adapts(kl: float, factor: float) -> None:
    assert float(adapt_kl_coefficient(jnp.float32(0.2), jnp.float32(kl), 0.01)) == pytest.approx(0.2 * factor)


@pytest.mark.parametrize("kl", [0.0, 3.0])
def test_kl_coefficient_comes_back(kl: float) -> None:
    """However many quiet or loud rounds there were, it is a number that other rounds move again."""
    coefficient = jnp.float32(0.2)
    for _ in range(300):
        coefficient = adapt_kl_coefficient(coefficient, jnp.float32(kl), 0.01)
    assert 0.0 < float(coefficient) < 1e10
    back = adapt_kl_coefficient(coefficient, jnp.float32(3.0 - kl), 0.01)
    assert float(back) == pytest.approx(float(coefficient) * (1.5 if kl == 0.0 else 0.5))
    assert float(adapt_kl_coefficient(jnp.float32(0.0), jnp.float32(3.0), 0.01)) == 0.0


@pytest.mark.parametrize("first", [0.2, 1.0])
@pytest.mark.parametrize("kl", [0.0, 3.0])
def test_kl_coefficient_of_the_papers_jobs_is_what_it_was(kl: float, first: float) -> None:
    """Their 50 rounds never reach the ends of the range."""
    clamped, free = jnp.float32(first), jnp.float32(first)
    for _ in range(50):
        clamped = adapt_kl_coefficient(clamped, jnp.float32(kl), 0.01)
        free = free * (1.5 if kl else 0.5)
        assert float(clamped) == float(free)


# The engine against an independent PPO ----------------------------------------------------------------------------

ROUNDS = 3
CONFIG = Config(
    # Short enough that fragments hold truncated episodes, long enough that they hold terminated ones.
    env=EnvConfig(name="gymnax/CartPole-v1", num_envs=4, kwargs={"max_steps_in_episode": 12}),
    network=NetworkConfig(hidden=[8]),
    algorithm=AlgorithmConfig(
        rollout_length=16, epochs=2, minibatches=4, learning_rate=3e-3, kl_coefficient=0.2, entropy_coefficient=0.01
    ),
    system=SystemConfig(truncation="none", versions=4),
    engine=EngineConfig(chunk_rounds=ROUNDS),
)
GRADIENTS = CONFIG.algorithm.epochs * CONFIG.algorithm.minibatches
SAMPLES = CONFIG.env.num_envs * CONFIG.algorithm.rollout_length
LAYOUT = MinibatchLayout(
    CONFIG.algorithm.epochs, CONFIG.algorithm.minibatches, CONFIG.algorithm.rollout_length, CONFIG.env.num_envs
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    env = make(CONFIG.env.name, CONFIG.env.kwargs)
    network = ActorCritic(env.observation_space, env.action_space, CONFIG.network)
    return Engine(CONFIG.env, env, network, replace(ProgramSpec.of(CONFIG), chunk_rounds=ROUNDS))


def train(engine: Engine, rule: str, learners: int) -> tuple[EngineState, EngineState, RoundMetrics]:
    """The state before and after a few rounds under one rule: the plan differs, the compiled engine does not."""
    system = SystemConfig(rule=rule, learners=learners, truncation="none", versions=CONFIG.system.versions)
    timeline = Timeline(system, CONFIG.platform, CONFIG.delays, gradients_per_round=GRADIENTS, seed=0)
    records = [[timeline.next_round()] for _ in range(ROUNDS)]
    gradients = [g for row in records for group in row[0].groups for g in group.gradients]
    assert {g.staleness for g in gradients} == {0}
    orders = [[loader_order(r)] for r in range(ROUNDS)]
    initial = engine.init([0], Hyper.of(CONFIG).rows(1))
    before = jax.tree.map(jnp.copy, initial)
    plan = build_plan(engine.shape, records, orders, [1.0] * ROUNDS)
    after, metrics = engine.run(EngineInputs(initial, Hyper.of(CONFIG).rows(1), plan), ROUNDS)
    return before, after, metrics


def loader_order(fragment: int) -> np.ndarray:
    return minibatch_order(0, fragment, LAYOUT)


class PlainPPO:
    """Synchronous PPO over pytrees, written apart from the package: only its actors are shared, for equal episodes."""

    def __init__(self, engine: Engine, start: EngineState):
        start = jax.tree.map(lambda x: x[0], start)
        self.engine, self.key, self.actor = engine, start.key, start.actor
        self.params = engine.network.unravel(start.params)
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(CONFIG.algorithm.max_grad_norm),
            optax.adam(CONFIG.algorithm.learning_rate, eps=CONFIG.algorithm.adam_eps),
        )
        self.moments = self.optimizer.init(self.params)
        self.kl_coefficient = CONFIG.algorithm.kl_coefficient
        self.normalizers = start.normalizers
        self.collect = jax.jit(self._collect)
        self.gradient = jax.jit(jax.grad(self._loss, has_aux=True))
        self.update = jax.jit(self.optimizer.update)
        self.endings = np.zeros(2)

    def _collect(self, params: jax.Array, actor: Any, key: jax.Array) -> tuple[Any, Trajectory]:
        start_key, actor_key = jax.random.split(key)
        keys = FragmentKeys(start_key, jax.random.split(actor_key, CONFIG.env.num_envs))
        algorithm, engine = CONFIG.algorithm, self.engine
        inputs = RolloutInputs(params, self.normalizers, actor, keys, algorithm.gamma)
        return rollout(engine.env, engine.network, CONFIG.env, algorithm.rollout_length, inputs)

    @staticmethod
    def _forward(params: Any, part: str, obs: Any) -> Any:
        hidden = jnp.tanh(obs @ params[part]["Dense_0"]["kernel"] + params[part]["Dense_0"]["bias"])
        return hidden @ params[part]["Dense_1"]["kernel"] + params[part]["Dense_1"]["bias"]

    def _loss(self, params: Any, batch: dict[str, Any], kl_coefficient: float) -> tuple[jax.Array, jax.Array]:
        algorithm = numbers_and_options(CONFIG.algorithm)
        log_pi = jax.nn.log_softmax(self._forward(params, "actor", batch["obs"]))
        log_mu = jax.nn.log_softmax(batch["logits"])
        row = jnp.arange(len(batch["action"]))
        ratio = jnp.exp(log_pi[row, batch["action"]] - log_mu[row, batch["action"]])
        gain = rlax.clipped_surrogate_pg_loss(ratio, batch["advantage"], algorithm.clip)
        value = self._forward(params, "critic", batch["obs"])[:, 0]
        near = jnp.clip(value, batch["value"] - algorithm.value_clip, batch["value"] + algorithm.value_clip)
        error = jnp.maximum((value - batch["target"]) ** 2, (near - batch["target"]) ** 2)
        entropy = -jnp.sum(jnp.exp(log_pi) * log_pi, axis=1)
        kl = jnp.mean(jnp.sum(jnp.exp(log_mu) * (log_mu - log_pi), axis=1))
        loss = gain + algorithm.value_coefficient * 0.5 * jnp.mean(error)
        return loss - algorithm.entropy_coefficient * jnp.mean(entropy) + kl_coefficient * kl, kl

    def round(self, index: int, averaged: bool) -> None:
        """Collect a fragment and learn from it: a step per minibatch, or one on the average of all their gradients."""
        algorithm = CONFIG.algorithm
        flat = self.engine.network.ravel(self.params)
        self.actor, data = self.collect(flat, self.actor, jax.random.fold_in(self.key, index))
        data = jax.tree.map(np.asarray, data)
        self.endings += data.terminated.sum(), (data.truncated & ~data.terminated).sum()
        value = np.asarray(self._forward(self.params, "critic", data.obs))[..., 0]
        next_value = np.asarray(self._forward(self.params, "critic", data.final_obs))[..., 0]
        columns = (data.reward, value, next_value, data.terminated, data.truncated)
        advantage = np.stack(
            [loop_gae(*(x[:, n] for x in columns), algorithm.gamma, algorithm.gae_lambda) for n in range(4)], axis=1
        )
        fragment = {
            "obs": data.obs,
            "action": data.action,
            "logits": data.distribution,
            "value": value,
            "advantage": (advantage - advantage.mean()) / np.sqrt(advantage.var() + 1e-8),
            "target": advantage + value,
        }
        fragment = {name: x.reshape(SAMPLES, *x.shape[2:]) for name, x in fragment.items()}
        gradients, divergences = [], []
        for rows in loader_order(index):
            batch = {name: x[rows] for name, x in fragment.items()}
            gradient, kl = self.gradient(self.params, batch, self.kl_coefficient)
            divergences.append(float(kl))
            gradients.append(gradient)
            if not averaged:
                self.step(gradient)
        if averaged:
            self.step(jax.tree.map(lambda *g: sum(g) / len(g), *gradients))
        if np.mean(divergences) > 2 * algorithm.kl_target:
            self.kl_coefficient *= 1.5
        elif np.mean(divergences) < 0.5 * algorithm.kl_target:
            self.kl_coefficient *= 0.5

    def step(self, gradient: Any) -> None:
        updates, self.moments = self.update(gradient, self.moments)
        self.params = optax.apply_updates(self.params, updates)


@pytest.mark.parametrize(("rule", "learners"), [("central", 1), ("allreduce", GRADIENTS)])
def test_without_staleness_the_engine_is_plain_ppo(engine: Engine, rule: str, learners: int) -> None:
    before, after, metrics = train(engine, rule, learners)
    reference = PlainPPO(engine, before)
    for index in range(ROUNDS):
        reference.round(index, averaged=rule == "allreduce")
        assert float(metrics.kl_coefficient[index, 0]) == pytest.approx(reference.kl_coefficient)
    expected = engine.network.ravel(reference.params)
    step = np.abs(after.params[0] - before.params[0]).max()
    assert step > 2e-3
    np.testing.assert_allclose(after.params[0], expected, rtol=1e-3, atol=1e-3 * step)
    assert np.all(reference.endings > 0) and float(metrics.episodes.ended.sum()) == reference.endings.sum()


def test_nan_does_not_cross_the_end_of_an_episode() -> None:
    """0 * NaN is NaN, so a product cannot cut; one broken reward must not reach other episodes."""
    nan = np.nan
    reward, zeros, ended = np.float32([[1.0], [nan]]), np.zeros((2, 1), np.float32), np.ones((2, 1), bool)
    advantage, _ = gae(reward, zeros, zeros, ended, ~ended, 0.99, 0.95)
    np.testing.assert_array_equal(advantage, [[1.0], [nan]])
    decay, x = jnp.array([[0.0], [0.5], [0.0]]), jnp.array([[1.0], [nan], [2.0]])
    np.testing.assert_array_equal(linear_recurrence(decay, x, jnp.array([nan])), [[1.0], [nan], [2.0]])
