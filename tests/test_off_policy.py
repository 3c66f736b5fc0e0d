"""DQN and SAC: losses and gradients against references in NumPy, and small tasks with known answers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_replay import Bounds, Minibatch, dqn_loss, perceptron, sac_losses

from stellaris_jax import load_config
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import Samples, Transition, Versions
from stellaris_jax.agent.losses.off_policy import ReplayInputs
from stellaris_jax.agent.networks import policy_network
from stellaris_jax.agent.networks.q_network import Q_VALUES
from stellaris_jax.agent.networks.squashed_gaussian import SquashedGaussian
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.sections import NetworkConfig
from stellaris_jax.envs.base import Box, Discrete
from stellaris_jax.execute.trainer import Trainer

pytestmark = pytest.mark.usefixtures("shared_programs")

LOW, HIGH = np.array([-2.0, 0.0]), np.array([2.0, 0.5])


def minibatch(action: np.ndarray, seed: int = 0) -> Minibatch:
    """Minibatch of 7 transitions, one of them invalid, over observations of 3 numbers."""
    draw = np.random.default_rng(seed)
    obs, following = draw.normal(size=(2, 7, 3))
    discount = np.where(np.arange(7) % 3 == 0, 0.0, 0.9)
    return Minibatch(obs, action, draw.normal(size=7) * 2.0, discount, following, np.arange(7) != 4)


def inputs(network: Any, data: Minibatch, tree: Any, target: Any, key: Any = None) -> ReplayInputs:
    data = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32) if x.dtype == float else jnp.asarray(x), data)
    following = Transition(data.reward, data.discount, data.next_obs)
    samples = Samples(data.obs, data.action, None, None, None, None, None, data.valid, transition=following)
    return ReplayInputs(samples, network, tree, target, Hyper.of(load_config([])), key, Versions(0, 0))  # type: ignore[arg-type]


def trees(network: Any) -> tuple[Any, Any]:
    """Parameters of a learner and of a target network, not near their initial values."""
    flat = network.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1))
    learner, target = (flat + 0.3 * jax.random.normal(key, flat.shape) for key in keys)
    return network.unravel(learner), network.unravel(target)


def check_gradient(network: Any, loss: Any, tree: Any, reference: Any) -> None:
    """Compare values, and gradients along random directions with the reference's central differences."""
    (value, _), grads = jax.value_and_grad(loss, has_aux=True)(tree)
    assert float(value) == pytest.approx(reference(tree), rel=1e-5, abs=1e-6)
    flat = network.ravel(tree)
    for seed in range(20):
        direction = np.random.default_rng(seed).normal(size=network.size)
        direction = np.concatenate([direction, np.zeros(len(flat) - network.size)])

        def at(step: float, direction: Any = direction) -> float:
            base, along = (network.unravel(jnp.asarray(x)) for x in (flat, direction))
            moved = jax.tree.map(lambda x, d: np.asarray(x, np.float64) + step * np.asarray(d, np.float64), base, along)
            return float(reference(moved))

        slope = (at(1e-5) - at(-1e-5)) / 2e-5
        found = float(np.dot(np.asarray(network.ravel(grads), np.float64), direction))
        assert found == pytest.approx(slope, rel=2e-3, abs=2e-4)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("huber", [0.7, np.inf])
def test_dqn_is_the_papers(double: bool, huber: float) -> None:
    network = policy_network(
        Box((3,), -9.0, 9.0), Discrete(4), NetworkConfig("q_network", hidden=(8,), activation="relu")
    )
    tree, target = trees(network)
    data = minibatch(np.array([0, 1, 2, 3, 0, 1, 2], np.int32))
    algorithm = register.algorithm["dqn"]({"double": double, "huber": huber})

    def reference(moved: Any) -> float:
        return dqn_loss(moved["q"], tree["q"], target["q"], data, double=double, huber=huber)

    check_gradient(network, lambda tree: algorithm.loss(inputs(network, data, tree, target)), tree, reference)


