"""Compiled programs, shared by runs whose configurations do not differ in what shapes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.probes import Probe, make_probe
from stellaris_jax.engine.program import Engine
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.envs.base import VecEnv
from stellaris_jax.training.evaluate import Evaluator
from stellaris_jax.training.plans import Plans

T = TypeVar("T")


MOST = 512
"""Things kept: each program takes some of the mappings of memory that Linux allows a process, 65,530 by default, and
XLA crashes where there are none left."""


class ProgramCache:
    """LRU cache of compiled programs, keyed by environment, network and spec.

    Plans, hyper-parameters and seeds are data of a program, and no part of its key.

    Args:
      plans: shared as well, by runs whose timelines are the same; nothing is by default.
    """

    def __init__(self, plans: Plans | None = None) -> None:
        self.plans = plans or Plans()
        self._made: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def engine(self, config: Config, env: VecEnv | None, network: ActorCritic, spec: ProgramSpec) -> Engine:
        """The engine; see `stellaris_jax.engine.program.Engine`."""
        return self._once(("engine", *_shape(config), spec), lambda: Engine(config.env, env, network, spec))

    def evaluator(self, config: Config, env: VecEnv, network: ActorCritic, episodes: int) -> Evaluator:
        """What evaluates that many episodes of an environment inside the program."""
        key = ("evaluator", *_shape(config), config.evaluation.greedy, config.evaluation.episode_limit, episodes)
        return self._once(key, lambda: Evaluator(env, network, config, episodes))

    def probe(self, config: Config, network: ActorCritic, spec: ProgramSpec, kind: str) -> Probe | None:
        """What measures what a scaling rule asks for."""
        key = ("probe", *_shape(config), spec, config.scaling, kind)
        return self._once(key, lambda: make_probe(network, config, spec, kind))

    def forget(self) -> None:
        """Let go of everything; who has something keeps it."""
        with self._lock:
            self._made.clear()

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            made: T = self._made.pop(key) if key in self._made else make()
            self._made[key] = made
            if len(self._made) > MOST:
                del self._made[next(iter(self._made))]  # what has not been asked for longest
            return made


def _shape(config: Config) -> tuple[Hashable, ...]:
    return config.env, config.network
