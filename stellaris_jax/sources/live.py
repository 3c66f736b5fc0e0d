"""Source of a live run's host environments: actors hold them, and checkpoints hold their positions."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax

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
        position.open(saved["first"])
        position.actions = list(log.read(saved["mark"]))
        position.fragments, position.digest, position.carry = len(position.actions), saved["stand"], self._restored
        self._in_log = (position.opened, position.fragments)
        steps = position.fragments * self.steps_per_round
        return f"actors bring environments to where they stood: {steps:,} env steps are replayed"
