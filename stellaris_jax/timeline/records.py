"""Records of a timeline: gradients, groups, rounds and usage."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import NamedTuple

from stellaris_jax.timeline.ticks import SECOND


@dataclass(slots=True)
class Gradient:
    """Minibatch gradient, from its invocation to its aggregation.

    Attributes:
      fragment: index of its fragment.
      minibatch: index of its minibatch in the fragment.
      learner: number of its learner.
      version: version of the policy that it is computed on.
      start: time of the invocation, in seconds.
      end: time of the delivery, in seconds.
      peers: other versions that learners in flight held at the delivery, oldest first.
      staleness: clock at aggregation - version.
      in_flight: clock at delivery - version; the rest of the staleness was added in the queue.
      kl_coefficient: weight of the KL penalty that its learner fetched, in live runs. `None`: the weight of the round
        of its aggregation applies.
    """

    fragment: int
    minibatch: int
    learner: int
    version: int
    start: float = 0.0
    end: float = 0.0
    peers: list[int] = field(default_factory=list)
    staleness: int = 0
    in_flight: int = 0
    kl_coefficient: float | None = None


@dataclass(slots=True)
class Group:
    """Gradients aggregated together into version `clock + 1`.

    Attributes:
      gradients: the gradients, oldest first.
      weights: weight of each gradient.
      clock: newest version when the aggregation starts.
      second: time at which the aggregation starts, in seconds.
      escaped: whether the rule's gate refused the group (a gate escape).
      threshold: the rule's bound on mean staleness; `None` without one.
      published: time at which the version is published, in seconds.
    """

    gradients: list[Gradient]
    weights: list[float]
    clock: int
    second: float
    escaped: bool
    threshold: float | None
    published: float = 0.0


@dataclass(slots=True)
class Fragment:
    """Fragment of one shard of independent actors, from its begin to the batch that it becomes part of.

    Attributes:
      shard: number of its shard.
      number: number of fragments that the shard had begun before; keys of random numbers depend on it.
      order: number of fragments that all shards had begun before, repeated attempts included.
      batch: number of completed batches when it was begun.
      row: row of the store that holds its data.
      begin: time of its begin, in seconds.
      end: time of its end, in seconds.
      versions: version of the policy that acts in each of its segments.
      seconds: function-seconds of its actors.
      attempts: attempts that died before this one.
      left: time at which it left the data queue, in seconds; 0 before that.
      samples: places that hold a sample, if durations follow episodes; 0 otherwise.
      equal: whether each of its groups has equal returns, with `system.dynamic_sampling`; false otherwise.
    """

    shard: int
    number: int
    order: int
    batch: int
    row: int
    begin: float
    end: float = 0.0
    versions: list[int] = field(default_factory=list)
    seconds: float = 0.0
    attempts: int = 0
    left: float = 0.0
    samples: int = 0
    equal: bool = False


class Segment(NamedTuple):
    """Part of a fragment that is rolled with one version.

    Attributes:
      shard: number of the shard.
      number: number of its fragment.
      part: its place in the fragment, from 0.
      row: row of the store for the fragment.
      version: version of the policy that acts.
    """

    shard: int
    number: int
    part: int
    row: int
    version: int


@dataclass(slots=True)
class Batch:
    """Batch that the data loader has formed of one fragment's worth of samples for each shard.

    Attributes:
      index: number of the batch.
      fragments: its fragments, by shard and number.
      second: time at which it was formed, in seconds.
      clock: newest version at that time.
      loaded: time at which its minibatches could be had, in seconds.
    """

    index: int
    fragments: list[Fragment]
    second: float
    clock: int
    loaded: float = 0.0

    def age(self, fragment: Fragment) -> int:
        """Number of batches that were completed or formed since a fragment was begun: its data lag in batches."""
        return self.index - fragment.batch


@dataclass(slots=True)
class Usage:
    """Totals since the run began, in simulated seconds and counts; the bill is computed from them.

    Attributes:
      seconds: wall-clock.
      learner_busy: function-seconds of useful work of learners, data passing included.
      learner_failed: function-seconds of invocations that died.
      learner_dropped: part of learner_busy spent on dropped gradients.
      learner_startup: function-seconds of learners' containers starting.
      actor_busy: function-seconds of useful work of actors, data passing included.
      actor_startup: function-seconds of actors' containers starting.
      actor_failed: function-seconds of rollouts that died.
      actor_dropped: part of actor_busy spent on dropped fragments.
      actor_blocked: actor-seconds during which actors had to wait before they could begin a fragment.
      aggregate_busy: function-seconds of aggregations.
      scaling_busy: seconds spent on choosing the next round's actors.
      actor_invocations: rollouts, one per actor and round.
      actor_failures: rollouts that died.
      fragments_dropped: fragments of shards that data admission has dropped.
      invocations: invocations of learners.
      failures: invocations of learners that died.
      updates: versions published.
      gradients: gradients aggregated.
      dropped: gradients not admitted, or too old for the version ring.
      waits: evaluations of the rule delayed because of the version ring or the admission's bound.
      escapes: groups formed although the rule's gate refused them.
      unready: groups formed although the rule was not ready.
      staleness_total: sum of the staleness of aggregated gradients.
      staleness_max: largest staleness of an aggregated gradient.
    """

    seconds: float = 0.0
    learner_busy: float = 0.0
    learner_failed: float = 0.0
    learner_dropped: float = 0.0
    learner_startup: float = 0.0
    actor_busy: float = 0.0
    actor_startup: float = 0.0
    actor_failed: float = 0.0
    actor_dropped: float = 0.0
    actor_blocked: float = 0.0
    aggregate_busy: float = 0.0
    scaling_busy: float = 0.0
    actor_invocations: int = 0
    actor_failures: int = 0
    fragments_dropped: int = 0
    invocations: int = 0
    failures: int = 0
    updates: int = 0
    gradients: int = 0
    dropped: int = 0
    waits: int = 0
    escapes: int = 0
    unready: int = 0
    staleness_total: int = 0
    staleness_max: int = 0

    def copy(self) -> Usage:
        return Usage(*_VALUES(self))

    def in_seconds(self) -> Usage:
        """Copy in seconds of a usage in ticks."""
        copy = self.copy()
        for name in DURATIONS:
            setattr(copy, name, getattr(copy, name) / SECOND)
        return copy


DURATIONS = tuple(entry.name for entry in fields(Usage) if isinstance(entry.default, float))
"""Fields of `Usage` that are seconds; the others are counts."""


_VALUES = attrgetter(*(entry.name for entry in fields(Usage)))


Happening = Segment | Batch | Fragment | Group
"""Events with independent actors: a segment is begun, a batch formed, a fragment dropped, a group aggregated."""


@dataclass
class Round:
    """Events from the start of collecting fragment `index` to the start of collecting the next one.

    Attributes:
      index: index of the fragment and the round.
      behaviour_version: version of the policy that the actors used.
      start: start of the round, in seconds.
      actors: number of actors.
      actor_seconds: mean seconds of an actor.
      arrived: newest version when the fragment was complete.
      complete: time at which the fragment was complete, in seconds.
      groups: groups whose aggregation started in the round; with independent actors those that it published.
      dropped: gradients dropped in the round.
      usage: totals since the run began, at the round's end.
      batches: batches formed in the round, of independent actors.
      dropped_fragments: fragments dropped in the round.
      dead_attempts: attempts at fragments that died in the round, and ended then; not stored.
      waiting: fragments that wait for a batch at the round's end.
      data_lag_counts: number of segments in the round's gradients by their data lag in versions, 0, 1, ...
      data_seconds: mean time from a fragment's begin to the start of a gradient on it, in seconds.
      sequence: begun segments, formed batches, dropped fragments and groups, in the order in which they happened; of
        independent actors, not stored.
    """

    index: int
    behaviour_version: int
    start: float
    actors: int
    actor_seconds: float = 0.0
    arrived: int = 0
    complete: float = 0.0
    groups: list[Group] = field(default_factory=list)
    dropped: list[Gradient] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    batches: list[Batch] = field(default_factory=list)
    dropped_fragments: list[Fragment] = field(default_factory=list)
    dead_attempts: list[Fragment] = field(default_factory=list, repr=False, compare=False, metadata={"stored": False})
    waiting: int = 0
    data_lag_counts: list[int] = field(default_factory=list)
    data_seconds: float = 0.0
    sequence: list[Happening] = field(default_factory=list, repr=False, compare=False, metadata={"stored": False})

    def staleness(self) -> list[int]:
        """Staleness of every gradient aggregated in the round."""
        return [gradient.staleness for group in self.groups for gradient in group.gradients]
