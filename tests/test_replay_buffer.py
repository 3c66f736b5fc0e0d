"""Replay buffer: its draws, its transitions of n steps, and runs that learn from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_replay import Step, transition

from stellaris_jax import load_config
from stellaris_jax.agent.losses.common import Samples
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.config.buffer import ReplayBuffer
from stellaris_jax.engine.learner import DataLoader
from stellaris_jax.engine.prepare import Collected
from stellaris_jax.engine.replay_buffer import Transitions
from stellaris_jax.engine.transitions import Window, transitions
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.runs.checkpoint import Checkpoints
from stellaris_jax.sources.replay_log import ReplayLog
from stellaris_jax.timeline.replay import distinct, drawn_minibatches

pytestmark = pytest.mark.usefixtures("shared_programs")

SMALL = ("algorithm=dqn", "env=diagnostic/terminating", "env.num_envs=4", "algorithm.rollout_length=4",
         "network.hidden=[16]", "algorithm.options.batch_size=8", "algorithm.options.learning_starts=32",
         "algorithm.options.updates_per_step=0.25", "algorithm.options.buffer_size=160", "engine.chunk_rounds=8",
         "evaluation.episodes=0", "total_steps=512", "system=allreduce", "system.learners=1",
         "delays.aggregate.kind=constant", "delays.aggregate.seconds=0")  # fmt: skip


def trainer_of(*overrides: str) -> Trainer:
    return Trainer(load_config([*SMALL, *overrides]))


def params(trainer: Trainer) -> np.ndarray:
    return np.asarray(trainer.state.params)


def hand_over(first: Trainer, second: Trainer, directory: Path) -> None:
    """Train 16 rounds, after which another trainer continues."""
    first.run(16)
    checkpoints = Checkpoints(directory, keep=1)
    first.save(checkpoints)
    checkpoints.wait()
    second.restore(checkpoints)
    checkpoints.close()


# Draws ---------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**32))
def test_draws_do_not_repeat_within_a_minibatch(population: int, rows: int, size: int, seed: int) -> None:
    drawn = distinct(np.random.default_rng(seed), population, (rows, size))
    for row in drawn:
        there = row[row >= 0]
        assert len(there) == min(size, population) == len(set(there.tolist()))
        assert there.max() < population


@pytest.mark.parametrize("population", [7, 40, 1000])
def test_draws_are_uniform(population: int) -> None:
    drawn = distinct(np.random.default_rng(0), population, (4000, 5))
    counts = np.bincount(drawn.ravel(), minlength=population)
    expected = 4000 * 5 / population
    chi2 = np.sum((counts - expected) ** 2) / expected
    assert abs(chi2 - population) < 6.0 * np.sqrt(2.0 * population), "chi-square has about this mean and deviation"
    for column in drawn.T:  # each place of a minibatch as well
        assert abs(column.mean() - (population - 1) / 2) < 5.0 * population / np.sqrt(12 * 4000)


@given(st.integers(0, 60), st.integers(1, 6), st.integers(1, 3), st.integers(0, 10), st.integers(1, 8))
def test_rows_are_those_of_the_newest_batches(batch: int, batches: int, spare: int, waiting: int, samples: int) -> None:
    buffer = ReplayBuffer(batches, batches + spare - 1, batch=1, gradients=200, waiting=waiting, steps=1)
    rows = drawn_minibatches(np.random.default_rng(batch), buffer, samples, batch)
    if batch < waiting:
        assert rows.shape == (0, 1)
        return
    # A buffer as a list: each batch overwrites the oldest place.
    places: list[int | None] = [None] * buffer.stored
    for number in range(batch + 1):
        places[number % buffer.stored] = number
    newest = range(max(0, batch - batches + 1), batch + 1)
    allowed = {place * samples + k for place, number in enumerate(places) if number in newest for k in range(samples)}
    assert {*rows.ravel().tolist()} <= allowed
    if len(allowed) < 20:
        assert {*rows.ravel().tolist()} == allowed, "200 draws find them all"


# Transitions ---------------------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[Step]], int, int, int]:
    """Histories of environments `[N][steps]`, the number of fragments, their length T, and n."""
    envs, fragments, length, n = (draw(st.integers(1, most)) for most in (3, 4, 5, 6))
    flags = st.sampled_from([(False, False), (False, False), (True, False), (False, True)])

    def history() -> list[Step]:
        steps = []
        for _ in range(fragments * length):
            terminated, truncated = draw(flags)
            valid = draw(st.sampled_from([True, True, True, False]))
            reward, obs, following = (draw(st.integers(-9, 9)) for _ in range(3))
            steps.append(Step(obs, draw(st.integers(0, 3)), reward, terminated, truncated, valid, following))
        return steps

    return [history() for _ in range(envs)], fragments, length, n


@settings(max_examples=60, deadline=None)
@given(histories(), st.floats(0.0, 1.0))
def test_transitions_cross_the_borders_of_fragments(made: Any, gamma: float) -> None:
    every, fragments, length, n = made
    columns = [np.array([[getattr(s, name) for s in steps] for steps in every]).T for name in Step._fields]
    data = dict(zip(Step._fields, columns, strict=True))
    data = {name: x.astype(np.float32) if x.dtype == int else x for name, x in data.items()}
    data |= {name: data[name][..., None] for name in ("obs", "next_obs")}
    window = Window.empty(len(every), n, data["obs"].reshape(-1, 1), data["action"].reshape(-1))
    rest = dict.fromkeys(("raw_obs", "distribution", "value", "next_value", "discounted_return", "first"))
    parts = []
    for fragment in range(fragments):
        part = slice(fragment * length, (fragment + 1) * length)
        collected = Collected(**{name: x[part] for name, x in data.items()}, **rest)  # type: ignore[arg-type]
        found, window = transitions(collected, window, n, np.float32(gamma))
        parts.append(found)
    found = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    for env, steps in enumerate(every):
        for place in range(fragments * length):
            begin = place - (n - 1)
            assert found.valid[place, env] == (begin >= 0 and steps[begin].valid)
            if begin < 0 or not steps[begin].valid:
                continue
            expected = transition(steps, begin, n, float(np.float32(gamma)))
            numbers = (found.obs[place, env, 0], found.action[place, env], found.reward[place, env],
                       found.discount[place, env], found.next_obs[place, env, 0])  # fmt: skip
            np.testing.assert_allclose(numbers, expected, rtol=1e-5, atol=1e-5)


# Runs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
def test_staleness_0_is_the_synchronous_trainer(steps: int) -> None:
    """One learner is never stale, under any rule; independent actors of one shard without overlap do the same."""
    option = f"algorithm.options.n_step={steps}"
    plain = trainer_of(option)
    plain.run()
    for others in (["system=async", "system.actors=barrier"], ["system=ssp", "system.actors=barrier"],
                   ["system.actors=independent", "system.actor_shards=1", "system.data_admission=bounded",
                    "system.data_admission_options.bound=0", "system.data_admission_options.by=wait"],
                   ["system.actors=independent", "system.actor_shards=2", "system.data_admission=bounded",
                    "system.data_admission_options.bound=0", "system.data_admission_options.by=wait"]):  # fmt: skip
        trainer = trainer_of(option, *others)
        trainer.run()
        np.testing.assert_array_equal(params(trainer), params(plain), err_msg=str(others))


@pytest.mark.parametrize("others", [
    (), ("algorithm.options.n_step=3",), ("system=stellaris", "system.truncation=none", "system.learners=3"),
    ("system=async", "system.learners=3", "system.actors=independent", "system.actor_shards=2",
     "system.sync_steps=2", "algorithm.options.n_step=2"),
    ("algorithm=sac", "env=gymnax/pendulum", "env.num_envs=4", "network.hidden=[8]"),
])  # fmt: skip
def test_runs_continue_to_the_bit(others: tuple[str, ...], tmp_path: Path) -> None:
    whole, first, second = (trainer_of(*others) for _ in range(3))
    whole.run()
    hand_over(first, second, tmp_path)
    second.run()
    assert second.round == whole.round == 32
    np.testing.assert_array_equal(params(second), params(whole))
    assert not np.array_equal(params(whole), params(first)), "it learned meanwhile"


# Five batches are stored, so that the two halves of the rows meet within a batch.
SHARED = ("algorithm.options.n_step=3", "env.num_envs=8")


@pytest.mark.parametrize("others", [
    (),
    ("system=async", "system.learners=4", "engine.lanes=2"),
    ("system.actors=independent", "system.actor_shards=2"),
    ("num_seeds=2", "engine.members=together"),
    ("algorithm=sac", "env=gymnax/pendulum"),
])  # fmt: skip
def test_several_devices_share_the_buffer_and_learn_the_same(others: tuple[str, ...]) -> None:
    one, two = trainer_of(*SHARED, *others), trainer_of(*SHARED, *others, "engine.devices=2")
    for trainer in (one, two):
        trainer.run()
    np.testing.assert_allclose(params(two), params(one), rtol=1e-4, atol=1e-5)
    alone, shared = (trainer.state.loader.fragments for trainer in (one, two))
    np.testing.assert_array_equal(alone.version, shared.version)
    np.testing.assert_array_equal(alone.action, shared.action)
    np.testing.assert_array_equal(alone.transition.reward, shared.transition.reward)
    for leaf in jax.tree.leaves(shared):
        assert [part.data.shape[1] for part in leaf.addressable_shards] == [leaf.shape[1] // 2] * 2


@pytest.mark.parametrize("others", [(), ("system.actors=independent", "system.actor_shards=2")])
def test_a_shared_buffer_continues_on_fewer_devices(others: tuple[str, ...], tmp_path: Path) -> None:
    common = (*SHARED, *others)
    whole, first, second = trainer_of(*common), trainer_of(*common, "engine.devices=2"), trainer_of(*common)
    whole.run()
    hand_over(first, second, tmp_path)
    stored = (trainer.state.loader.fragments for trainer in (first, second))
    jax.tree.map(np.testing.assert_array_equal, *stored)
    second.run()
    np.testing.assert_allclose(params(second), params(whole), rtol=1e-4, atol=1e-5)


def test_data_lag_is_the_age_of_what_is_drawn() -> None:
    """With a full buffer of K batches and u updates a round, transitions are (K - 1) / 2 rounds old on average."""
    trainer = trainer_of("total_steps=4096", "algorithm.options.learning_starts=0", "algorithm.options.batch_size=16")
    records = trainer.run()
    batches, updates = 10, 4
    lags = [record["data_lag"] for record in records[50:]]
    # A learner's version is ahead of its round's own by the updates before it in the round.
    assert np.mean(lags) == pytest.approx(updates * (batches - 1) / 2 + (updates - 1) / 2, rel=0.03)


def test_rounds_before_learning_starts_have_no_gradients() -> None:
    records = trainer_of().run()
    assert [record["updates"] for record in records[:5]] == [0, 0, 4, 8, 12]
    assert records[0]["q_value"] is None
    assert records[2]["q_value"] is not None
    assert "ess" not in records[5]


def test_actors_take_random_actions_with_the_probability_that_is_due() -> None:
    """Without learning the policy takes one action everywhere, so other actions are random ones."""
    kept = ("total_steps=16384", "algorithm.options.buffer_size=16384", "algorithm.learning_rate=1e-30",
            "algorithm.options.exploration_start=0.6", "algorithm.options.exploration_end=0.6",
            "algorithm.options.learning_starts=4096", "env=diagnostic/constant_reward")  # fmt: skip
    for power, expected in ((0.0, [0.6] * 4), (2.0, [0.6 ** (1 + 2 * i / 3) for i in range(4)])):
        trainer = trainer_of(*kept, f"algorithm.options.exploration_power={power}")
        trainer.run()
        action = np.asarray(trainer.state.loader.fragments.action[0]).reshape(-1, 4)
        before, after = action[:1024], action[1024:]
        rare = int(after.mean() < 0.5)
        assert np.mean(before == rare) == pytest.approx(0.5, abs=0.03), "all are random before learning starts"
        # Half of the random actions are the policy's own.
        np.testing.assert_allclose(np.mean(after == rare, axis=0), np.array(expected) / 2, atol=0.03)


def test_numbers_that_are_not_finite_spoil_no_minibatch() -> None:
    trainer = trainer_of("env=diagnostic/nonfinite", "total_steps=2048")
    records = trainer.run()
    assert records[-1]["nonfinite_gradients"] == 0
    assert np.isfinite(params(trainer)).all()
    assert np.mean(np.asarray(trainer.state.loader.fragments.valid)) < 1.0


@pytest.mark.parametrize(("overrides", "message"), [
    (["algorithm.options.updates_per_step=0.3"], "accepted: 0.3125"),
    (["algorithm.options.batch_size=64"], "must be at most the 48 transitions"),
    (["algorithm.options.n_step=1000"], "n_step=1000 must be at most the"),
    (["total_steps=32"], "total_steps=32 must be more than algorithm.options.learning_starts=32"),
    (["algorithm.epochs=2"], "draws minibatches from a replay buffer"),
    (["env.normalize_reward=true"], "env.normalize_reward=true is not possible with algorithm.name=dqn"),
    (["system.truncation=weight"], "system.truncation=weight changes nothing"),
    (["system.corrections=[ess]"], "which a replay buffer does not keep"),
    (["algorithm.masks=[dppo]"], "changes nothing under algorithm.name=dqn"),
    (["system.learners=8", "system=async"], "algorithm.options.updates_per_step=0.25 times the env steps"),
    (["network.policy=actor_critic"], "needs the output q_values"),
    (["algorithm=sac"], "network.policy=squashed_gaussian_twin_q needs a Box"),
    (["env=gymnax/pendulum", "env.num_envs=4"], "network.policy=q_network needs Discrete"),
    (["network.memory=gru"], "network.memory=gru"),
])  # fmt: skip
def test_what_is_not_possible_is_said(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        trainer_of(*overrides)


# Checkpoints ---------------------------------------------------------------------------------------------------------


def saved_at(trainer: Trainer, checkpoints: Checkpoints, *rounds: int) -> None:
    """Train a run, and save it after these rounds."""
    for end in rounds:
        trainer.run(end - trainer.round)
        trainer.save(checkpoints)
        checkpoints.wait()


def test_checkpoints_write_what_is_new(tmp_path: Path) -> None:
    """Each file has the batches since the one before; a file goes when no kept checkpoint needs it."""
    trainer = trainer_of("engine.chunk_rounds=1", "checkpoint.keep=2")
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    saved_at(trainer, checkpoints, 4, 8, 9, 16, 24, 32)
    files = sorted(path.name.partition(".")[0] for path in (tmp_path / "replay").iterdir())
    assert files == [f"{first:012d}-{end:012d}" for first, end in ((9, 16), (16, 24), (24, 32))]
    sizes = {path.name[:12]: path.stat().st_size for path in (tmp_path / "replay").iterdir()}
    assert sizes["000000000016"] == sizes["000000000024"]
    whole = sum(path.stat().st_size for path in (tmp_path / "checkpoints" / "32").rglob("*") if path.is_file())
    assert whole < 200_000
    checkpoints.close()


@pytest.mark.parametrize("harm", ["deleted", "changed", "cut"])
def test_a_damaged_file_costs_a_checkpoint(harm: str, tmp_path: Path) -> None:
    whole = trainer_of("engine.chunk_rounds=1")
    whole.run()
    trainer, checkpoints = trainer_of("engine.chunk_rounds=1"), Checkpoints(tmp_path / "checkpoints", keep=3)
    saved_at(trainer, checkpoints, 8, 16, 24)
    path = next((tmp_path / "replay").glob("000000000016-*"))
    content = path.read_bytes()
    path.unlink()
    if harm != "deleted":
        path.write_bytes(content[:-1] if harm == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    notes: list[str] = []
    again = trainer_of("engine.chunk_rounds=1")
    assert again.restore(checkpoints, notes.append) == 16
    assert len(notes) == 1 and "checkpoint of round 24 is damaged" in notes[0] and path.name in notes[0]
    saved_at(again, checkpoints, 24, 32)
    np.testing.assert_array_equal(params(again), params(whole))
    last = trainer_of("engine.chunk_rounds=1")
    assert last.restore(checkpoints) == 32
    stored = [jax.tree.leaves(one.state.loader.fragments) for one in (last, whole)]
    for one, other in zip(*stored, strict=True):
        np.testing.assert_array_equal(one, other)
    checkpoints.close()


@pytest.mark.parametrize(("harm", "message"), [("link", "replay is a link"), ("folder", "is not a regular file")])
def test_a_folder_that_no_save_could_write_is_refused_at_once(harm: str, message: str, tmp_path: Path) -> None:
    trainer, checkpoints = trainer_of("engine.chunk_rounds=1"), Checkpoints(tmp_path / "checkpoints", keep=2)
    saved_at(trainer, checkpoints, 16)
    replay = tmp_path / "replay"
    if harm == "link":
        replay.rename(tmp_path / "elsewhere")
        replay.symlink_to(tmp_path / "elsewhere")
    else:
        (replay / "000000000016-000000000024.transitions").mkdir()
    with pytest.raises(RunError, match=message):
        trainer_of("engine.chunk_rounds=1").restore(checkpoints)
    checkpoints.close()


def test_evaluation_needs_no_transitions(tmp_path: Path) -> None:
    trainer, checkpoints = trainer_of("engine.chunk_rounds=1"), Checkpoints(tmp_path / "checkpoints", keep=1)
    saved_at(trainer, checkpoints, 16)
    for path in (tmp_path / "replay").iterdir():
        path.unlink()
    other = trainer_of("engine.chunk_rounds=1")
    assert other.restore(checkpoints, train=False) == 16
    np.testing.assert_array_equal(params(other), params(trainer))
    with pytest.raises(Exception, match="no intact checkpoint"):
        trainer_of("engine.chunk_rounds=1").restore(checkpoints, lambda note: None)
    checkpoints.close()


@pytest.mark.parametrize("others", [("num_seeds=2",), ("num_seeds=2", "engine.members=together", "system=async",
    "system.learners=3", "system.actors=independent", "system.actor_shards=2", "delays=pareto")])  # fmt: skip
def test_several_seeds_continue_to_the_bit(others: tuple[str, ...], tmp_path: Path) -> None:
    whole, first, second = (trainer_of("engine.chunk_rounds=1", *others) for _ in range(3))
    whole.run()
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    saved_at(first, checkpoints, 3, 5, 17)
    second.restore(checkpoints)
    checkpoints.close()
    second.run()
    np.testing.assert_array_equal(params(second), params(whole))


def test_a_seed_that_is_behind_loses_nothing(tmp_path: Path) -> None:
    """Seeds may have formed different numbers of batches; each then writes what it missed with the next file."""
    samples, stored = 2, 6
    slots = np.zeros((2, stored * samples), np.float32)
    counts = np.array([0, 0])
    log, other = (ReplayLog(tmp_path / "replay", keep=2, envs=1, samples=samples) for _ in range(2))
    for target in ([1, 4], [3, 4], [3, 6], [5, 9], [9, 9], [14, 10]):
        for seed, end in enumerate(target):
            for batch in range(counts[seed], end):
                slots[seed, batch % stored * samples :][:samples] = 100 * (seed + 1) + batch
        counts = np.array(target)
        fragments = Samples(*[None] * 7)._replace(action=jnp.asarray(slots))  # type: ignore[arg-type]
        marks = log.save(DataLoader(fragments, None, None, stored=counts))  # type: ignore[arg-type]
        np.testing.assert_array_equal(other.read(marks, Transitions(fragments, None)).samples.action, slots)
