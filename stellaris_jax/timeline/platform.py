"""The platform as far as time is concerned: where functions run, when they are warm, how data reaches them.

Times are in ticks (`stellaris_jax.timeline.ticks`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from stellaris_jax.config.tree import PlatformConfig
from stellaris_jax.timeline.ticks import SECOND, ticks

ALONE = SECOND
"""Slowdown of a computation that nothing slows down: 1, in billionths."""


class Containers:
    """One container per slot; it stays warm for `keep_alive` seconds after its last use."""

    def __init__(self, platform: PlatformConfig, slots: int, cold_start: float, warm_start: float):
        self.keep_alive, self.cold_start, self.warm_start = map(ticks, (platform.keep_alive, cold_start, warm_start))
        self.last_used: list[int | None] = [0 if platform.prewarm else None] * slots

    def startup(self, slot: int, now: int) -> int:
        """Ticks until the function in `slot` begins to compute when it is invoked at `now`."""
        last = self.last_used[slot]
        warm = last is not None and now - last <= self.keep_alive
        return self.warm_start if warm else self.cold_start

    def startups(self, slots: int, now: int) -> list[int]:
        """`startup` of each of the first slots, mostly used together."""
        if self.last_used.count(self.last_used[0]) == len(self.last_used):
            return [self.startup(0, now)] * slots
        return [self.startup(slot, now) for slot in range(slots)]

    def release(self, slot: int, now: int) -> None:
        self.last_used[slot] = now

    def release_all(self, slots: int, now: int) -> None:
        """`release` of each of the first slots."""
        self.last_used[:slots] = [now] * slots

    def state(self) -> Any:
        return list(self.last_used)

    def restore(self, state: Any) -> None:
        self.last_used = list(state)


class Placement:
    """Learner slots on GPUs, filled in turn: learner i is on GPU `i % gpus`, so that few learners share as few GPUs.

    Data passes through shared memory on the parameter function's VM, the first, and by RPC to the others (SC'24, §V-B).
    """

    def __init__(self, platform: PlatformConfig, slots: int):
        self.platform, self.contention = platform, ticks(platform.contention)
        self.sharing = [frozenset(range(gpu, slots, platform.gpus)) for gpu in range(platform.gpus)]

    def gpu(self, learner: int) -> int:
        return learner % self.platform.gpus

    def passing(self, learner: int) -> int:
        """Ticks for a policy to reach a learner; its gradient takes as long to come back."""
        local = self.gpu(learner) < self.platform.gpus_per_vm
        return ticks(self.platform.shared_memory if local else self.platform.rpc)

    def slowdown(self, learner: int, running: Set[int]) -> int:
        """Factor on a computation, in billionths, while the learners `running` compute, itself among them."""
        return ALONE + self.contention * (len(running & self.sharing[self.gpu(learner)]) - 1)
