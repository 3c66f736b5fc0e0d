"""Sources of a live run's host environments: actors hold them, and checkpoints hold their positions."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import numpy as np

from stellaris_jax.live.hosts import EnvPosition
from stellaris_jax.sources.actionlog import ActionLog
from stellaris_jax.sources.host import HostSource


class LiveSource(HostSource):
    """Source that opens no environments; actors restore them at their first invocation. See `HostSource`."""

    _in_log = (0, 0)

    @cached_property
    def position(self) -> EnvPosition:
        """Position of the environments, which the driver of the actors updates."""
        most = self.config.checkpoint.replay // self.steps_per_round
        carry = jax.device_get(self.actors.network.initial_carry(self.config.env.num_envs))
        return EnvPosition(self.actors.env, carry, most)

    def open(self, round_: int) -> None:
        """Make all environments begin new episodes with fragment `round_`."""
        self.position.open(round_)

    def state(self, log: ActionLog) -> dict[str, Any]:
        """Position of the environments; appends the actions since the last call to the log."""
        position, mark = self.position, None
        opened, logged = self._in_log
        if position.actions is None or position.opened != opened:
            log.clear()
            logged = 0
        if position.actions is not None:
            mark = log.append(position.actions[logged:])
        self._in_log = (position.opened, position.fragments)
        return {"first": position.opened, "mark": mark, "stand": position.digest, "actors": None, "versions": None}

    def arrays(self) -> Any:
        return None, jax.tree.map(lambda x: x[None], self.position.carry)

    def restore(self, state: dict[str, Any] | None, arrays: Any) -> None:
        super().restore(state, arrays)
        self._restored = jax.tree.map(lambda x: x[0], self._memory)

    def _replay(self, saved: dict[str, Any], log: ActionLog) -> str:
        position = self.position
        actions = list(log.read(saved["mark"]))
        position.restore(saved["first"], len(actions), saved["stand"], actions, self._restored)
        self._in_log = (position.opened, position.fragments)
        steps = position.fragments * self.steps_per_round
        return f"actors bring environments to where they stood: {steps:,} env steps are replayed"


class LiveShardSource(HostSource):
    """Source that opens no environments, with a position for each shard of independent actors. See `HostSource`."""

    _opened: tuple[int, ...] | list[int] = ()
    _in_log: tuple[int, ...] | list[int] = ()

    @cached_property
    def positions(self) -> list[EnvPosition]:
        """Positions of the shards' environments, which the driver of the actors updates."""
        config, env = self.config, self.actors.env
        most = config.checkpoint.replay * config.segments // self.steps_per_round
        carry = jax.device_get(self.actors.network.initial_carry(config.env.num_envs // config.actor_shards))
        return [EnvPosition(env, carry, most) for _ in range(config.actor_shards)]

    def open(self, round_: int) -> None:
        """Make all environments begin new episodes with round `round_`."""
        for position in self.positions:
            position.open(round_)

    def state(self, log: ActionLog) -> dict[str, Any]:
        """Positions of the environments; appends the actions since the last call to the log, an array a shard."""
        positions, mark = self.positions, None
        opened = [position.opened for position in positions]
        if opened != self._opened or any(position.actions is None for position in positions):
            log.clear()
            self._in_log = [0] * len(positions)
        if all(position.actions is not None for position in positions):
            envs = self.config.env.num_envs // len(positions)
            new = [one.since(0, envs, begin) for one, begin in zip(positions, self._in_log, strict=True)]
            mark = log.append([actions for actions in new if actions is not None])
            self._note_logged()
        return {
            "first": opened,
            "fragments": [position.fragments for position in positions],
            "mark": mark,
            "stand": [position.digest for position in positions],
            "actors": None,
            "versions": None,
        }

    def _note_logged(self) -> None:
        """Note that the log has all actions."""
        self._opened = [position.opened for position in self.positions]
        self._in_log = [len(position.actions or ()) for position in self.positions]

    def arrays(self) -> Any:
        carries = [position.carry for position in self.positions]
        return None, jax.tree.map(lambda *x: np.concatenate(x)[None], *carries)

    def _replay(self, saved: dict[str, Any], log: ActionLog) -> str:
        actions, positions = list(log.read(saved["mark"])), self.positions
        number, envs = len(positions), self.config.env.num_envs // len(positions)
        for shard, position in enumerate(positions):
            own = slice(shard * envs, (shard + 1) * envs)
            carry = jax.tree.map(lambda x, own=own: x[0, own], self._memory)
            opened, fragments, digest = (saved[name][shard] for name in ("first", "fragments", "stand"))
            position.restore(opened, fragments, digest, actions[shard::number], carry)
        self._note_logged()
        steps = max(sum(map(len, actions[shard::number])) for shard in range(number)) * self.config.env.num_envs
        return f"actors bring environments to where they stood: {steps:,} env steps are replayed at most"
