"""One source of data for a trainer, whatever rolls it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, cast

from jax.sharding import Sharding

from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.rollout import Fragment
from stellaris_jax.engine.spec import ProgramSpec, in_program
from stellaris_jax.envs.base import HostEnv, VecEnv
from stellaris_jax.training.chunk import Chunk, Following
from stellaris_jax.training.evaluate import Evaluator, HostEvaluator
from stellaris_jax.training.program_cache import ProgramCache
from stellaris_jax.training.seed_states import SeedStates
from stellaris_jax.training.sources.actionlog import ActionLog
from stellaris_jax.training.sources.actors import Received
from stellaris_jax.training.sources.compiled import CompiledSource
from stellaris_jax.training.sources.host import HostSource
from stellaris_jax.training.sources.live import LiveSource

Run = Callable[[], None]
"""Steps all environments through one fragment, and waits for it."""


class Source(Protocol):
    """Where a trainer's fragments come from.

    Attributes:
      env: what the engine's own actors step; `None` where fragments are handed to the engine.
      asked: `[S]`, the actors that roll the next fragment where it is under way already, else `None`.
    """

    @property
    def env(self) -> VecEnv | None: ...

    @property
    def asked(self) -> list[int] | None: ...

    def width(self, actors: int) -> int:
        """Environments that a round of so many actors is compiled for, where rounds may differ in that."""
        ...

    def example(self, seeds: int) -> Fragment | None:
        """A fragment of zeros of so many seeds to compile for; `None` where the engine's actors roll it."""
        ...

    def receive(self, members: SeedStates, chunk: Chunk, following: Following) -> Received | None:
        """The data of the next chunk.

        Args:
          members: whose policies roll it.
          chunk: what is executed next.
          following: what may be begun meanwhile.
        """
        ...

    def learned(self, received: Received | None, chunk: Chunk) -> None:
        """Told that a chunk and its data have become part of training."""
        ...

    def evaluator(self, episodes: int) -> Evaluator | HostEvaluator:
        """What evaluates so many episodes; made once."""
        ...

    def rehearsal(self, members: SeedStates) -> tuple[Run, float]:
        """Fragments that nothing is learned from, for measuring, and the seconds it took to compile that."""
        ...

    def arrays(self) -> Any:
        """What of its state is arrays."""
        ...

    def shapes(self, sharding: Sharding) -> Any:
        """`arrays` as shapes, dtypes and the sharding given."""
        ...

    def state(self, log: ActionLog) -> dict[str, Any] | None:
        """The rest of its state, as JSON data; what only grows goes to the log. `None` without any."""
        ...

    def restore(self, state: dict[str, Any] | None, arrays: Any) -> None:
        """Continue from what `state` and `arrays` returned, without the environments."""
        ...

    def resume(
        self,
        saved: dict[str, Any] | None,
        log: ActionLog,
        members: SeedStates,
        round_: int,
        note: Callable[[str], None],
    ) -> None:
        """Bring environments to where they stood at a round, `saved` being what was restored.

        `note` is told how they go on.
        """
        ...

    def close(self) -> None:
        """End all that works for it."""
        ...


def source_of(
    env: VecEnv | HostEnv,
    network: ActorCritic,
    config: Config,
    spec: ProgramSpec,
    seeds: list[int],
    stopping: threading.Event,
    programs: ProgramCache,
) -> Source:
    """The source of a run's data; it opens and compiles nothing yet.

    Args:
      env, network, config, spec: the run's.
      seeds: one per agent.
      stopping: set when the run is to stop: nobody waits long for an environment then.
      programs: where what evaluates is found.
    """
    inside = in_program(env)
    if inside is not None:
        return CompiledSource(inside, network, config, spec, programs)
    hosted = LiveSource if config.executor == "live" else HostSource
    return hosted(cast(HostEnv, env), network, config, spec, seeds, stopping)
