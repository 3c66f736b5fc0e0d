"""Sizes that cannot work are refused, with the sum, before memory is taken or anything compiled."""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from training import tiny

from stellaris_jax import ConfigError, Trainer, load_config
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.base import machine
from stellaris_jax.base.machine import Part, check_fits
from stellaris_jax.engine.program import Engine
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.state import StateLayout
from stellaris_jax.envs.base import Preprocessing, VecEnv
from stellaris_jax.envs.registry import make
from stellaris_jax.execute.footprint import _sizes, parts
from stellaris_jax.execute.simulated import planner_of

GIB = 2**30


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps it")
def test_what_compilers_freed_is_returned() -> None:
    """The system gets memory back that is free below a block in use."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    blocks = [np.ones(8_000) for _ in range(4_000)]  # 256 MB in blocks that glibc does not map one by one
    last, full = blocks.pop(), resident()
    blocks.clear()
    machine.return_freed_memory()
    assert full - resident() > 150e6 and last.all()


@pytest.fixture
def ten_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "of_host", lambda: 10 * GIB)


@pytest.fixture(scope="module")
def warm() -> None:
    """Imports and compilations, which happen once, do not count."""
    Trainer(tiny())


@pytest.fixture
def nothing_made(warm: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within, no training is set up, and next to no memory taken."""

    def init(*_: object) -> None:
        raise AssertionError("the state is set up")

    monkeypatch.setattr(StateLayout, "init", init)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


@pytest.mark.parametrize(
    ("overrides", "settings"),
    [
        (["engine.chunk_rounds=1e9", "total_steps=1e15"], ["engine.chunk_rounds=1000000000", "algorithm.epochs=4"]),
        (["num_seeds=10000"], ["num_seeds=10000", "system.versions=32", "network.hidden=[64, 64]"]),
        (["engine.lanes=1e8"], ["engine.lanes=100000000"]),
        (["system.versions=1e6"], ["system.versions=1000000"]),
        (["algorithm=impact", "algorithm.options.target_interval=1e6"], ["algorithm.options.target_interval=1000000"]),
        (["algorithm.epochs=1e7"], ["algorithm.epochs=10000000"]),
        (["env.num_envs=1e6", "algorithm.rollout_length=1000"], ["env.num_envs=1000000", "rollout_length=1000"]),
        (["network.hidden=[100000,100000]"], ["network.hidden=[100000, 100000]"]),
        (["evaluation.episodes=1e10"], ["evaluation.episodes=10000000000"]),
        (["platform.actors=1e10", "prices.actor_vm_slots=1e10"], ["platform.actors=10000000000"]),
        (["checkpoint.interval=1", "total_steps=1e15"], ["schedule of checkpoints", "total_steps=1000000000000000"]),
        (["scaling=nitro", "network.hidden=[256,256]", "scaling.options.lanczos=1000000"], ["Lanczos", "=1000000"]),
        (["env.kwargs.start_pool=1000000000"], ["start_pool"]),
        (["env.frame_stack=500", "env.num_envs=65536"], ["env.frame_stack=500", "env.num_envs=65536"]),
        (["system.actors=independent", "system.data_queue=1e7"], ["independent actors", "system.data_queue=10000000"]),
        (
            ["system.actors=independent", "system.data_admission=capacity", "system.data_admission_options.eta=1e7"],
            ["independent actors", "system.data_admission_options.eta=10000000", "algorithm.rollout_length=128"],
        ),
    ],
)
def test_the_sum_is_in_the_sentence(
    overrides: list[str], settings: list[str], ten_gib: None, nothing_made: None
) -> None:
    with pytest.raises(ConfigError) as caught:
        Trainer(load_config(overrides))
    message = str(caught.value)
    assert "there are 10 GiB" in message and message.count("GiB") >= 3, message
    assert all(setting in message for setting in settings), message


def test_many_seeds_are_refused_where_they_do_not_fit(monkeypatch: pytest.MonkeyPatch, nothing_made: None) -> None:
    """A run of 1,000 seeds reached 6.6 GB, of which 0.7 GB come with one seed (docs/limits.md)."""
    seeds = ["env=gymnax/cartpole", "num_seeds=1000"]
    monkeypatch.setattr(machine, "of_host", lambda: 5 * GIB)
    with pytest.raises(ConfigError, match=r"This takes 6\.\d+ GiB .* there are 5 GiB: .* num_seeds=1000\)"):
        Trainer(load_config(seeds))
    monkeypatch.setattr(machine, "of_host", lambda: 7 * GIB)
    load_config(seeds)
    monkeypatch.setattr(machine, "of_host", lambda: GIB // 2)
    load_config([*seeds, "num_seeds=50"])


def test_processes_of_live_runs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(machine, "of_host", lambda: 2 * GIB)
    live = ["env=gymnax/cartpole", "executor=live", "system.learners=8", "live.actors=2"]
    with pytest.raises(ConfigError, match=r"for processes of learners and actors \(system.learners=8, live.actors=2\)"):
        load_config(live)
    load_config([*live, "live.address=127.0.0.1:1"])
    load_config([*live, "system.learners=1", "live.actors=1"])


def test_threads_of_live_runs_are_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "of_host", lambda: 2 * GIB)
    load_config(["env=gymnax/cartpole", "executor=live", "live.pool=threads", "system.learners=8", "live.actors=8"])


def test_what_is_refused_by_its_range(nothing_made: None) -> None:
    """Sizes for which no memory would do, or which need indices of more bits."""
    for override, key in [
        ("env.frame_stack=1e8", "env.frame_stack"),
        ("env.num_envs=1e12", "env.num_envs"),
        ("evaluation.points=1e9", "evaluation.points"),
        ("engine.devices=1e6", "engine.devices"),
    ]:
        with pytest.raises(ConfigError, match=key):
            load_config([override])


