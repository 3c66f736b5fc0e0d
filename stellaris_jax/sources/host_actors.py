"""Actors on the host: they step environments outside JAX and pass fragments to the learners.

A thread collects fragments. With overlap it collects the next one while the learners train on the last one. The
environments are split in two halves: one half steps in the suite's threads while the policy runs on the other. Only one
fragment is in flight, rolled with the policy that is newest at the request. So data are one round old, and a run
repeats bit for bit despite the threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.base.watch import Watchdog, leak
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.exploration import chance_of
from stellaris_jax.engine.host_rollout import (
    HostGroup,
    Recorder,
    acting,
    compact,
    host_rollout,
    pool_seed,
    step_again,
    trajectory_of,
)
from stellaris_jax.engine.keys import acting_key
from stellaris_jax.engine.rollout import Fragment, Normalizers, Trajectory, init_normalizers
from stellaris_jax.envs.base import HostEnv
from stellaris_jax.timeline.scaling.limits import is_masked, is_scaled, limits_of


class Behaviour(NamedTuple):
    """Policies of all seeds, as actors receive them.

    Attributes:
      versions: `[S]`, policy versions.
      params: `[S, P]`, flat parameters.
      normalizers: observation normalizers, with a leading axis `[S]`.
    """

    versions: list[int]
    params: Any
    normalizers: Normalizers


class Received(NamedTuple):
    """Fragment from the host.

    Attributes:
      fragment: leaves with a leading axis `[S]`; a list of rollers `[S]` of independent actors.
      versions: `[S]`, versions of the policies that rolled it; `None` if the rounds have them.
      carry: `[S, N, ...]`, recurrent state for the next fragment.
    """

    fragment: Any
    versions: list[int] | None
    carry: Carry


class Actors:
    """Actors of all seeds.

    `open` starts the environments, `request` starts the next fragment, `receive` waits for it.

    Args:
      env: the environment.
      network: policy network.
      config: configuration of the run.
      seeds: one per agent.
      stopping: event that stops the run (see `stellaris_jax.base.watch`).
    """

    def __init__(
        self, env: HostEnv, network: PolicyNetwork, config: Config, seeds: list[int], stopping: threading.Event
    ):
        self.env, self.config, self.seeds = env, config, seeds
        self.network, self.distribution = network, network.distribution
        normalizers = init_normalizers(env.observation_space)
        self.shapes = jax.eval_shape(lambda: (network.init(jax.random.key(0)), normalizers))
        self._act = jax.jit(acting(network, config.env, chance=chance_of(config)))
        self._unravel = jax.jit(network.acting)
        self._keys = [acting_key(seed) for seed in seeds]
        self._groups: list[list[HostGroup]] = []
        self._round = 0
        self.limits = limits_of(config)
        self._watch = Watchdog("actors", env.name, config.env.timeout, stopping)
        self.under_way = False

    def example(self, seeds: int) -> Fragment:
        """Fragment of zeros, with the shapes and dtypes of real ones."""
        config, env = self.config, self.env
        part = Recorder(config.algorithm.rollout_length, env, self.distribution.size, config.env.num_envs)
        columns = [np.zeros((seeds, *column.shape), column.dtype) for column in part.columns]
        trajectory = trajectory_of(columns, np.zeros((seeds, *part.obs.shape[1:]), part.obs.dtype))
        first = np.zeros((seeds, len(part.obs) + 1, config.env.num_envs), bool) if self.network.recurrent else None
        carry = self.network.initial_carry(config.env.num_envs)
        params, normalizers, carry = jax.tree.map(lambda x: np.zeros((seeds, *x.shape), x.dtype), (*self.shapes, carry))
        trajectory = trajectory._replace(first=first)
        return Fragment(trajectory, params, normalizers, np.zeros(seeds, np.int32), carry)

    @property
    def opened(self) -> bool:
        """Whether the environments have been started."""
        return bool(self._groups)

    def open(self, round_: int) -> None:
        """Open new environments, determined by (seed, round); fragment `round_` comes next."""
        self.close()
        self._groups = self._watch.call(lambda: self._open(round_))
        self._round = round_

    def _open(self, round_: int) -> list[list[HostGroup]]:
        halved = self.config.env.overlap and self.config.env.num_envs > 1 and not is_masked(self.config)
        sizes = [len(part) for part in np.array_split(np.arange(self.config.env.num_envs), 2 if halved else 1)]
        groups = []
        for seed in self.seeds:
            pools = (self.env.open(size, pool_seed(seed, round_, group)) for group, size in enumerate(sizes))
            carried = (jax.device_get(self.network.initial_carry(size)) for size in sizes)
            groups.append([HostGroup(pool, self.env, *rest) for pool, *rest in zip(pools, sizes, carried, strict=True)])
            self._watch.beat()
        return groups

    def request(self, behaviour: Behaviour, envs: list[int] | None = None) -> None:
        """Start the next fragment, rolled with these policies by the first `envs` `[S]` environments (default: all)."""
        active = [self.config.env.num_envs] * len(self.seeds) if envs is None else envs
        self._watch.submit(lambda: self._collect(behaviour, active))
        self.under_way = True

    def receive(self) -> Received:
        """Wait for the requested fragment. An actor's exception is raised here and closes all environments.

        Raises:
          EnvStalled: an environment does not answer.
          ActorError: the thread is gone without an exception.
        """
        try:
            received: Received = self._watch.result()
        except BaseException:
            self.close()
            raise
        self.under_way = False
        return received

    def close(self) -> None:
        """Stop the thread after its current fragment and close the environments; `open` starts new ones."""
        ended = self._watch.close()
        for group in (group for groups in self._groups for group in groups):
            if ended:
                group.pool.close()
            else:
                leak(group.pool)
        self._groups, self.under_way = [], False

    # Positions of environments -------------------------------------------------------------------------------------

    def actions(self, received: Received, envs: Sequence[int]) -> list[np.ndarray]:
        """Actions of every seed's environments in a fragment, `[T, envs[s], ...]`, in the smallest dtype."""
        action = compact(np.asarray(received.fragment.trajectory.action), self.env)
        return [rows[:, :n] for rows, n in zip(action, envs, strict=True)]

    def replay(self, fragments: Iterable[Sequence[np.ndarray]]) -> None:
        """Step freshly opened environments through the actions of fragments, in the form of `actions`."""
        for actions in fragments:
            self._watch.call(partial(self._step_again, actions))
            self._round += 1

    def _step_again(self, actions: Sequence[np.ndarray]) -> None:
        for groups, rows in zip(self._groups, actions, strict=True):
            step_again(groups, rows, self._watch.beat)

    def stand(self) -> np.ndarray:
        """Current observations `[S, N, ...]` of the environments; only between fragments."""
        return np.stack([np.concatenate([group.obs for group in groups]) for groups in self._groups])

    @property
    def carry(self) -> Carry:
        """Recurrent states `[S, N, ...]` at the current observations; read and set only between fragments."""
        rows = [
            jax.tree.map(lambda *x: np.concatenate(x), *(group.carry for group in groups)) for groups in self._groups
        ]
        return jax.tree.map(lambda *x: np.stack(x), *rows)

    @carry.setter
    def carry(self, carry: Carry) -> None:
        for i, groups in enumerate(self._groups):
            begin = 0
            for group in groups:
                part = slice(begin, begin + len(group.obs))
                group.carry = jax.tree.map(lambda x, i=i, part=part: np.array(x[i, part]), carry)
                begin = part.stop

    # Work of the thread --------------------------------------------------------------------------------------------

    def _collect(self, behaviour: Behaviour, envs: list[int]) -> Received:
        if is_masked(self.config):
            for (group,), count in zip(self._groups, envs, strict=True):
                group.envs = count
        carry = self.carry
        rows = [
            self._roll(groups, key, behaviour.params[i], jax.tree.map(lambda x, i=i: x[i], behaviour.normalizers))
            for i, (groups, key) in enumerate(zip(self._groups, self._keys, strict=True))
        ]
        self._round += 1
        trajectory = jax.tree.map(lambda *x: np.stack(x), *rows)
        versions = np.array(behaviour.versions, np.int32)
        fragment = Fragment(trajectory, behaviour.params, behaviour.normalizers, versions, carry)
        return Received(fragment, behaviour.versions, self.carry)

    def _roll(self, groups: list[HostGroup], key: Any, params: Any, normalizers: Normalizers) -> Trajectory:
        """Roll one seed's fragment."""
        # Once per fragment rather than per step, because a network may have millions of parameters.
        tree, normalizers = self._unravel(params), jax.device_put(normalizers)

        def act(t: int, group: int, obs: np.ndarray, carry: Carry) -> Any:
            position = np.array([self._round, t, group], np.uint32)
            first = np.int32(sum(len(one.obs) for one in groups[:group]))
            return jax.device_get(self._act(tree, normalizers, obs, carry, key, position, first))

        for group in groups:
            group.width = self._width(group)
        return host_rollout(groups, act, self.network, self.config.algorithm.rollout_length, self._watch.beat)

    def _width(self, group: HostGroup) -> int:
        """Number of environments that the policy is compiled for, at least the number of active ones."""
        if not is_scaled(self.config):
            return len(group.obs)
        return self.limits.envs * self.limits.bucket(-(-group.envs // self.limits.envs))
