"""Checks of a live run's recorded data against each other: segments, fragments, batches and gradients.

A trace of independent actors says several things twice. A replay that reads it refuses what the driver of a live run
could not have written, before anything is computed from it.
"""

from __future__ import annotations

from collections import Counter

from stellaris_jax.timeline.data_rounds import data_lag
from stellaris_jax.timeline.record_json import InvalidRecord
from stellaris_jax.timeline.records import Batch, Fragment, Gradient, Group, Round, Segment


class DataChecks:
    """State of a trace's independent actors, followed from its first round on; other actors have no data to check.

    Attributes:
      rolled: segments of fragments that have not left the data queue, by shard and number.
      batches: batches that are not complete yet, by index.
      clock: number of groups so far.
    """

    def __init__(self) -> None:
        self.independent: bool | None = None
        self.rolled: dict[tuple[int, int], list[Segment]] = {}
        self.batches: dict[int, Batch] = {}
        self.clock = 0
        self._rows: dict[int, tuple[int, int]] = {}  # fragment that a row holds, among those that have not left
        self._next: Counter[int] = Counter()  # number of each shard's next fragment
        self._formed = 0
        self._most = 0  # fragments that have not left at the same time
        self._parts: int | None = None  # segments of a fragment, known once one has left
        self._used: dict[int, set[int]] = {}  # minibatches of incomplete batches that are used or dropped
        self._minibatches: int | None = None  # minibatches of a batch, known once one is complete

    def check(self, record: Round) -> None:
        """Check the next round. Raises InvalidRecord for one that does not follow from the rounds before."""
        if self.independent is None:
            self.independent = bool(record.batches)
        if not self.independent:
            _require(
                not record.batches and all(isinstance(event, Group) for event in record.sequence),
                "it has data of independent actors, and the first round has no batch",
            )
            return
        ordered = [event for event in record.sequence if isinstance(event, Batch)]
        _require(len(ordered) == len(record.batches), "order is missing")
        for event in record.sequence:
            match event:
                case Segment():
                    self._segment(event, record)
                case Batch():
                    self._batch(event)
                case Fragment():
                    self._leave(event)
                case Group():
                    self._group(event, record)
        for gradient in record.dropped:
            self._use(gradient, record)
        self._end(record)

    def _segment(self, segment: Segment, record: Round) -> None:
        name = (segment.shard, segment.number)
        before = self.rolled.setdefault(name, [])
        new = segment.number == self._next[segment.shard]
        _require(bool(before) or new, "a segment is of a fragment that its shard does not roll")
        _require(segment.part == len(before), "a segment is not the next one of its fragment")
        _require(self._parts is None or segment.part < self._parts, "a fragment has more segments than others")
        _require(segment.version <= self.clock, "a segment is of a version that was not there yet")
        _require(not before or segment.version >= before[-1].version, "a segment is of an older version than the last")
        if new:
            self._next[segment.shard] += 1
        self._most = max(self._most, len(self.rolled))
        # A fragment gets the lowest row that is free.
        _require(segment.row < self._most + record.actors, "a segment is in a row that no fragment has")
        _require(self._rows.setdefault(segment.row, name) == name, "two fragments have the same row")
        before.append(segment)

    def _batch(self, batch: Batch) -> None:
        _require(batch.index == self._formed, "a batch is not the next one")
        # A version is published some time after its group is formed.
        _require(self.clock - 1 <= batch.clock <= self.clock, "a batch is not of the newest version")
        names = [(fragment.shard, fragment.number) for fragment in batch.fragments]
        _require(names == sorted(set(names)), "the fragments of a batch are not in order, or not different")
        for fragment in batch.fragments:
            self._leave(fragment)
            _require(fragment.versions[-1] <= batch.clock, "a fragment is of a newer version than its batch")
        self._formed += 1
        self.batches[batch.index], self._used[batch.index] = batch, set()

    def _leave(self, fragment: Fragment) -> None:
        """Check a fragment that becomes part of a batch or is dropped against its segments."""
        segments = self.rolled.pop((fragment.shard, fragment.number), [])
        self._parts = self._parts or len(segments)
        _require(0 < len(segments) == self._parts, "a fragment leaves the data queue before it is rolled")
        _require({one.row for one in segments} == {fragment.row}, "a fragment is in another row than its segments")
        versions = [one.version for one in segments]
        _require(versions == fragment.versions, "a fragment has other versions than its segments")
        _require(fragment.batch <= self._formed, "a fragment was begun after more batches than there are")
        del self._rows[fragment.row]

    def _group(self, group: Group, record: Round) -> None:
        _require(group.clock == self.clock, "a group does not follow the one before")
        for gradient in group.gradients:
            self._use(gradient, record)
            _require(gradient.staleness == group.clock - gradient.version, "a gradient has another staleness")
        self.clock += 1

    def _use(self, gradient: Gradient, record: Round) -> None:
        """Check a gradient that is aggregated or dropped."""
        batch = self.batches.get(gradient.fragment)
        if batch is None or gradient.fragment < record.index:
            raise InvalidRecord("a gradient is of a batch that is complete or not formed")
        _require(gradient.version >= batch.clock, "a gradient is of an older version than its batch")
        used = self._used[batch.index]
        _require(gradient.minibatch not in used, "a minibatch is used twice")
        used.add(gradient.minibatch)

    def _end(self, record: Round) -> None:
        """Check what a record says of its whole round."""
        batch = self.batches.get(record.index)
        if batch is None:
            raise InvalidRecord("its batch is not formed")
        self._minibatches = self._minibatches or len(self._used[batch.index])
        whole = self._used[batch.index] == set(range(self._minibatches))
        _require(whole, "it ends before all minibatches of its batch are used")
        oldest = min(version for fragment in batch.fragments for version in fragment.versions)
        _require(record.behaviour_version == oldest, "behaviour_version is another one than its batch's")
        _require(record.arrived == batch.clock, "arrived is another version than its batch's")
        waiting = sum(len(segments) == self._parts for segments in self.rolled.values())
        _require(record.waiting == waiting, "waiting is not the number of fragments that wait")
        lags, _ = data_lag(record, self.batches)
        _require(record.data_lag_counts == lags, "data_lag_counts is not as its gradients and segments say")
        _require(record.usage.updates == self.clock, "usage.updates is not the number of groups")
        del self.batches[record.index], self._used[record.index]


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvalidRecord(sentence)
