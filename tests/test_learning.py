"""Small tasks with known answers, trained end to end with asynchronous learners: what is learned is right."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
import pytest
from settings import algorithm_of, delay, system_of

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.config.sections import DelaysConfig, EngineConfig, EnvConfig, NetworkConfig, PlatformConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.program import Engine, EngineInputs
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.envs.registry import make
from stellaris_jax.timeline import Timeline, build_plan, minibatch_order

GAMMA = 0.5
ROUNDS, CHUNK = 200, 20


class Learned(NamedTuple):
    """Learned functions of a run: V(o) and pi(1|o) of a scalar observation, and traces of the run.

    surprise: largest |target - V| in the last fragment, its advantages before they are standardised; NaN if the loss
        makes its own targets.
    staleness: mean over all gradients. rejected: gradients that were not finite. finite: whether the state is.
    """

    value: dict[float, float]
    action_1: dict[float, float]
    surprise: float
    staleness: float
    rejected: int
    finite: bool


def train(name: str, observations: tuple[float, ...], loss: str = "ppo") -> Learned:
    """Rule stellaris, 4 learners, truncation and staleness weights on, the learning rate annealed to zero."""
    config = Config(
        env=EnvConfig(name=f"diagnostic/{name}", num_envs=8),
        network=NetworkConfig(hidden=[16, 16]),
        algorithm=algorithm_of(
            loss,
            rollout_length=16,
            minibatches=8,
            learning_rate=1e-2,
            gamma=GAMMA,
            **({"value_clip": 0.0} if loss == "ppo" else {}),
            value_coefficient=2.0,
            entropy_coefficient=0.0,
        ),
        system=system_of(rule="stellaris", learners=4, decay=1.0, versions=16),
        platform=PlatformConfig(actors=1),
        delays=DelaysConfig(learner=delay("lognormal", 0.3, sigma=0.5)),
        engine=EngineConfig(chunk_rounds=CHUNK),
    )
    env = make(config.env.name, {})
    network = ActorCritic(env.observation_space, env.action_space, config.network)
    # One plan for all algorithms, as if each had a target network.
    spec = replace(ProgramSpec.of(config), chunk_rounds=CHUNK, target_interval=16)
    engine = Engine(config.env, env, network, spec)
    timeline = Timeline.of(config, seed=0)
    state, staleness = engine.init([0], Hyper.of(config).rows(1)), []
    for first in range(0, ROUNDS, CHUNK):
        rounds = range(first, first + CHUNK)
        records = [[timeline.next_round()] for _ in rounds]
        staleness += [g.staleness for row in records for group in row[0].groups for g in group.gradients]
        orders = [[minibatch_order(0, r, spec.minibatch_layout)] for r in rounds]
        plan = build_plan(spec.shape, records, orders, [1.0 - r / ROUNDS for r in rounds])
        state, metrics = engine.run(EngineInputs(state, Hyper.of(config).rows(1), plan), CHUNK)
    tree = network.unravel(state.params[0])
    obs = np.float32(observations)[:, None]
    value, policy = network.value(tree, obs), jax.nn.softmax(network.policy(tree, obs))
    fragment = state.loader.fragments
    return Learned(
        dict(zip(observations, np.asarray(value).tolist(), strict=True)),
        dict(zip(observations, np.asarray(policy[:, 1]).tolist(), strict=True)),
        math.nan if fragment.target is None else float(np.abs(fragment.target - fragment.value).max()),
        float(np.mean(staleness)),
        int(metrics.rejected[-1, 0]),
        all(np.all(np.isfinite(x)) for x in jax.tree.leaves((state.params, state.ring, state.aggregator))),
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        # Easier than the next, as is action_reward below than observation_action_reward.
        pytest.param("constant_reward", {0.0: 1.0}, marks=pytest.mark.slow),
        ("observation_reward", {-1.0: -1.0, 1.0: 1.0}),
        ("delayed_reward", {0.0: GAMMA, 1.0: 1.0}),
        # Taking truncation for termination would give the mean value of 1 to 5 steps, 1.61.
        ("truncation", {0.0: 1 / (1 - GAMMA)}),
        # Taking termination for truncation would give 2 throughout.
        ("terminating", {float(t): (1 - GAMMA ** (5 - t)) / (1 - GAMMA) for t in range(5)}),
    ],
)
def test_values(name: str, values: dict[float, float]) -> None:
    """Rewards that no action changes: the critic finds their value, and no action is better than another."""
    learned = train(name, tuple(values))
    print(learned)
    assert learned.value == pytest.approx(values, abs=0.05)
    assert learned.surprise < 0.1
    assert learned.staleness > 0.5 and learned.rejected == 0


@pytest.mark.parametrize(
    ("name", "best"),
    [
        pytest.param("action_reward", {0.0: 1}, marks=pytest.mark.slow),
        ("observation_action_reward", {-1.0: 0, 1.0: 1}),
        ("nonfinite", {0.0: 1}),
    ],
)
def test_policies(name: str, best: dict[float, int]) -> None:
    """Rewards that depend on the action: the policy finds the right one, and the critic what it is worth, 1."""
    learned = train(name, tuple(best))
    for obs, action in best.items():
        right = learned.action_1[obs] if action == 1 else 1.0 - learned.action_1[obs]
        assert right > 0.95
        assert learned.value[obs] == pytest.approx(1.0, abs=0.1)
    assert learned.staleness > 0.5 and learned.finite
    assert (learned.rejected > 0) == (name == "nonfinite")
    print(learned)


SEQUENCES = [("impala", "truncation"), ("impact", "observation_action_reward")]
OTHERS = [pytest.param("impact", "truncation", marks=pytest.mark.slow)]
OTHERS += [pytest.param("impala", "observation_action_reward", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("loss", "name"), [*SEQUENCES, *OTHERS])
def test_sequences(loss: str, name: str) -> None:
    """Minibatches of whole environments: values pass over time limits, and actions improve."""
    learned = train(name, (0.0,) if name == "truncation" else (-1.0, 1.0), loss)
    print(learned)
    if name == "truncation":
        assert learned.value == pytest.approx({0.0: 1 / (1 - GAMMA)}, abs=0.05)
        assert learned.staleness > 0.5 and learned.rejected == 0
    else:
        assert learned.action_1[-1.0] < 0.05 and learned.action_1[1.0] > 0.95
        assert learned.value == pytest.approx({-1.0: 1.0, 1.0: 1.0}, abs=0.1)
