"""Actors on the host: they step environments outside JAX and hand fragments over to the learners.

A thread collects fragments: with overlap the next one while the learners train on the last one, with the environments
split in two, one half stepping in the suite's own threads while the policy runs on the other. One fragment is on its
way at a time, and the policy it is rolled with is the newest one when it is asked for: so the data is one round old,
and a run repeats itself to the bit in spite of the threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.host_rollout import (
    HostGroup,
    Recorder,
    acting,
    acting_key,
    compact,
    host_rollout,
    pool_seed,
    step_again,
    trajectory_of,
)
from stellaris_jax.engine.rollout import Fragment, Normalizers, Trajectory, init_normalizers
from stellaris_jax.envs.base import HostEnv
from stellaris_jax.timeline.scaling.limits import is_masked, is_scaled, limits_of
from stellaris_jax.training.sources.watch import Watch, leak


class Behaviour(NamedTuple):
    """The policies of all seeds as actors get them: versions `[S]`, parameters `[S, P]`, normalisers."""

    versions: list[int]
    params: Any
    normalizers: Normalizers


class Received(NamedTuple):
    """A fragment, leaves with a leading axis `[S]`, the versions `[S]` of the policies it was rolled with, and what is
    carried on to the next one, `[S, N, ...]`."""

    fragment: Fragment
    versions: list[int]
    carry: Carry


class Actors:
    """The actors of all seeds.

    `open` starts the environments, `request` asks for the next fragment, `receive` waits for what was asked for.

    Args:
      env: the environment.
      network: the policy.
      config: the run's.
      seeds: one per agent.
      stopping: set when the run is to stop (see `stellaris_jax.training.sources.watch`).
    """

    def __init__(self, env: HostEnv, network: ActorCritic, config: Config, seeds: list[int], stopping: threading.Event):
        self.env, self.config, self.seeds = env, config, seeds
        self.network, self.distribution = network, network.distribution
        normalizers = init_normalizers(env.observation_space)
        self.shapes = jax.eval_shape(lambda: (network.init(jax.random.key(0)), normalizers))
        self._act, self._unravel = jax.jit(acting(network, config.env)), jax.jit(network.unravel)
        self._keys = [acting_key(seed) for seed in seeds]
        self._groups: list[list[HostGroup]] = []
        self._round = 0
        self.limits = limits_of(config)
        self._watch = Watch("actors", env.name, config.env.timeout, stopping)
        self.under_way = False

    def example(self, seeds: int) -> Fragment:
        """A fragment of zeros, with the shapes and types of the real ones."""
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
        """Start all environments anew, determined by (seed, round), for fragment `round_` to be the next one."""
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
            groups.append([HostGroup(pool, self.env, *of) for pool, *of in zip(pools, sizes, carried, strict=True)])
            self._watch.beat()
        return groups

    def request(self, behaviour: Behaviour, envs: list[int] | None = None) -> None:
        """Ask for the next fragment, rolled with these policies by the first `envs` `[S]` environments, default all."""
        taking_part = [self.config.env.num_envs] * len(self.seeds) if envs is None else envs
        self._watch.submit(lambda: self._collect(behaviour, taking_part))
        self.under_way = True

    def receive(self) -> Received:
        """The fragment asked for. What an actor died of is raised here, within a second, and ends all environments.

        Raises:
          EnvStalled: an environment does not answer.
          ActorError: the thread is gone and left no exception.
        """
        try:
            received: Received = self._watch.result()
        except BaseException:
            self.close()
            raise
        self.under_way = False
        return received

    def close(self) -> None:
        """Stop the thread, after the fragment it is at, and close the environments; `open` starts new ones."""
        ended = self._watch.close()
        for group in (group for groups in self._groups for group in groups):
            if ended:
                group.pool.close()
            else:
                leak(group.pool)
        self._groups, self.under_way = [], False

    # Where environments stand --------------------------------------------------------------------------------------

    def actions(self, received: Received, envs: Sequence[int]) -> list[np.ndarray]:
        """What the environments of every seed were given for a fragment, `[T, envs[s], ...]`, as small as can be."""
        action = compact(np.asarray(received.fragment.trajectory.action), self.env)
        return [rows[:, :n] for rows, n in zip(action, envs, strict=True)]

    def replay(self, fragments: Iterable[Sequence[np.ndarray]]) -> None:
        """Step the environments, just opened, through the actions of fragments, each as `actions` gave them."""
        for actions in fragments:
            self._watch.call(partial(self._again, actions))
            self._round += 1

    def _again(self, actions: Sequence[np.ndarray]) -> None:
        for groups, rows in zip(self._groups, actions, strict=True):
            step_again(groups, rows, self._watch.beat)

    def stand(self) -> np.ndarray:
        """The observations `[S, N, ...]` that the environments are at; to be asked for between fragments."""
        return np.stack([np.concatenate([group.obs for group in groups]) for groups in self._groups])

    @property
    def carry(self) -> Carry:
        """What is carried to where they stand, `[S, N, ...]`; to be asked for, and set, between fragments."""
        rows = [jax.tree.map(lambda *x: np.concatenate(x), *(group.carry for group in each)) for each in self._groups]
        return jax.tree.map(lambda *x: np.stack(x), *rows)

    @carry.setter
    def carry(self, carry: Carry) -> None:
        for i, groups in enumerate(self._groups):
            begin = 0
            for group in groups:
                part = slice(begin, begin + len(group.obs))
                group.carry = jax.tree.map(lambda x, i=i, part=part: np.array(x[i, part]), carry)
                begin = part.stop

    # The work of the thread ----------------------------------------------------------------------------------------

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
        """One seed's fragment."""
        # Once a fragment, not at every step: a network may have millions of parameters.
        tree, normalizers = self._unravel(params), jax.device_put(normalizers)

        def act(t: int, group: int, obs: np.ndarray, carry: Carry) -> Any:
            where = np.array([self._round, t, group], np.uint32)
            return jax.device_get(self._act(tree, normalizers, obs, carry, key, where))

        for group in groups:
            group.width = self._width(group)
        return host_rollout(groups, act, self.network, self.config.algorithm.rollout_length, self._watch.beat)

    def _width(self, group: HostGroup) -> int:
        """Environments the policy is compiled for, at least as many as take part."""
        if not is_scaled(self.config):
            return len(group.obs)
        return self.limits.envs * self.limits.bucket(-(-group.envs // self.limits.envs))
