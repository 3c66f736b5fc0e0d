"""Timing of the platform: placement of functions, warm and cold containers, and data passing.

Times are in ticks (`stellaris_jax.timeline.ticks`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from stellaris_jax.config.sections import PlatformConfig
from stellaris_jax.timeline.ticks import SECOND, ticks

ALONE = SECOND
"""Slowdown of a computation that runs alone: 1, in billionths."""


class Containers:
    """Containers, one per slot; each stays warm for `keep_alive` seconds after its last use."""

    def __init__(self, platform: PlatformConfig, slots: int, cold_start: float, warm_start: float):
        self.keep_alive, self.cold_start, self.warm_start = map(ticks, (platform.keep_alive, cold_start, warm_start))
        self.last_used: list[int | None] = [0 if platform.prewarm else None] * slots

    def startup(self, slot: int, now: int) -> int:
        """Ticks until the function in `slot` begins to compute when it is invoked at `now`."""
        last = self.last_used[slot]
        warm = last is not None and now - last <= self.keep_alive
        return self.warm_start if warm else self.cold_start

    def startups(self, slots: int, now: int) -> list[int]:
        """`startup` of each of the first `slots` slots; fast if all were last used at the same tick."""
        if self.last_used.count(self.last_used[0]) == len(self.last_used):
            return [self.startup(0, now)] * slots
        return [self.startup(slot, now) for slot in range(slots)]

    def release(self, slot: int, now: int) -> None:
        self.last_used[slot] = now

    def release_all(self, slots: int, now: int) -> None:
        """Release each of the first `slots` slots."""
        self.last_used[:slots] = [now] * slots

    def state(self) -> Any:
        return list(self.last_used)

    def restore(self, state: Any) -> None:
        self.last_used = list(state)


class Placement:
    """Placement of learner slots on GPUs: learner i is on GPU `i % gpus`, so that learners share GPUs evenly.

    The parameter function is on the first VM. Data passes there through shared memory, and to other VMs by RPC (SC'24,
    §V-B).
    """

    def __init__(self, platform: PlatformConfig, slots: int):
        self.platform, self.contention = platform, ticks(platform.contention)
        self.sharing = [frozenset(range(gpu, slots, platform.gpus)) for gpu in range(platform.gpus)]

    def gpu(self, learner: int) -> int:
        return learner % self.platform.gpus

    def passing(self, learner: int) -> int:
        """Ticks to send a policy to a learner, or a gradient back."""
        local = self.gpu(learner) < self.platform.gpus_per_vm
        return ticks(self.platform.shared_memory if local else self.platform.rpc)

    def slowdown(self, learner: int, running: Set[int]) -> int:
        """Factor on a learner's computation, in billionths, while the learners `running` (itself included) compute."""
        return ALONE + self.contention * (len(running & self.sharing[self.gpu(learner)]) - 1)
