"""Source of a live run's host environments: actors hold them, and checkpoints hold their positions."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax

from stellaris_jax.live.hosts import Standing
from stellaris_jax.sources.actionlog import ActionLog
from stellaris_jax.sources.host import HostSource


class LiveSource(HostSource):
    """Source that opens no environments; actors restore them at their first invocation. See `HostSource`."""

    _in_log = (0, 0)

    @cached_property
    def standing(self) -> Standing:
        """Position of the environments, which the driver of the actors updates."""
        most = self.config.checkpoint.replay // self.steps_per_round
        carry = jax.device_get(self.actors.network.initial_carry(self.config.env.num_envs))
        return Standing(self.actors.env, carry, most)

    def open(self, round_: int) -> None:
        """Make all environments begin new episodes with fragment `round_`."""
        self.standing.open(round_)

    def state(self, log: ActionLog) -> dict[str, Any]:
        """Position of the environments; appends the actions since the last call to the log."""
        standing, mark = self.standing, None
        opened, logged = self._in_log
        if standing.actions is None or standing.opened != opened:
            log.clear()
            logged = 0
        if standing.actions is not None:
            mark = log.append(standing.actions[logged:])
        self._in_log = (standing.opened, standing.fragments)
        return {"first": standing.opened, "mark": mark, "stand": standing.digest, "actors": None, "versions": None}

    def arrays(self) -> Any:
        return None, jax.tree.map(lambda x: x[None], self.standing.carry)

    def restore(self, state: dict[str, Any] | None, arrays: Any) -> None:
        super().restore(state, arrays)
        self._restored = jax.tree.map(lambda x: x[0], self._memory)

    def _replay(self, saved: dict[str, Any], log: ActionLog) -> str:
        standing = self.standing
        standing.open(saved["first"])
        standing.actions = list(log.read(saved["mark"]))
        standing.fragments, standing.digest, standing.carry = len(standing.actions), saved["stand"], self._restored
        self._in_log = (standing.opened, standing.fragments)
        steps = standing.fragments * self.steps_per_round
        return f"actors bring environments to where they stood: {steps:,} env steps are replayed"
