"""Host environments of live runs: what dies, is done twice or is resumed goes on from where it stood."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from live_runs import fickle, left, live, lived, opened, params, replayed, shared_parts

from stellaris_jax import load_config
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.watch import EnvStalled, at_work
from stellaris_jax.config.tree import Config
from stellaris_jax.envs.base import HostEnv
from stellaris_jax.envs.registry import make
from stellaris_jax.envs.suites.gymnasium import GymnasiumEnv, GymnasiumPool
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.live import conductor
from stellaris_jax.live.hosts import EnvPosition
from stellaris_jax.runs.checkpoint import Checkpoints
from stellaris_jax.sources.live import LiveSource
from stellaris_jax.timeline import trace

__all__ = ["fickle", "shared_parts"]
pytestmark = pytest.mark.usefixtures("shared_programs")
T, N, ROUNDS = 16, 4, 6
SMALL = (
    "env=gymnasium/CartPole-v1",
    "system=stellaris",
    "algorithm.minibatches=8",
    f"env.num_envs={N}",
    "env.normalize_observation=true",
    f"algorithm.rollout_length={T}",
    "network.hidden=[8]",
    "algorithm.epochs=2",
    f"total_steps={ROUNDS * T * N}",
    "executor=live",
    "live.actors=2",
    "system.learners=3",
    "evaluation.points=0",
)
IN_ORDER = ("system=central", "system.learners=1")
"""One learner, to whom everything happens in the same order whatever dies."""
HOPPER = ("env=envpool/Hopper-v4", "env.kwargs.max_episode_steps=9", "env.normalize_reward=true")

MEMORY = ("network.memory=gru", "network.memory_size=4", "algorithm.minibatches=4")

ASYNC = ("env.kwargs.vectorization_mode=async", "system=async", "system.actors=pipelined")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch, shared_parts: None) -> None:
    monkeypatch.setattr(conductor, "MOST_DEATHS", 1000)


def config_of(*overrides: str) -> Config:
    return load_config([*SMALL, *overrides])


def position(trainer: Trainer) -> EnvPosition:
    assert isinstance(trainer.source, LiveSource)
    return trainer.source.position


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), id="cartpole"),
        pytest.param(HOPPER, id="hopper"),
        pytest.param(MEMORY, id="memory"),
        pytest.param(ASYNC, id="async", marks=pytest.mark.slow),
    ],
)
def test_the_engine_repeats_a_live_run(overrides: tuple[str, ...], tmp_path: Path) -> None:
    if overrides is HOPPER:
        pytest.importorskip("envpool")
    config = config_of(*overrides)
    trainer = live(config, deaths=0.3)
    records = trainer.run()
    trainer.close()
    assert sum(record["episodes"] for record in records) > 3
    assert all(record["train_return"] is not None for record in records if record["episodes"])
    assert records[-1]["env_steps"] == ROUNDS * T * N
    assert trainer.usages[0].failures > 3
    directory = left(trainer, config, tmp_path / "run")
    assert not opened(directory)
    again = replayed(config, directory)
    assert len(again.executor.deviations) - 1 == int(records[-1]["updates"]) > 5
    assert max(one.deviation for one in again.executor.deviations) < 1e-5
    np.testing.assert_allclose(params(again), params(trainer), atol=1e-5)
    assert again.usages == trainer.usages


@pytest.mark.parametrize("actors", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_whoever_steps_them_they_are_the_compiled_engines(actors: int) -> None:
    config = config_of("system=allreduce", f"live.actors={actors}")
    trainer = lived(config)
    compiled = Trainer(config.replace({"executor": "simulated", "env.overlap": False}))
    records = compiled.run()
    compiled.close()
    np.testing.assert_allclose(params(trainer), params(compiled), atol=1e-5)
    assert sum(record["episodes"] for record in records) > 0


@pytest.mark.parametrize(
    ("seed", "overrides"),
    [(0, ()), (0, MEMORY), *(pytest.param(seed, (), marks=pytest.mark.slow) for seed in (1, 2, 3))],
)
def test_who_dies_is_brought_back(seed: int, overrides: tuple[str, ...]) -> None:
    """To the bit: what environments were given, what they observe and remember, and what is learned."""
    config = config_of(*IN_ORDER, *overrides)
    whole, killed = lived(config), lived(config, deaths=0.5, seed=seed)
    assert killed.usages[0].failures > 10
    one, other = position(whole), position(killed)
    assert one.actions is not None and other.actions is not None
    assert (one.opened, one.fragments, one.digest) == (other.opened, other.fragments, other.digest)
    for a, b in zip(one.actions, other.actions, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(params(whole), params(killed))


def test_who_has_come_too_far_begins_anew_and_so_does_the_repetition(tmp_path: Path) -> None:
    config = config_of(f"checkpoint.replay={2 * T * N}", f"total_steps={12 * T * N}")
    trainer = lived(config, deaths=0.3)
    directory = left(trainer, config, tmp_path / "run")
    rounds = opened(directory)
    assert rounds and position(trainer).opened == rounds[-1]
    again = replayed(config, directory)
    assert max(one.deviation for one in again.executor.deviations) < 1e-5
    # Without a word of when, it is another run.
    path = directory / trace.NAME
    told = trace.read(path)
    trace.write(path, told.header, (replace(one, opened=False) for one in told.rounds))
    assert max(one.deviation for one in replayed(config, directory).executor.deviations) > 1e-5


@pytest.mark.usefixtures("fickle")
def test_what_does_not_repeat_itself_begins_anew(tmp_path: Path) -> None:
    config = config_of()
    assert not opened(left(lived(config), config, tmp_path / "whole"))
    trainer = live(config, deaths=0.3)
    records = trainer.run()
    trainer.close()
    assert opened(left(trainer, config, tmp_path / "killed"))
    # Every step pays 1: what is gone of an episode is in neither of them.
    assert all(record["train_return"] == record["episode_length"] for record in records)
    assert sum(record["episodes"] for record in records) > 0


@pytest.mark.parametrize(("actors", "overrides"), [(2, ()), (2, MEMORY), pytest.param(3, (), marks=pytest.mark.slow)])
def test_a_resumed_run_goes_on_to_the_bit(actors: int, overrides: tuple[str, ...], tmp_path: Path) -> None:
    """With as many actors, or with others."""
    config = config_of(*IN_ORDER, *overrides)
    whole = lived(config)
    first = live(config)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    for _ in range(3):
        first.step()
        first.save(checkpoints)
    checkpoints.wait()
    first.step()  # lost
    first.close()
    notes: list[str] = []
    second = live(config.replace({"live.actors": actors}), deaths=0.3)
    assert second.restore(checkpoints, notes.append) == 3
    assert notes == [f"actors bring environments to where they stood: {3 * T * N} env steps are replayed"]
    second.run()
    second.save(checkpoints)
    second.close()
    assert position(second).digest == position(whole).digest
    np.testing.assert_allclose(params(second), params(whole), atol=0.0 if actors == 2 else 1e-5)
    longer = live(config.replace({"total_steps": (ROUNDS + 2) * T * N}))
    assert longer.restore(checkpoints) == ROUNDS
    longer.run()
    longer.close()
    assert (position(longer).opened, position(longer).fragments) == (0, ROUNDS + 2)
    checkpoints.close()


@pytest.mark.parametrize("reason", ["long", "fickle"])
def test_a_resumed_run_that_cannot_go_on_begins_anew(
    reason: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Because too much has happened; because environments do not repeat themselves, which is seen when they do not."""
    if reason == "fickle":
        request.getfixturevalue("fickle")
    config = config_of(*(("checkpoint.replay=100",) if reason == "long" else ()))
    first = live(config)
    for _ in range(3):
        first.step()
    directory = left(first, config, tmp_path / "run")
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    first.save(checkpoints)
    checkpoints.wait()
    first.close()
    notes: list[str] = []
    second = live(config)
    second.restore(checkpoints, notes.append)
    assert ("begin new episodes" in notes[0]) == (reason == "long")
    second.run()
    second.write(directory)
    second.close()
    checkpoints.close()
    assert opened(directory) == [3] == [position(second).opened]
    if reason == "long":
        assert max(one.deviation for one in replayed(config, directory).executor.deviations) < 1e-5


