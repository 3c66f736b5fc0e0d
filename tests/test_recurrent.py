"""Networks with memory: what is carried, when it is blanked, and what is learned through it."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_memory import Network, gradient, ppo, walk
from settings import algorithm_of, complaint, hyper_of
from training import assert_resumes, clockwork, leaves, scalable, steps, tiny

from stellaris_jax import ConfigError, Trainer, load_config
from stellaris_jax.agent.losses.common import Samples, Versions
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.base.registry import register
from stellaris_jax.config.sections import EnvConfig, NetworkConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.keys import FragmentKeys
from stellaris_jax.engine.learner import Fetched, gradient_of
from stellaris_jax.engine.prepare import prepare
from stellaris_jax.engine.rollout import (
    Fragment,
    RolloutInputs,
    Trajectory,
    init_actor,
    init_normalizers,
    rollout,
)
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.envs.base import Preprocessing
from stellaris_jax.envs.registry import make
from stellaris_jax.policies.policy import Policy

T, N, SIZE = 13, 4, 2
GAMMA, LAMBDA, KL = 0.9, 0.8, 0.3
ALGORITHM = algorithm_of(rollout_length=T, gamma=GAMMA, gae_lambda=LAMBDA, minibatches=2, entropy_coefficient=0.1)


class Rolled(NamedTuple):
    """Two fragments one after the other; of the second what it began with, what it is, and what became of it."""

    config: Config
    network: ActorCritic
    params: jax.Array
    before: Any
    trajectory: Trajectory
    after: Any
    samples: Samples


def rolled(memory: str, shared: bool) -> Rolled:
    """CartPole with episodes of 9 steps at most, under a policy that is far from uniform."""
    network_config = NetworkConfig(hidden=(3,), memory=memory, memory_size=SIZE, shared=shared)
    config = Config(env=EnvConfig(num_envs=N), network=network_config, algorithm=ALGORITHM)
    env = make("gymnax/CartPole-v1", {"max_steps_in_episode": 9, "theta_threshold_radians": 0.12})
    network = ActorCritic(env.observation_space, env.action_space, config.network)
    params = network.init(jax.random.key(0))
    params += 0.7 * jax.random.normal(jax.random.key(1), params.shape) * (np.arange(len(params)) < network.size)
    normalizers, hyper = init_normalizers(env.observation_space), hyper_of(ALGORITHM)

    @jax.jit
    def fragments() -> Any:
        actor = init_actor(env, network, jax.random.split(jax.random.key(2), N))
        for number in (3, 4):
            keys = jax.random.split(jax.random.key(number), N)
            before = actor.carry
            inputs = RolloutInputs(params, normalizers, actor, FragmentKeys(keys[0], keys), GAMMA)
            actor, trajectory = rollout(env, network, config.env, T, inputs)
        fragment = Fragment(trajectory, params, normalizers, 0, before)
        return before, trajectory, actor.carry, prepare(network, hyper, config.env, fragment, normalizers)[0]

    return Rolled(config, network, params, *jax.tree.map(np.asarray, fragments()))


def of_env(carry: Any, n: int) -> dict[str, np.ndarray]:
    """The carry of one environment, as the reference has it."""
    return {
        name: np.stack([part[n] for part in own]) if isinstance(own, tuple) else own[n] for name, own in carry.items()
    }


def as_float64(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


@pytest.mark.parametrize(("memory", "shared", "distance"), [("gru", False, 0.2), ("lstm", True, 0.08)])
def test_equals_numpy(memory: str, shared: bool, distance: float) -> None:
    """A fragment in the middle of a run: what the policy says at each step, what is carried on, advantages and value
    targets, and the gradient of PPO's loss at the parameters of another version."""
    config, network, params, before, trajectory, after, samples = rolled(memory, shared)
    assert trajectory.terminated.any() and (trajectory.truncated & ~trajectory.terminated).any()
    literal = Network(memory, as_float64(network.unravel(params)), SIZE)
    done = trajectory.terminated | trajectory.truncated
    first = np.concatenate([np.zeros((1, N), bool), done])
    np.testing.assert_array_equal(trajectory.first, first)
    advantages, targets = np.zeros((T, N)), np.zeros((T, N))
    for n in range(N):
        every = np.concatenate([trajectory.obs[:, n], trajectory.last_obs[None, n]])
        logits, values, carries = walk(literal, of_env(before, n), every, first[:, n])
        assert any(np.abs(x).max() > 0.01 for x in of_env(before, n).values())
        np.testing.assert_allclose(trajectory.distribution[:, n], logits[:-1], atol=1e-5)
        expected = literal.initial_carry() if done[-1, n] else carries[-2]
        for name, own in of_env(after, n).items():
            np.testing.assert_allclose(own, expected[name], atol=1e-5)
        later = 0.0
        for t in reversed(range(T)):
            beyond = literal.step(trajectory.final_obs[t, n], carries[t])[1] if done[t, n] else values[t + 1]
            beyond = 0.0 if trajectory.terminated[t, n] else beyond
            later = trajectory.reward[t, n] + GAMMA * beyond - values[t] + (0 if done[t, n] else GAMMA * LAMBDA * later)
            advantages[t, n], targets[t, n] = later, later + values[t]
    in_time = {
        name: np.asarray(x, None if x.dtype in (bool, np.int32) else np.float64).reshape(T, N, *x.shape[1:])
        for name, x in samples._asdict().items()
        if name not in ("carry", "valid", "steps", "target_policy", "version", "own", "transition")
    }
    np.testing.assert_allclose(in_time["target"], targets, atol=2e-5)
    standard = (advantages - advantages.mean()) / np.sqrt(advantages.var() + 1e-8)
    np.testing.assert_allclose(in_time["advantage"], standard, atol=1e-4)

    # The minibatch of environments 3 and 1, on a version that is not the behaviour policy's.
    other = params + distance * jax.random.normal(jax.random.key(9), params.shape) * (
        np.arange(len(params)) < network.size
    )
    rows, envs = (N * np.arange(T)[:, None] + [3, 1]).ravel(), np.array([3, 1])
    batch = jax.tree.map(lambda x: x[rows], samples._replace(carry=None))
    batch = batch._replace(carry=jax.tree.map(lambda x: x[envs], before))
    fetched = Fetched(other, batch, params[None], None, Versions(np.int32(3), np.int32(1)), np.float32(KL))
    spec = ProgramSpec.of(config.replace({"system.truncation": "none"}))
    assert spec.minibatch_layout.length == T and spec.minibatch_layout.batch == 2 * T
    found, metrics = jax.jit(lambda fetched: gradient_of(network, spec, hyper_of(ALGORITHM), fetched))(fetched)
    chosen = {name: x[:, envs] for name, x in in_time.items()}
    used = np.flatnonzero(np.arange(len(params)) < network.size)

    def loss(free: np.ndarray) -> float:
        flat = np.concatenate([free, np.zeros(len(params) - len(used))])
        tree = unraveled(network, flat)
        at = Network(memory, tree, SIZE)
        return ppo(at, [of_env(before, n) for n in envs], chosen, 0.5, 0.1, KL)

    expected = gradient(loss, np.asarray(other, np.float64)[used])
    assert np.abs(expected).max() > 0.05 and 0.0 < metrics["clip_fraction"] < 1.0
    np.testing.assert_allclose(np.asarray(found)[used], expected, atol=1e-5)


