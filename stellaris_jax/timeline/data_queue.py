"""Data queue and data loader of independent actors: an event-driven state machine; the caller supplies time.

It is the counterpart of the `Coordinator` on the side of actors. The simulator and a live run drive it alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any

from stellaris_jax.base.errors import RunError
from stellaris_jax.config.schema import shown
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.timeline.answers import decision, is_inherited
from stellaris_jax.timeline.data_admission import DataAdmission, admission_of, queue_capacity, store_rows
from stellaris_jax.timeline.record_json import as_data, record_of
from stellaris_jax.timeline.records import Batch, Fragment, Usage

MOST_DROPPED = 1_000
"""Largest number of fragments of a shard, on average, that a plug-in drops in a row while learners wait for a batch."""


class DataQueue:
    """State machine of fragments and batches; the `DataView` of data admission.

    Args:
      system: options of actors and of data admission.
      shards: number A of shards.
      usage: counters that it increments.
    """

    def __init__(self, system: SystemConfig, shards: int, usage: Usage):
        self.system, self.shards, self.usage = system, shards, usage
        self.capacity = queue_capacity(system, shards)
        self.admission = admission_of(system)
        # Data admission sees copies of these, and cannot change them.
        self._waiting: list[Fragment] = []
        self._seen: tuple[Fragment, ...] | None = None
        self._rolling: dict[int, Fragment] = {}
        self.begun = (0,) * shards
        self.order = 0
        self.formed = 0
        self.completed = 0
        self.clock = 0
        self.loading = False
        # Rows of the store: every fragment that is under way or waits has one. A heap of rows that are free again, and
        # the first row that no fragment has had.
        self._freed: list[int] = []
        self._unused, self.rows = 0, store_rows(system, shards)
        # Fragments dropped since learners wait for a batch; `None` while they do not.
        self._dropped_in_vain: int | None = None
        # Fragments of equal groups that were dropped since a batch was formed.
        self.equal_dropped = 0

    @property
    def waiting(self) -> tuple[Fragment, ...]:
        """Complete fragments, in the order of their completion."""
        if self._seen is None:
            self._seen = tuple(self._waiting)
        return self._seen

    @property
    def rolling(self) -> Mapping[int, Fragment]:
        """Fragments under way, by shard."""
        return MappingProxyType(self._rolling)

    @property
    def outstanding(self) -> int:
        """Fragments that wait or are under way."""
        return len(self._waiting) + len(self._rolling)

    @property
    def blocked(self) -> bool:
        """Whether no fragment that is begun now could become part of the next batch."""
        unfinished = self.formed - self.completed
        return unfinished >= self.system.batches_in_flight or not self._decides("keeps", unfinished)

    def visible(self) -> int:
        """Newest version that actors can fetch."""
        every = self.system.publish_every
        return max(0, self.clock - self.system.publish_lag) // every * every

    def may_begin(self, shard: int) -> bool:
        """Whether a shard that rolls nothing may begin its next fragment."""
        full = self.admission.blocks and len(self._waiting) >= self.capacity
        return not full and self._decides("may_begin", shard)

    def begin(self, shard: int, now: float, attempts: int = 0) -> Fragment:
        """Begin the next fragment of a shard and its first segment.

        Args:
          shard: number of the shard.
          now: second of the begin.
          attempts: attempts at the fragment that have died; then it is begun again.
        """
        if self.outstanding == self.rows:
            name = type(self.admission).__name__
            raise RunError(
                f"{name}.evicts must drop fragments while more than system.data_queue={self.capacity} wait, not "
                f"{len(self._waiting)} as now; or {name}.blocks must be true, so that actors wait."
            )
        number = self.begun[shard] - (attempts > 0)
        fragment = Fragment(shard, number, self.order, self.completed, self._row(), now, attempts=attempts)
        self.begun = (*self.begun[:shard], number + 1, *self.begun[shard + 1 :])
        self.order += 1
        self._rolling[shard] = fragment
        self.fetch(shard)
        return fragment

    def fetch(self, shard: int) -> int:
        """Begin the next segment of the fragment that a shard rolls; returns its version."""
        version = self.visible()
        self._rolling[shard].versions.append(version)
        return version

    def on_death(self, shard: int) -> Fragment:
        """Give up an attempt; the shard must begin again at once."""
        fragment = self._rolling.pop(shard)
        self._free([fragment])
        self.usage.actor_failures += 1
        return fragment

    def on_fragment(self, shard: int, now: float, seconds: float) -> Fragment:
        """Queue the fragment that a shard has completed.

        Args:
          shard: number of the shard.
          now: second of the completion.
          seconds: function-seconds of its actors.
        """
        fragment = self._rolling.pop(shard)
        fragment.end, fragment.seconds = now, seconds
        self._waiting.append(fragment)
        self._seen = None
        return fragment

    def evict(self, now: float) -> list[Fragment]:
        """Drop the waiting fragments that teach nothing, and those that data admission evicts; `now` is the second."""
        most = max(self.system.dynamic_sampling * self.shards - self.equal_dropped, 0)
        equal = [fragment for fragment in self._waiting if fragment.equal][:most]
        self._drop(equal, now)
        self.equal_dropped += len(equal)
        return equal + self._evicted(now)

    def _evicted(self, now: float) -> list[Fragment]:
        """Drop the waiting fragments that data admission evicts."""
        admission = self.admission
        if is_inherited(admission.evicts, DataAdmission.evicts) and is_inherited(admission.keeps, DataAdmission.keeps):
            return []  # it keeps everything
        evicted = self._answer("evicts", "different fragments of view.waiting")
        if evicted:
            orders = {fragment.order for fragment in evicted}
            if len(orders) < len(evicted) or not all(map(self._waits, evicted)):
                raise RunError(self._demand("evicts", "different fragments of view.waiting."))
            self._drop(evicted, now)
            self._count_dropped(len(evicted), now)
        return evicted

    def _drop(self, fragments: list[Fragment], now: float) -> None:
        """Drop fragments that wait."""
        if fragments:
            self._remove({fragment.order for fragment in fragments})
            self.usage.fragments_dropped += len(fragments)
            self._leave(fragments, now)

    def _count_dropped(self, number: int, now: float) -> None:
        """Count fragments that are dropped while learners wait for a batch, and end the run if there are too many."""
        if self._dropped_in_vain is None or type(self.admission).__module__.startswith("stellaris_jax."):
            return  # ours stop dropping by themselves, however slow a shard is
        self._dropped_in_vain += number
        if self._dropped_in_vain > MOST_DROPPED * self.shards:
            name = type(self.admission).__name__
            raise RunError(
                f"system.data_admission={self.system.data_admission} has dropped {self._dropped_in_vain} fragments in "
                f"a row at second {now:g}, while learners wait for a batch; {name}.evicts or {name}.keeps must leave "
                f"{self.shards} to select."
            )

    def form(self, now: float) -> Batch | None:
        """Form the next batch if fewer than `batches_in_flight` are unfinished and data admission selects enough."""
        if self.loading or self.formed - self.completed >= self.system.batches_in_flight:
            return None
        wanted = f"{self.shards} different fragments of view.waiting, or fewer to wait"
        chosen = self._answer("selects", wanted)
        if len(chosen) < self.shards:
            self._dropped_in_vain = self._dropped_in_vain or 0
            return None
        orders = {fragment.order for fragment in chosen}
        if len(chosen) > self.shards or len(orders) < self.shards or not all(map(self._waits, chosen)):
            raise RunError(self._demand("selects", f"{wanted}."))
        self._remove(orders)
        chosen.sort(key=lambda fragment: (fragment.shard, fragment.number))
        batch = Batch(self.formed, chosen, now, self.clock)
        self.formed += 1
        self._dropped_in_vain, self.equal_dropped = None, 0
        self._leave(chosen, now)
        return batch

    def _answer(self, method: str, wanted: str) -> list[Fragment]:
        """Fragments that data admission returns. Raises RunError unless they are fragments."""
        answer: object = getattr(self.admission, method)(self)
        items: list[object] = list(answer) if isinstance(answer, Iterable) else [answer]
        fragments = [one for one in items if isinstance(one, Fragment)]
        if isinstance(answer, Iterable) and len(fragments) == len(items):
            return fragments
        raise RunError(self._demand(method, f"{wanted}, as a list or a tuple, not {shown(answer)}."))

    def _decides(self, method: str, subject: int) -> bool:
        """Decision of data admission on an age or a shard."""
        return decision(self.admission, method, getattr(self.admission, method)(subject, self))

    def _demand(self, method: str, what: str) -> str:
        """Sentence on what a method of data admission must return."""
        own = f"system.data_admission={self.system.data_admission}"
        return f"{own}: {type(self.admission).__name__}.{method} must return {what}"

    def stuck(self, moment: str) -> str:
        """Sentence on why no data can come at a moment without events, such as `3 simulated seconds`."""
        own = f"system.data_admission={self.system.data_admission}"
        return (
            f"{own} lets no actor begin and no batch be formed at {moment}, while nothing else is under way; one must "
            "be allowed to."
        )

    def _remove(self, orders: set[int]) -> None:
        """Remove fragments from those that wait."""
        self._waiting = [fragment for fragment in self._waiting if fragment.order not in orders]
        self._seen = None

    def _waits(self, fragment: Fragment) -> bool:
        return any(fragment is one for one in self._waiting)

    def _leave(self, fragments: list[Fragment], now: float) -> None:
        """Let fragments leave the queue, and free their rows."""
        for fragment in fragments:
            fragment.left = now
        self._free(fragments)

    def _row(self) -> int:
        """First free row."""
        if self._freed:
            return heappop(self._freed)
        self._unused += 1
        return self._unused - 1

    def _free(self, fragments: list[Fragment]) -> None:
        for fragment in fragments:
            heappush(self._freed, fragment.row)

    # Saving --------------------------------------------------------------------------------------------------------

    _PLAIN = ("order", "formed", "completed", "clock", "loading")

    def state(self) -> dict[str, Any]:
        """State without `usage`, as JSON data."""
        return {
            **{name: getattr(self, name) for name in self._PLAIN},
            "begun": list(self.begun),
            "waiting": [as_data(fragment) for fragment in self._waiting],
            "rolling": [as_data(fragment) for fragment in self._rolling.values()],
            "equal_dropped": self.equal_dropped,
            "admission": self.admission.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state()` returned (it may have passed through JSON)."""
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self.begun = tuple(state["begun"])
        self._waiting, self._seen = [record_of(Fragment, one) for one in state["waiting"]], None
        self._rolling = {one["shard"]: record_of(Fragment, one) for one in state["rolling"]}
        taken = {fragment.row for fragment in (*self._waiting, *self._rolling.values())}
        self._unused = max(taken, default=-1) + 1
        self._freed = [row for row in range(self._unused) if row not in taken]
        self._dropped_in_vain = None
        self.equal_dropped = state.get("equal_dropped", 0)  # states of earlier versions lack it
        self.admission.restore(state["admission"])
