"""Actors as the driver of a live run sees them: what each is handed for its share of a fragment, and what becomes of
that."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.engine.host_rollout import acting_key, pool_seed
from stellaris_jax.engine.rollout import ActorState, Trajectory
from stellaris_jax.engine.state import EngineState
from stellaris_jax.live.hosts import Place, Standing
from stellaris_jax.live.pool import Pool


class Width(NamedTuple):
    """How wide a round is. actors: that roll it. envs: that they step. width: environments it is compiled for."""

    actors: int
    envs: int
    width: int

    @property
    def shares(self) -> list[tuple[int, int]]:
        """Of every actor the first of its environments, and the first that is not."""
        bounds = np.linspace(0, self.envs, self.actors + 1).round().astype(int).tolist()
        return list(pairwise(bounds))


class Handed(NamedTuple):
    """What an actor is handed beside the policy. key: data of the key that decides all that is random. envs: what it
    takes to step its environments. behind: fragments that it has to step them through first."""

    key: np.ndarray
    envs: Any
    behind: int = 0


class Joined(NamedTuple):
    """What a round's actors have rolled. actor: the state of all environments after it. trajectory: as wide as it is
    compiled for. carry: what was carried to its first observations, as wide; `None` without memory."""

    actor: ActorState
    trajectory: Trajectory
    carry: Carry


class Actors(Protocol):
    """Those of one run, a fragment at a time."""

    def begin(self, state: EngineState, index: int, rehearsal: bool = False) -> None:
        """The fragment of round `index` is to be rolled; as a rehearsal all is made ready, and nothing comes of it."""
        ...

    def begin_anew(self) -> None:
        """It is to be rolled once more."""
        ...

    def handed(self, pool: Pool, first: int, end: int, again: bool = False) -> Handed | None:
        """Input of the actor of some environments; `None` where all of the fragment has to be rolled anew.

        Args:
          pool: holds the objects that actors fetch.
          first: number of the first environment.
          end: number behind the last one.
          again: whether the actor has answered `NotAtPosition`.
        """
        ...

    def joined(self, parts: Sequence[Any], width: Width) -> Joined | None:
        """A fragment of what actors have returned, in order; `None` if all of it has to be rolled anew."""
        ...

    def over(self) -> bool:
        """The round is; whether environments began new episodes with it, because they could not go on."""
        ...


class ProgramActors:
    """Actors of JAX environments, whose state travels with every invocation."""

    def begin(self, state: EngineState, index: int, rehearsal: bool = False) -> None:
        self._state: ActorState = jax.device_get(state.actor)
        self._key = np.asarray(jax.random.key_data(state.key))

    def begin_anew(self) -> None:
        raise AssertionError("whatever they are handed, they can go on from")

    def handed(self, pool: Pool, first: int, end: int, again: bool = False) -> Handed | None:
        return Handed(self._key, pool.put(jax.tree.map(lambda x: x[first:end], self._state)))

    def joined(self, parts: Sequence[Any], width: Width) -> Joined | None:
        states = _concatenated([state for state, _ in parts], 0)
        actor = jax.tree.map(lambda new, old: np.concatenate([new, old[width.envs :]]), states, self._state)
        carry = jax.tree.map(lambda x: x[: width.width], self._state.carry)
        return Joined(actor, _side_by_side([trajectory for _, trajectory in parts], width.width), carry)

    def over(self) -> bool:
        return False


class HostedActors:
    """Actors that hold host environments, which they are told how to bring to where they stand.

    Args:
      standing: where that is.
      seed: the run's.
    """

    def __init__(self, standing: Standing, seed: int):
        self.standing, self.seed = standing, seed
        self._key = np.asarray(acting_key(seed))

    def begin(self, state: EngineState, index: int, rehearsal: bool = False) -> None:
        self._state, self._index, self._rehearsal = jax.device_get(state.actor), index, rehearsal
        self._replay_unavailable = False

    def begin_anew(self) -> None:
        """Environments that cannot be brought to where they stood begin new episodes, and the others with them."""
        self._replay_unavailable = False
        self.standing.open(self._index)

    def handed(self, pool: Pool, first: int, end: int, again: bool = False) -> Handed | None:
        at = self.standing
        actions = at.since(first, end) if again or at.fragments == 0 else None
        if again and actions is None:
            self._replay_unavailable = True
            return None
        seed = pool_seed(self.seed, at.opened, 0) + first  # as the compiled engine's one pool seeds its environments
        carry = jax.tree.map(lambda x: x[first:end], at.carry)
        place = Place(seed, end - first, at.opened, at.fragments, actions, self._rehearsal, carry)
        return Handed(self._key, place, at.fragments if again else 0)

    def joined(self, parts: Sequence[Any], width: Width) -> Joined | None:
        if self._replay_unavailable:
            return None
        trajectory, before = _side_by_side([trajectory for _, trajectory in parts], width.width), self.standing.carry
        if self._rehearsal:
            return Joined(self._state, trajectory, before)
        if not self.standing.has_come_to(np.asarray(trajectory.obs[0])):
            return None
        self._rolled = trajectory, _concatenated([carry for carry, _ in parts], 0)
        if self.standing.opened < self._index:
            return Joined(self._state, trajectory, before)
        return Joined(self._state._replace(totals=np.zeros_like(self._state.totals)), trajectory, before)

    def over(self) -> bool:
        self.standing.add(*self._rolled)
        return 0 < self.standing.opened == self._index


def _concatenated(parts: Sequence[Any], axis: int) -> Any:
    return jax.tree.map(lambda *x: np.concatenate(x, axis), *parts)


def _side_by_side(parts: Sequence[Trajectory], width: int) -> Trajectory:
    """One trajectory of those of environments that follow each other, as wide as it is compiled for."""
    trajectory = _concatenated([one._replace(last_obs=one.last_obs[None]) for one in parts], 1)
    trajectory = jax.tree.map(lambda x: _widened(x, 1, width), trajectory)
    whole: Trajectory = trajectory._replace(last_obs=trajectory.last_obs[0])
    return whole


def _widened(array: np.ndarray, axis: int, width: int) -> np.ndarray:
    """With zeros of environments that took no part."""
    missing = width - array.shape[axis]
    if missing == 0:
        return array
    shape = (*array.shape[:axis], missing, *array.shape[axis + 1 :])
    return np.concatenate([array, np.zeros(shape, array.dtype)], axis)