def unraveled(network: ActorCritic, flat: np.ndarray) -> Any:
    """The tree of float64 parameters in a vector."""
    template, begin, found = network.unravel(jnp.zeros(len(flat))), 0, []
    for leaf in jax.tree.leaves(template):
        found.append(flat[begin : begin + leaf.size].reshape(leaf.shape))
        begin += leaf.size
    return jax.tree.unflatten(jax.tree.structure(template), found)


def test_sequences_are_steps_after_one_another() -> None:
    """A learner's evaluation of a sequence equals an actor's step by step."""
    _, network, params, before, trajectory, _, samples = rolled("gru", False)
    tree = network.unravel(params)
    logits, values = network.evaluate(tree, samples.obs, samples.past).values()
    np.testing.assert_allclose(logits, samples.distribution, atol=1e-5)
    np.testing.assert_allclose(values, samples.value, atol=1e-5)
    np.testing.assert_allclose(network.value(tree, samples.obs, samples.past), samples.value, atol=1e-5)
    carry = before
    for t in range(T):
        reset = trajectory.first[t][:, None]
        carry = jax.tree.map(lambda x, reset=reset: np.where(reset, 0.0, x), carry)
        value, _ = network.value_step(tree, trajectory.obs[t], carry)
        parameters, carry = network.act(tree, trajectory.obs[t], carry)
        np.testing.assert_allclose(parameters, trajectory.distribution[t], atol=1e-5)
        np.testing.assert_allclose(value, samples.value[t * N : (t + 1) * N], atol=1e-5)


def test_nothing_is_carried_without_memory() -> None:
    env = make("gymnax/CartPole-v1", {})
    shapes = {}
    for memory in ("none", "gru", "lstm"):
        network = ActorCritic(env.observation_space, env.action_space, NetworkConfig(memory=memory, memory_size=5))
        keys = jax.random.split(jax.random.key(0), 3)
        carry = jax.eval_shape(lambda network=network, keys=keys: init_actor(env, network, keys)).carry
        shapes[memory] = [leaf.shape for leaf in jax.tree.leaves(carry)]
    assert shapes == {"none": [], "gru": [(3, 5)] * 2, "lstm": [(3, 5)] * 4}


