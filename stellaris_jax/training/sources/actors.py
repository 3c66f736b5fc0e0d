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
from stellaris_jax.config.schema import RunError
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.rollout import Fragment, Normalizers, Trajectory, init_normalizers, view
from stellaris_jax.envs.base import HostEnv, HostPool, HostStep, bounded
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


class _Group:
    """Environments stepped together, where they stand and what is carried there; `envs` of them, the first ones, take
    part in a fragment."""

    def __init__(self, pool: HostPool, env: HostEnv, envs: int, carry: Carry):
        self.pool, self.env, self.envs, self.carry = pool, env, envs, carry
        self.obs: np.ndarray = self._arrived().obs
        self.dead = np.zeros(envs, bool)

    def receive(self) -> HostStep:
        """Wait for the step that was sent."""
        step, n = self._arrived(), self.envs
        if n == len(self.obs):
            self.obs = step.obs
        else:
            self.obs[:n] = step.obs
        self.dead[:n] = step.terminated | step.truncated
        return step

    def carry_on(self, carry: Carry) -> None:
        """Take what the network carries on from `obs`: nothing from an episode's last one."""
        n = self.envs

        def taken(old: np.ndarray, new: np.ndarray) -> np.ndarray:
            over = self.dead[:n].reshape(-1, *(1,) * (new.ndim - 1))
            return np.concatenate([np.where(over, np.zeros_like(new[:n]), new[:n]), old[n:]])

        self.carry = jax.tree.map(taken, self.carry, carry)

    def _arrived(self) -> HostStep:
        """What the pool returns, of the shapes it has to have: NumPy would stretch others without a word."""
        step, n = self.pool.recv(), self.envs
        shapes = ((n, *self.env.observation_space.shape), (n,), (n,), (n,))
        for name, array, shape in zip(HostStep._fields, step, shapes, strict=True):
            if np.shape(array) != shape:
                raise RunError(
                    f"{self.env.name} returned {name} of shape {np.shape(array)}, where {n} environments have {shape}."
                )
        return step


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
        self._act, self._unravel = jax.jit(self._policy(network)), jax.jit(network.unravel)
        self._keys = [jax.random.key_data(jax.random.fold_in(jax.random.key(seed), 0xAC7)) for seed in seeds]
        self._groups: list[list[_Group]] = []
        self._round = 0
        self.limits = limits_of(config)
        self._watch = Watch("actors", env.name, config.env.timeout, stopping)
        self.under_way = False

    def _policy(self, network: ActorCritic) -> Any:
        config, distribution = self.config.env, self.distribution

        def act(
            tree: dict[str, Any],
            normalizers: Normalizers,
            obs: jax.Array,
            carry: Carry,
            key_data: jax.Array,
            where: jax.Array,
        ) -> tuple[jax.Array, jax.Array, Carry]:
            """Actions, distributions and what is carried on; `where` is (round, step, group): all the randomness there
            is."""
            key = jax.random.wrap_key_data(key_data)
            for index in where:
                key = jax.random.fold_in(key, index)
            parameters, carry = network.act(tree, view(normalizers, obs, config), carry)
            return distribution.perturb(parameters, distribution.noise(key, (obs.shape[0],))), parameters, carry

        return act

    def example(self, seeds: int) -> Fragment:
        """A fragment of zeros, with the shapes and types of the real ones."""
        config, env = self.config, self.env
        part = _Recorder(config.algorithm.rollout_length, env, self.distribution.size, config.env.num_envs)
        columns = [np.zeros((seeds, *column.shape), column.dtype) for column in part.columns]
        trajectory = _trajectory(columns, np.zeros((seeds, *part.obs.shape[1:]), part.obs.dtype))
        first = np.zeros((seeds, len(part.obs) + 1, config.env.num_envs), bool) if self.network.recurrent else None
        carry = self.network.blank(config.env.num_envs)
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

    def _open(self, round_: int) -> list[list[_Group]]:
        halved = self.config.env.overlap and self.config.env.num_envs > 1 and not is_masked(self.config)
        sizes = [len(part) for part in np.array_split(np.arange(self.config.env.num_envs), 2 if halved else 1)]
        groups = []
        for seed in self.seeds:
            pools = (self.env.open(size, pool_seed(seed, round_, group)) for group, size in enumerate(sizes))
            carried = (jax.device_get(self.network.blank(size)) for size in sizes)
            groups.append([_Group(pool, self.env, *of) for pool, *of in zip(pools, sizes, carried, strict=True)])
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
        action = received.fragment.trajectory.action.astype(self.env.action_space.compact, copy=False)
        return [rows[:, :n] for rows, n in zip(action, envs, strict=True)]

    def replay(self, fragments: Iterable[Sequence[np.ndarray]]) -> None:
        """Step the environments, just opened, through the actions of fragments, each as `actions` gave them."""
        for actions in fragments:
            self._watch.call(partial(self._again, actions))
            self._round += 1

    def _again(self, actions: Sequence[np.ndarray]) -> None:
        dtype = self.env.action_space.dtype
        for groups, rows in zip(self._groups, actions, strict=True):
            parts = [rows] if len(groups) == 1 else np.split(rows, [len(groups[0].obs)], axis=1)
            for group, part in zip(groups, parts, strict=True):
                group.envs = part.shape[1]
            for t in range(len(rows) if rows.shape[1] > 0 else 0):
                for group, part in zip(groups, parts, strict=True):
                    group.pool.send(bounded(part[t].astype(dtype), self.env.action_space))
                for group in groups:
                    group.receive()
                self._watch.beat()

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

    def _roll(self, groups: list[_Group], key: Any, params: Any, normalizers: Normalizers) -> Trajectory:
        """One seed's fragment: in turn, every group is given its actions while the others step."""
        length = self.config.algorithm.rollout_length
        # Once a fragment, not at every step: a network may have millions of parameters.
        tree, normalizers = self._unravel(params), jax.device_put(normalizers)
        parts = [_Recorder(length, self.env, self.distribution.size, len(group.obs)) for group in groups]
        for t in range(length if groups[0].envs > 0 else 0):
            self._watch.beat()
            for g, (group, part) in enumerate(zip(groups, parts, strict=True)):
                if t > 0:
                    part.outcome(t - 1, group)
                where = np.array([self._round, t, g], np.uint32)
                width = self._width(group)
                obs, carry = group.obs[:width], jax.tree.map(lambda x, n=width: x[:n], group.carry)
                acted = self._act(tree, normalizers, obs, carry, key, where)
                action, parameters, carry = jax.device_get(acted)
                part.decision(t, group, action, parameters)
                group.carry_on(carry)
                group.pool.send(bounded(action[: group.envs], self.env.action_space))
        for group, part in zip(groups, parts, strict=True):
            if group.envs > 0:
                part.outcome(length - 1, group)
        last_obs = np.concatenate([group.obs for group in groups])
        columns = [np.concatenate(column, axis=1) for column in zip(*(part.columns for part in parts), strict=True)]
        trajectory = _trajectory(columns, last_obs)
        if not self.network.recurrent:
            return trajectory
        # What follows on a dead transition is an episode's first observation.
        first = np.concatenate([np.zeros_like(trajectory.valid[:1]), ~trajectory.valid])
        return trajectory._replace(first=first)

    def _width(self, group: _Group) -> int:
        """Environments the policy is compiled for, at least as many as take part."""
        if not is_scaled(self.config):
            return len(group.obs)
        return self.limits.envs * self.limits.bucket(-(-group.envs // self.limits.envs))


class _Recorder:
    """The columns of one group's fragment, filled in as it goes: arrays `[T, n, ...]`, 0 where none takes part."""

    def __init__(self, length: int, env: HostEnv, parameters: int, size: int):
        observation = env.observation_space
        self.obs = np.zeros((length, size, *observation.shape), observation.dtype)
        self.action: np.ndarray = np.zeros((length, size, *env.action_space.shape), env.action_space.dtype)
        self.parameters = np.zeros((length, size, parameters), np.float32)
        self.reward = np.zeros((length, size), np.float32)
        self.terminated, self.truncated, self.valid = (np.zeros((length, size), bool) for _ in range(3))
        self.columns = (
            self.obs, self.action, self.parameters, self.reward, self.terminated, self.truncated, self.valid
        )  # fmt: skip

    def decision(self, t: int, group: _Group, action: np.ndarray, parameters: np.ndarray) -> None:
        n = group.envs
        self.obs[t, :n], self.action[t, :n], self.parameters[t, :n] = group.obs[:n], action[:n], parameters[:n]
        self.valid[t, :n] = ~group.dead[:n]

    def outcome(self, t: int, group: _Group) -> None:
        step, n = group.receive(), group.envs
        self.reward[t, :n], self.terminated[t, :n], self.truncated[t, :n] = step.reward, step.terminated, step.truncated


def _trajectory(columns: list[Any], last_obs: Any) -> Trajectory:
    """The trajectory of a recorder's columns; the engine adds the totals of its episodes."""
    obs, action, parameters, reward, terminated, truncated, valid = columns
    return Trajectory(
        obs=obs,
        action=action,
        distribution=parameters,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        final_obs=None,
        totals=None,
        last_obs=last_obs,
        valid=valid,
    )


def pool_seed(seed: int, round_: int, group: int) -> int:
    """The seed of a pool of environments, a 31-bit number of its own for every (seed, round, group)."""
    return int(np.random.SeedSequence([seed, round_, group]).generate_state(1)[0] >> 1)
