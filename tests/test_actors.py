"""Actors on the host: what they record, what is learned from it, overlap, faults, and restarts."""

from __future__ import annotations

import threading
import time
import traceback
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_env import Clockwork
from settings import hyper_of, loss_of
from training import HOST_ENVS as N
from training import LONG, T, assert_identical, clockwork, leaves

from stellaris_jax import Config, Trainer
from stellaris_jax.agent.losses.common import LossInputs, Samples
from stellaris_jax.agent.networks import ActorCritic, normalizer
from stellaris_jax.agent.networks.distributions import Categorical
from stellaris_jax.agent.networks.normalizer import RunningStatistics
from stellaris_jax.base.watch import ActorError
from stellaris_jax.config.sections import AlgorithmConfig, EnvConfig
from stellaris_jax.engine.prepare import prepare
from stellaris_jax.engine.rollout import EpisodeTotals, Normalizers, Trajectory, episode_totals
from stellaris_jax.runs.checkpoint import Checkpoints
from stellaris_jax.sources.host import HostSource
from stellaris_jax.sources.host_actors import Actors, Behaviour

pytestmark = pytest.mark.usefixtures("shared_programs")


def behaviour(actors: Actors, version: int = 0) -> Behaviour:
    """Random policies, distinct for every version."""
    example = actors.example(len(actors.seeds))
    generator = np.random.default_rng(version)
    params = generator.normal(size=example.params.shape).astype(np.float32)
    fresh = Normalizers(normalizer.init((4,)), normalizer.init(()))
    normalizers = jax.tree.map(lambda x: np.stack([np.asarray(x)] * len(params)), fresh)
    return Behaviour([version] * len(params), params, normalizers)


def make_actors(env: Clockwork, settings: Config, seeds: list[int]) -> Actors:
    network = ActorCritic(env.observation_space, env.action_space, settings.network)
    return Actors(env, network, settings, seeds, threading.Event())


def trained(settings: Config) -> Trainer:
    trainer = Trainer(settings)
    trainer.run()
    trainer.close()
    return trainer


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_fragments_are_what_the_environments_did(overlap: str) -> None:
    env = Clockwork()
    actors = make_actors(env, clockwork(f"env.overlap={overlap}"), [0, 1])
    actors.open(0)
    actors.request(behaviour(actors))
    steps, episodes = np.zeros((2, N), int), np.zeros((2, N), int)
    dead = np.zeros((2, N), bool)
    half = N // 2 if overlap == "true" else N
    lengths = np.tile(3 + np.arange(N) % half, (2, 1))
    for version in range(3):
        received = actors.receive()
        assert received.versions == [version] * 2
        actors.request(behaviour(actors, version + 1))
        trajectory = received.fragment.trajectory
        assert trajectory.obs.shape == (2, T, N, 4)
        for t in range(T):
            np.testing.assert_array_equal(trajectory.obs[:, t, :, 1], steps)
            np.testing.assert_array_equal(trajectory.obs[:, t, :, 2], episodes)
            np.testing.assert_array_equal(trajectory.valid[:, t], ~dead)
            steps, episodes = np.where(dead, 0, steps + 1), episodes + dead
            ended = ~dead & (steps == lengths)
            np.testing.assert_array_equal(trajectory.reward[:, t], np.where(dead, 0, steps))
            np.testing.assert_array_equal(trajectory.terminated[:, t], ended & (episodes % 2 == 0))
            np.testing.assert_array_equal(trajectory.truncated[:, t], ended & (episodes % 2 == 1))
            dead = ended
        np.testing.assert_array_equal(trajectory.last_obs[:, :, 1], steps)
        # The distribution is the given policy's at these observations, and actions are drawn from it.
        network = ActorCritic(env.observation_space, env.action_space, actors.config.network)
        for s in range(2):
            tree = network.unravel(received.fragment.params[s])
            obs = np.clip(trajectory.obs[s].reshape(-1, 4), -10, 10)
            expected = network.policy(tree, obs).reshape(T, N, 3)
            np.testing.assert_allclose(trajectory.distribution[s], expected, rtol=1e-4, atol=1e-5)
        assert set(np.unique(trajectory.action)) == {0, 1, 2}
        assert not np.array_equal(trajectory.action[0], trajectory.action[1])
    pools = [group.pool for groups in actors._groups for group in groups]
    assert len(pools) == (4 if overlap == "true" else 2)
    names = {name for pool in pools for name in pool.threads}
    assert names == {"actors"}  # whoever waits for them can be interrupted
    assert len({int(pool.seed[0]) for pool in pools}) == len(pools)
    actors.close()


