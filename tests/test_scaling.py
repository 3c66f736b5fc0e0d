"""Scaling actors: the rules, what a round of I actors collects, trains on and costs, and that masks change nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

import jax
import numpy as np
import pytest
from host_env import Clockwork
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import WIDE, seen
from training import ACTORS, EACH, T, assert_resumes, scalable

from stellaris_jax import Config, ConfigError, Trainer, load_config
from stellaris_jax.agent.networks import ActorCritic, normalizer
from stellaris_jax.engine.rollout import Normalizers
from stellaris_jax.execute.records import Accounts
from stellaris_jax.execute.run import train
from stellaris_jax.report.gantt import plot_timeline
from stellaris_jax.runs.checkpoint import to_host
from stellaris_jax.sources.compiled import CompiledSource
from stellaris_jax.sources.host_actors import Actors, Behaviour
from stellaris_jax.telemetry.logger import RunInfo
from stellaris_jax.telemetry.tensorboard import EventLog
from stellaris_jax.timeline import MinibatchLayout, Timeline, Usage, minibatch_order
from stellaris_jax.timeline.billing import bill
from stellaris_jax.timeline.scaling import limits_of
from stellaris_jax.timeline.scaling.rules import Nitro

# Widths and minibatches ----------------------------------------------------------------------------------------------


def test_widths() -> None:
    assert limits_of(scalable()) == (128, 128, 1, (128,))
    assert limits_of(scalable("scaling=nitro")) == (8, 1, 2, (1, 2, 4, 8))
    assert limits_of(scalable("scaling=nitro", "scaling.minimum=2", "scaling.maximum=0")) == (16, 2, 1, (2, 4, 8, 16))
    assert limits_of(scalable("scaling.actors=3")) == (8, 3, 2, (3,))
    assert limits_of(scalable("scaling=max", "scaling.actors=3")) == (8, 8, 2, (8,))
    assert [WIDE.bucket(n) for n in (0, 1, 8, 9, 33, 64)] == [8, 8, 8, 16, 64, 64]


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["scaling=nitro", "scaling.maximum=5"], ["env.num_envs=16", "scaling.maximum=5"]),
        (["scaling=nitro", "scaling.maximum=256", "env.num_envs=256"], ["scaling.maximum=256", "platform.actors=128"]),
        (["scaling=nitro", "scaling.minimum=9"], ["scaling.minimum=9", "scaling.maximum=8"]),
        (["scaling.actors=9"], ["scaling.actors=9", "scaling.maximum=8"]),
        (["scaling=adapt"], ["scaling.rule=adapt", "scaling.target"]),
        (["scaling=nitro", "scaling.minimum=4", "scaling.actors=2"], ["scaling.actors=2", "scaling.minimum=4"]),
        (["scaling=adapt", "scaling.target=-5"], ["scaling.target", "-5"]),
        (["scaling=nitrox"], ["nitrox", "nitro"]),
    ],
)
def test_mistakes_are_one_sentence(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        scalable(*overrides)
    for part in parts:
        assert part in str(caught.value)
    assert str(caught.value).count("\n") == 0


@given(
    epochs=st.integers(1, 3),
    minibatches=st.sampled_from([1, 2, 4]),
    envs=st.integers(1, 8),
    extra=st.integers(0, 4),
    sequences=st.booleans(),
)
def test_minibatches_hold_every_sample_once_an_epoch(
    epochs: int, minibatches: int, envs: int, extra: int, sequences: bool
) -> None:
    steps, width = 4, min(8, envs + extra)
    cut = MinibatchLayout(epochs, minibatches, steps, 8, steps if sequences else 1)
    order = minibatch_order(1, 2, cut, envs, width)
    assert order.shape == (epochs * cut.count(envs), cut.batch)
    for epoch in np.split(order, epochs):
        rows = np.sort(epoch[epoch >= 0])
        step, env = np.divmod(rows, width)
        np.testing.assert_array_equal(step, np.repeat(np.arange(steps), envs))
        np.testing.assert_array_equal(env, np.tile(np.arange(envs), steps))
        sizes = np.sum(epoch >= 0, axis=1)
        assert np.ptp(sizes) <= cut.length and np.all(sizes > 0)
        if sequences:
            column = epoch.reshape(len(epoch), steps, -1)
            assert np.all((column < 0) == (column[:, :1] < 0))
            kept = np.broadcast_to(column[:, :1] >= 0, column.shape)
            np.testing.assert_array_equal((column // width)[kept], np.broadcast_to(
                np.arange(steps)[:, None], column.shape)[kept])  # fmt: skip


def test_a_full_round_is_cut_as_without_scaling() -> None:
    cut = MinibatchLayout(3, 4, 16, 8)
    order = minibatch_order(3, 5, cut)
    assert order.shape == (12, 32) and order.min() == 0
    np.testing.assert_array_equal(order, minibatch_order(3, 5, cut, 8, 8))


# Rounds --------------------------------------------------------------------------------------------------------------


# PPO's masks are also in test_devices_change_nothing_in_narrow_rounds.
@pytest.mark.parametrize("algorithm", [pytest.param("ppo", marks=pytest.mark.slow), "impact"])
def test_a_wider_program_changes_nothing(algorithm: str) -> None:
    """Rounds of 3 actors run compiled for exactly 3 and for 8, five of them masked."""
    settings = scalable("scaling.actors=3", f"algorithm={algorithm}", "algorithm.minibatches=4", "algorithm.epochs=2")
    exact, masked = Trainer(settings), Trainer(settings)
    before = to_host(exact.state.actor)
    assert isinstance(masked.source, CompiledSource)
    masked.schedule.limits = masked.schedule.limits._replace(buckets=(8,))
    narrow, wide = exact.run(), masked.run()
    assert list(exact.engine.compiled) == [(6,)] and list(masked.engine.compiled) == [(16,)]
    assert [r["env_steps"] for r in narrow] == [k * T * 3 * EACH for k in range(1, 7)]
    for one, other in zip(narrow, wide, strict=True):
        assert one["train_return"] == pytest.approx(other["train_return"], nan_ok=True)
        assert one["policy_loss"] == pytest.approx(other["policy_loss"], rel=1e-3, abs=1e-5)
    for one, other in zip(to_host(exact.state.params), to_host(masked.state.params), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    # Actors that take part are as they would be; the others stand where they were.
    after = (to_host(x.state.actor) for x in (exact, masked))
    for start, one, other in zip(before, *after, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(other[:, 6:], start[:, 6:])


def test_four_actors_are_a_run_of_four_actors() -> None:
    """Four of 8 actors collect and learn from the same data as a run of 8 environments in all."""
    common = ["system=central", "system.learners=1", "delays=constant", "env.normalize_reward=true"]
    scaled = Trainer(scalable(*common, "scaling.actors=4"))
    plain = Trainer(
        scalable(*common, "scaling.maximum=0", "env.num_envs=8", "algorithm.minibatches=2", f"total_steps={6 * T * 8}")
    )
    ours, theirs = scaled.run(), plain.run()
    assert [r["env_steps"] for r in ours] == [r["env_steps"] for r in theirs]
    assert [r["updates"] for r in ours] == [r["updates"] for r in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one["train_return"] == pytest.approx(other["train_return"], nan_ok=True)
    np.testing.assert_allclose(scaled.state.params, plain.state.params, rtol=1e-3, atol=1e-4)
    for a, b in zip(to_host(scaled.state.normalizers), to_host(plain.state.normalizers), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@cache
def ruled(rule: str) -> Config:
    learners = 1 if rule == "central" else 3
    return scalable("scaling=nitro", f"system.rule={rule}", f"system.learners={learners}", "delays=constant")


@given(actors=st.lists(st.integers(0, 8), min_size=1, max_size=6), rule=st.sampled_from(["central", "stellaris"]))
@settings(max_examples=25, deadline=None)
def test_a_round_costs_its_actors_and_no_others(actors: list[int], rule: str) -> None:
    settings_ = ruled(rule)
    timeline = Timeline.of(settings_, 0)
    gradients, before, collected = 0, 0.0, 0
    for k, i in enumerate(actors):
        record = timeline.next_round(i, 2 * i)
        gradients, collected = gradients + 2 * i, collected + i
        usage = record.usage
        assert usage.actor_invocations == collected and usage.gradients == gradients
        assert usage.actor_busy == pytest.approx(collected * (3.6 + 2 * settings_.platform.cache))
        if i == 0:
            assert usage.seconds == before
        looked = sum(n > 0 for n in actors[1 : k + 1])
        assert usage.scaling_busy == pytest.approx(0.4 * looked)
        before = usage.seconds
    system = replace(settings_.system, actor_billing="serverless")
    items = bill(system, settings_.prices, timeline.usage, 8).items
    # A slot is $0.03825 an hour for an actor and $0.765 for a learner.
    assert items["actor_busy"] == pytest.approx(1.0625e-5 * timeline.usage.actor_busy)
    assert items["scaling_busy"] == pytest.approx(2.125e-4 * timeline.usage.scaling_busy)


def test_new_actors_start_cold() -> None:
    settings_ = scalable("scaling=nitro", "delays=constant", "platform.prewarm=false", "platform.actor_cold_start=2.0")
    timeline = Timeline.of(settings_, 0)
    assert timeline.next_round(2, 4).usage.actor_startup == 4.0
    assert timeline.next_round(2, 4).usage.actor_startup == 4.0
    assert timeline.next_round(5, 10).usage.actor_startup == 10.0


def test_concurrency_is_reserved_for_the_actors_there_may_be() -> None:
    """Gradients of every round where that is fixed, else the most; other costs of a round are the same."""
    common = ["platform=lambda", "prices=lambda", "system=nitro", "system.learners=1", "delays=constant"]
    fixed = Accounts(scalable(*common, "scaling.actors=2"))
    scaled = Accounts(scalable(*common, "scaling=nitro"))
    usage = Usage(seconds=100.0, actor_busy=50.0, actor_invocations=4)
    dollars = [accounts.money([usage])["cost_usd"][0] for accounts in (fixed, scaled)]
    assert dollars[1] - dollars[0] == pytest.approx(6 * 100.0 * fixed.config.prices.reserved_gb_second)
    assert [accounts.env_steps([usage]) for accounts in (fixed, scaled)] == [4 * EACH * T] * 2


def test_nitro_trains_and_only_compiles_its_widths() -> None:
    small = ["scaling.minimum=2", "scaling.options.lanczos=4"]
    trainer = Trainer(scalable("scaling=nitro", *small, "scaling.options.decay=0.7", "num_seeds=2", rounds=10))
    records = trainer.run()
    chosen = np.array([record["per_seed"]["actors"] for record in records])
    assert np.all(chosen[0] == 2) and len(np.unique(chosen)) > 2
    assert {width for (width,) in trainer.engine.compiled} == {
        trainer.schedule.limits.bucket(max(row)) * EACH for row in chosen
    }
    assert set(trainer.engine.compiled) <= {(4,), (8,), (16,)}
    steps = np.cumsum(chosen, axis=0) * EACH * T
    assert [record["env_steps"] for record in records] == pytest.approx(steps.mean(axis=1))
    # Every seed chooses by what was measured of it.
    for s in range(2):
        rounds = [seen(k, probe=tuple(record["per_seed"]["probe"][s])) for k, record in enumerate(records, 1)]
        rule = Nitro(trainer.config.scaling, trainer.schedule.limits)
        for observation, next_ in zip(rounds, chosen[1:, s], strict=False):
            rule.observe(observation)
            assert rule.actors == next_
    assert trainer.summary(None)["detection_seconds"] > 0


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_devices_change_nothing_in_narrow_rounds() -> None:
    one, two = (Trainer(scalable("scaling.actors=3", f"engine.devices={n}", rounds=3)) for n in (1, 2))
    one.run()
    two.run()
    np.testing.assert_allclose(one.state.params, two.state.params, rtol=1e-3, atol=1e-4)
    for a, b in zip(to_host(one.state.actor), to_host(two.state.actor), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_interrupted_runs_of_several_seeds_go_on(tmp_path: Path) -> None:
    """Their mean env steps need not be whole."""
    scaling = ["scaling=adapt", "scaling.target=24", "scaling.options.window=1", "scaling.minimum=4"]
    scaling.append("scaling.ends=false")
    more = ["algorithm.anneal=false", "num_seeds=3", "run.progress=false", f"run.dir={tmp_path / 'run'}"]
    train(scalable(*scaling, *more, rounds=4))
    summary = train(load_config([f"resume={tmp_path / 'run'}", f"total_steps={6 * T * ACTORS * EACH}"]))
    assert summary["rounds"] == 6 and summary["env_steps"] % 1 != 0
    EventLog(RunInfo(tmp_path, {}, resume_round=3, last_env_steps=12.5)).close()


def test_timelines_of_scaled_rounds_are_drawn(tmp_path: Path) -> None:
    plot_timeline(scalable("scaling.actors=2"), 2, tmp_path / "timeline.png")
    with pytest.raises(ConfigError, match=r"scaling\.rule=nitro"):
        plot_timeline(scalable("scaling=nitro"), 2, tmp_path / "timeline.png")


def test_seeds_that_are_finished_compute_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(scalable("scaling.budget=0.03", "num_seeds=3", "scaling=hydrozoa", "delays=lognormal", rounds=40))
    placed, ran = trainer.engine.placed, []

    def noted(*arguments: Any) -> Any:
        ran.append(1)
        return placed(*arguments)

    monkeypatch.setattr(trainer.engine, "placed", noted)
    expected = 0
    while not trainer.finished:
        expected += sum(not scaling.finished for scaling in trainer.schedule.scalings)
        trainer.step()
    assert len(ran) == expected < 3 * trainer.round
    assert np.asarray(trainer.state.round).tolist() == [trainer.round] * 3


def test_seeds_that_are_finished_stay_as_they_are() -> None:
    """Until the last one is finished, which ends the run."""
    trainer = Trainer(scalable("scaling.budget=0.03", "num_seeds=3", "scaling=hydrozoa", "delays=lognormal", rounds=40))
    records, states = [], []
    while not trainer.finished:
        records += trainer.step()
        states.append(np.array(trainer.state.params))
    costs = np.array([record["per_seed"]["cost_usd"] for record in records])
    actors = np.array([record["per_seed"]["actors"] for record in records])
    assert 2 < len(records) < 40 and np.all(costs[-1] >= 0.03)
    np.testing.assert_array_equal(actors[1:] == 0, costs[:-1] >= 0.03)
    idle = [(k, s) for k, s in zip(*np.nonzero(actors == 0), strict=True)]
    assert idle, "no seed finished before another"
    # Losses are means over the seeds that learn: the entropy of two actions is near log 2 here, and never halved.
    assert all(record["entropy"] > 0.5 for record in records)
    for k, s in idle:
        assert costs[k, s] == costs[k - 1, s]
        np.testing.assert_array_equal(states[k][s], states[k - 1][s])
    assert trainer.step() == []


@pytest.mark.parametrize(
    "rule",
    [
        ["scaling=nitro", "scaling.options.lanczos=4"],
        ["scaling=kungfu"],
        ["scaling=hydrozoa", "scaling.options.interval=2"],
    ],
    ids=["nitro", "kungfu", "hydrozoa"],
)
def test_resumed_runs_scale_alike(rule: list[str], tmp_path: Path) -> None:
    settings_ = scalable(*rule, "scaling.minimum=4", "system.actors=pipelined", "checkpoint.interval=3")
    whole = Trainer(settings_)
    whole.run()
    assert_resumes(whole, tmp_path)


# Host environments ---------------------------------------------------------------------------------------------------


def host(*overrides: str) -> Config:
    return scalable("env.name=test/clockwork", "env.num_envs=8", *overrides)


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_host_actors_that_are_not_asked_stand_still(overlap: str) -> None:
    settings_ = host("scaling=nitro", f"env.overlap={overlap}")
    env = Clockwork()
    network = ActorCritic(env.observation_space, env.action_space, settings_.network)
    actors = Actors(env, network, settings_, [0, 1], Event())
    example = actors.example(2)
    statistics = Normalizers(normalizer.init((4,)), normalizer.init(()))
    fresh = jax.tree.map(lambda x: np.stack([np.asarray(x)] * 2), statistics)
    behaviour = Behaviour([0, 0], np.zeros_like(example.params), fresh)
    taken = np.zeros((2, 8), int)
    orders = [[3, 8], [8, 0], [1, 5]]
    actors.open(0)
    actors.request(behaviour, orders[0])
    for k, envs in enumerate(orders):
        trajectory = actors.receive().fragment.trajectory
        for s, n in enumerate(envs):
            taken[s, :n] += T
            assert np.all(trajectory.valid[s, :, :n].any(axis=0)) or n == 0
            assert not trajectory.valid[s, :, n:].any() and not trajectory.reward[s, :, n:].any()
        for pool, expected in zip([groups[0].pool for groups in actors._groups], taken, strict=True):
            # Each episode before took its steps and the dead one after it.
            np.testing.assert_array_equal(pool.steps + pool.episodes * (pool.lengths + 1), expected)
        if k + 1 < len(orders):
            actors.request(behaviour, orders[k + 1])
    actors.close()


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_host_runs_scale_and_resume(overlap: str, tmp_path: Path) -> None:
    settings_ = host("scaling=nitro", f"env.overlap={overlap}", "checkpoint.interval=3", "num_seeds=2")
    whole = Trainer(settings_)
    records = whole.run()
    whole.close()
    assert len({n for record in records for n in record["per_seed"]["actors"]}) > 1
    assert list(whole.engine.compiled) == [(8,)]
    assert_resumes(whole, tmp_path)
