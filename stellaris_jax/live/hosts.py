"""Host environments of a live run: every actor holds its share, open across invocations.

They cannot be saved, but each is a function of its seed and its actions. So the driver tells an actor the position of
its environments. A process at another position, because it is new or has rolled the fragment before, replays all
actions since the environments were opened. Hence any process rolls the same fragment, any number of times. The driver
stores the actions. A fragment's first observations show it whether the environments are deterministic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.exploration import chance_of
from stellaris_jax.engine.host_rollout import HostGroup, acting, compact, fingerprint, host_rollout, step_again
from stellaris_jax.engine.rollout import Normalizers
from stellaris_jax.envs.base import HostEnv, HostPool


class Share(NamedTuple):
    """Share of a round for an actor.

    Attributes:
      round: number of the round.
      first: number of its first environment.
    """

    round: int
    first: int


class Steps(NamedTuple):
    """Part of a fragment that an actor rolls.

    Attributes:
      fragment: number of the fragment.
      first: number of the actor's first environment.
      begin: first step.
      length: number of steps.
    """

    fragment: int
    first: int
    begin: int
    length: int


class Timed(NamedTuple):
    """Result of a function.

    Attributes:
      value: returned value.
      seconds: seconds of computation, without compilation.
    """

    value: Any
    seconds: float


class Programs(dict[Any, Any]):
    """Compiled functions by name. Each is compiled once: other threads that call it meanwhile wait."""

    def __init__(self) -> None:
        super().__init__()
        self._locks: dict[Any, threading.Lock] = {}
        self._thread = threading.local()

    @property
    def waited(self) -> bool:
        """Whether this thread has waited for a compilation since it set this to False."""
        return getattr(self._thread, "waited", False)

    @waited.setter
    def waited(self, value: bool) -> None:
        self._thread.waited = value

    def compiled(self, name: Any, compile_: Callable[[], Any]) -> Any:
        """Program of this name; `compile_` makes it at the first call."""
        if name not in self:
            self.waited = True
            with self._locks.setdefault(name, threading.Lock()):
                if name not in self:
                    self[name] = compile_()
        return self[name]


class RequestedPosition(NamedTuple):
    """Position of an actor's environments at an invocation.

    Attributes:
      seed: seed of their pool.
      envs: number n of environments.
      opened: round that they were opened for.
      fragments: number of fragments since.
      actions: `[fragments * T, n, ...]`, actions since; `None` for a process that should be in position.
      rehearsal: prepare everything, but step nothing.
      carry: `[n, ...]`, recurrent state at the position; `None` without memory.
    """

    seed: int
    envs: int
    opened: int
    fragments: int
    actions: np.ndarray | None = None
    rehearsal: bool = False
    carry: Carry = None


class NotAtPosition(NamedTuple):
    """Answer of a process that is not in position and was given no actions to replay."""


@dataclass
class OpenEnvs:
    """Environments that a process holds.

    Attributes:
      group: the environments.
      seed: seed of their pool.
      opened: round that they were opened for.
      fragments: number of fragments since.
    """

    group: HostGroup
    seed: int
    opened: int
    fragments: int

    def is_at(self, requested: RequestedPosition) -> bool:
        """Whether the environments are in position, so that a fragment can be rolled at once."""
        position = (requested.seed, requested.envs, requested.opened, requested.fragments)
        return (self.seed, len(self.group.obs), self.opened, self.fragments) == position


@contextmanager
def _closed_on_error(pool: HostPool) -> Iterator[None]:
    """Context in which an error closes environments."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the first error says more
            pool.close()
        raise