def test_bootstrap_and_masks_against_numpy() -> None:
    """Every episode of a host trajectory alone, its last step bootstrapped from its own final observation."""
    env, settings = Clockwork(), clockwork("env.overlap=false", "env.normalize_observation=false")
    settings = settings.replace({"env.normalize_reward": False})
    network = ActorCritic(env.observation_space, env.action_space, settings.network)
    actors = Actors(env, network, settings, [0], threading.Event())
    actors.open(0)
    actors.request(behaviour(actors))
    fragment = jax.tree.map(lambda x: x[0], actors.receive().fragment)
    trajectory: Trajectory = fragment.trajectory
    done = trajectory.terminated | trajectory.truncated
    valid = trajectory.valid
    totals, carried = episode_totals(trajectory.reward, valid.astype(np.float32), done, jnp.zeros((N, 3)), 0.9)
    numbers = hyper_of(AlgorithmConfig(gamma=0.9, gae_lambda=0.8))
    seen = fragment.normalizers
    fragment = fragment._replace(trajectory=trajectory._replace(totals=totals))
    samples, _, episodes = prepare(network, numbers, EnvConfig(), fragment, seen)

    every = np.concatenate([trajectory.obs, trajectory.last_obs[None]])
    values = np.asarray(network.value(network.unravel(fragment.params), every.reshape(-1, 4))).reshape(T + 1, N)
    target, advantage = np.zeros((T, N)), np.zeros((T, N))
    for n in range(N):
        running = 0.0
        for t in reversed(range(T)):
            if not valid[t, n]:
                continue
            after = 0.0 if trajectory.terminated[t, n] else values[t + 1, n]
            chain = 0.0 if done[t, n] else running
            running = trajectory.reward[t, n] + 0.9 * after - values[t, n] + 0.9 * 0.8 * chain
            advantage[t, n], target[t, n] = running, running + values[t, n]
    keep = valid.reshape(-1)
    np.testing.assert_array_equal(samples.valid, keep)
    np.testing.assert_allclose(samples.target[keep], target.reshape(-1)[keep], rtol=1e-4)
    standard = (advantage[valid] - advantage[valid].mean()) / advantage[valid].std()
    np.testing.assert_allclose(samples.advantage[keep], standard, rtol=1e-3, atol=1e-4)
    assert int(episodes.ended) == done.sum()
    lengths = [3 + n for n in range(N) for _ in range(done[:, n].sum())]
    assert float(episodes.total_length) == sum(lengths)
    assert float(episodes.total_return) == sum(length * (length + 1) / 2 for length in lengths)
    assert np.asarray(carried)[~done[-1], 1].max() < 3 + N


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_what_is_learned_depends_on_no_evaluation_and_no_checkpoint(overlap: str, tmp_path: Path) -> None:
    """Nor do the episodes that are played: those of T steps and more end, too."""
    ended: list[int] = []

    def learned(points: int, interval: int) -> Trainer:
        settings = clockwork(
            f"env.overlap={overlap}", f"evaluation.points={points}", f"checkpoint.interval={interval}", *LONG
        )
        trainer = Trainer(settings)
        checkpoints = Checkpoints(tmp_path / f"{points}-{interval}", keep=1)
        records = []
        while not trainer.finished:
            records += trainer.step()
            if trainer.round in trainer.schedule.evaluation_rounds:
                trainer.evaluate()
            if trainer.round in trainer.schedule.checkpoint_rounds:
                trainer.save(checkpoints)
        trainer.close()
        checkpoints.close()
        ended.append(sum(record["episodes"] for record in records))
        return trainer

    one = learned(1, 0)
    for points, interval in ((50, 0), (1, 1), (3, 4)):
        assert_identical(one, learned(points, interval))
    assert len(set(ended)) == 1 and ended[0] > 0


