"""Independent actors of host environments: shards that the engine lets roll wave by wave."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from host_env import Clockwork, ClockworkPool
from training import COMMON, HOST_ENVS, T, assert_identical, clockwork

from stellaris_jax import Config, Trainer, load_config
from stellaris_jax.base.watch import EnvStalled
from stellaris_jax.engine import host_program
from stellaris_jax.envs.registry import register
from stellaris_jax.runs.checkpoint import Checkpoints
from stellaris_jax.sources.host_shards import SeedShards
from stellaris_jax.sources.shards import ShardSource
from stellaris_jax.timeline.collection import CollectionSizes, empty_collection
from stellaris_jax.timeline.plan import empty_plan
from stellaris_jax.timeline.records import Segment

pytestmark = pytest.mark.usefixtures("shared_programs")

FREE = ["system=async", "system.actors=independent", "delays.actor.seconds=1.0", "delays.actor.options.sigma=1.0"]
"""Independent actors of very different speeds."""
SHARDS = 3
CLOCKWORK = [*FREE, f"system.actor_shards={SHARDS}"]
SEGMENTS = [*CLOCKWORK, "system.sync_steps=4"]


def cartpole(*overrides: str) -> Config:
    """Six rounds of eight CartPoles of gymnasium."""
    own = ["env=gymnasium/CartPole-v1", "env.num_envs=8", "env.normalize_reward=true", f"total_steps={6 * 8 * T}"]
    return load_config([*COMMON, *own, "evaluation.episodes=0", *overrides])


def leaves(tree: Any) -> list[np.ndarray]:
    return list(map(np.asarray, jax.tree.leaves(tree)))


def trained(config: Config) -> tuple[Trainer, list[dict[str, Any]]]:
    trainer = Trainer(config)
    records = trainer.run()
    trainer.close()
    return trainer, records


@pytest.mark.parametrize(
    "settings",
    [
        ["system=async"],
        ["system=allreduce", "num_seeds=2"],
        ["system=stellaris", "network.memory=gru", "env.normalize_observation=false"],
    ],
    ids=["async", "allreduce", "gru"],
)
def test_staleness_0_equals_actors_that_wait(settings: list[str]) -> None:
    """To the bit: the shards of a whole wave are parts of one pool, and act with one call of the policy."""
    waiting, expected = trained(cartpole(*settings, "system.actors=barrier", "env.overlap=false"))
    fresh = ["system.data_admission=capacity", "system.data_admission_options.eta=0", "system.actor_shards=4"]
    trainer, records = trained(cartpole(*settings, "system.actors=independent", *fresh))
    for field in ("params", "version", "aggregator", "normalizers"):
        for one, other in zip(*(leaves(getattr(t.state, field)) for t in (waiting, trainer)), strict=True):
            assert one.tobytes() == other.tobytes()
    keys = ("simulated_seconds", "train_return", "episodes", "kl", "policy_loss", "staleness_mean")
    for one, other in zip(expected, records, strict=True):
        assert {key: one[key] for key in keys} == {key: other[key] for key in keys}


class Recording:
    """Waves of a trainer's shards, as the engine asked for them and as they were rolled.

    Attributes:
      waves: (seed's place, wave, its data), in order.
    """

    def __init__(self, trainer: Trainer, monkeypatch: pytest.MonkeyPatch):
        self.waves: list[tuple[int, host_program.HostWave, Any]] = []
        assert isinstance(trainer.source, ShardSource)
        for place, shards in enumerate(trainer.source.shards):
            self._watch(place, shards, monkeypatch)

    def _watch(self, place: int, shards: SeedShards, monkeypatch: pytest.MonkeyPatch) -> None:
        submit, result, asked = shards.submit, shards.result, list[host_program.HostWave]()

        def submitted(wave: host_program.HostWave) -> None:
            asked.append(wave)
            submit(wave)

        def resulted() -> Any:
            data = result()
            self.waves.append((place, asked.pop(0), data))
            return data

        monkeypatch.setattr(shards, "submit", submitted)
        monkeypatch.setattr(shards, "result", resulted)


def segments_of(trainer: Trainer) -> tuple[list[Segment], list[np.ndarray]]:
    """Train to the end: segments of the only seed in the order of their begins, and the policy of each version."""
    segments, policies = list[Segment](), {0: np.asarray(trainer.state.params[0])}
    while not trainer.finished:
        trainer.compile()
        ((round_,),) = trainer.executor.planner.next().rounds  # type: ignore[attr-defined]
        segments += [event for event in round_.sequence if isinstance(event, Segment)]
        trainer.step()
        state = trainer.state
        newest, ring = int(state.version[0]), np.asarray(state.ring[0])
        for version in range(max(0, newest - len(ring) + 1), newest):
            policies.setdefault(version, ring[version % len(ring)])
        policies[newest] = np.asarray(state.params[0])
    return segments, [policies[version] for version in range(len(policies))]


@pytest.mark.parametrize("sync", [0, 4], ids=["fragments", "segments"])
def test_shards_roll_what_the_plan_says(sync: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each segment once, by its shard, in order, with its version's policy; environments go on from wave to wave."""
    settings = clockwork(
        *CLOCKWORK, f"system.sync_steps={sync}", "system.versions=40", "env.normalize_observation=false"
    )
    trainer = Trainer(settings)
    recording = Recording(trainer, monkeypatch)
    segments, policies = segments_of(trainer)
    per_shard: dict[int, list[Segment]] = defaultdict(list)
    for segment in segments:
        per_shard[segment.shard].append(segment)
    n, length = HOST_ENVS // SHARDS, sync or T
    parts = dict.fromkeys(range(SHARDS), 0)
    steps, episodes, dead = (np.zeros((SHARDS, n), kind) for kind in (int, int, bool))
    lengths, alone = 3 + np.arange(n), 0
    for _, wave, data in recording.waves:
        for shard in np.flatnonzero(wave.rolls):
            for number in range(T // length if wave.whole else 1):
                due = per_shard[shard][parts[shard]]
                parts[shard] += 1
                assert (due.number, due.part, due.row) == (
                    wave.number[shard],
                    wave.segment[shard] + number,
                    wave.row[shard],
                )
                np.testing.assert_array_equal(wave.params[0 if wave.whole else shard], policies[due.version])
            trajectory = jax.tree.map(lambda x, shard=shard: x[shard], data.trajectory)
            for t in range(len(trajectory.obs)):
                np.testing.assert_array_equal(trajectory.obs[t, :, 1], steps[shard])
                np.testing.assert_array_equal(trajectory.obs[t, :, 2], episodes[shard])
                np.testing.assert_array_equal(trajectory.valid[t], ~dead[shard])
                episodes[shard] += dead[shard]
                steps[shard] = np.where(dead[shard], 0, steps[shard] + 1)
                ended = ~dead[shard] & (steps[shard] == lengths)
                np.testing.assert_array_equal(trajectory.reward[t], np.where(dead[shard], 0, steps[shard]))
                np.testing.assert_array_equal(trajectory.terminated[t], ended & (episodes[shard] % 2 == 0))
                np.testing.assert_array_equal(trajectory.truncated[t], ended & (episodes[shard] % 2 == 1))
                dead[shard] = ended
            np.testing.assert_array_equal(trajectory.last_obs[:, 1], steps[shard])
            tree = trainer.network.unravel(wave.params[0 if wave.whole else shard])
            expected = trainer.network.policy(tree, trajectory.obs.reshape(-1, 4)).reshape(len(trajectory.obs), n, 3)
            np.testing.assert_allclose(trajectory.distribution, expected, rtol=1e-4, atol=1e-4)
        alone += not wave.rolls.all()
        idle = jax.tree.map(lambda x, wave=wave: x[~wave.rolls], data.trajectory)
        assert not idle.valid.any()
    assert alone > 0 and sum(parts.values()) > 5 * SHARDS * T // length
    trainer.close()


def test_batches_hold_what_shards_rolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of the last batch, by fragment and segment, with the versions that acted."""
    trainer = Trainer(clockwork(*SEGMENTS, "env.normalize_observation=false"))
    recording, batches = Recording(trainer, monkeypatch), []
    while not trainer.finished:
        trainer.compile()
        ((round_,),) = trainer.executor.planner.next().rounds  # type: ignore[attr-defined]
        batches += round_.batches
        trainer.step()
    trainer.close()
    rolled: dict[tuple[int, int, int], Any] = {}
    for _, wave, data in recording.waves:
        assert not wave.whole or wave.segment[0] == 0
        for shard in np.flatnonzero(wave.rolls):
            columns = (data.trajectory.obs, data.trajectory.action, data.trajectory.valid)
            for part, begin in enumerate(range(0, columns[0].shape[1], 4)):
                place = (shard, wave.number[shard], wave.segment[shard] + part)
                rolled[place] = [column[shard, begin : begin + 4] for column in columns]
    batch, samples = batches[-1], trainer.state.loader.fragments
    n, buffer = HOST_ENVS // SHARDS, batch.index % trainer.spec.buffers
    stored = [np.asarray(x[0]) for x in (samples.obs, samples.action, samples.valid, samples.version)]
    size = T * HOST_ENVS
    obs, action, valid, version = (
        x[buffer * size : (buffer + 1) * size].reshape(T, SHARDS, n, *x.shape[1:]) for x in stored
    )
    for place, fragment in enumerate(batch.fragments):
        for part, acted in enumerate(fragment.versions):
            steps = slice(4 * part, 4 * part + 4)
            expected = rolled[fragment.shard, fragment.number, part]
            for one, other in zip((obs, action, valid), expected, strict=True):
                np.testing.assert_array_equal(one[steps, place], other)
            assert (version[steps, place] == acted).all()
    assert len({tuple(fragment.versions) for fragment in batch.fragments}) > 1


def test_rolling_ahead_of_gradients_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What versions allow is rolled before the gradients are done, and the result is the same to the bit."""
    settings, ahead = clockwork(*SEGMENTS, "num_seeds=2"), list[int]()
    fetched = host_program.HostRound._fetched_ahead

    def counted(self: host_program.HostRound, *arguments: Any) -> Any:
        policies = fetched(self, *arguments)
        ahead.append(len(policies))
        return policies

    monkeypatch.setattr(host_program.HostRound, "_fetched_ahead", counted)
    one, _ = trained(settings)
    assert sum(ahead) > 0
    monkeypatch.setattr(host_program, "AHEAD_BYTES", -1)
    ahead.clear()
    other, _ = trained(settings)
    assert sum(ahead) == 0
    assert_identical(one, other)


def test_seeds_side_by_side_learn_what_each_learns_alone() -> None:
    together, _ = trained(clockwork(*SEGMENTS, "num_seeds=2", "engine.members=together"))
    alone, _ = trained(clockwork(*SEGMENTS, "num_seeds=2", "engine.members=apart"))
    np.testing.assert_allclose(together.state.params, alone.state.params, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(together.state.version, alone.state.version)


def test_devices_share_the_gradients() -> None:
    one, _ = trained(clockwork(*SEGMENTS, "engine.lanes=2"))
    two, _ = trained(clockwork(*SEGMENTS, "engine.devices=2"))
    np.testing.assert_allclose(one.state.params, two.state.params, rtol=1e-3, atol=1e-4)


# Saving and failures --------------------------------------------------------------------------------------------------

KINDS = {
    "fragments": [*CLOCKWORK, "num_seeds=2"],
    "segments": [*SEGMENTS, "network.memory=gru", "algorithm.minibatches=3", "num_seeds=2"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_and_restarts_leave_no_trace(kind: str, tmp_path: Path) -> None:
    """A run that is taken up anew after every second round, in the middle of fragments, ends as the whole one does."""
    settings = clockwork(*KINDS[kind])
    whole, records = trained(settings)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    notes: list[str] = []
    trainer, again = Trainer(settings), list[dict[str, Any]]()
    while not trainer.finished:
        again += trainer.step()
        trainer.save(checkpoints)
        if trainer.round % 2 == 0 and not trainer.finished:
            trainer.run(1)  # lost
            trainer.close()
            trainer = Trainer(settings)
            assert trainer.restore(checkpoints, notes.append) == len(again)
    trainer.close()
    checkpoints.close()
    assert_identical(whole, trainer)
    assert len(notes) == 2 and all("stand where they stood" in note for note in notes)
    for one, other in zip(records, again, strict=True):
        assert {one[key] == other[key] for key in ("train_return", "episodes", "data_lag", "kl")} == {True}


def test_a_long_run_begins_new_episodes_within_fragments_and_says_so(tmp_path: Path) -> None:
    """Fragments that are under way go on with new episodes: their last step before is the end of one."""
    settings = clockwork(*SEGMENTS, "checkpoint.replay=20", "system.data_queue=6")
    trainer = Trainer(settings)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    trainer.run(2)
    assert isinstance(trainer.source, ShardSource)
    broken = [place for place in trainer.source._positions[0] if place[1] < T // 4 - 1]
    assert broken
    trainer.save(checkpoints)
    checkpoints.wait()
    trainer.close()
    assert not (tmp_path / "actions.bin").exists()
    notes: list[str] = []
    trainer = Trainer(settings)
    assert trainer.restore(checkpoints, notes.append) == 2
    (note,) = notes
    assert "new episodes" in note and "checkpoint.replay=20" in note and "\n" not in note
    data = trainer.state.store.data
    for row, segment in broken:
        last = 4 * (segment + 1) - 1
        assert data.truncated[0, row, last].all() and not data.valid[0, row, last].any()
    assert len(trainer.run()) == 4 and trainer.finished
    trainer.close()


class Breaking(Clockwork):
    """Raises an exception in the step of a given number, counted over all pools, once."""

    name = "test/breaking"
    left = 0

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> ClockworkPool:
        return BreakingPool(self, num_envs, seed)


class BreakingPool(ClockworkPool):
    def send(self, action: np.ndarray) -> None:
        Breaking.left -= 1
        if Breaking.left == 0:
            raise OSError("the clockwork broke")
        super().send(action)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_round_that_fails_leaves_the_state_before_it(
    seeds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a round the state is neither saved nor gone on with; the run can be saved, resumed, and ends the same."""
    register("test/breaking", Breaking)
    settings = clockwork(*SEGMENTS, "env.name=test/breaking", f"num_seeds={seeds}")
    Breaking.left = -1
    whole, _ = trained(settings)
    trainer = Trainer(settings)
    trainer.run(2)
    fetched, before = host_program.HostRound._fetched_ahead, np.array(trainer.state.params)

    def breaks(self: host_program.HostRound, step: int, version: np.ndarray, updates: np.ndarray) -> Any:
        """Let the clockwork break in the wave after the first gradients of a round that has one."""
        if updates.any() and step < self.plan.bounds[0, 1]:
            Breaking.left = 3
        return fetched(self, step, version, updates)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="the clockwork broke"):
        patch.setattr(host_program.HostRound, "_fetched_ahead", breaks)
        while not trainer.finished:
            before = np.array(trainer.state.params)
            trainer.step()
    assert trainer.round >= 2
    np.testing.assert_array_equal(trainer.state.params, before)
    assert np.asarray(trainer.state.round).tolist() == [trainer.round] * seeds
    Breaking.left = -1
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    trainer.save(checkpoints)
    checkpoints.wait()
    other = Trainer(settings)
    notes: list[str] = []
    other.restore(checkpoints, notes.append)
    assert "stand where they stood" in notes[0]
    other.run()
    assert_identical(whole, other)
    # The first trainer goes on, too, with new episodes.
    trainer.run()
    assert trainer.finished
    for each in (trainer, other):
        each.close()
    checkpoints.close()


class Asleep(Clockwork):
    """Stops answering after 40 steps of a pool."""

    name = "test/asleep"
    awake = threading.Event()

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> ClockworkPool:
        return AsleepPool(self, num_envs, seed)


class AsleepPool(ClockworkPool):
    def recv(self) -> Any:
        if self.count >= 40:
            Asleep.awake.wait()
        return super().recv()


def test_an_environment_that_blocks_ends_the_run() -> None:
    register("test/asleep", Asleep)
    Asleep.awake.clear()
    trainer = Trainer(clockwork(*SEGMENTS, "env.name=test/asleep", "env.timeout=0.5"))
    with pytest.raises(EnvStalled, match=r"test/asleep has not answered .*env\.timeout=0\.5"):
        trainer.run()
    assert np.asarray(trainer.state.round).tolist() == [trainer.round]
    trainer.close()
    Asleep.awake.set()


# Programs -------------------------------------------------------------------------------------------------------------


def test_the_learning_program_does_not_depend_on_the_number_of_waves() -> None:
    """So a round of many waves needs no program of its own, and its key tells all that the program depends on."""
    trainer = Trainer(clockwork(*SEGMENTS))
    shape, plans = trainer.spec.shape, []
    for waves in (4, 64):
        collection, steps = empty_collection(shape, CollectionSizes(whole=waves, waves=waves, batches=2, steps=4))
        plan = empty_plan(shape)._replace(collection=collection, steps=steps)
        plans.append(jax.tree.map(np.shape, host_program.learned_part(plan)))
        assert trainer.engine.key(plan, None) == (shape.capacity, 2, 4)
    assert plans[0] == plans[1]
    trainer.close()
