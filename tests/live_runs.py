"""Live runs in this process: functions that end in any order and die at any time, and what the engine makes of them."""

from __future__ import annotations

from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from stellaris_jax import load_config
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.program import Engine
from stellaris_jax.envs.suites.gymnasium import GymnasiumEnv
from stellaris_jax.execute import live as training_live
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.live.driver_steps import DriverSteps
from stellaris_jax.live.functions import Functions
from stellaris_jax.live.pool import Call, Done, Pool
from stellaris_jax.timeline import trace

ENDS = ("before", "after", "all")


class Chaos(Pool):
    """A pool in this thread: what is under way ends in any order, and as often as not it dies first.

    Who dies has done nothing yet, or all of its work; or all processes die with it, and the environments they held.

    Args:
      functions: both.
      deaths: the share of invocations that die.
    """

    def __init__(self, functions: Functions, deaths: float = 0.0, seed: int = 0):
        self.functions, self.deaths, self.random = functions, deaths, Random(seed)
        self.under_way: list[tuple[Call, tuple[Any, ...]]] = []
        self.died = self.cooled = 0

    def submit(self, call: Call, *arguments: Any) -> None:
        assert all((call.kind, call.number) != (one.kind, one.number) for one, _ in self.under_way), "it is busy"
        self.under_way.append((call, arguments))

    def wait(self) -> list[Done]:
        if not self.under_way:
            return []
        call, arguments = self.under_way.pop(self.random.randrange(len(self.under_way)))
        if self.random.random() < self.deaths:
            self.died += 1
            end = self.random.choice(ENDS)
            if end == "after":
                self.functions.invoke(call.kind, *arguments)
            elif end == "all":
                self.functions.close()
            return [Done(call, None, 0.0, 0.01, "killed")]
        value, seconds = self.functions.invoke(call.kind, *arguments)
        return [Done(call, value, seconds, seconds)]

    def cool(self) -> None:
        self.cooled += 1
        self.functions.close()

    def close(self) -> None:
        self.under_way.clear()
        self.functions.close()


_functions_of = cache(Functions)


def functions_of(config: Config) -> Functions:
    """Functions of a configuration, shared with others that compute the same."""
    other = Config()
    same = {name: getattr(other, name) for name in ("live", "checkpoint", "evaluation", "platform", "total_steps")}
    return _functions_of(config.replace(same))


class SharedParts(DriverSteps):
    """Steps of drivers, compiled once for runs of one engine and the same numbers."""

    known: ClassVar[dict[Any, DriverSteps]] = {}

    def __init__(self, engine: Engine, hyper: Hyper):
        key = (id(engine), *(np.asarray(x).tobytes() for x in jax.tree.leaves(hyper)))
        if key not in self.known:
            self.known[key] = DriverSteps(engine, hyper)
        vars(self).update(vars(self.known[key]))


@pytest.fixture
def shared_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live runs share what their drivers compile, beside the engine (`shared_programs`)."""
    monkeypatch.setattr(training_live, "DriverSteps", SharedParts)


def live(config: Config, deaths: float = 0.0, seed: int = 0) -> Trainer:
    """A live run of `Chaos`."""
    return Trainer(config, make_pool=lambda config, actors: Chaos(functions_of(config), deaths, seed))


def lived(config: Config, deaths: float = 0.0, seed: int = 0) -> Trainer:
    """A live run from its beginning to its end."""
    trainer = live(config, deaths, seed)
    trainer.run()
    trainer.close()
    return trainer


def left(trainer: Trainer, config: Config, directory: Path) -> Path:
    """The directory, with what a live run leaves in it."""
    directory.mkdir(exist_ok=True)
    trainer.write(directory)
    (directory / "config.yaml").write_text(to_yaml(config))
    return directory


def replayed(config: Config, directory: Path, **values: Any) -> Trainer:
    """The engine's repetition of what a directory holds."""
    trainer = Trainer(config.replace({"executor": "replay", "trace": str(directory), **values}))
    trainer.run()
    trainer.close()
    return trainer


def opened(directory: Path) -> list[int]:
    """Rounds in which environments began new episodes."""
    return [one.record.index for one in trace.read(directory / trace.NAME).rounds if one.opened]


@pytest.fixture
def fickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments that do not repeat themselves: their seeds decide nothing."""
    seeds, own = count(), GymnasiumEnv.open
    monkeypatch.setattr(GymnasiumEnv, "open", lambda self, num_envs, seed: own(self, num_envs, seed + next(seeds)))


def params(trainer: Trainer) -> np.ndarray:
    """The newest policy, `[P]`."""
    return np.asarray(trainer.state.params[0])


SMALL = (
    "env=gymnax/cartpole",
    "env.num_envs=4",
    "algorithm.rollout_length=16",
    "network.hidden=[8]",
    "algorithm.epochs=2",
    "total_steps=320",
    "executor=live",
    "live.actors=2",
    "system.learners=3",
    "evaluation.points=0",
)


def config_of(*overrides: str) -> Config:
    return load_config([*SMALL, *overrides])


CASES = {
    "pipelined": ("system.actors=pipelined",),
    "corrected": ("system=async", "system.corrections=[kl_gate,delay_compensation]", "algorithm.kl_coefficient=0.2",
                  "system.actors=pipelined"),
    "memory": ("network.memory=lstm", "network.memory_size=4", "algorithm.minibatches=4", "system.actors=pipelined"),
}  # fmt: skip
MORE = {
    "grouped": ("system=softsync", "system.rule_options.c=3", "system.actors=pipelined", "engine.lanes=2"),
    "normalised": ("system=allreduce", "env.normalize_observation=true", "env.normalize_reward=true"),
    "sequences": ("algorithm=impala", "algorithm.minibatches=4"),
    "target": ("algorithm=impact", "algorithm.minibatches=4", "system=impact", "system.actors=pipelined",
               "system.learners=1"),
    "in order": ("system=async", "system.admission=in_order", "system.actors=pipelined"),
    "dropped": ("system=async", "system.admission=bounded", "system.admission_options.bound=1",
                "system.actors=pipelined"),
    "continuous": ("env=brax/inverted_pendulum", "env.num_envs=4"),
    "scaled, with memory": ("scaling=nitro", "scaling.maximum=4", "scaling.minimum=1", "network.memory=gru",
                            "algorithm.minibatches=4"),
    "scaled": ("scaling=nitro", "scaling.maximum=4", "scaling.minimum=1"),
}  # fmt: skip
