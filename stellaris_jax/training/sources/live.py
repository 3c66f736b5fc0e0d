"""Host environments of a live run over its checkpoints: its actors hold them, and here is where they stand."""

from __future__ import annotations

from typing import Any

import jax

from stellaris_jax.live.hosts import Standing
from stellaris_jax.training.sources.actionlog import ActionLog
from stellaris_jax.training.sources.host import HostSource


class LiveSource(HostSource):
    """See `HostSource`; nothing is opened here, and actors are brought to where environments stood when they are first
    invoked.

    `standing` is where that is; who drives the actors keeps it.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        most = self.config.checkpoint.replay // self.steps_per_round
        blank = jax.device_get(self.actors.network.initial_carry(self.config.env.num_envs))
        self.standing, self._in_log = Standing(self.actors.env, blank, most), (0, 0)

    def open(self, round_: int) -> None:
        """Have all environments begin new episodes with fragment `round_`."""
        self.standing.open(round_)

    def state(self, log: ActionLog) -> dict[str, Any]:
        """Where environments stand; the actions since the last time go to the log."""
        at, mark = self.standing, None
        opened, logged = self._in_log
        if at.actions is None or at.opened != opened:
            log.clear()
            logged = 0
        if at.actions is not None:
            mark = log.append(at.actions[logged:])
        self._in_log = (at.opened, at.fragments)
        return {"first": at.opened, "mark": mark, "stand": at.digest, "actors": None, "versions": None}

    def arrays(self) -> Any:
        return None, jax.tree.map(lambda x: x[None], self.standing.carry)

    def restore(self, state: dict[str, Any] | None, arrays: Any) -> None:
        super().restore(state, arrays)
        self._restored = jax.tree.map(lambda x: x[0], self._carry)

    def _replay(self, saved: dict[str, Any], log: ActionLog) -> str:
        at = self.standing
        at.open(saved["first"])
        at.actions = list(log.read(saved["mark"]))
        at.fragments, at.digest, at.carry = len(at.actions), saved["stand"], self._restored
        self._in_log = (at.opened, at.fragments)
        steps = at.fragments * self.steps_per_round
        return f"actors bring environments to where they stood: {steps:,} env steps are replayed"
