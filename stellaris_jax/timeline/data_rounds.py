"""Records of independent actors' rounds: what is known of a round once its batch is complete.

A round ends with its batch's last gradient. An aggregation that begins in that instant, and takes time, belongs to the
next round: the policy after a round has as many updates as the round's usage says.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stellaris_jax.timeline.coordinator import COUNTED, Coordinator
from stellaris_jax.timeline.data_queue import DataQueue
from stellaris_jax.timeline.records import Batch, Group, Round, Usage


class NextUpdate(NamedTuple):
    """Group of the next round, whose aggregation begins in the instant in which a round ends.

    Attributes:
      group: the group.
      before: values of the counters `COUNTED` before it was formed.
    """

    group: Group
    before: list[float]

    @classmethod
    def of(cls, record: Round, coordinator: Coordinator) -> NextUpdate | None:
        """Group under way at a round's end, which is taken out of the round's record; `None` without one."""
        if not coordinator.aggregating:
            return None
        group = record.groups.pop()
        record.sequence = [event for event in record.sequence if event is not group]
        return cls(group, coordinator.before)

    def begin(self, record: Round) -> None:
        """Record the group in the round that begins."""
        record.groups.append(self.group)
        record.sequence.append(self.group)

    def without(self, usage: Usage) -> Usage:
        """Copy of a usage from which the group is missing."""
        copy = usage.copy()
        for name, value in zip(COUNTED, self.before, strict=True):
            setattr(copy, name, value)
        return copy


def usage_of(spent: Usage, update: NextUpdate | None) -> Usage:
    """Copy of the usage of all rounds that have ended: without the next round's update, if that has begun."""
    return spent.copy() if update is None else update.without(spent)


def complete_record(record: Round, batches: dict[int, Batch], queue: DataQueue, actors: int) -> None:
    """Complete the record of a round, whose batch is complete, and forget the batches that nobody needs any more.

    Args:
      record: record of the round.
      batches: batches that are not complete yet, this round's, and those of later rounds.
      queue: the data queue.
      actors: number of actors, of which each batch needs all.
    """
    batch = batches[record.index]
    record.behaviour_version = min(version for one in batch.fragments for version in one.versions)
    record.arrived, record.complete = batch.clock, batch.loaded
    record.actor_seconds = sum(one.seconds for one in batch.fragments) / actors
    record.waiting = len(queue.waiting)
    record.data_lag_counts, record.data_seconds = data_lag(record, batches)
    for index in [index for index in batches if index < queue.completed and index <= record.index]:
        del batches[index]


def data_lag(record: Round, batches: dict[int, Batch]) -> tuple[list[int], float]:
    """Histogram of the data lag of the round's gradients, in segments, and the data's mean age in seconds."""
    lags, ages = [np.zeros(0, np.int64)], list[float]()
    begins = {
        index: sum(one.begin for one in batch.fragments) / len(batch.fragments) for index, batch in batches.items()
    }
    versions = {
        index: np.array([version for one in batch.fragments for version in one.versions])
        for index, batch in batches.items()
    }
    for group in record.groups:
        for gradient in group.gradients:
            lags.append(gradient.version - versions[gradient.fragment])
            ages.append(gradient.start - begins[gradient.fragment])
    counts: list[int] = np.bincount(np.concatenate(lags)).tolist()
    return counts, sum(ages) / len(ages) if ages else 0.0