# Training ------------------------------------------------------------------------------------------------------------

RECALL = ("env.name=diagnostic/recall", "env.num_envs=32", "network.hidden=[16]", "network.memory_size=16",
          "algorithm.rollout_length=16", "algorithm.learning_rate=0.005", "algorithm.entropy_coefficient=0",
          "algorithm.anneal=false", "env.normalize_reward=false", "system.learners=4", "total_steps=10240",
          "evaluation.episodes=256", "engine.chunk_rounds=10")  # fmt: skip
"""A cue that is to be remembered for four steps, in fragments that are no whole number of episodes."""


@pytest.mark.parametrize(
    ("overrides", "least", "most"),
    [
        (("network.memory=gru",), 0.97, 1.0),
        pytest.param(("network.memory=none",), 0.3, 0.65, marks=pytest.mark.slow),
        pytest.param(
            ("network.memory=lstm", "algorithm=impala", "algorithm.epochs=2"), 0.97, 1.0, marks=pytest.mark.slow
        ),
        pytest.param(("network.memory=lstm", "network.shared=true"), 0.97, 1.0, marks=pytest.mark.slow),
        pytest.param(("network.memory=gru", "algorithm=impact"), 0.97, 1.0, marks=pytest.mark.slow),
        pytest.param(
            ("network.memory=gru", "system.actors=pipelined", "delays=pareto"), 0.97, 1.0, marks=pytest.mark.slow
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, tuple) else "",
)
def test_a_cue_is_recalled(overrides: tuple[str, ...], least: float, most: float) -> None:
    """By asynchronous learners, with truncation and weights by staleness; a network that sees the present guesses."""
    trainer = Trainer(load_config([*RECALL, *overrides]))
    records = trainer.run()
    assert least <= trainer.evaluate().per_seed[0] <= most
    assert max(record["staleness_mean"] for record in records) > 0.5
    assert records[-1]["nonfinite_gradients"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("name", sorted(register.algorithm))
def test_every_algorithm_trains_with_memory(name: str, memory: str) -> None:
    """All that is learned moves, the cells with it, and every gradient is finite."""
    few = ("system.versions=8", "total_steps=2048", "engine.chunk_rounds=4", "evaluation.episodes=0")
    trainer = Trainer(load_config([*RECALL, f"algorithm={name}", f"network.memory={memory}", *few]))
    before = jax.tree.leaves(trainer.network.unravel(trainer.seed_states.learned[0][0]))
    records = trainer.run()
    after = jax.tree.leaves(trainer.network.unravel(trainer.seed_states.learned[0][0]))
    assert records[-1]["nonfinite_gradients"] == 0 and np.isfinite(records[-1]["policy_loss"])
    assert all((np.asarray(a) != np.asarray(b)).any() for a, b in zip(before, after, strict=True))


def test_resumes_to_the_bit(tmp_path: Path) -> None:
    whole = Trainer(tiny("network.memory=lstm", "network.memory_size=4", "engine.chunk_rounds=3", steps(6)))
    whole.run()
    assert_resumes(whole, tmp_path)


@pytest.mark.parametrize("overlap", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_host_environments_resume_to_the_bit(overlap: str, tmp_path: Path) -> None:
    """Their episodes end inside fragments, between them, and where they are saved."""
    settings = ("network.memory=lstm", "network.memory_size=4", f"env.overlap={overlap}", "algorithm.minibatches=3")
    whole = Trainer(clockwork(*settings, "algorithm.rollout_length=2", "total_steps=72"))
    whole.run()
    whole.close()
    assert_resumes(whole, tmp_path)


def test_actors_on_the_host_carry_what_the_learner_computes() -> None:
    """They and `prepare`, which goes through the same sequences, say the same of every step."""
    trainer = Trainer(clockwork("network.memory=gru", "network.memory_size=4", "algorithm.minibatches=3", rounds=3))
    network, seen = trainer.network, []
    receive = trainer.source.receive
    trainer.source.receive = lambda *given: seen.append(receive(*given)) or seen[-1]  # type: ignore[method-assign]
    trainer.run()
    trainer.close()
    assert len(seen) >= 3
    for received, following in pairwise(seen):
        jax.tree.map(np.testing.assert_array_equal, received.carry, following.fragment.carry)
    for received in seen:
        fragment = jax.tree.map(lambda x: x[0], received.fragment)
        trajectory = fragment.trajectory
        dead = ~trajectory.valid
        assert dead.any()
        np.testing.assert_array_equal(trajectory.first[1:], dead)
        tree, carry = network.unravel(fragment.params), fragment.carry
        mean, variance = fragment.normalizers.obs.mean, fragment.normalizers.obs.variance
        for t, obs in enumerate(trajectory.obs):
            after_dead = (dead[t - 1] if t else np.zeros(len(obs), bool))[:, None]
            carry = jax.tree.map(lambda x, blank=after_dead: np.where(blank, 0.0, x), carry)
            scaled = np.clip((obs - mean) / np.sqrt(variance + 1e-8), -10, 10)
            parameters, carry = network.act(tree, scaled.astype(np.float32), carry)
            np.testing.assert_allclose(parameters, trajectory.distribution[t], atol=1e-4)


@pytest.mark.slow
def test_rounds_of_different_widths() -> None:
    """Environments that take no part in a round keep what is carried to them."""
    settings = ("network.memory=gru", "scaling=adapt", "scaling.target=40", "scaling.ends=false", "scaling.minimum=1")
    trainer = Trainer(scalable(*settings))
    widths, changed = set(), []
    while not trainer.finished:
        before = jax.device_get(trainer.state.actor.carry["actor_body"][0])
        envs = trainer.executor.planner.next().envs[0]
        widths.add(envs)
        trainer.step()
        after = jax.device_get(trainer.state.actor.carry["actor_body"][0])
        np.testing.assert_array_equal(after[envs:], before[envs:])
        changed.append(not np.array_equal(after[:envs], before[:envs]))
    assert len(widths) > 1 and all(changed)
    assert all(np.isfinite(leaf).all() for leaf in leaves(trainer) if leaf.dtype == np.float32)


# Policies ------------------------------------------------------------------------------------------------------------


def test_a_policy_is_handed_what_it_carries() -> None:
    env, config = make("diagnostic/recall", {}), Config().replace({"network.memory": "lstm", "network.memory_size": 5})
    network = ActorCritic(env.observation_space, env.action_space, config.network)
    params = network.init(jax.random.key(0))
    policy = Policy(network, params, init_normalizers(env.observation_space), config)
    obs = np.random.default_rng(0).normal(size=(6, 3, 1)).astype(np.float32)
    carry, one, tree = None, None, network.unravel(params)
    expected = network.initial_carry(3)
    for step in obs:
        parameters, expected = network.act(tree, step, expected)
        action, carry = policy.step(step, carry)
        np.testing.assert_array_equal(action, network.distribution.mode(parameters))
        alone, one = policy.step(step[1], one)
        assert alone.shape == () and alone == action[1]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), carry, expected)
    again = pickle.loads(pickle.dumps(policy))
    np.testing.assert_array_equal(
        again.step(obs[0], key=jax.random.key(0))[0], policy.step(obs[0], key=jax.random.key(0))[0]
    )
    with pytest.raises(ValueError, match=r"acts by action, carry = policy\.step\(obs, carry\)"):
        policy(obs[0])


# Positions alone -----------------------------------------------------------------------------------------------------


def test_velocities_are_hidden() -> None:
    """Columns of CartPole's (x, v, angle, rate), also in each of three frames; start, step and bounds agree."""
    stacked = make("gymnax/CartPole-v1", {}, Preprocessing(frame_stack=3))
    hidden = make("gymnax/CartPole-v1", {}, Preprocessing(frame_stack=3), ("positions",))
    seen = [0, 2, 4, 6, 8, 10]
    assert hidden.observation_space.shape == (6,)
    assert hidden.observation_space.high == tuple(stacked.observation_space.high[i] for i in seen)
    key = jax.random.key(0)
    (state, whole), (_, part) = stacked.reset_one(key), hidden.reset_one(key)
    np.testing.assert_array_equal(part, whole[np.array(seen)])
    after, found = stacked.step_one(key, state, jnp.int32(1)), hidden.step_one(key, state, jnp.int32(1))
    np.testing.assert_array_equal(found[1], after[1][np.array(seen)])
    with pytest.raises(
        ConfigError, match=r"env\.wrappers has positions, behind which diagnostic/recall has no velocities"
    ):
        make("diagnostic/recall", {}, wrappers=("positions",))


# What cannot be ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (
            ("env.num_envs=6", "algorithm.minibatches=4"),
            "algorithm.minibatches=4 must divide env.num_envs=6 with network",
        ),
        (("network.memory_size=0",), "network.memory_size must be at least 1"),
        (("network.memory=grue",), "network.memory must be one of none, gru, lstm"),
    ],
)
def test_refused(overrides: tuple[str, ...], part: str) -> None:
    assert part in complaint("network.memory=gru", *overrides)
