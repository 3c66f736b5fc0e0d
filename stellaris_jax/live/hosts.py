"""Host environments of a live run: every actor holds its share of them, open from one invocation to the next.

They cannot be saved, but each is a function of its seed and of its actions. So an actor is told where its environments
are to stand, and a process in which they stand elsewhere, because it is new or has done the work before, gets there by
stepping through all actions since they were opened: whoever rolls a fragment, and however often, it is the same. The
driver keeps those actions, and sees by a fragment's first observations whether environments do repeat themselves.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.host_rollout import HostGroup, acting, compact, fingerprint, host_rollout, step_again
from stellaris_jax.engine.rollout import Normalizers, Trajectory
from stellaris_jax.envs.base import HostEnv


class Place(NamedTuple):
    """Where an actor's environments are to stand when it is invoked.

    seed: of their pool. envs: n of them. opened: round they were opened for. fragments: that they have been stepped
    through since. actions: `[fragments * T, n, ...]`; `None` is for a process that stands there already. rehearsal:
    everything is to be made ready, and nothing stepped. carry: what the network carries to there, `[n, ...]`; `None`
    without memory.
    """

    seed: int
    envs: int
    opened: int
    fragments: int
    actions: np.ndarray | None = None
    rehearsal: bool = False
    carry: Carry = None


class NotAtPosition(NamedTuple):
    """What a process answers that does not stand at its place, and was given no actions to get there."""


Rolled = tuple[Carry, Trajectory]
"""What is carried on after a fragment, and the fragment."""


@dataclass
class Held:
    """Environments that a process holds: opened for a round, and stepped through so many fragments since."""

    group: HostGroup
    seed: int
    opened: int
    fragments: int

    def stands_at(self, place: Place) -> bool:
        """Whether a fragment can be rolled from there at once."""
        there = (place.seed, place.envs, place.opened, place.fragments)
        return (self.seed, len(self.group.obs), self.opened, self.fragments) == there


class HostActors:
    """The actors of one process; only threads of one process are several.

    Args:
      env, network, config: the run's.
    """

    def __init__(self, env: HostEnv, network: ActorCritic, config: Config):
        self.env, self.network, self.length = env, network, config.algorithm.rollout_length
        self._act = jax.jit(acting(network, config.env, config.env.num_envs))
        self._unravel = jax.jit(network.unravel)
        self._held: dict[int, Held] = {}
        self._compiled: set[int] = set()

    def roll(
        self, round_: int, first: int, key: np.ndarray, params: np.ndarray, normalizers: Normalizers, place: Place
    ) -> tuple[Rolled | NotAtPosition, float]:
        """A part of a fragment, and the seconds it took; see `stellaris_jax.live.functions.Functions.roll`."""
        held = self._there(first, place)
        if held is None:
            return NotAtPosition(), 0.0
        tree, normalizers = self._unravel(params), jax.device_put(normalizers)
        group = held.group
        group.carry = place.carry

        def act(t: int, _: int, obs: np.ndarray, carry: Carry) -> Any:
            where = np.array([round_, t, 0], np.uint32)
            return jax.device_get(self._act(tree, normalizers, obs, carry, key, where, np.int32(first)))

        if place.envs not in self._compiled:
            act(0, 0, group.obs, place.carry)
            self._compiled.add(place.envs)
        begin = time.perf_counter()
        group.envs = 0 if place.rehearsal else place.envs
        if not place.rehearsal:
            del self._held[first]  # on the way it stands nowhere
        trajectory = host_rollout([group], act, self.network, self.length)
        if not place.rehearsal:
            self._held[first] = held
            held.fragments += 1
        last_obs = trajectory.last_obs.astype(trajectory.obs.dtype)
        return (group.carry, trajectory._replace(last_obs=last_obs)), time.perf_counter() - begin

    def _there(self, first: int, place: Place) -> Held | None:
        """Environments where they are to stand; `None` if they cannot be brought there."""
        held = self._held.get(first)
        if held is not None and held.stands_at(place):
            return held
        if place.actions is None:
            return None
        self._close(first)
        group = HostGroup(self.env.open(place.envs, place.seed), self.env, place.envs, None)
        self._held[first] = held = Held(group, place.seed, place.opened, place.fragments)
        step_again([group], place.actions)
        return held

    def _close(self, first: int) -> None:
        held = self._held.pop(first, None)
        if held is not None:
            held.group.pool.close()

    def close(self) -> None:
        """Close all environments."""
        for first in list(self._held):
            self._close(first)


@dataclass
class Standing:
    """Where a run's host environments stand, as its driver knows it.

    env: the environment. blank: what is carried to the first observations of all of them, `[N, ...]`; `None` without
    memory. most: fragments whose actions are kept; environments that have gone through more cannot be
    brought back, and begin new episodes instead. opened, fragments: as of `Place`. actions: of every fragment since,
    `[T, N, ...]`; `None` if there were too many. digest: of the observations where they stand; "" if they have just
    been opened. carry: what is carried there, `[N, ...]`.
    """

    env: HostEnv
    blank: Carry
    most: int
    opened: int = 0
    fragments: int = 0
    actions: list[np.ndarray] | None = field(default_factory=list)
    digest: str = ""
    carry: Carry = field(init=False)

    def __post_init__(self) -> None:
        self.carry = self.blank

    def open(self, round_: int) -> None:
        """All of them begin new episodes with this round."""
        self.opened, self.fragments, self.actions, self.digest = round_, 0, [], ""
        self.carry = self.blank

    def add(self, trajectory: Trajectory, carry: Carry) -> None:
        """They have been stepped through one more fragment, and so much is carried on."""
        self.carry = carry
        self.fragments += 1
        if self.fragments > self.most:
            self.actions = None
        if self.actions is not None:
            self.actions.append(compact(np.asarray(trajectory.action), self.env))
        self.digest = fingerprint(np.asarray(trajectory.last_obs))

    def since(self, first: int, end: int) -> np.ndarray | None:
        """The actions `[fragments * T, end - first, ...]` of some of them since they were opened; `None` if they are
        not known any more."""
        if self.actions is None:
            return None
        if not self.actions:
            return np.zeros((0, end - first, *self.env.action_space.shape), self.env.action_space.compact)
        return np.concatenate([actions[:, first:end] for actions in self.actions])

    def has_come_to(self, obs: np.ndarray) -> bool:
        """Whether observations `[N, ...]` are those of where they stand."""
        return self.digest in ("", fingerprint(obs))
