"""Source of independent actors' data from host environments: shards that the engine lets roll step by step."""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import Any

import jax
import numpy as np

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk import Chunk, Following
from stellaris_jax.engine.host_rollout import fingerprint
from stellaris_jax.engine.seed_states import SeedStates
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.envs.base import HostEnv
from stellaris_jax.sources.actionlog import ActionLog, ActionLogError
from stellaris_jax.sources.host import HostSource
from stellaris_jax.sources.host_actors import Received
from stellaris_jax.sources.host_shards import SeedShards, ShardPolicies


class ShardSource(HostSource):
    """Source whose shards the engine asks for waves within a round; see `HostSource`, also for the arguments.

    Attributes:
      shards: shards of each seed.
    """

    def __init__(
        self,
        env: HostEnv,
        network: PolicyNetwork,
        config: Config,
        spec: ProgramSpec,
        seeds: list[int],
        stopping: threading.Event,
    ):
        super().__init__(env, network, config, spec, seeds, stopping)
        self.spec, policies = spec, ShardPolicies(network, config, spec)
        self.shards = [SeedShards(env, config, policies, seed, stopping) for seed in seeds]
        self._steps = 0  # environment steps since the environments were opened, the most of all seeds
        self._positions: list[list[tuple[int, int]]] = []
        self._in_round = False

    def example(self, seeds: int) -> None:  # type: ignore[override]
        return None

    def open(self, round_: int) -> None:
        for one in self.shards:
            one.open(round_)
        self._first, self._logged, self._memory, self._steps = round_, False, self._carry(), 0
        self._actions = [] if self.config.checkpoint.replay > 0 else None

    def receive(self, seed_states: SeedStates, chunk: Chunk, following: Following) -> Received:
        """Shards of all seeds, which the engine lets roll."""
        # A round that failed has moved environments.
        if self._in_round or not all(one.opened for one in self.shards):
            self.open(chunk.begin)
            self._forget(seed_states)
        self._in_round = True
        return Received(self.shards, None, None)

    def on_learned(self, received: Received | None, chunk: Chunk) -> None:
        self._in_round = False
        self._stand, self._memory = np.stack([one.stand() for one in self.shards]), self._carry()
        self._positions = [list(one.positions) for one in self.shards]
        taken = [one.take_actions() for one in self.shards]
        self._steps += _env_steps(taken)
        if self._actions is not None:
            self._actions += [actions for shards in taken for actions in shards]
            if self._steps > self.config.checkpoint.replay:
                self._actions = None

    def close(self) -> None:
        for one in self.shards:
            one.close()
        super().close()

    # Saving --------------------------------------------------------------------------------------------------------

    def _saved(self) -> Any:
        return None, self.actors.network.initial_carry(self.config.env.num_envs)

    def state(self, log: ActionLog) -> dict[str, Any]:
        return {**super().state(log), "positions": self._positions}

    def restore(self, state: dict[str, Any] | None, arrays: Any) -> None:
        super().restore(state, arrays)
        assert state is not None
        for one in self.shards:
            one.close()
        self._in_round, self._positions = False, [[tuple(pair) for pair in shards] for shards in state["positions"]]

    def _replay(self, saved: dict[str, Any], log: ActionLog) -> str:
        begin, carry = time.perf_counter(), self._memory
        self.open(saved["first"])
        arrays, self._logged = log.read(saved["mark"]), True
        shards = self.config.actor_shards
        while actions := list(islice(arrays, len(self.shards) * shards)):
            taken = [actions[i : i + shards] for i in range(0, len(actions), shards)]
            for one, part in zip(self.shards, taken, strict=True):
                one.replay(part)
            self._steps += _env_steps(taken)
        self._stand = np.stack([one.stand() for one in self.shards])
        if saved["stand"] not in (fingerprint(self._stand), ""):
            raise ActionLogError(f"{self.actors.env.name} does not repeat itself")
        self._memory = carry
        for i, (one, positions) in enumerate(zip(self.shards, self._positions, strict=True)):
            one.carry, one.positions = jax.tree.map(lambda x, i=i: x[i], carry), list(positions)
        seconds = time.perf_counter() - begin
        return f"environments stand where they stood: {self._steps:,} env steps replayed in {seconds:.1f} s"

    def _carry(self) -> Any:
        """Recurrent states `[S, N, ...]`."""
        return jax.tree.map(lambda *x: np.stack(x), *(one.carry for one in self.shards))

    def _forget(self, seed_states: SeedStates) -> None:
        """Reset unfinished episodes, and end those in the fragments that shards are in the middle of."""
        last = self.config.segments - 1
        steps = [
            [(row, (segment + 1) * self.spec.segment_steps - 1) for row, segment in shards if 0 <= segment < last]
            for shards in self._positions
        ]
        seed_states.forget_episodes(steps)
        self._positions = [list(one.positions) for one in self.shards]


def _env_steps(actions: list[list[np.ndarray]]) -> int:
    """Environment steps of actions `[S][A]`, the most of all seeds."""
    return max(sum(len(taken) * taken.shape[1] for taken in shards) for shards in actions)
