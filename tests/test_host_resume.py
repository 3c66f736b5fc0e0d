"""Host environments over evaluations, checkpoints, restarts and silence."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from host_env import Clockwork, ClockworkPool
from training import LONG, again, assert_identical, clockwork

from stellaris_jax import Config, Trainer, load_config
from stellaris_jax.base import watch as watch_module
from stellaris_jax.base.watch import EnvStalled
from stellaris_jax.envs.base import HostStep
from stellaris_jax.envs.registry import register
from stellaris_jax.runs.checkpoint import Checkpoints
from stellaris_jax.sources.actionlog import ActionLog, ActionLogError
from stellaris_jax.sources.host import HostSource
from stellaris_jax.sources.host_actors import Behaviour

pytestmark = pytest.mark.usefixtures("shared_programs")
ENVS = {
    "clockwork": ["num_seeds=2", *LONG],
    "hopper": [
        "env.name=envpool/Hopper-v4", "env.num_envs=4", "env.kwargs.max_episode_steps=7", "algorithm.rollout_length=4",
        "total_steps=96",
    ],
    "atari": [
        "env.name=envpool/SpaceInvaders-v5", "env.num_envs=2", "env.kwargs.max_episode_steps=9",
        "env.sticky_actions=0.5", "env.normalize_observation=false", "network=minatar_cnn", "network.hidden=[4]",
        "algorithm.rollout_length=4", "total_steps=48",
    ],
}  # fmt: skip


def settings(env: str, *overrides: str) -> Config:
    if env != "clockwork":
        pytest.importorskip("envpool")
    return clockwork(*ENVS[env], *overrides)


ENVPOOL = [pytest.param(env, "false", marks=pytest.mark.slow) for env in ("hopper", "atari")]


@pytest.mark.parametrize(("env", "overlap"), [*((env, "true") for env in ENVS), ("clockwork", "false"), *ENVPOOL])
def test_evaluations_checkpoints_and_restarts_leave_no_trace(env: str, overlap: str, tmp_path: Path) -> None:
    """One run without any, one with both after every round that is taken up anew after every second one."""
    common = [f"env.overlap={overlap}", "evaluation.episodes=1"]
    whole = Trainer(settings(env, *common, "evaluation.points=1"))
    records = whole.run()
    whole.close()
    assert sum(record["episodes"] for record in records) > 0

    often = settings(env, *common, "evaluation.points=50", "checkpoint.interval=1")
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    notes: list[str] = []
    trainer = Trainer(often)
    again = []
    while not trainer.finished:
        again += trainer.step()
        if trainer.round == 2:
            trainer.evaluate()
        trainer.save(checkpoints)
        if trainer.round % 2 == 0 and not trainer.finished:
            trainer.run(1)  # lost; with overlap a fragment is on its way
            trainer.close()
            trainer = Trainer(often)
            assert trainer.restore(checkpoints, notes.append) == len(again)
    trainer.close()
    checkpoints.close()
    assert_identical(whole, trainer)
    assert len(notes) == 2 and all("stand where they stood" in note for note in notes)
    for one, other in zip(records, again, strict=True):
        assert {one[key] == other[key] for key in ("train_return", "episodes", "actor_staleness", "kl")} == {True}


@pytest.mark.parametrize("network", ["mlp", "gru"])
def test_a_run_saved_before_its_first_round(network: str, tmp_path: Path) -> None:
    """There is no fragment under way and no memory yet."""
    whole = Trainer(clockwork("env.overlap=true", f"network={network}", "algorithm.minibatches=3", rounds=2))
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    whole.save(checkpoints)
    other = again(whole)
    assert other.restore(checkpoints) == 0
    whole.run()
    other.run()
    assert_identical(whole, other)
    for each in (whole, other, checkpoints):
        each.close()


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_a_run_that_had_ended_goes_on_as_a_longer_one(overlap: str, tmp_path: Path) -> None:
    common = [*LONG, f"env.overlap={overlap}", "algorithm.anneal=false"]
    longer = clockwork(*common)
    whole = Trainer(longer)
    whole.run()
    shorter = Trainer(clockwork(*common, f"total_steps={3 * 2 * 6}"))
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    shorter.run()
    assert shorter.finished and shorter.round == 3
    shorter.save(checkpoints)
    checkpoints.wait()
    trainer = Trainer(longer)
    trainer.restore(checkpoints)
    trainer.run()
    assert_identical(whole, trainer)
    for each in (whole, shorter, trainer):
        each.close()
    checkpoints.close()


def saved(tmp_path: Path, *overrides: str) -> Checkpoints:
    """A run of the clockwork that was left after four of its six rounds."""
    trainer = Trainer(clockwork(*LONG, *overrides))
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    for _ in range(2):
        trainer.run(2)
        trainer.save(checkpoints)
    checkpoints.wait()
    trainer.close()
    return checkpoints


def resumed(checkpoints: Checkpoints, *overrides: str) -> list[str]:
    """The notes of going on, to the end, with the run in `checkpoints`."""
    notes: list[str] = []
    trainer = Trainer(clockwork(*LONG, *overrides))
    assert trainer.restore(checkpoints, notes.append) == 4
    records = trainer.run()
    trainer.close()
    assert len(records) == 2 and trainer.finished
    return notes


def test_a_long_run_begins_new_episodes_and_says_so(tmp_path: Path) -> None:
    short = "checkpoint.replay=20"
    (note,) = resumed(saved(tmp_path, short), short)
    assert "new episodes" in note and "checkpoint.replay=20" in note and "\n" not in note
    assert not (tmp_path / "actions.bin").exists()


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
def test_a_damaged_log_begins_new_episodes_and_says_so(damage: str, tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    path = tmp_path / "actions.bin"
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-3] if damage == "short" else data[:200] + bytes([data[200] ^ 1]) + data[201:])
    (note,) = resumed(checkpoints)
    assert "new episodes" in note and "actions.bin" in note and "\n" not in note


class Forgetful(Clockwork):
    """Observes something else every time it is opened."""

    name = "test/forgetful"
    opened = 0

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> ClockworkPool:
        type(self).opened += 1
        return super().open(num_envs, seed + self.opened)


def test_an_environment_that_does_not_repeat_itself_is_named(tmp_path: Path) -> None:
    register("test/forgetful", Forgetful)
    (note,) = resumed(saved(tmp_path, "env.name=test/forgetful"), "env.name=test/forgetful")
    assert "new episodes" in note and "test/forgetful does not repeat itself" in note


def test_an_evaluation_of_a_saved_run_replays_nothing(tmp_path: Path) -> None:
    trainer = Trainer(clockwork(*LONG))
    notes: list[str] = []
    trainer.restore(saved(tmp_path), notes.append, train=False)
    assert notes == [] and isinstance(trainer.source, HostSource) and not trainer.source.actors.opened
    trainer.close()


def test_the_log_is_cut_behind_the_mark_that_was_read(tmp_path: Path) -> None:
    """Lines of a later checkpoint are replaced; a mark holds however the file has grown."""
    log, rows = ActionLog(tmp_path / "actions.bin"), [np.arange(6, dtype=np.uint8).reshape(2, 3) + i for i in range(4)]
    first = log.append(rows[:1])
    second = log.append(rows[1:3])
    other = ActionLog(log.path)
    np.testing.assert_array_equal(list(other.read(first)), rows[:1])
    third = other.append(rows[3:])
    np.testing.assert_array_equal(list(ActionLog(log.path).read(third)), [rows[0], rows[3]])
    with pytest.raises(ActionLogError, match="damaged"):
        list(ActionLog(log.path).read(second))
    np.testing.assert_array_equal(list(ActionLog(log.path).read(first)), rows[:1])


# Environments that do not answer --------------------------------------------------------------------------------------


class Sleeper(Clockwork):
    """Stops answering after `answers` steps of a pool."""

    name = "test/sleeper"
    awake = threading.Event()

    def __init__(self, answers: int = 10, asleep_in: str = "training"):
        super().__init__()
        self.answers, self.asleep_in = answers, asleep_in

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> ClockworkPool:
        return SleepingPool(self, num_envs, seed, evaluation == (self.asleep_in == "evaluation"))


class SleepingPool(ClockworkPool):
    def __init__(self, env: Sleeper, num_envs: int, seed: int, sleeps: bool):
        super().__init__(env, num_envs, seed)
        self.answers = env.answers if sleeps else 1000

    def recv(self) -> HostStep:
        if self.count >= self.answers:
            Sleeper.awake.wait()
        return super().recv()


@pytest.fixture
def sleeper() -> object:
    Sleeper.awake.clear()
    register("test/sleeper", Sleeper)
    yield
    Sleeper.awake.set()  # lets the threads that were left to themselves end


@pytest.mark.usefixtures("sleeper")
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_an_environment_that_blocks_ends_the_run(overlap: str, tmp_path: Path) -> None:
    slow = ["env.timeout=0.5", "env.kwargs.answers=40"]  # into the third round
    trainer = Trainer(clockwork("env.name=test/sleeper", *slow, f"env.overlap={overlap}"))
    with pytest.raises(EnvStalled, match=r"test/sleeper has not answered .*env\.timeout=0\.5"):
        trainer.run()
    # The rounds before are whole, and can be saved; what hangs is left to itself.
    assert isinstance(trainer.source, HostSource) and not trainer.source.actors.opened
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    trainer.save(checkpoints)
    checkpoints.wait()
    other = Trainer(clockwork("env.name=test/sleeper", "env.kwargs.answers=1000", f"env.overlap={overlap}"))
    assert other.restore(checkpoints) == trainer.round
    other.run()
    other.close()
    checkpoints.close()
    trainer.close()


@pytest.mark.usefixtures("sleeper")
def test_an_environment_that_blocks_in_an_evaluation_ends_it() -> None:
    trainer = Trainer(
        clockwork("env.name=test/sleeper", "env.kwargs.asleep_in=evaluation", "env.kwargs.answers=2", "env.timeout=0.5")
    )
    with pytest.raises(EnvStalled, match="test/sleeper"):
        trainer.evaluate()
    trainer.close()


@pytest.mark.usefixtures("sleeper")
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_a_run_that_is_to_stop_waits_for_no_blocked_environment(overlap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "GRACE_SECONDS", 0.2)
    trainer = Trainer(clockwork("env.name=test/sleeper", f"env.overlap={overlap}"))
    threading.Timer(0.5, trainer.stopping.set).start()
    with pytest.raises(EnvStalled):
        trainer.run()
    trainer.close()


def test_a_slow_environment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fragment may take many times the timeout, as long as every step is within it."""
    trainer = Trainer(clockwork("env.kwargs.slow=0.5", "env.timeout=6", "env.overlap=false", rounds=1))
    begin = time.monotonic()
    trainer.run()
    assert time.monotonic() - begin > 7.0  # 16 steps
    trainer.close()


