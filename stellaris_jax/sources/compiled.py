"""Source of fragments that the engine's actors roll inside the compiled program."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Sharding

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk import Chunk, Following
from stellaris_jax.engine.evaluate import Evaluator
from stellaris_jax.engine.keys import FragmentKeys
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.engine.rollout import RolloutInputs, init_actor, rollout
from stellaris_jax.engine.seed_states import SeedStates
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.envs.base import VecEnv
from stellaris_jax.sources.actionlog import ActionLog
from stellaris_jax.sources.resumption import Resumption


class CompiledSource:
    """Source whose whole state is in the engine's state; see `stellaris_jax.sources.source.Source`.

    Args:
      env, network, config, spec: environment, policy network, configuration and program spec of the run.
      programs: cache of compiled programs, for evaluators.
    """

    actors_in_flight = None

    def __init__(self, env: VecEnv, network: PolicyNetwork, config: Config, spec: ProgramSpec, programs: ProgramCache):
        self.env, self.network, self.config, self.spec = env, network, config, spec
        self.programs = programs

    def example(self, seeds: int) -> None:
        return None

    def receive(self, seed_states: SeedStates, chunk: Chunk, following: Following) -> None:
        return None

    def on_learned(self, received: Any, chunk: Chunk) -> None:
        pass

    def evaluator(self, episodes: int) -> Evaluator:
        return self.programs.evaluator(self.config, self.env, self.network, episodes)

    def timed_rollout(self, seed_states: SeedStates) -> tuple[Callable[[], None], float]:
        params, normalizers = jax.tree.map(lambda x: x[0], seed_states.learned)
        envs, algorithm = self.spec.envs, self.config.algorithm
        actor = init_actor(self.env, self.network, jax.random.split(jax.random.key(0), envs))

        def fragment(actor: Any, key: jax.Array) -> Any:
            keys = FragmentKeys(key, jax.random.split(key, envs))
            inputs = RolloutInputs(params, normalizers, actor, keys, algorithm.gamma)
            actor, trajectory = rollout(self.env, self.network, self.config.env, self.spec.steps, inputs)
            return actor, trajectory.reward.sum()

        return repeated(fragment, actor)

    def arrays(self) -> None:
        return None

    def shapes(self, sharding: Sharding) -> None:
        return None

    def state(self, log: ActionLog) -> None:
        return None

    def restore(self, state: dict[str, Any] | None, arrays: Any) -> None:
        pass

    def resume(self, at: Resumption) -> None:
        pass

    def close(self) -> None:
        pass


def repeated(function: Callable[..., Any], state: Any) -> tuple[Callable[[], None], float]:
    """Compile `function(state, key) -> (state, number)`; returns a repeatable call and the seconds of compilation.

    Each call passes the state of the one before, and waits for the number.
    """
    begin = time.perf_counter()
    program = jax.jit(function).lower(state, jax.random.key(0)).compile()
    seconds = time.perf_counter() - begin
    carried = [state, jax.random.key(0)]

    def run() -> None:
        carried[1] = jax.random.fold_in(carried[1], 1)
        carried[0], total = program(*carried)
        jax.block_until_ready(total)

    return run, seconds
