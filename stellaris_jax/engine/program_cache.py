"""Cache of compiled programs, shared by runs whose configurations have the same shapes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk_cache import ChunkCache
from stellaris_jax.engine.evaluate import Evaluator
from stellaris_jax.engine.host_program import HostEngine
from stellaris_jax.engine.probes import Probe, make_probe
from stellaris_jax.engine.program import Engine
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.stored_programs import StoredPrograms, parts_of
from stellaris_jax.envs.base import VecEnv

T = TypeVar("T")


MOST = 512
"""Largest number of cached programs. Each takes some of the memory mappings that Linux allows a process (65,530 by
default); XLA crashes when none are left."""


class ProgramCache:
    """LRU cache of compiled programs, keyed by environment, network and spec.

    ChunkCache, hyper-parameters and seeds are inputs of a program and not part of its key.

    Args:
      chunks: cache of chunks, shared by runs with the same timelines; by default nothing is shared.
    """

    def __init__(self, chunks: ChunkCache | None = None) -> None:
        self.chunks = chunks or ChunkCache()
        self._cached: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def engine(self, config: Config, env: VecEnv | None, network: PolicyNetwork, spec: ProgramSpec) -> Engine:
        """Engine of a configuration; see `stellaris_jax.engine.program.Engine`."""
        kind = HostEngine if spec.collection is not None and spec.host_fragments else Engine

        def make() -> Engine:
            parts = parts_of(config, kind, network.observation_space, network.action_space, spec)
            return kind(config.env, env, network, spec, StoredPrograms(parts))

        return self._once(("engine", *_shape(config), spec), make)

    def evaluator(self, config: Config, env: VecEnv, network: PolicyNetwork, episodes: int) -> Evaluator:
        """Evaluator that plays `episodes` episodes of an environment inside the program."""
        key = ("evaluator", *_shape(config), config.evaluation.greedy, config.evaluation.episode_limit, episodes)
        played: VecEnv = getattr(env, "evaluation", env)

        def make() -> Evaluator:
            return Evaluator(played, network, config, episodes, StoredPrograms(parts_of(config, *key)))

        return self._once(key, make)

    def probe(self, config: Config, network: PolicyNetwork, spec: ProgramSpec, kind: str) -> Probe | None:
        """Probe that takes a scaling rule's measurements."""
        key = ("probe", *_shape(config), spec, config.scaling, kind)
        return self._once(key, lambda: make_probe(network, config, spec, kind))

    def forget(self) -> None:
        """Clear the cache; objects already handed out stay valid."""
        with self._lock:
            self._cached.clear()

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            item: T = self._cached.pop(key) if key in self._cached else make()
            self._cached[key] = item
            if len(self._cached) > MOST:
                del self._cached[next(iter(self._cached))]  # least recently used
            return item


def _shape(config: Config) -> tuple[Hashable, ...]:
    return config.env, config.network
