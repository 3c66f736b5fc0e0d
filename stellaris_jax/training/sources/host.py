"""Fragments of host environments, for a trainer: asked for ahead where actors overlap with learners, and resumable."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from stellaris_jax.config.tree import Config
from stellaris_jax.training.sources.actionlog import ActionLog, ActionLogError
from stellaris_jax.training.sources.actors import Actors, Behaviour, Received


class Ahead(NamedTuple):
    """What the next fragment is asked for with, before this one has taught anything: a policy, and the actors `[S]`
    that take part (`None` where all always do)."""

    behaviour: Behaviour
    actors: list[int] | None


class HostSource:
    """Fragments one after the other, from environments that are opened once in a run.

    They cannot be saved, so a checkpoint has the actions they were given, and a resumed run gives them the same ones
    again, as far as `checkpoint.replay` allows.

    Args:
      actors: what steps the environments.
      config: the run's.
      steps_per_round: env steps per seed and round.
    """

    def __init__(self, actors: Actors, config: Config, steps_per_round: int):
        self.actors, self.config, self.steps_per_round = actors, config, steps_per_round
        self.ahead: Ahead | None = None
        self._first = 0
        self._actions: list[np.ndarray] | None = []
        self._stand: np.ndarray | None = None

    def open(self, round_: int) -> None:
        """Start all environments anew, with fragment `round_` the next one."""
        self.actors.open(round_)
        self._first = round_
        self._actions = [] if self.config.checkpoint.replay > 0 else None

    def receive(self, behaviour: Callable[[], Behaviour], envs: list[int]) -> Received:
        """The next fragment, of the first `envs` `[S]` environments.

        `behaviour` makes the policy it is rolled with where it has not been asked for ahead.
        """
        if not self.actors.under_way:
            self.actors.request(self.ahead.behaviour if self.ahead else behaviour(), envs)
        return self.actors.receive()

    def ask(self, ahead: Ahead, envs: list[int] | None) -> None:
        """Have actors go on to the next fragment with the first `envs` `[S]` environments; `None`: once it is due."""
        self.ahead = ahead
        if envs is not None:
            self.actors.request(ahead.behaviour, envs)

    def learned(self, received: Received, envs: list[int], rounds: int) -> None:
        """Told of a fragment that has become part of training, the last one of `rounds` in the run."""
        self._stand = np.asarray(received.fragment.trajectory.last_obs)
        if self._actions is not None:
            self._actions += self.actors.actions(received, envs)
            if (rounds - self._first) * self.steps_per_round > self.config.checkpoint.replay:
                self._actions = None

    def close(self) -> None:
        """Stop the actors and close their environments."""
        self.actors.close()

    # Saving --------------------------------------------------------------------------------------------------------

    def arrays(self) -> Any:
        """What of the state is arrays: parameters `[S, P]` and normalisers the next fragment is asked for with."""
        return None if self.ahead is None else self.ahead.behaviour[1:]

    def shapes(self, sharding: Sharding) -> Any:
        """`arrays` as shapes, dtypes and the sharding given."""
        if not self.config.env.overlap:
            return None
        seeds = len(self.actors.seeds)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype, sharding=sharding), self.actors.shapes
        )

    def state(self, log: ActionLog) -> dict[str, Any]:
        """The rest of it, as JSON data; the actions since the last time go to the log."""
        mark = None
        if self._actions is None:
            log.clear()
        else:
            mark, self._actions = log.append(self._actions), []
        return {
            "first": self._first,
            "mark": mark,
            "stand": _fingerprint(self._stand),
            "actors": self.ahead and self.ahead.actors,
            "versions": self.ahead and self.ahead.behaviour.versions,
        }

    def restore(self, state: dict[str, Any], arrays: Any) -> None:
        """Ask for what had been asked for. Environments are closed; `replay` brings them to where they stood."""
        self.close()
        self.ahead = None
        if state["versions"] is not None:
            self.ahead = Ahead(Behaviour(state["versions"], *jax.device_get(arrays)), state["actors"])

    def replay(self, state: dict[str, Any], log: ActionLog) -> str:
        """Open the environments and step them to where they stood; returns what was done, in words.

        Raises ActionLogError, which says why, where that cannot be; they are to be opened anew then.
        """
        begin, seeds = time.perf_counter(), len(self.actors.seeds)
        if state["mark"] is None:
            limit = self.config.checkpoint.replay
            raise ActionLogError(f"they began more than checkpoint.replay={limit} env steps ago")
        self.open(state["first"])
        arrays = log.read(state["mark"])
        self.actors.replay(zip(*[arrays] * seeds, strict=True))
        self._stand = self.actors.stand()
        if state["stand"] not in (_fingerprint(self._stand), ""):
            raise ActionLogError(f"{self.actors.env.name} does not repeat itself")
        steps = state["mark"]["arrays"] * self.steps_per_round
        return f"{steps:,} env steps replayed in {time.perf_counter() - begin:.1f} s"


def _fingerprint(obs: np.ndarray | None) -> str:
    return "" if obs is None else sha256(np.ascontiguousarray(obs).tobytes()).hexdigest()
