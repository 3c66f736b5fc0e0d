"""Choices and switches: their distributions against SciPy over every action, and policies over them learn."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from stellaris_jax import Trainer, load_config
from stellaris_jax.agent.networks.distributions import Distribution, for_space
from stellaris_jax.envs.base import Box, Discrete, MultiBinary, MultiDiscrete, Preprocessing, Space, bounded
from stellaris_jax.envs.registry import make
from stellaris_jax.policies.policy import Policy

SAMPLES = 20_000
SPACES = [MultiDiscrete((2, 4, 3)), MultiBinary(4), MultiDiscrete((5,)), MultiBinary(1)]
LOGITS = np.random.default_rng(0).normal(0.0, 2.0, (2, 6, 9)).astype(np.float32)


def actions(space: Space) -> np.ndarray:
    """Every action there is, `[A, ...]`."""
    sizes = space.nvec if isinstance(space, MultiDiscrete) else (2,) * space.shape[0]
    return np.array(list(itertools.product(*map(range, sizes))), np.int32)


def table(space: Space, logits: np.ndarray) -> np.ndarray:
    """The probability of every action, `[B, A]`: the outer product of those of its elements."""
    logits = logits.astype(np.float64)
    if isinstance(space, MultiDiscrete):
        blocks = np.split(logits, np.cumsum(space.nvec)[:-1], axis=-1)
        marginals = [scipy.special.softmax(block, axis=-1) for block in blocks]
    else:
        on = scipy.special.expit(logits)
        marginals = [np.stack([1 - p, p], axis=-1) for p in np.moveaxis(on, -1, 0)]
    joint = marginals[0]
    for marginal in marginals[1:]:
        joint = (joint[..., None] * marginal[:, None]).reshape(len(joint), -1)
    return joint


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_distributions_against_scipy(space: Space) -> None:
    distribution: Distribution = for_space(space)
    logits = LOGITS[..., : distribution.size]
    p, q = table(space, logits[0]), table(space, logits[1])
    every = actions(space)
    assert distribution.size <= 9 and p.shape == (6, len(every))
    for a, action in enumerate(every):
        ours = distribution.log_prob(logits[0], jnp.broadcast_to(action, (6, *space.shape)))
        np.testing.assert_allclose(ours, np.log(p[:, a]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(distribution.entropy(logits[0]), scipy.stats.entropy(p, axis=-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(distribution.kl(*logits), scipy.stats.entropy(p, q, axis=-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(distribution.kl(logits[0], logits[0]), np.zeros(6), atol=1e-5)
    mode = distribution.mode(logits[0])
    np.testing.assert_array_equal(mode, every[p.argmax(-1)])
    assert mode.dtype == jnp.int32


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_samples_have_the_probabilities(space: Space) -> None:
    distribution = for_space(space)
    logits = 0.5 * LOGITS[0, :1, : distribution.size]
    drawn = np.asarray(distribution.perturb(logits, distribution.noise(jax.random.key(3), (SAMPLES,))))
    assert drawn.shape == (SAMPLES, *space.shape) and drawn.dtype == np.int32
    counts = [(drawn == action).all(-1).sum() for action in actions(space)]
    expected = SAMPLES * table(space, logits)[0]
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-3


def test_switches_bear_any_odds() -> None:
    distribution = for_space(MultiBinary(2))
    far = jnp.array([[1e4, -1e4]])
    np.testing.assert_array_equal(distribution.entropy(far), 0.0)
    np.testing.assert_array_equal(distribution.kl(far, far), 0.0)
    np.testing.assert_array_equal(distribution.log_prob(far, jnp.array([[1, 0]])), 0.0)
    np.testing.assert_array_equal(distribution.log_prob(far, jnp.array([[0, 1]])), -2e4)
    gradient = jax.grad(lambda x: distribution.kl(far, x).sum() + distribution.entropy(x).sum())(far)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("space", "compact"),
    [
        (Discrete(256), "uint8"),
        (Discrete(257), "uint16"),
        (MultiDiscrete((2, 300)), "uint16"),
        (MultiBinary(3), "uint8"),
        (Box((2,), (-1.0, 0.0), (1.0, float("inf"))), "float32"),
    ],
    ids=str,
)
def test_actions_are_kept_small_and_whole(space: Space, compact: str) -> None:
    drawn = space.sample(np.random.default_rng(0), 500)
    assert drawn.shape == (500, *space.shape) and drawn.dtype == space.dtype
    assert space.compact == compact
    np.testing.assert_array_equal(drawn.astype(space.compact).astype(space.dtype), drawn)
    np.testing.assert_array_equal(bounded(drawn, space), drawn)
    assert drawn.reshape(500, -1).std(0).min() > 0


def test_sticky_actions_repeat_all_of_an_action() -> None:
    """Without an action before, zeros: wrong for the first of three switches on 1, and for the second on -1."""
    env = make("diagnostic/multi_binary_action_reward", {}, Preprocessing(sticky_actions=1.0))
    keys = jax.random.split(jax.random.key(0), 8)
    state, obs = env.reset(keys)
    right = jnp.stack([obs[:, 0] > 0, obs[:, 0] < 0, 0 * obs[:, 0]], axis=-1).astype(jnp.int32)
    after, step = env.step(keys, state, right, env.starts(keys[0]))
    np.testing.assert_array_equal(step.reward, 1.0)
    assert after[1].dtype == right.dtype == jnp.int32  # an action stays an integer


def learned(name: str, right: dict[float, list[int]], *overrides: str) -> tuple[Any, Trainer]:
    """Train on observations -1 and 1; check the greedy actions, and return the values and the trainer."""
    settings = [
        f"env.name={name}", "env.num_envs=8", "env.normalize_observation=false", "env.normalize_reward=false",
        "network.hidden=[16]", "algorithm.rollout_length=16", "algorithm.epochs=4", "algorithm.minibatches=4",
        "algorithm.learning_rate=0.01", "algorithm.gamma=0.5", "algorithm.entropy_coefficient=0",
        "system=stellaris", "system.learners=4",
        "system.versions=16", "evaluation.episodes=64", "evaluation.points=1", "evaluation.greedy=true",
        "engine.chunk_rounds=10", "total_steps=7680", *overrides,
    ]  # fmt: skip
    trainer = Trainer(load_config(settings))
    trainer.run()
    policy = Policy(
        trainer.network,
        trainer.state.params[0],
        jax.tree.map(lambda x: x[0], trainer.state.normalizers),
        trainer.config,
    )
    for obs, action in right.items():
        np.testing.assert_array_equal(policy(np.array([obs])), action)
    tree = trainer.network.unravel(trainer.state.params[0])
    values = trainer.network.value(tree, np.array(list(right))[:, None].astype(np.float32))
    return np.asarray(values), trainer


CHOICES = {-1.0: [0, 1], 1.0: [1, 2]}
SWITCHES = {-1.0: [0, 1, 0], 1.0: [1, 0, 0]}


@pytest.mark.parametrize(("name", "right", "best"), [("discrete", CHOICES, 2.0), ("binary", SWITCHES, 3.0)])
def test_what_is_right_is_learned(name: str, right: dict[float, list[int]], best: float) -> None:
    """Both spaces of the diagnostics: the right actions, and their value."""
    values, trainer = learned(f"diagnostic/multi_{name}_action_reward", right)
    result = trainer.evaluate()
    trainer.close()
    np.testing.assert_allclose(values, best, atol=0.2)
    np.testing.assert_array_equal(result.returns, best)


@pytest.mark.parametrize(
    ("action", "right", "best"),
    [("choices", CHOICES, 2.0), pytest.param("switches", SWITCHES, 3.0, marks=pytest.mark.slow)],
)
def test_what_is_right_is_learned_on_the_host(action: str, right: dict[float, list[int]], best: float) -> None:
    """The same task as a gymnasium environment, half of whose steps are dead: what pads them teaches nothing."""
    pytest.importorskip("gymnasium")
    overrides = [f"env.kwargs.action={action}", "total_steps=15360"]
    values, trainer = learned("gymnasium/gym_lab:Right-v0", right, *overrides)
    result = trainer.evaluate()
    trainer.close()
    np.testing.assert_allclose(values, best, atol=0.2)
    np.testing.assert_array_equal(result.returns, best)
