"""Shards of independent actors on the host: each is a pool of environments of its own.

A thread for each seed rolls its shards' waves. In a wave all shards step at a time, and one call of the policy acts for
all of them, so that a wave costs as many calls as the rollout of a single pool. A shard's environments and noise are
those that it has in a pool of all environments (`stellaris_jax.sources.host_actors`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.base.watch import Watchdog, leak
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.exploration import chance_of
from stellaris_jax.engine.host_program import HostWave
from stellaris_jax.engine.host_rollout import (
    HostGroup,
    Recorder,
    acting,
    compact,
    pool_seed,
    step_again,
    trajectory_of,
)
from stellaris_jax.engine.keys import acting_key
from stellaris_jax.engine.rollout import Normalizers
from stellaris_jax.engine.shards import HostData
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.envs.base import HostEnv, bounded

ActAll = Callable[[int, np.ndarray, Carry], tuple[np.ndarray, np.ndarray, Carry]]
"""Acting function of all shards: (step, observations `[A, n, ...]`, carry) -> (actions, distributions, next carry)."""


class ShardPolicies:
    """Compiled functions with which the shards of all seeds act.

    Args:
      network: the policy's network.
      config: configuration of the run.
      spec: its program spec.
    """

    def __init__(self, network: PolicyNetwork, config: Config, spec: ProgramSpec):
        self.network, self.spec = network, spec
        chance = chance_of(config)
        self._act = jax.jit(acting(network, config.env, chance=chance))
        # Each shard acts for a part of the environments, with the noise that it has among all of them.
        part = acting(network, config.env, of=spec.envs, chance=chance)
        self._act_each = jax.jit(jax.vmap(part, in_axes=(0, 0, 0, 0, None, 0, 0)))
        self._unravel, self._unravel_each = jax.jit(network.acting), jax.jit(jax.vmap(network.acting))

    def acting(self, wave: HostWave, key: Any) -> ActAll:
        """Acting function of a wave.

        Args:
          wave: the wave.
          key: data of the seed's key of noise.
        """
        shards, envs = wave.number.shape[0], self.spec.shard_envs
        if wave.whole:
            tree, seen = self._unravel(wave.params[0]), jax.tree.map(lambda x: x[0], wave.statistics)
            normalizers = jax.device_put(Normalizers(seen, None))  # type: ignore[arg-type]
            number = wave.number[0]

            def act(t: int, obs: np.ndarray, carry: Carry) -> Any:
                together = partial(jax.tree.map, lambda x: x.reshape(-1, *x.shape[2:]))
                position = np.array([number, t, 0], np.uint32)
                acted = self._act(tree, normalizers, together(obs), together(carry), key, position)
                return jax.tree.map(lambda x: x.reshape(shards, envs, *x.shape[1:]), jax.device_get(acted))

            return act
        trees = self._unravel_each(wave.params)
        each = jax.device_put(Normalizers(wave.statistics, None))  # type: ignore[arg-type]
        begin, offsets = wave.segment * self.spec.segment_steps, np.arange(shards, dtype=np.int32) * envs

        def act_each(t: int, obs: np.ndarray, carry: Carry) -> Any:
            positions = np.stack([wave.number, begin + t, np.zeros_like(begin)], axis=1).astype(np.uint32)
            return jax.device_get(self._act_each(trees, each, obs, carry, key, positions, offsets))

        return act_each


class SeedShards:
    """Shards of one seed; see `stellaris_jax.engine.host_program.Roller`.

    Args:
      env: the environment.
      config: configuration of the run.
      policies: functions with which shards act.
      seed: the seed.
      stopping: event that stops the run (see `stellaris_jax.base.watch`).

    Attributes:
      positions: row of the store and index of the segment that each shard has rolled last, `[A]`; (-1, -1) before.
    """

    def __init__(self, env: HostEnv, config: Config, policies: ShardPolicies, seed: int, stopping: threading.Event):
        self.env, self.policies, self.seed = env, policies, seed
        self.network, self.spec = policies.network, policies.spec
        self.positions: list[tuple[int, int]] = []
        self._key = acting_key(seed)
        self._groups: list[HostGroup] = []
        self._actions: list[list[np.ndarray]] = []
        self._watch = Watchdog("actors", env.name, config.env.timeout, stopping)

    @property
    def opened(self) -> bool:
        """Whether the environments have been started."""
        return bool(self._groups)

    def open(self, round_: int) -> None:
        """Open new environments, determined by (seed, round)."""
        self.close()
        shape = self.spec.collection
        assert shape is not None, "actors are not independent"
        self._groups = self._watch.call(partial(self._open, round_, shape.shards))
        self.positions, self._actions = [(-1, -1)] * shape.shards, [[] for _ in range(shape.shards)]

    def _open(self, round_: int, shards: int) -> list[HostGroup]:
        envs, groups = self.spec.shard_envs, []
        for shard in range(shards):
            # Environment i of a pool is the first one of a pool whose seed is larger by i.
            pool = self.env.open(envs, pool_seed(self.seed, round_, 0) + shard * envs)
            groups.append(HostGroup(pool, self.env, envs, jax.device_get(self.network.initial_carry(envs))))
            self._watch.beat()
        return groups

    def submit(self, wave: HostWave) -> None:
        """Begin to roll a wave."""
        self._watch.submit(partial(self._roll, wave))

    def result(self) -> HostData:
        """Wait for the oldest wave that was submitted. An exception is raised here and closes the environments.

        Raises:
          EnvStalled: an environment does not answer.
          ActorError: the thread is gone without an exception.
        """
        try:
            data: HostData = self._watch.result()
        except BaseException:
            self.close()
            raise
        return data

    def close(self) -> None:
        """Stop the thread after its current wave and close the environments; `open` starts new ones."""
        ended = self._watch.close()
        for group in self._groups:
            if ended:
                group.pool.close()
            else:
                leak(group.pool)
        self._groups = []

    # Positions of environments, between rounds ---------------------------------------------------------------------

    def take_actions(self) -> list[np.ndarray]:
        """Actions of each shard since the last call, `[t, n, ...]`, in the smallest dtype."""
        space = self.env.action_space
        none = np.zeros((0, self.spec.shard_envs, *space.shape), space.compact)
        taken, self._actions = self._actions, [[] for _ in self._groups]
        return [np.concatenate([none, *actions]) for actions in taken]

    def replay(self, actions: Sequence[np.ndarray]) -> None:
        """Step freshly opened environments through actions of each shard, as `take_actions` returned them."""

        def step() -> None:
            for group, taken in zip(self._groups, actions, strict=True):
                step_again([group], taken, self._watch.beat)

        self._watch.call(step)

    def stand(self) -> np.ndarray:
        """Current observations `[N, ...]`."""
        return np.concatenate([group.obs for group in self._groups])

    @property
    def carry(self) -> Carry:
        """Recurrent states `[N, ...]` at the current observations."""
        return jax.tree.map(lambda *x: np.concatenate(x), *(group.carry for group in self._groups))

    @carry.setter
    def carry(self, carry: Carry) -> None:
        envs = self.spec.shard_envs
        for shard, group in enumerate(self._groups):
            part = slice(shard * envs, (shard + 1) * envs)
            group.carry = jax.tree.map(lambda x, part=part: np.array(x[part]), carry)

    # Work of the thread --------------------------------------------------------------------------------------------

    def _carries(self) -> Carry:
        """Recurrent states `[A, n, ...]`."""
        return jax.tree.map(lambda *x: np.stack(x), *(group.carry for group in self._groups))

    def _roll(self, wave: HostWave) -> HostData:
        length = self.spec.steps if wave.whole else self.spec.segment_steps
        act, space, before = self.policies.acting(wave, self._key), self.env.action_space, self._carries()
        size, envs = self.network.distribution.size, self.spec.shard_envs
        parts = [Recorder(length, self.env, size, envs) for _ in self._groups]
        rolling = [(shard, self._groups[shard], parts[shard]) for shard in np.flatnonzero(wave.rolls)]
        for t in range(length if rolling else 0):
            self._watch.beat()
            action, parameters, carry = act(t, np.stack([group.obs for group in self._groups]), self._carries())
            for shard, group, part in rolling:
                part.decision(t, group, action[shard], parameters[shard])
                group.carry_on(jax.tree.map(lambda x, shard=shard: x[shard], carry))
                group.pool.send(bounded(action[shard], space))
            for _, group, part in rolling:
                part.outcome(t, group)
        for shard, _, part in rolling:
            self._actions[shard].append(compact(part.action, self.env))
            last = 0 if self.spec.collection is None or not wave.whole else self.spec.collection.segments - 1
            self.positions[shard] = (int(wave.row[shard]), int(wave.segment[shard]) + last)
        columns = [np.stack(column) for column in zip(*(part.columns for part in parts), strict=True)]
        trajectory = trajectory_of(columns, np.stack([group.obs for group in self._groups]))
        if self.network.recurrent:
            valid = trajectory.valid
            trajectory = trajectory._replace(first=np.concatenate([np.zeros_like(valid[:, :1]), ~valid], axis=1))
        return HostData(trajectory, before)