def test_sac_is_the_papers() -> None:
    network = policy_network(
        Box((3,), -9.0, 9.0),
        Box((2,), LOW, HIGH),
        NetworkConfig("squashed_gaussian_twin_q", hidden=(8,), activation="relu"),
    )
    tree, target = trees(network)
    data = minibatch(np.random.default_rng(1).uniform(LOW, HIGH, (7, 2)))
    key = jax.random.key(3)
    next_noise, noise = (np.asarray(jax.random.normal(k, (7, 2)), np.float64) for k in jax.random.split(key))
    algorithm = register.algorithm["sac"]()

    def reference(moved: Any) -> float:
        return sac_losses(moved, tree, target, data, noise, next_noise, Bounds(LOW, HIGH))

    check_gradient(network, lambda tree: algorithm.loss(inputs(network, data, tree, target, key)), tree, reference)


def test_invalid_transitions_change_nothing() -> None:
    network = policy_network(Box((3,), -9.0, 9.0), Discrete(4), NetworkConfig("q_network", hidden=(8,)))
    tree, target = trees(network)
    data, algorithm = minibatch(np.zeros(7, np.int32)), register.algorithm["dqn"]()
    others = data._replace(reward=np.where(data.valid, data.reward, 1e6))
    first, second = (algorithm.loss(inputs(network, x, tree, target))[0] for x in (data, others))
    assert float(first) == float(second)


def test_the_squashed_distribution_is_one() -> None:
    """Its density integrates to 1 within the bounds, its draws have that density, and lie within."""
    distribution = SquashedGaussian(np.array([-1.0], np.float32), np.array([3.0], np.float32))
    parameters = jnp.array([0.4, -0.3])
    grid = np.linspace(-1.0, 3.0, 200_001)[1:-1]
    density = np.exp(np.asarray(jax.vmap(lambda a: distribution.log_prob(parameters, a[None]))(jnp.asarray(grid))))
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=1e-3)
    noise = distribution.noise(jax.random.key(0), (100_000,))
    draws = np.asarray(distribution.perturb(parameters, noise))[:, 0]
    assert draws.min() >= -1.0
    assert draws.max() <= 3.0
    counts, edges = np.histogram(draws, bins=20, range=(-1.0, 3.0))
    shares = [density[(grid >= a) & (grid < b)].sum() * (grid[1] - grid[0]) for a, b in pairwise(edges)]
    np.testing.assert_allclose(counts / 100_000, shares, atol=0.005)


