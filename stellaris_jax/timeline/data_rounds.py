"""Records of independent actors' rounds: what is known of a round's data once its batch is complete."""

from __future__ import annotations

import numpy as np

from stellaris_jax.timeline.data_queue import DataQueue
from stellaris_jax.timeline.records import Batch, Round


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
    record.data_lag_counts, record.data_seconds = _data_lag(record, batches)
    for index in [index for index in batches if index < queue.completed and index <= record.index]:
        del batches[index]


def _data_lag(record: Round, batches: dict[int, Batch]) -> tuple[list[int], float]:
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