@pytest.mark.slow
def test_a_repetition_is_resumed_after_environments_began_anew(tmp_path: Path) -> None:
    config = config_of(f"checkpoint.replay={2 * T * N}", f"total_steps={12 * T * N}")
    trainer = lived(config, deaths=0.3)
    directory = left(trainer, config, tmp_path / "run")
    round_ = opened(directory)[0]
    again = {"executor": "replay", "trace": str(directory), "checkpoint.replay": 2_000_000}
    config = config.replace(again)
    first = Trainer(config)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    for _ in range(round_ + 2):
        first.step()
        first.save(checkpoints)
    checkpoints.wait()
    first.close()
    second = Trainer(config)
    notes: list[str] = []
    second.restore(checkpoints, notes.append)
    assert "stand where they stood" in notes[0]
    second.run()
    second.close()
    checkpoints.close()
    assert max(one.deviation for one in second.executor.deviations) < 1e-5


@pytest.mark.slow
def test_threads_step_their_own_environments() -> None:
    config = config_of(*IN_ORDER)
    trainer = Trainer(config.replace({"live.pool": "threads"}))
    trainer.run()
    trainer.close()
    assert position(trainer).digest == position(lived(config)).digest


def test_what_an_environment_raises_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: GymnasiumPool, action: np.ndarray) -> None:
        raise OSError("the cart broke")

    trainer = live(config_of())
    trainer.step()
    monkeypatch.setattr(GymnasiumPool, "send", broken)
    with pytest.raises(OSError, match="the cart broke"):
        trainer.run()
    trainer.close()


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """Identities of the pools of environments that were opened, and of those that were closed."""
    opened: list[int] = []
    closed: list[int] = []
    held: list[object] = []  # so that no identity is used twice
    own_open, own_close = GymnasiumEnv.open, GymnasiumPool.close

    def open_(self: GymnasiumEnv, num_envs: int, seed: int) -> GymnasiumPool:
        pool = own_open(self, num_envs, seed)
        opened.append(id(pool))
        held.append(pool)
        return pool

    def close(self: GymnasiumPool) -> None:
        closed.append(id(self))
        own_close(self)

    monkeypatch.setattr(GymnasiumEnv, "open", open_)
    monkeypatch.setattr(GymnasiumPool, "close", close)
    return opened, closed


