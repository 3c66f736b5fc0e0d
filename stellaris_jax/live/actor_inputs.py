"""Driver-side view of a live run's actors: their inputs for a share of a fragment, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.engine.host_rollout import pool_seed
from stellaris_jax.engine.keys import acting_key
from stellaris_jax.engine.rollout import ActorState, Trajectory
from stellaris_jax.engine.state import EngineState
from stellaris_jax.live.hosts import EnvPosition, RequestedPosition
from stellaris_jax.live.pool import Pool


class Width(NamedTuple):
    """Width of a round.

    Attributes:
      actors: number of actors that roll it.
      envs: number of environments that they step.
      width: number of environments that it is compiled for.
    """

    actors: int
    envs: int
    width: int

    @property
    def shares(self) -> list[tuple[int, int]]:
        """First and end index of every actor's environments."""
        bounds = np.linspace(0, self.envs, self.actors + 1).round().astype(int).tolist()
        return list(pairwise(bounds))


class ActorInput(NamedTuple):
    """Input of an actor in addition to the policy.

    Attributes:
      key: data of the PRNG key for all randomness.
      envs: state of its environments, or the instructions to restore it.
      behind: number of fragments that it has to replay first.
    """

    key: np.ndarray
    envs: Any
    behind: int = 0


class RolledFragment(NamedTuple):
    """Result of a round's actors.

    Attributes:
      actor: state of all environments after the round.
      trajectory: the round's trajectory, padded to the compiled width.
      carry: recurrent state at its first observations, equally padded; `None` without memory.
    """

    actor: ActorState
    trajectory: Trajectory
    carry: Carry


class Actors(Protocol):
    """Actors of one run, one fragment at a time."""

    def begin(self, state: EngineState, index: int, rehearsal: bool = False) -> None:
        """Prepare a fragment.

        Args:
          state: state of the engine before the fragment.
          index: number of the round.
          rehearsal: prepare everything and discard the result.
        """
        ...

    def begin_anew(self) -> None:
        """Prepare to roll the fragment once more."""
        ...

    def actor_input(self, pool: Pool, first: int, end: int, again: bool = False) -> ActorInput | None:
        """Input of the actor of some environments; `None` if the whole fragment has to be rolled again.

        Args:
          pool: pool that holds the objects that actors fetch.
          first: number of the first environment.
          end: number after the last one.
          again: whether the actor has answered `NotAtPosition`.
        """
        ...

    def assembled(self, parts: Sequence[Any], width: Width) -> RolledFragment | None:
        """Join the actors' results, in order, to a fragment; `None` if all of it has to be rolled again."""
        ...

    def over(self) -> bool:
        """End the round; returns whether environments began new episodes in it, because they could not continue."""
        ...


class ProgramActors:
    """Actors of JAX environments, whose state is sent with every invocation.

    Args:
      network: network of the acting policy.
    """

    def __init__(self, network: PolicyNetwork):
        self.network = network

    def begin(self, state: EngineState, index: int, rehearsal: bool = False) -> None:
        self._state: ActorState = jax.device_get(state.actor)
        self._key = np.asarray(jax.random.key_data(state.key))

    def begin_anew(self) -> None:
        raise AssertionError("JAX environments can always continue")

    def actor_input(self, pool: Pool, first: int, end: int, again: bool = False) -> ActorInput | None:
        return ActorInput(self._key, pool.put(jax.tree.map(lambda x: x[first:end], self._state)))

    def assembled(self, parts: Sequence[Any], width: Width) -> RolledFragment | None:
        states = _concatenated([state for state, _ in parts], 0)
        actor = jax.tree.map(lambda new, old: np.concatenate([new, old[width.envs :]]), states, self._state)
        carry = jax.tree.map(lambda x: x[: width.width], self.network.stored(self._state.carry))
        return RolledFragment(actor, _side_by_side([trajectory for _, trajectory in parts], width.width), carry)

    def over(self) -> bool:
        return False


class HostedActors:
    """Actors that hold host environments; the driver tells them how to restore the environments' position.

    Args:
      position: position of the environments.
      seed: seed of the run.
    """

    def __init__(self, position: EnvPosition, seed: int):
        self.position, self.seed = position, seed
        self._key = np.asarray(acting_key(seed))

    def begin(self, state: EngineState, index: int, rehearsal: bool = False) -> None:
        self._state, self._index, self._rehearsal = jax.device_get(state.actor), index, rehearsal
        self._replay_unavailable = False

    def begin_anew(self) -> None:
        """Prepare new episodes for all environments, because some could not be restored."""
        self._replay_unavailable = False
        self.position.open(self._index)

    def actor_input(self, pool: Pool, first: int, end: int, again: bool = False) -> ActorInput | None:
        position = self.position
        actions = position.since(first, end) if again or position.fragments == 0 else None
        if again and actions is None:
            self._replay_unavailable = True
            return None
        seed = pool_seed(self.seed, position.opened, 0) + first  # same seeds as in the compiled engine's single pool
        carry = jax.tree.map(lambda x: x[first:end], position.carry)
        requested = RequestedPosition(
            seed, end - first, position.opened, position.fragments, actions, self._rehearsal, carry
        )
        return ActorInput(self._key, requested, position.fragments if again else 0)

    def assembled(self, parts: Sequence[Any], width: Width) -> RolledFragment | None:
        if self._replay_unavailable:
            return None
        trajectory, before = _side_by_side([trajectory for _, trajectory in parts], width.width), self.position.carry
        if self._rehearsal:
            return RolledFragment(self._state, trajectory, before)
        if not self.position.matches(np.asarray(trajectory.obs[0])):
            return None
        self._rolled = trajectory, _concatenated([carry for carry, _ in parts], 0)
        if self.position.opened < self._index:
            return RolledFragment(self._state, trajectory, before)
        anew = self._state._replace(totals=np.zeros_like(self._state.totals)).with_windows_cut()
        return RolledFragment(anew, trajectory, before)

    def over(self) -> bool:
        trajectory, carry = self._rolled
        self.position.add(np.asarray(trajectory.action), np.asarray(trajectory.last_obs), carry)
        return 0 < self.position.opened == self._index


def _concatenated(parts: Sequence[Any], axis: int) -> Any:
    return jax.tree.map(lambda *x: np.concatenate(x, axis), *parts)


def _side_by_side(parts: Sequence[Trajectory], width: int) -> Trajectory:
    """Concatenate trajectories of adjacent environments and pad them to the compiled width."""
    trajectory = _concatenated([part._replace(last_obs=part.last_obs[None]) for part in parts], 1)
    trajectory = jax.tree.map(lambda x: _widened(x, 1, width), trajectory)
    whole: Trajectory = trajectory._replace(last_obs=trajectory.last_obs[0])
    return whole


def _widened(array: np.ndarray, axis: int, width: int) -> np.ndarray:
    """Pad an axis with zeros for environments that do not participate."""
    missing = width - array.shape[axis]
    if missing == 0:
        return array
    shape = (*array.shape[:axis], missing, *array.shape[axis + 1 :])
    return np.concatenate([array, np.zeros(shape, array.dtype)], axis)
