"""Interface of a trainer's source of data, and the choice of one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, cast

from jax.sharding import Sharding

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk import Chunk, Following
from stellaris_jax.engine.evaluate import Evaluator, HostEvaluator
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.engine.rollout import Fragment
from stellaris_jax.engine.seed_states import SeedStates
from stellaris_jax.engine.spec import ProgramSpec, in_program
from stellaris_jax.envs.base import HostEnv, VecEnv
from stellaris_jax.sources.actionlog import ActionLog
from stellaris_jax.sources.compiled import CompiledSource
from stellaris_jax.sources.host import HostSource
from stellaris_jax.sources.host_actors import Received
from stellaris_jax.sources.live import LiveShardSource, LiveSource
from stellaris_jax.sources.resumption import Resumption
from stellaris_jax.sources.shards import ShardSource

Run = Callable[[], None]
"""Function that steps all environments through one fragment and waits for it."""


class Source(Protocol):
    """Source of a trainer's fragments.

    Attributes:
      env: environment that the engine's actors step; `None` if fragments are passed to the engine.
      actors_in_flight: `[S]`, actors that roll the next fragment if it is already in flight, else `None`.
    """

    @property
    def env(self) -> VecEnv | None: ...

    @property
    def actors_in_flight(self) -> list[int] | None: ...

    def example(self, seeds: int) -> Fragment | None:
        """Fragment of zeros for `seeds` seeds, to compile for; `None` if the engine's actors roll it."""
        ...

    def receive(self, seed_states: SeedStates, chunk: Chunk, following: Following) -> Received | None:
        """Receive the data of the next chunk.

        Args:
          seed_states: states of the seeds, whose policies roll it.
          chunk: chunk to execute next.
          following: round that can be prefetched.
        """
        ...

    def on_learned(self, received: Received | None, chunk: Chunk) -> None:
        """Note that a chunk and its data have become part of training."""
        ...

    def evaluator(self, episodes: int) -> Evaluator | HostEvaluator:
        """Evaluator of `episodes` episodes; cached."""
        ...

    def timed_rollout(self, seed_states: SeedStates) -> tuple[Run, float]:
        """Function that rolls fragments only for timing, and the seconds it took to compile."""
        ...

    def arrays(self) -> Any:
        """Arrays of the source's state."""
        ...

    def shapes(self, sharding: Sharding) -> Any:
        """Shapes, dtypes and the given sharding of `arrays`."""
        ...

    def state(self, log: ActionLog) -> dict[str, Any] | None:
        """Rest of the state as JSON data; growing parts are appended to the log. `None` without any."""
        ...

    def restore(self, state: dict[str, Any] | None, arrays: Any) -> None:
        """Continue from a state that `state` and `arrays` returned, without the environments."""
        ...

    def resume(self, at: Resumption) -> None:
        """Restore the environments' positions."""
        ...

    def close(self) -> None:
        """Stop all threads and close all environments of the source."""
        ...


def source_of(
    env: VecEnv | HostEnv,
    network: PolicyNetwork,
    config: Config,
    spec: ProgramSpec,
    seeds: list[int],
    stopping: threading.Event,
    programs: ProgramCache,
) -> Source:
    """Source of a run's data; opens and compiles nothing yet.

    Args:
      env, network, config, spec: environment, policy network, configuration and program spec of the run.
      seeds: one per agent.
      stopping: event that stops the run; waits for environments end early once it is set.
      programs: cache of compiled programs, for evaluators.
    """
    program_env = in_program(env)
    if program_env is not None:
        return CompiledSource(program_env, network, config, spec, programs)
    free, live = spec.collection is not None, config.executor == "live"
    of_shards, of_rounds = (LiveShardSource, LiveSource) if live else (ShardSource, HostSource)
    source_class = of_shards if free else of_rounds
    return source_class(cast(HostEnv, env), network, config, spec, seeds, stopping)