@pytest.mark.parametrize("while_replaying", [False, True])
def test_environments_are_closed_after_an_error(
    while_replaying: bool, pools: tuple[list[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: GymnasiumPool, action: np.ndarray) -> None:
        raise OSError("the cart broke")

    trainer = live(config_of())
    trainer.step()
    if while_replaying:
        trainer.executor.conductor.pool.cool()
    monkeypatch.setattr(GymnasiumPool, "send", broken)
    with pytest.raises(OSError, match="the cart broke"):
        trainer.run()
    trainer.close()
    opened, closed = pools
    assert sorted(opened) == sorted(closed)


@pytest.mark.parametrize("all_stall", [False, True])
def test_a_stalled_environment_of_a_thread_ends_the_run(
    all_stall: bool, pools: tuple[list[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    awake, own, blocked = threading.Event(), GymnasiumPool.recv, set[int]()
    stalls = False

    def recv(self: GymnasiumPool) -> object:
        if stalls and (all_stall or not blocked):
            blocked.add(id(self))
            awake.wait()
        return own(self)

    monkeypatch.setattr(GymnasiumPool, "recv", recv)
    before = at_work()
    trainer = Trainer(config_of("live.pool=threads", "env.timeout=1"))
    trainer.step()
    stalls = True
    with pytest.raises(EnvStalled, match=r"gymnasium/CartPole-v1 has not answered .*env\.timeout=1\)"):
        trainer.run()
    begin = time.monotonic()
    trainer.close()
    assert time.monotonic() - begin < 2.0
    left_over = at_work() - before
    assert len(left_over) == len(blocked) and all(thread.daemon for thread in left_over)
    opened, closed = pools
    assert sorted(closed) == sorted(set(opened) - blocked)
    awake.set()
    for thread in left_over:
        thread.join(10.0)
        assert not thread.is_alive()


PROGRAM = f"""
import threading
from stellaris_jax import Trainer, load_config
from stellaris_jax.envs.suites.gymnasium import GymnasiumPool
trainer = Trainer(load_config([*{SMALL!r}, "live.pool=threads", "env.timeout=1"]))
trainer.compile()
GymnasiumPool.send = lambda self, action: threading.Event().wait()
trainer.run()
"""


@pytest.mark.slow
def test_blocked_threads_do_not_keep_the_interpreter() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1 and "EnvStalled" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["gymnasium/CartPole-v1", "envpool/Hopper-v4", "envpool/CartPole-v1"])
def test_a_part_of_a_pool_is_a_pool_of_that_part(name: str) -> None:
    """As `HostEnv` promises, so that environments may be parted among actors."""
    pytest.importorskip(name.partition("/")[0])
    env = make(name, {})
    assert isinstance(env, HostEnv)
    whole, part = env.open(4, 1000), env.open(2, 1001)
    np.testing.assert_array_equal(whole.recv().obs[1:3], part.recv().obs)
    ended, generator = 0, np.random.default_rng(0)
    for _ in range(60):
        actions = env.action_space.sample(generator, 4)
        whole.send(actions)
        part.send(actions[1:3])
        steps = whole.recv(), part.recv()
        for a, b in zip(*steps, strict=True):
            np.testing.assert_array_equal(a[1:3], b)
        ended += int(steps[1].terminated.sum())
    assert ended > 0
    whole.close()
    part.close()


def test_scaling_is_refused_in_a_sentence() -> None:
    config = config_of("scaling=nitro", "scaling.maximum=4", "scaling.minimum=1")
    with pytest.raises(ConfigError, match=r"scaling=nitro is not possible with executor=live and env=gymnasium/Cart"):
        Trainer(config)
