"""Collection of independent actors' data: when the engine rolls which segment, laid out as steps of a plan.

A segment can be rolled once its version is published. It must be rolled before its first use, and before its version
leaves the version ring. So it waits until one of both is due; then every shard rolls its next segment, in one *collect
wave*. If all shards roll whole fragments of the same number with one version, the wave is *whole*: the same program
as that of actors that go in step, to the bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.timeline.records import Batch, Fragment, Group, Happening, Segment
from stellaris_jax.timeline.ring import Ring
from stellaris_jax.timeline.shapes import CollectionShape, PlanShape


class CollectionSizes(NamedTuple):
    """Capacities of a collection: whole waves, collect waves, formed batches and steps."""

    whole: int = 1
    waves: int = 1
    batches: int = 1
    steps: int = 1

    @classmethod
    def least(cls, shape: PlanShape) -> CollectionSizes:
        """Smallest capacities for chunks of a shape, which most chunks fit into."""
        collection, rounds = shape.collection, shape.rounds
        assert collection is not None, "actors are not independent"
        # All fragments of the store may be rolled at once: those of a version that is about to leave the ring.
        fragments = max(rounds, collection.rows // collection.shards)
        numbers = (fragments + 1, fragments * (collection.segments + 1), rounds + shape.buffers, 4 * rounds)
        return cls(*map(power_of_two, numbers))

    def fit(self, steps: Sequence[Step]) -> CollectionSizes:
        """Capacities that the steps of one seed fit into as well."""
        parts = ([len(part) for part in map(pick, steps)] for pick in map(attrgetter, ("whole", "waves", "batches")))
        needed = [*map(sum, parts), len(steps)]
        return CollectionSizes(*(max(power_of_two(one), least) for one, least in zip(needed, self, strict=True)))


Wave = list[Segment | None]
"""Collect wave: the segment at each place, or `None`. With one place for each shard, the places are the shards."""


@dataclass
class Step:
    """Part of a round that the engine executes in the order of the fields.

    Attributes:
      whole: whole waves: all segments of a fragment for each shard, of the same number and version.
      waves: collect waves.
      dropped: rows of fragments that are dropped.
      batches: batches formed.
      groups: groups of gradients.
    """

    whole: list[list[list[Segment]]] = field(default_factory=list)
    waves: list[Wave] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)

    @property
    def collects(self) -> bool:
        """Whether segments may still be rolled in this step: nothing comes before them."""
        return not (self.dropped or self.batches or self.groups)


class Collector:
    """Layout of one seed's rounds as steps; holds the segments that are begun and not rolled yet.

    Args:
      shape: sizes of collection.
      ring: ring of the stored versions.
    """

    def __init__(self, shape: CollectionShape, ring: Ring):
        self.shape, self.ring = shape, ring
        self.pending: list[deque[Segment]] = [deque() for _ in range(shape.shards)]

    def steps(self, sequence: Iterable[Happening]) -> list[Step]:
        """Steps of a round or a part of it, from its sequence of events (`Round.sequence`)."""
        steps = [Step()]
        for event in sequence:
            if isinstance(event, Segment):
                self.pending[event.shard].append(event)
            elif isinstance(event, Group):
                # Version clock + 1 takes the slot of this one.
                leaving = event.clock + 1 - self.ring.length
                self._roll(steps, partial(_is_old, leaving))
                steps[-1].groups.append(event)
            else:
                fragments = event.fragments if isinstance(event, Batch) else [event]
                rows = {fragment.row for fragment in fragments}
                self._roll(steps, partial(_is_in, rows))
                if steps[-1].groups:
                    steps.append(Step())
                if isinstance(event, Fragment):
                    steps[-1].dropped.append(event.row)
                else:
                    steps[-1].batches.append(event)
        return steps

    def roll_all(self, steps: list[Step]) -> None:
        """Append waves for all segments that are not rolled yet."""
        self._roll(steps, lambda segment: True)

    def _roll(self, steps: list[Step], due: Callable[[Segment], bool]) -> None:
        """Roll waves until no segment is due."""
        while any(due(segment) for pending in self.pending for segment in pending):
            whole = self._is_whole()
            if not steps[-1].collects or (whole and steps[-1].waves):
                steps.append(Step())
            if whole:
                segments = range(self.shape.segments)
                steps[-1].whole.append([[pending.popleft() for _ in segments] for pending in self.pending])
            else:
                wave = [pending.popleft() if pending else None for pending in self.pending]
                alone: list[Wave] = [[segment] for segment in wave if segment is not None]
                steps[-1].waves += [wave] if self.shape.width == self.shape.shards else alone

    def _is_whole(self) -> bool:
        """Whether all shards can roll whole fragments of one number with one version."""
        segments = self.shape.segments
        if any(len(pending) < segments or pending[0].part for pending in self.pending):
            return False
        alike = {(one.number, one.version) for pending in self.pending for one in list(pending)[:segments]}
        return len(alike) == 1

    def state(self) -> list[list[list[int]]]:
        """Segments that are not rolled yet, as JSON data."""
        return [[list(segment) for segment in pending] for pending in self.pending]

    def restore(self, state: Sequence[Sequence[Sequence[int]]]) -> None:
        """Continue from what `state()` returned (it may have passed through JSON); without shards, from the start."""
        shards = state or [[] for _ in range(self.shape.shards)]
        self.pending = [deque(Segment(*segment) for segment in pending) for pending in shards]


def _is_old(version: int, segment: Segment) -> bool:
    """Whether a segment's version is this one or older."""
    return segment.version <= version