STOPPED = """
import threading, time
from stellaris_jax.base.watch import Watchdog

def work():
    for _ in range(12):
        time.sleep(0.1)

watchdog = Watchdog("worker", "env", 4.0, threading.Event())
watchdog.submit(work)
print("working", flush=True)
watchdog.result()
print("done", flush=True)
"""


def test_a_stopped_process_is_not_a_silent_environment() -> None:
    """Ctrl-Z and SIGSTOP: what a process does not see while it stands still, it does not count."""
    process = subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(6.0)  # of which a watchdog that looks twice a second counts one
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=60)[0] == "done\n" and process.returncode == 0


def test_the_default_timeout_is_generous() -> None:
    assert load_config(["env=gymnax/cartpole"]).env.timeout >= 300


# What is reported of the data's age -----------------------------------------------------------------------------------


@pytest.mark.parametrize("actors", ["barrier", "pipelined"])
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_staleness_of_actors_counts_from_the_version_that_acted(
    overlap: str, actors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The versions reported lie between the engine's own when the fragment was asked for and the newest one when, on
    the timeline, it was complete."""
    trainer = Trainer(clockwork("system=async", f"env.overlap={overlap}", f"system.actors={actors}"))
    assert isinstance(trainer.source, HostSource)
    acted: list[np.ndarray] = []
    request = trainer.source.actors.request

    def watched(behaviour: Behaviour, envs: list[int] | None = None) -> None:
        state = trainer.state
        ring = np.concatenate([np.asarray(state.ring[0]), np.asarray(state.params)])
        (matching,) = np.nonzero((ring == np.asarray(behaviour.params)).all(axis=1))
        newest = int(state.version[0])
        versions = [newest if i == len(ring) - 1 else newest - (newest - i) % (len(ring) - 1) for i in matching]
        acted.append(max(versions))
        request(behaviour, envs)

    monkeypatch.setattr(trainer.source.actors, "request", watched)
    arrived = []
    reported = []
    while not trainer.finished:
        trainer.compile()
        ((record,),) = trainer.executor.planner.next().rounds
        arrived.append(record.arrived)
        reported += [row["actor_staleness"] for row in trainer.step()]
    trainer.close()
    assert len(acted) == len(arrived) == 6
    np.testing.assert_array_equal(reported, np.subtract(arrived, acted))
