"""Live runs on threads of this process, and on a pool of a plug-in."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from commands import REPOSITORY
from live_runs import MORE, config_of

from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.registry import register
from stellaris_jax.execute.executors import check_installed
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.live import broker
from stellaris_jax.live.functions import Functions, Pointer
from stellaris_jax.live.pool import LEARNER, Call, Done
from stellaris_jax.live.threads import Threads


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need no Ray."""
    monkeypatch.setattr(broker, "find_spec", lambda name: None)
    config = config_of("live.pool=threads")
    check_installed(config)
    with closing(Trainer(config)) as trainer:
        assert len(trainer.run()) == config.rounds
        assert isinstance(trainer.executor.conductor.pool, Threads)


def counting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Names of the functions that are compiled from now on."""
    compiled: list[Any] = []
    own = Functions._timed

    def timed(self: Functions, name: Any, function: Any, *arguments: Any) -> Any:
        def traced(*inputs: Any) -> Any:
            compiled.append(name)
            return function(*inputs)

        return own(self, name, traced, *arguments)

    monkeypatch.setattr(Functions, "_timed", timed)
    return compiled


def test_threads_compile_each_function_once_and_every_width_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = counting(monkeypatch)
    config = config_of("live.pool=threads", "env.num_envs=8", *MORE["scaled"], "system.learners=4")
    with closing(Trainer(config)) as trainer:
        trainer.compile()
        widths = [trainer.schedule.width(n) * 16 for n in trainer.schedule.limits.buckets]
        assert len(set(widths)) == 3
        assert sorted(size for kind, size in compiled if kind == "learn") == sorted(widths)
        before = list(compiled)
        trainer.run()
        assert compiled == before and len(set(compiled)) == len(compiled)


def test_seconds_of_a_compilation_in_a_thread_are_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the thread that compiles, nor for the one that waits for it."""
    config = config_of("live.pool=threads")
    with closing(Trainer(config)) as trainer:
        trainer.compile()
        pool = trainer.executor.conductor.pool
        assert isinstance(pool, Threads)
        functions, meeting = pool._functions, threading.Barrier(2)

        def learn(name: str) -> Any:
            if name == "new":
                meeting.wait(10.0)
            return functions._timed(name, lambda x: x + 1, np.float32(1))

        functions._timed("old", lambda x: x + 1, np.float32(1))
        monkeypatch.setattr(functions, "learn", learn)
        for number, name in enumerate(("new", "new", "old")):
            pool.submit(Call(LEARNER, number, number), name)
        done: list[Done] = []
        while ended := pool.wait():
            done += ended
        assert {one.call.number: one.cold for one in done} == {0: True, 1: True, 2: False}
        for number in range(2):
            pool.submit(Call(LEARNER, number, number), "old")
        while ended := pool.wait():
            assert not any(one.cold for one in ended)


def test_an_error_in_a_thread_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("it has\nno samples")

    monkeypatch.setattr(Functions, "learn", broken)
    with closing(Trainer(config_of("live.pool=threads"))) as trainer, pytest.raises(RunError) as told:
        trainer.run()
    assert str(told.value) in {f"learner {n} cannot go on: ValueError: no samples" for n in range(3)}


def test_the_fragment_of_a_learner_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that fetches another fragment meanwhile takes none away."""
    functions = Functions(config_of())
    used: list[int] = []

    class Samples(NamedTuple):
        fragment: int

        @property
        def action(self) -> np.ndarray:
            if self.fragment == 0:
                learn(1)
            return np.zeros(2)

    def learn(fragment: int) -> None:
        functions.learn(Pointer(fragment, 0, 0, 0, 0.0), (Samples(fragment), np.zeros(1)), np.zeros(3), None)  # type: ignore[arg-type]

    monkeypatch.setattr(jax, "device_put", lambda data: data)
    monkeypatch.setattr(functions, "_timed", lambda name, function, data, *_: used.append(data[0].fragment))
    learn(0)
    assert used == [1, 0]


def test_a_pool_of_a_plugin() -> None:
    plugin = REPOSITORY / "examples" / "plugins" / "pool.py"
    with closing(Trainer(config_of(f"plugins=[{plugin}]", "live.pool=inline"))) as trainer:
        assert len(trainer.run()) == trainer.config.rounds
        assert type(trainer.executor.conductor.pool) is register.pool["inline"]


def test_an_unknown_pool_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^live\.pool must be one of .*ray.* not 'thread'; did you mean threads\?"):
        config_of("live.pool=thread")