class HostActors:
    """Actors of one process; only a pool of threads has several in one process.

    Only environments that no thread is using are in `_open_envs`, so that any thread may close them.

    Args:
      env, network, config: environment, policy network and configuration of the run.
      programs: compiled functions of the process.
    """

    def __init__(self, env: HostEnv, network: PolicyNetwork, config: Config, programs: Programs):
        self.env, self.network, self.length = env, network, config.algorithm.rollout_length
        self._act = jax.jit(acting(network, config.env, config.env.num_envs, chance_of(config)))
        self._unravel = jax.jit(network.acting)
        self._open_envs: dict[int, OpenEnvs] = {}
        self._programs = programs
        self._beats: dict[int, float] = {}

    def silent(self) -> dict[int, float]:
        """Seconds since environments last answered, by identifier of the thread that is waiting for them."""
        now = time.monotonic()
        return {thread: now - beat for thread, beat in self._beats.copy().items()}

    @contextmanager
    def _waiting(self) -> Iterator[Callable[[], None]]:
        """Context in which environments have to answer this thread; yields its heartbeat callback."""
        thread = threading.get_ident()

        def beat() -> None:
            self._beats[thread] = time.monotonic()

        beat()
        try:
            yield beat
        finally:
            del self._beats[thread]

    def roll(
        self,
        share: Share,
        key: np.ndarray,
        params: np.ndarray,
        normalizers: Normalizers,
        requested: RequestedPosition,
    ) -> Timed:
        """Roll a share of a fragment; see `stellaris_jax.live.functions.Functions.roll`."""
        return self.steps(Steps(share.round, share.first, 0, self.length), key, params, normalizers, requested)

    def steps(
        self,
        steps: Steps,
        key: np.ndarray,
        params: np.ndarray,
        normalizers: Normalizers,
        requested: RequestedPosition,
    ) -> Timed:
        """Step environments through a part of a fragment.

        Args:
          steps: the part.
          key: data of the key of noise.
          params, normalizers: acting policy.
          requested: position of the environments.

        Returns:
          Carry and trajectory, or `NotAtPosition`.
        """
        first = steps.first
        envs = self._in_position(first, requested)
        if envs is None:
            return Timed(NotAtPosition(), 0.0)
        tree, normalizers = self._unravel(params), jax.device_put(normalizers)
        group = envs.group
        group.carry = requested.carry

        def act(t: int, _: int, obs: np.ndarray, carry: Carry) -> Any:
            draw = np.array([steps.fragment, steps.begin + t, 0], np.uint32)
            return jax.device_get(self._act(tree, normalizers, obs, carry, key, draw, np.int32(first)))

        self._programs.compiled(("act", requested.envs), lambda: act(0, 0, group.obs, requested.carry))
        begin = time.perf_counter()
        group.envs = 0 if requested.rehearsal else requested.envs
        del self._open_envs[first]  # between two positions: an error leaves them unusable
        with _closed_on_error(group.pool), self._waiting() as beat:
            trajectory = host_rollout([group], act, self.network, steps.length, beat)
        envs.fragments += 0 if requested.rehearsal else 1
        self._open_envs[first] = envs
        last_obs = trajectory.last_obs.astype(trajectory.obs.dtype)
        return Timed((group.carry, trajectory._replace(last_obs=last_obs)), time.perf_counter() - begin)

    def _in_position(self, first: int, requested: RequestedPosition) -> OpenEnvs | None:
        """Environments in position, after a replay if necessary; `None` if the actions for it are missing."""
        envs = self._open_envs.get(first)
        if envs is not None and envs.is_at(requested):
            return envs
        if requested.actions is None:
            return None
        with self._waiting() as beat:
            self._close(first)
            pool = self.env.open(requested.envs, requested.seed)
            with _closed_on_error(pool):
                group = HostGroup(pool, self.env, requested.envs, None)
                step_again([group], requested.actions, beat)
        self._open_envs[first] = envs = OpenEnvs(group, requested.seed, requested.opened, requested.fragments)
        return envs

    def _close(self, first: int) -> None:
        envs = self._open_envs.pop(first, None)
        if envs is not None:
            envs.group.pool.close()

    def close(self) -> None:
        """Close all environments, except those that a thread is using."""
        for first in list(self._open_envs):
            self._close(first)


@dataclass
class EnvPosition:
    """Position of a run's host environments, stored by its driver.

    Attributes:
      env: the environment.
      blank: `[N, ...]`, recurrent state at the first observations of all; `None` without memory.
      most: largest number of fragments whose actions are stored; beyond it environments cannot be restored, and begin
        new episodes instead.
      opened: round that they were opened for.
      fragments: number of fragments since.
      actions: actions since, arrays `[t, N, ...]`; `None` if there were too many.
      digest: fingerprint of the current observations; "" if they have just been opened.
      carry: `[N, ...]`, current recurrent state.
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
        """Begin new episodes in all environments with this round."""
        self.opened, self.fragments, self.actions, self.digest = round_, 0, [], ""
        self.carry = self.blank

    def restore(self, opened: int, fragments: int, digest: str, actions: list[np.ndarray], carry: Carry) -> None:
        """Take the values of another position; `actions` are one array or more, `[t, N, ...]` each."""
        self.opened, self.fragments, self.digest, self.actions, self.carry = opened, fragments, digest, actions, carry

    def copy(self) -> EnvPosition:
        """Position that stays as it is when this one goes on."""
        copied = copy(self)
        copied.actions = None if self.actions is None else list(self.actions)
        return copied

    def add(self, actions: np.ndarray, last_obs: np.ndarray, carry: Carry) -> None:
        """Add a fragment.

        Args:
          actions: its actions, `[T, N, ...]`.
          last_obs: observations after it, `[N, ...]`.
          carry: recurrent state after it.
        """
        self.carry = carry
        self.fragments += 1
        if self.fragments > self.most:
            self.actions = None
        if self.actions is not None:
            self.actions.append(compact(actions, self.env))
        self.digest = fingerprint(last_obs)

    def since(self, first: int, end: int, begin: int = 0) -> np.ndarray | None:
        """Actions `[t, end - first, ...]` of some environments since opening, or from the array `begin` on.

        Returns `None` if they were dropped.
        """
        if self.actions is None:
            return None
        space = self.env.action_space
        none = np.zeros((0, end - first, *space.shape), space.compact)
        return np.concatenate([none, *(actions[:, first:end] for actions in self.actions[begin:])])

    def matches(self, obs: np.ndarray) -> bool:
        """Whether observations `[N, ...]` match the current position."""
        return self.digest in ("", fingerprint(obs))