@pytest.mark.parametrize("mean", [0.0, 4.0, -30.0])
def test_draws_know_their_log_probability(mean: float) -> None:
    """It is that of the scaled action, and finite where tanh is 1 in 32 bits."""
    distribution = SquashedGaussian(np.array(LOW, np.float32), np.array(HIGH, np.float32))
    parameters = jnp.tile(jnp.array([mean, mean, -0.5, 0.2]), (50, 1))
    scaled, log_prob = distribution.drawn(parameters, jax.random.key(1))
    assert np.isfinite(log_prob).all()
    if abs(mean) < 1.0:
        spread = np.sum(np.log((HIGH - LOW) / 2.0))
        action = distribution.action(scaled)
        np.testing.assert_allclose(distribution.log_prob(parameters, action) + spread, log_prob, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(distribution.scaled(action), scaled, atol=1e-5)


@pytest.mark.parametrize("dueling", [False, True])
def test_the_q_network_acts_by_the_largest_value(dueling: bool) -> None:
    config = NetworkConfig("q_network", {"dueling": dueling}, hidden=(8,), activation="relu")
    network = policy_network(Box((3,), -9.0, 9.0), Discrete(4), config)
    tree, _ = trees(network)
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(20, 3)), jnp.float32)
    outputs = network.evaluate(tree, obs)
    parameters, _ = network.act(tree, obs, None)
    noise = network.distribution.noise(jax.random.key(0), (20,))
    np.testing.assert_array_equal(network.distribution.perturb(parameters, noise), jnp.argmax(outputs[Q_VALUES], -1))
    if dueling:
        features = np.maximum(perceptron(tree["body"], obs), 0.0)
        advantage = perceptron(tree["advantage"], features)
        expected = perceptron(tree["value"], features) + advantage - advantage.mean(axis=1, keepdims=True)
    else:
        expected = perceptron(tree["q"], obs)
    np.testing.assert_allclose(outputs[Q_VALUES], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("space", [Box((1,), -1.0, np.inf), Discrete(3)])
def test_sac_needs_bounds(space: Any) -> None:
    with pytest.raises(ConfigError, match="needs a Box of actions with finite bounds"):
        policy_network(Box((3,), -9.0, 9.0), space, NetworkConfig("squashed_gaussian_twin_q"))


# Known answers -------------------------------------------------------------------------------------------------------

GAMMA = 0.5
KNOWN = ("algorithm=dqn", "env.num_envs=8", "algorithm.rollout_length=4", "network.hidden=[32]",
         f"algorithm.gamma={GAMMA}", "algorithm.learning_rate=3e-3", "algorithm.anneal=true",
         "algorithm.options.batch_size=64", "algorithm.options.learning_starts=256",
         "algorithm.options.updates_per_step=0.25", "algorithm.options.target_rate=0.05",
         "algorithm.options.exploration_end=0.5", "evaluation.episodes=0", "system.truncation=none",
         "system=stellaris", "system.learners=4", "engine.chunk_rounds=64")  # fmt: skip


def learned(*overrides: str) -> Any:
    trainer = Trainer(load_config([*KNOWN, *overrides]))
    trainer.run()
    network = trainer.network
    return network, network.unravel(trainer.state.params[0])


def values_of(observations: list[float], *overrides: str) -> np.ndarray:
    network, tree = learned(*overrides)
    return np.asarray(network.evaluate(tree, jnp.asarray(observations)[:, None])[Q_VALUES])


@pytest.mark.parametrize("steps", [1, 3])
def test_a_time_limit_is_no_end(steps: int) -> None:
    """A learner that takes a truncated episode for an ended one finds 1.94 for 5 steps, one of n steps still less."""
    values = values_of(
        [0.0],
        "env=diagnostic/truncation",
        "algorithm.learning_rate=0.02",
        f"algorithm.options.n_step={steps}",
        "total_steps=16384",
    )
    np.testing.assert_allclose(values, 1.0 / (1.0 - GAMMA), atol=0.02)


@pytest.mark.parametrize("steps", [1, 3])
def test_an_end_is_one(steps: int) -> None:
    values = values_of(
        [0.0, 1.0, 2.0, 3.0, 4.0],
        "env=diagnostic/terminating", f"algorithm.options.n_step={steps}", "total_steps=32768",
    )  # fmt: skip
    expected = (1.0 - GAMMA ** (5.0 - np.arange(5))) / (1.0 - GAMMA)
    np.testing.assert_allclose(values, np.stack([expected] * 2, axis=1), atol=0.1)


def test_actions_and_observations_stay_in_order() -> None:
    values = values_of([-1.0, 1.0], "env=diagnostic/observation_action_reward", "total_steps=16384")
    np.testing.assert_allclose(values, [[1.0, -1.0], [-1.0, 1.0]], atol=0.05)


@pytest.mark.parametrize(
    ("overrides", "system"), [((), "central"), (("system=gorila",), "gorila"), (("system=async",), "async")]
)
def test_one_learner_unless_a_system_is_chosen(overrides: tuple[str, ...], system: str) -> None:
    for job in (("algorithm=dqn", "env=gymnax/cartpole"), ("algorithm=dqn", "env=gymnax/asterix_minatar"),
                ("algorithm=sac", "env=gymnax/pendulum"), ("algorithm=sac", "env=brax/hopper")):  # fmt: skip
        assert load_config([*job, *overrides]).system.name == system
    assert load_config([]).system.name == "stellaris"