def _is_in(rows: set[int], segment: Segment) -> bool:
    """Whether a segment's data go to one of these rows."""
    return segment.row in rows


class Bounds(NamedTuple):
    """Bounds of each step's parts, int32 `[K, 2]`: the first one, and the one after the last; the same for all seeds.

    Attributes:
      whole: whole waves.
      waves: collect waves.
      batches: formed batches.
      gradients: waves of gradients.
    """

    whole: Any
    waves: Any
    batches: Any
    gradients: Any


class Collection(NamedTuple):
    """Part of a plan for independent actors; Kw whole waves, Kc collect waves, Kf batches, K steps.

    Attributes:
      whole_slot: ring slots of whole waves' versions, int32 `[Kw, S]`.
      whole_number: numbers of their fragments, int32 `[Kw, S]`.
      whole_rows: rows of the store for each shard, int32 `[Kw, S, A]`.
      shard: shards that roll in collect waves of W places, int32 `[Kc, S, W]`.
      slot: ring slots of their versions, int32 `[Kc, S, W]`.
      number: numbers of their fragments, int32 `[Kc, S, W]`.
      segment: indices of their segments, int32 `[Kc, S, W]`.
      row: rows of the store, int32 `[Kc, S, W]`; the last one for places where nothing is rolled.
      rows: rows of the store whose fragments make a batch, int32 `[Kf, S, A]`.
      buffer: buffer of the batch, int32 `[Kf, S]`; -1: none is formed.
      order: its minibatches, int32 `[Kf, S, G, B]`.
      dropped: number of fragments in each row that are dropped in a step, int32 `[K, S, rows + 1]`.
    """

    whole_slot: Any
    whole_number: Any
    whole_rows: Any
    shard: Any
    slot: Any
    number: Any
    segment: Any
    row: Any
    rows: Any
    buffer: Any
    order: Any
    dropped: Any


def aligned(steps: Sequence[Sequence[Step]]) -> list[list[Step]]:
    """Steps `[k][s]` of several seeds, from theirs `[s][k]`: shorter lists are filled up with empty steps.

    A whole wave that not all seeds have at the same place becomes waves of single segments.
    """
    rows = [[step[k] if k < len(step) else Step() for step in steps] for k in range(max(map(len, steps)))]
    return [row if len({len(step.whole) for step in row}) == 1 else list(map(_split, row)) for row in rows]


def _split(step: Step) -> Step:
    """Step whose whole waves are waves of single segments."""
    split: list[Wave] = [list(wave) for whole in step.whole for wave in zip(*whole, strict=True)]
    return Step([], split + step.waves, step.dropped, step.batches, step.groups)


def occupancy(steps: Iterable[Step]) -> float:
    """Share of the places of collect waves in which a shard rolls a segment; 1 without waves."""
    waves = [wave for step in steps for wave in _split(step).waves]
    places = sum(map(len, waves))
    return sum(segment is not None for wave in waves for segment in wave) / places if places else 1.0


def power_of_two(number: int) -> int:
    """Smallest power of two that is not less: a capacity, so that few sizes are compiled."""
    return 1 << max(0, number - 1).bit_length()


def _entries(rows: Iterable[list[Step]], pick: Callable[[Step], list[Any]]) -> list[list[Any]]:
    """Entries `[s]` at each place of the steps' lists, in order; `None` for seeds with fewer."""
    return [
        [entries[place] if place < len(entries) else None for entries in lists]
        for lists in ([pick(step) for step in row] for row in rows)
        for place in range(max(map(len, lists)))
    ]


