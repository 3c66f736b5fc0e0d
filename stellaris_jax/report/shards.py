"""Fragments of independent actors as bars of a picture, and the length of their data queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from stellaris_jax.config.tree import Config
from stellaris_jax.timeline import Round, Timeline
from stellaris_jax.timeline.records import Fragment
from stellaris_jax.timeline.ticks import SECOND

USED, DROPPED, DIED, OPEN = "used", "dropped", "died", "open"
"""Ends of a fragment: in a batch, dropped from the data queue, with its actors. An open one has none yet."""


class ShardBar(NamedTuple):
    """Bar of one fragment.

    Attributes:
      fragment: the fragment.
      outcome: USED, DROPPED, DIED or OPEN.
      end: end of the bar, in seconds.
      segments: begin and end of each segment, in seconds, and its version.
    """

    fragment: Fragment
    outcome: str
    end: float
    segments: list[tuple[float, float, int]]

    @property
    def about(self) -> str:
        """Description without times."""
        one = self.fragment
        versions = ", ".join(map(str, dict.fromkeys(one.versions)))
        ends = {DROPPED: ", dropped", DIED: ", died", OPEN: "", USED: ""}[self.outcome]
        return f"fragment {one.number} of shard {one.shard}, with version{'s' * (',' in versions)} {versions}{ends}"


def shard_bars(config: Config, rounds: Iterable[Round], under_way: Sequence[Fragment] = ()) -> list[ShardBar]:
    """Bars of the fragments that rounds have used or dropped, or that died in them.

    Args:
      config: configuration of the run.
      rounds: the rounds.
      under_way: fragments that waited or were rolled after them, as `fragments_under_way` returns them.
    """
    bars, known = list[ShardBar](), set[int]()
    for round_ in rounds:
        used = [fragment for batch in round_.batches for fragment in batch.fragments]
        for outcome, fragments in ((USED, used), (DROPPED, round_.dropped_fragments), (DIED, round_.dead_attempts)):
            bars += [_bar(config, fragment, outcome) for fragment in fragments]
            known |= {fragment.order for fragment in fragments}
    return bars + [_bar(config, fragment, OPEN) for fragment in under_way if fragment.order not in known]


def fragments_under_way(timeline: Timeline) -> list[Fragment]:
    """Fragments of a timeline that wait for a batch, and those that are rolled, with the ends that they will have."""
    free = timeline.free
    if free is None:
        return []
    rolling = []
    for shard, fragment in free.queue.rolling.items():
        whole = (free.layout.segments + 1) * free.passing + free.lasts[shard]
        rolling.append(replace(fragment, end=(free.begun[shard] + free.dies.get(shard, whole)) / SECOND))
    return [*free.queue.waiting, *rolling]


def _bar(config: Config, fragment: Fragment, outcome: str) -> ShardBar:
    """Bar of a fragment; a segment of the simulator takes its part of the computation, and a fetch."""
    begin, count, versions = fragment.begin, config.segments, fragment.versions
    fetch = 0.0 if config.executor == "live" else config.platform.cache
    computing = fragment.end - begin - (count + 1) * fetch
    if outcome == DIED or config.delays.by == "episodes" or computing < 0.0:
        fetch, count, computing = 0.0, len(versions), fragment.end - begin
    starts = [begin + part * fetch + computing * part / count for part in range(len(versions))]
    ends = [*starts[1:], fragment.end if len(versions) == count else starts[-1] + computing / count + fetch]
    return ShardBar(fragment, outcome, fragment.end, list(zip(starts, ends, versions, strict=True)))


def queue_length(bars: Iterable[ShardBar], until: float) -> tuple[np.ndarray, np.ndarray]:
    """Number of fragments that wait for a batch, from second 0 until a second.

    Args:
      bars: bars of all fragments.
      until: last second.

    Returns:
      Seconds `[N]` at which the number changes, the first and the last second too, and the number `[N]` from then on.
    """
    waited = [bar.fragment for bar in bars if bar.outcome != DIED]
    changes = [(one.end, 1) for one in waited] + [(one.left, -1) for one in waited if one.left]
    # At equal times fragments join before others leave.
    changes = sorted((change for change in changes if change[0] <= until), key=lambda change: (change[0], -change[1]))
    seconds = np.array([0.0, *(second for second, _ in changes), until])
    return seconds, np.array([0, *(step for _, step in changes), 0]).cumsum()
