"""The serverless platform as far as time is concerned: containers that are warm or cold."""

from __future__ import annotations

from typing import Any

from stellaris_jax.config import PlatformConfig


class Containers:
    """One container per learner slot; it stays warm for `keep_alive` seconds after its last use."""

    def __init__(self, platform: PlatformConfig, slots: int):
        self.platform = platform
        self.last_used: list[float | None] = [0.0 if platform.prewarm else None] * slots

    def startup(self, slot: int, now: float) -> float:
        """Seconds until the function in `slot` begins to compute when it is invoked at `now`."""
        last = self.last_used[slot]
        warm = last is not None and now - last <= self.platform.keep_alive
        return self.platform.warm_start if warm else self.platform.cold_start

    def release(self, slot: int, now: float) -> None:
        self.last_used[slot] = now

    def state(self) -> Any:
        return list(self.last_used)

    def restore(self, state: Any) -> None:
        self.last_used = list(state)