def _bounds(rows: Sequence[list[Step]], pick: Callable[[Step], list[Any]], size: int) -> np.ndarray:
    """Bounds of the steps' lists, int32 `[size, 2]`."""
    counts = np.array([max(len(pick(step)) for step in row) for row in rows], np.int64)
    bounds, ends = np.zeros((size, 2), np.int32), counts.cumsum()
    bounds[: len(rows)] = np.stack([ends - counts, ends], axis=1)
    return bounds


def empty_collection(shape: PlanShape, sizes: CollectionSizes) -> tuple[Collection, Bounds]:
    """Collection without any steps, and its bounds."""
    seeds, collection = shape.seeds, shape.collection
    assert collection is not None, "actors are not independent"
    shards, trash = collection.shards, collection.rows

    def zeros(*lengths: int) -> np.ndarray:
        return np.zeros(lengths, np.int32)

    wide = (sizes.waves, seeds, collection.width)
    made = Collection(
        whole_slot=zeros(sizes.whole, seeds),
        whole_number=zeros(sizes.whole, seeds),
        whole_rows=zeros(sizes.whole, seeds, shards),
        shard=np.broadcast_to(np.arange(collection.width, dtype=np.int32), wide).copy(),
        slot=zeros(*wide),
        number=zeros(*wide),
        segment=zeros(*wide),
        row=np.full(wide, trash, np.int32),
        rows=zeros(sizes.batches, seeds, shards),
        buffer=np.full((sizes.batches, seeds), -1, np.int32),
        order=np.full((sizes.batches, seeds, shape.gradients, shape.batch), -1, np.int32),
        dropped=zeros(sizes.steps, seeds, trash + 1),
    )
    return made, Bounds(*(zeros(sizes.steps, 2) for _ in Bounds._fields))


def lay_out(
    shape: PlanShape,
    rounds: Sequence[Sequence[Sequence[Step]]],
    order: Callable[[int, int], np.ndarray],
    sizes: CollectionSizes,
) -> tuple[Collection, Bounds, np.ndarray, list[list[Step]], CollectionSizes]:
    """Lay out the steps of a chunk.

    Args:
      shape: sizes of the plan.
      rounds: steps of each round and seed, `[r][s][k]`.
      order: function from (seed's place, batch) to the batch's minibatches, int32 `[G, B]`.
      sizes: smallest capacities.

    Returns:
      (collection, its bounds without those of gradients, bounds of each round's steps `[R, 2]`, steps `[k][s]`, its
      capacities).
    """
    aligned_rounds = [aligned(seeds) for seeds in rounds]
    rows = [row for round_rows in aligned_rounds for row in round_rows]
    ends = np.cumsum([len(round_rows) for round_rows in aligned_rounds])
    round_bounds = np.zeros((shape.rounds, 2), np.int32)
    round_bounds[: len(ends)] = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)
    whole, waves, batches = (
        _entries(rows, pick) for pick in (attrgetter("whole"), attrgetter("waves"), attrgetter("batches"))
    )
    needed = CollectionSizes(len(whole), len(waves), len(batches), len(rows))
    sizes = CollectionSizes(*(max(power_of_two(one), least) for one, least in zip(needed, sizes, strict=True)))
    made, bounds = empty_collection(shape, sizes)
    slot = shape.ring.slot
    for i, fragments in enumerate(whole):
        for s, shards in enumerate(fragments):
            first = shards[0][0]
            made.whole_slot[i, s], made.whole_number[i, s] = slot(first.version), first.number
            made.whole_rows[i, s] = [segments[0].row for segments in shards]
    for i, wave in enumerate(waves):
        for s, segments in enumerate(wave):
            for position, one in enumerate(segments or ()):
                if one is None:
                    continue
                place = (i, s, position)
                made.shard[place] = one.shard
                made.slot[place], made.number[place] = slot(one.version), one.number
                made.segment[place], made.row[place] = one.part, one.row
    for i, formed in enumerate(batches):
        for s, batch in enumerate(formed):
            if batch is not None:
                made.rows[i, s] = [fragment.row for fragment in batch.fragments]
                made.buffer[i, s] = shape.fragments.slot(batch.index)
                minibatches = order(s, batch.index)
                made.order[i, s, : len(minibatches)] = minibatches
    for k, row in enumerate(rows):
        for s, step in enumerate(row):
            np.add.at(made.dropped[k, s], step.dropped, 1)
    bounds = bounds._replace(
        whole=_bounds(rows, attrgetter("whole"), sizes.steps),
        waves=_bounds(rows, attrgetter("waves"), sizes.steps),
        batches=_bounds(rows, attrgetter("batches"), sizes.steps),
    )
    return made, bounds, round_bounds, rows, sizes
