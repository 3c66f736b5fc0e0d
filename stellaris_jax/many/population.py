"""Many runs at once on all cores, with as few compiled programs as their configurations allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.machine import cores
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk_cache import SHARED, ChunkCache
from stellaris_jax.engine.evaluate import Evaluation
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.execute.job import prepare
from stellaris_jax.execute.loading import check_and_start_jax
from stellaris_jax.execute.records import Record
from stellaris_jax.execute.trainer import Trainer

T = TypeVar("T")


class Population:
    """Group of runs with any configurations; runs that differ only in data, such as learning rates, share a program.

    >>> from stellaris_jax import load_config
    >>> small = load_config(["env.num_envs=4", "algorithm.rollout_length=16", "network.hidden=[8]", "total_steps=64"])
    >>> population = Population([small.replace({"algorithm.learning_rate": rate}) for rate in (1e-3, 1e-2)])
    >>> [len(records) for records in population.run()], population.engines
    ([1, 1], 1)

    Each run equals the same run alone; bit for bit if seeds run in separate blocks (`engine.members`).

    Args:
      configs: at least one configuration, one for each run; a run may have several seeds.

    Raises:
      ConfigError: there is no configuration, or one cannot run; raised before anything is built.
    """

    def __init__(self, configs: Sequence[Config]):
        if not configs:
            raise ConfigError("A population needs at least one configuration.")
        for config in configs:
            if config.executor != "simulated" or config.engine.distributed:
                setting = "engine.distributed=true" if config.engine.distributed else f"executor={config.executor}"
                raise ConfigError(f"{setting} is not possible in a Population; make one Trainer of it.")
            check_and_start_jax(config)
        self.programs = ProgramCache(ChunkCache(SHARED))
        self.trainers = [Trainer(prepare(config), programs=self.programs) for config in configs]

    @property
    def engines(self) -> int:
        """Number of engines that the runs share."""
        return len({id(trainer.engine) for trainer in self.trainers})

    def run(self, rounds: int | None = None) -> list[list[Record]]:
        """Train every run for `rounds` more rounds, or to its end; returns the records of each run."""
        return self._each(lambda trainer: trainer.run(rounds))

    def evaluate(self, episodes: int | None = None) -> list[Evaluation]:
        """Evaluate every run's policies on whole episodes."""
        return self._each(lambda trainer: trainer.evaluate(episodes))

    def close(self) -> None:
        """Close all trainers."""
        for trainer in self.trainers:
            trainer.close()

    def _each(self, function: Callable[[Trainer], T]) -> list[T]:
        if len(self.trainers) == 1 or any(trainer.spec.devices > 1 for trainer in self.trainers):
            return list(map(function, self.trainers))
        with ThreadPoolExecutor(min(cores(), len(self.trainers)), "population") as threads:
            return list(threads.map(function, self.trainers))