def test_nothing_is_learned_from_dead_transitions() -> None:
    """The loss with a mask is the loss of the valid rows alone, in value and gradient, whatever the others hold."""
    generator, distribution = np.random.default_rng(0), Categorical(3)
    rows = 12
    valid = np.arange(rows) % 4 != 0

    def columns(keep: np.ndarray) -> tuple[Samples, jax.Array, jax.Array]:
        draw = np.random.default_rng(1)
        x = {name: draw.normal(size=rows).astype(np.float32)[keep] for name in ("value", "advantage", "target", "v")}
        logits, old = (draw.normal(size=(rows, 3)).astype(np.float32)[keep] for _ in range(2))
        action = draw.integers(0, 3, rows)[keep]
        log_prob = distribution.log_prob(old, action)
        obs = np.zeros((keep.sum(), 1))
        return Samples(obs, action, old, log_prob, x["value"], x["advantage"], x["target"]), logits, x["v"]

    def loss(logits: jax.Array, value: jax.Array, batch: Samples) -> Any:
        peers = jnp.zeros_like(value)
        settings = (hyper_of(), jnp.float32(0.2), rows, logits, value, peers, "weight")
        inputs = LossInputs(batch, distribution, *settings)
        return loss_of(AlgorithmConfig(), inputs)

    gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
    whole, logits, value = columns(np.ones(rows, bool))
    junk = jnp.where(valid, whole.advantage, 1e6 * generator.normal(size=rows).astype(np.float32))
    masked, metrics = gradient(logits, value, whole._replace(valid=valid, advantage=junk))
    part, logits, value = columns(valid)
    expected, expected_metrics = gradient(logits, value, part)
    for one, other in zip(masked, expected, strict=True):
        np.testing.assert_allclose(one[valid], other, rtol=1e-4, atol=1e-7)
        assert not np.any(one[~valid])
    assert metrics.keys() == expected_metrics.keys()
    for name, metric in metrics.items():
        np.testing.assert_allclose(metric, expected_metrics[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_runs_repeat_themselves_and_survive_restarts(overlap: str, tmp_path: Path) -> None:
    overrides = [f"env.overlap={overlap}", "checkpoint.interval=2", "num_seeds=2"]
    whole = trained(clockwork(*overrides))
    slow = trained(clockwork(*overrides, "env.kwargs.slow=0.002"))
    assert_identical(whole, slow)

    first = Trainer(clockwork(*overrides))
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3)
    first.run(4)
    first.save(checkpoints)
    first.run(1)  # what happens after the checkpoint is lost, and the next fragment is on its way
    second = Trainer(clockwork(*overrides))
    for trainer in (first, second):
        assert trainer.restore(checkpoints) == 4
        trainer.run()
        trainer.close()
        assert_identical(trainer, whole)
    checkpoints.close()
    start = Trainer(clockwork(*overrides))
    assert any(a.tobytes() != b.tobytes() for a, b in zip(leaves(start), leaves(whole), strict=True))


def test_staleness_of_actors_is_the_real_one() -> None:
    """Synchronous updates, two per round: with overlap data is one round old, and with pipelined actors, whose data
    waits while the learners finish the fragment before, one more."""
    synchronous = ["system=allreduce", "system.learners=4", "checkpoint.interval=3", "algorithm.epochs=2"]
    cases = {
        ("true", "barrier"): [0, 2, 2, 2, 2, 2],
        ("false", "barrier"): [0] * 6,
        ("true", "pipelined"): [0, 2, 4, 4, 4, 4],
        ("false", "pipelined"): [0, 2, 2, 2, 2, 2],
    }
    for (overlap, actors), expected in cases.items():
        trainer = Trainer(clockwork(*synchronous, f"env.overlap={overlap}", f"system.actors={actors}"))
        records = trainer.run()
        trainer.close()
        assert [record["actor_staleness"] for record in records] == expected
        late = 2 * (actors == "pipelined")
        assert [record["updates"] for record in records] == [number - late for number in (2, 4, 6, 8, 10, 12)]


@pytest.mark.parametrize("overlap", ["true", "false"])
@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_a_failing_environment_ends_the_run_with_its_own_traceback(overlap: str, error: type[BaseException]) -> None:
    trainer = Trainer(clockwork(f"env.overlap={overlap}"))
    assert isinstance(trainer.source, HostSource)
    trainer.source.actors.env = Clockwork(fails=40, error=error)
    with pytest.raises(error, match="the clockwork broke") as caught:
        trainer.run()
    assert "send" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert trainer.round >= 1
    trainer.close()


def test_a_thread_that_vanishes_is_noticed() -> None:
    trainer = Trainer(clockwork())
    trainer.step()
    assert isinstance(trainer.source, HostSource)
    watch = trainer.source.actors._watch
    assert watch._thread is not None
    watch._calls.put(None)
    watch._thread.join()
    watch._results.get()  # the fragment it had finished
    begin = time.monotonic()
    with pytest.raises(ActorError, match="died"):
        trainer.run()
    assert time.monotonic() - begin < 30
    trainer.close()


def test_evaluation_reads_the_normalisers_only() -> None:
    trainer = trained(clockwork("env.overlap=false"))
    before = leaves(trainer)
    first, second = trainer.evaluate(5), trainer.evaluate(5)
    np.testing.assert_array_equal(first.returns, second.returns)
    np.testing.assert_array_equal(first.lengths, [[3, 4, 5, 6, 7]])
    np.testing.assert_array_equal(first.returns, first.lengths * (first.lengths + 1) / 2)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(before, leaves(trainer), strict=True))