def test_stacked_images_are_refused_before_they_are_stacked(ten_gib: None, nothing_made: None) -> None:
    with pytest.raises(ConfigError, match=r"env\.frame_stack=1000000"):
        make("gymnax/Breakout-MinAtar", {}, Preprocessing(frame_stack=1_000_000))


@pytest.mark.parametrize(
    "overrides",
    [
        ["num_seeds=2"],
        ["algorithm=impact", "system.actors=pipelined"],
        ["system.actors=independent", "system.data_queue=40", "system.sync_steps=4"],
        ["system.actors=independent", "num_seeds=2", "env.frame_stack=2"],
    ],
)
def test_what_is_counted_is_there(overrides: list[str]) -> None:
    """No more than what a trainer really holds: nothing that fits is refused."""
    trainer = Trainer(tiny("network.hidden=[32]", *overrides))
    config = trainer.config
    found = {part.what: part for part in parts(config, _sizes(config, trainer.env, trainer.network))}
    state = trainer.state

    def held(tree: object) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))

    # While it is saved, the state is there once more.
    assert 0.8 * held(state.loader.fragments) < found["training samples"].device / 2 <= held(state.loader.fragments)
    assert found["minibatches"].device / 2 == held(state.loader.order)
    assert 0.9 * held(state.ring) < found["policy versions"].device / 2 <= held(state.ring)
    assert 0.9 * held(state.params) < found["policies and optimizers"].device / 8 <= held(state.params)
    assert 0.8 * held(state.actor[:2]) < found["environments"].device / 2 <= held(state.actor)
    plans = planner_of(trainer.executor).plan(0, 1).plans
    waves = [(plan.invocations, plan.weights) for plan in plans]
    assert 0.5 * held(waves) < found["waves of gradients"].device <= held(plans)
    if state.store is None:
        assert found["orders of minibatches"].device == held([plan.order for plan in plans])
        return
    assert found["orders of minibatches"].device == held([plan.collection.order for plan in plans])
    collections = [(plan.collection._replace(order=None), plan.steps) for plan in plans]
    assert 0.8 * held(collections) < found["plans of collection"].device <= held(collections)
    fragments = state.store._replace(statistics=None)
    assert 0.8 * held(fragments) < found["fragments of independent actors"].device / 2 <= held(fragments)
    statistics = held(state.store.statistics)
    assert statistics == found["statistics of each version"].device / 2


def test_memory_of_versions_does_not_depend_on_the_age_of_data() -> None:
    """A policy of five million parameters and data 256 batches old: eight versions are stored, as with fresh data."""

    def sizes(*overrides: str) -> tuple[tuple[int, ...], int]:
        config = load_config([
            "env=gymnax/cartpole", "network.hidden=[2200,2200]", "system.versions=8", "system.actors=independent",
            "system.data_admission=fixed", "env.num_envs=8", "algorithm.rollout_length=16", *overrides,
        ])  # fmt: skip
        spec, env = ProgramSpec.of(config), make(config.env.name, {})
        assert isinstance(env, VecEnv)
        network = ActorCritic(env.observation_space, env.action_space, config.network)
        state = Engine(config.env, env, network, spec).layout.shapes()
        assert 5e6 < state.params.size < 1.1e7
        return state.ring.shape, sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.store))

    fresh, old = sizes(), sizes("system.data_admission_options.lag=256")
    assert fresh[0] == old[0] and fresh[0][1] == 8
    # A lag of 256 batches of 128 samples takes less than one version of the policy does.
    assert 50 * fresh[1] < old[1] < 4e6


def test_longer_chunks_than_the_run_are_the_run() -> None:
    """119 GiB were asked for once, for four rounds."""
    trainer = Trainer(tiny("total_steps=512", "evaluation.points=0", "engine.chunk_rounds=1000000000"))
    assert trainer.spec.shape.rounds == trainer.total_rounds == 4
    assert [record["round"] for record in trainer.run()] == [1, 2, 3, 4]


def test_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LIMITS", ())
    free = machine.of_host()
    assert free > 0
    for name, text in (("max", "max\n"), ("limit", "123456789\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "LIMITS", (str(tmp_path / "max"), str(tmp_path / "limit"), str(tmp_path / "none")))
    assert machine.of_host() == 123456789 < free


def test_accelerators_have_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"bytes_limit": 5 * GIB, "bytes_in_use": GIB}
    device = SimpleNamespace(platform="gpu", memory_stats=lambda: stats)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(machine, "of_host", lambda: 2 * GIB)
    check_fits([Part("a", 4 * GIB, 2 * GIB)])
    with pytest.raises(ConfigError, match=r"5 GiB of memory on the gpu at least, and there are 4 GiB: .* \(x=1\)"):
        check_fits([Part("a", 5 * GIB, 0, ("x=1",))])
    with pytest.raises(ConfigError, match="3 GiB of memory at least, and there are 2 GiB"):
        check_fits([Part("a", 0, 2 * GIB), Part("b", 0, GIB)])
    device.memory_stats = lambda: None  # type: ignore[assignment,return-value]
    check_fits([Part("a", 500 * GIB)])


def test_a_network_is_measured_before_it_is_made(ten_gib: None, nothing_made: None) -> None:
    """Its first layer is as large as the observation, which the configuration does not say."""
    config = load_config(["env=gymnax/Breakout-MinAtar", "network.hidden=[10000000]", "network.torso=mlp"])
    assert np.prod(make(config.env.name, {}).observation_space.shape) == 400
    with pytest.raises(ConfigError, match=r"policy versions .*network\.hidden=\[10000000\]"):
        Trainer(config)