def test_statistics_leave_dead_transitions_out() -> None:
    """The reward normaliser of a host trajectory is that of its valid steps alone."""
    env, settings = Clockwork(), clockwork("env.overlap=false")
    network = ActorCritic(env.observation_space, env.action_space, settings.network)
    actors = Actors(env, network, settings, [0], threading.Event())
    actors.open(0)
    actors.request(behaviour(actors))
    fragment = jax.tree.map(lambda x: x[0], actors.receive().fragment)
    trajectory = fragment.trajectory
    done = trajectory.terminated | trajectory.truncated
    totals, _ = episode_totals(trajectory.reward, trajectory.valid.astype(np.float32), done, jnp.zeros((N, 3)), 0.99)
    seen: Normalizers = fragment.normalizers
    fragment = fragment._replace(trajectory=trajectory._replace(totals=totals))
    _, after, _ = prepare(network, hyper_of(), settings.env, fragment, seen)
    statistics: RunningStatistics = after.reward
    kept = np.asarray(EpisodeTotals.of(totals).discounted_return)[trajectory.valid]
    np.testing.assert_allclose(statistics.samples, kept.size)
    np.testing.assert_allclose(statistics.mean, kept.mean(), rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, kept.var(), rtol=1e-4)


def test_dead_transitions_are_no_part_of_a_sequence() -> None:
    """They stay in their place in `[T, N]`, one after every end, and sequences around them train."""
    settings = clockwork(
        "algorithm=impact", "algorithm.minibatches=3", "algorithm.options.target_interval=2", "env.overlap=false"
    )
    trainer = Trainer(settings)
    before = np.asarray(trainer.state.params)
    trainer.run(1)
    after, samples = np.asarray(trainer.state.params), jax.tree.map(lambda x: x[0], trainer.state.loader.fragments)
    dead = ~np.asarray(samples.valid)
    assert dead.any() and np.isfinite(after).all() and not np.array_equal(before, after)
    ended = np.asarray(samples.steps.terminated | samples.steps.truncated).reshape(T, N)
    np.testing.assert_array_equal(dead.reshape(T, N)[1:], ended[:-1])
    trainer.run()
    trainer.close()
    assert trainer.counters.nonfinite == 0
