"""Data admission: which fragments of independent actors make a batch, which are dropped, and when actors wait.

A policy sees versions, counts and the queue, never data. Ages are in batches (training steps of other frameworks): the
number of batches formed, less those that were completed when the fragment was begun. To add a policy, subclass
`DataAdmission` and register it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Protocol

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import Optioned
from stellaris_jax.config.schema import knob, shown
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.answers import decision, is_count
from stellaris_jax.timeline.records import Fragment

BOUND = "the most batches that data may be behind"


class DataView(Protocol):
    """Read-only view of actors and data queue.

    Attributes:
      shards: number of shards (A), and of fragments that make a batch.
      waiting: complete fragments, in the order of their completion.
      rolling: fragments under way, by shard.
      outstanding: number of fragments that wait or are under way.
      begun: number of fragments that each shard has begun.
      formed: number of batches formed.
      completed: number of leading batches whose gradients have all been aggregated or dropped.
      capacity: fragments that may wait before actors wait (`system.data_queue`).
      clock: newest version.
    """

    @property
    def shards(self) -> int: ...
    @property
    def waiting(self) -> Sequence[Fragment]: ...
    @property
    def rolling(self) -> Mapping[int, Fragment]: ...
    @property
    def outstanding(self) -> int: ...
    @property
    def begun(self) -> Sequence[int]: ...
    @property
    def formed(self) -> int: ...
    @property
    def completed(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def clock(self) -> int: ...


def age(fragment: Fragment, view: DataView) -> int:
    """Batches that a fragment is behind the next batch to be formed."""
    return view.formed - fragment.batch


def places(eta: int, view: DataView) -> int:
    """Number of fragments that may be begun within a begin limit of eta batches.

    A (eta + 1 - unfinished) - outstanding, where unfinished batches are formed and not completed. AReaL's formula is
    the same in other terms.
    """
    unfinished = view.formed - view.completed
    return (eta + 1 - unfinished) * view.shards - view.outstanding


@register.data_admission("fifo")
class DataAdmission(Optioned):
    """First in, first out: the fragments that were complete first; nothing is dropped. The base of all policies.

    Its waste: none. Its cost: data lag is bounded by the length of the data queue alone. Bias: none, every fragment is
    used.

    Attributes:
      blocks: whether actors wait while the data queue is full.
    """

    blocks = True

    @property
    def queued_batches(self) -> int:
        """Length of the data queue that it needs, in batches; the default of `system.data_queue`."""
        return 1

    def may_begin(self, shard: int, view: DataView) -> bool:
        """Whether an idle shard may begin its next fragment."""
        return True

    def keeps(self, age: int, view: DataView) -> bool:
        """Whether a fragment that is so many batches behind the next one is kept; others are dropped."""
        return True

    def evicts(self, view: DataView) -> Sequence[Fragment]:
        """Waiting fragments to drop now: by default those that it does not keep."""
        ages = ((fragment, age(fragment, view)) for fragment in view.waiting)
        return [fragment for fragment, old in ages if not decision(self, "keeps", self.keeps(old, view))]

    def selects(self, view: DataView) -> Sequence[Fragment]:
        """Fragments of the next batch: A of those that wait, or fewer to wait for more."""
        return view.waiting[: view.shards]


def in_order_of_begin(fragments: Sequence[Fragment]) -> list[Fragment]:
    """Fragments by the order in which they were begun."""
    return sorted(fragments, key=attrgetter("order"))


@register.data_admission("ready_first")
class ReadyFirst(DataAdmission):
    """Begin limit, first come first served: data begins at most eta batches ahead (NeMo-RL's ready_first).

    A fragment may begin while outstanding < A (eta + 1 - unfinished). A is the number of shards, outstanding fragments
    wait or are under way, and unfinished batches have gradients to come. Nothing is dropped. A fragment that takes long
    may become older than eta. Its cost: actors wait. Bias: none.
    """

    eta: int = knob(1, "batches that actors may be ahead of the learners (eta)", within="[0, inf)")

    @property
    def queued_batches(self) -> int:
        return self.eta + 1

    def may_begin(self, shard: int, view: DataView) -> bool:
        return places(self.eta, view) > 0


@register.data_admission("capacity")
class DataCapacity(ReadyFirst):
    """AReaL's capacity: the begin limit of ready_first, and of the fragments that wait those begun first.

    Fragments that are complete do not wait for those under way, so that a slow one may become older than eta. Its cost:
    actors wait. Bias: none.
    """

    def selects(self, view: DataView) -> Sequence[Fragment]:
        return in_order_of_begin(view.waiting)[: view.shards]


@register.data_admission("newest")
class Newest(DataAdmission):
    """Last in, first out: the fragments begun last; what is more than `bound` batches behind is dropped.

    Its waste: all that is overtaken for too long. Bias: slow fragments are overtaken and dropped more often, so that
    data are mostly of fast ones.
    """

    bound: int = knob(2, BOUND, within="[0, inf)")

    def keeps(self, age: int, view: DataView) -> bool:
        return age <= self.bound

    def selects(self, view: DataView) -> Sequence[Fragment]:
        return in_order_of_begin(view.waiting)[: -view.shards - 1 : -1]


@register.data_admission("bounded")
class BoundedData(DataAdmission):
    """Bound on the age of data, by dropping what is older (verl, prime-rl) or by waiting for it.

    `by=drop`: actors never wait for the bound, and fragments of age > bound are dropped. Its waste: their rollouts.
    Bias: slow fragments are dropped more often. `by=wait`: the begin limit of `capacity` with eta = bound, and no
    batch is formed without a fragment that would be too old for the next one. Its cost: actors and learners wait. Bias:
    none.
    """

    bound: int = knob(1, BOUND, within="[0, inf)")
    by: str = knob("drop", "older data are dropped (drop), or made impossible (wait)", choices=("drop", "wait"))

    @property
    def queued_batches(self) -> int:
        return self.bound + 1 if self.by == "wait" else 1

    def may_begin(self, shard: int, view: DataView) -> bool:
        return self.by == "drop" or places(self.bound, view) > 0

    def keeps(self, age: int, view: DataView) -> bool:
        return self.by == "wait" or age <= self.bound

    def evicts(self, view: DataView) -> Sequence[Fragment]:
        return () if self.by == "wait" else super().evicts(view)

    def selects(self, view: DataView) -> Sequence[Fragment]:
        if self.by == "wait" and any(age(fragment, view) >= self.bound for fragment in view.rolling.values()):
            return ()
        return in_order_of_begin(view.waiting)[: view.shards]


@register.data_admission("window")
class Window(DataAdmission):
    """Begin limit and bound on age: NeMo-RL's windowed.

    Actors begin at most `bound` batches ahead, and older fragments are dropped. Fragments begun first are used first.

    Its cost: actors wait. Its waste and bias: fragments slower than the window are dropped.
    """

    bound: int = knob(1, BOUND, within="[0, inf)")

    @property
    def queued_batches(self) -> int:
        return self.bound + 1

    def may_begin(self, shard: int, view: DataView) -> bool:
        return places(self.bound, view) > 0

    def keeps(self, age: int, view: DataView) -> bool:
        return age <= self.bound

    def selects(self, view: DataView) -> Sequence[Fragment]:
        return in_order_of_begin(view.waiting)[: view.shards]


@register.data_admission("fixed")
class Fixed(DataAdmission):
    """Data exactly `lag` batches old: batch b is fragment b of every shard (cleanba, Sebulba: a lag of one).

    Fragment j begins once batch j - lag - 1 is complete, and batch b is formed once every shard has begun fragment
    b + lag. So actors and learners go in step. A shard that dies begins again with the newest version, which may be
    fresher. Its cost: both wait for the slowest shard. Bias: none.
    """

    lag: int = knob(1, "batches that data are behind, exactly", within="[0, 100000)")

    @property
    def queued_batches(self) -> int:
        return self.lag + 1

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        system, shards = config.system, config.actor_shards
        needed = cls(system.data_admission_options).queued_batches * shards
        yield (
            system.data_queue == 0 or system.data_queue >= needed,
            f"system.data_queue={system.data_queue} is too short for system.data_admission=fixed, which keeps "
            f"{needed} fragments (lag + 1 for each of {shards} shards); give {needed} or more, or 0.",
        )
        lag = cls(system.data_admission_options).lag
        yield (
            lag < max(2, config.rounds),
            f"system.data_admission_options.lag={lag} is never reached: total_steps={config.total_steps} are "
            f"{config.rounds} batches; accepted: at most {max(1, config.rounds - 1)}.",
        )
        yield (
            not system.dynamic_sampling,
            f"system.dynamic_sampling={system.dynamic_sampling} is not possible with system.data_admission="
            f"{system.data_admission}, whose batches need a certain fragment of every shard; ready_first and capacity "
            "are possible.",
        )

    def may_begin(self, shard: int, view: DataView) -> bool:
        return view.completed >= view.begun[shard] - self.lag

    def selects(self, view: DataView) -> Sequence[Fragment]:
        if min(view.begun) <= view.formed + self.lag:
            return ()
        return [fragment for fragment in view.waiting if fragment.number == view.formed]


@register.data_admission("in_order")
class DataInOrder(DataAdmission):
    """Order of begin: a fragment is used once at most `window` of those begun before it are still under way.

    With 0, data are used in the order in which they were begun (NeMo-RL's in_order). Its cost: learners wait for slow
    fragments. Bias: none, nothing is dropped or overtaken for long.
    """

    window: int = knob(0, "fragments begun earlier that may still be under way", within="[0, inf)")

    def selects(self, view: DataView) -> Sequence[Fragment]:
        rolling = sorted(fragment.order for fragment in view.rolling.values())
        edge = rolling[self.window] if len(rolling) > self.window else None
        ready = in_order_of_begin(view.waiting)
        return [fragment for fragment in ready if edge is None or fragment.order < edge][: view.shards]


@register.data_admission("evict_stalest")
class EvictStalest(DataAdmission):
    """Full queue without waiting: the stalest fragments are dropped while more than `data_queue` wait (miles).

    The stalest is the one with the oldest first version; ties: the smaller sum of versions, then the first that was
    complete. Actors never wait. Its waste: everything that learners do not keep up with. Bias: slow fragments are
    stalest, and dropped more often.
    """

    blocks = False

    def evicts(self, view: DataView) -> Sequence[Fragment]:
        surplus = len(view.waiting) - view.capacity
        if surplus <= 0:
            return ()
        return sorted(view.waiting, key=lambda fragment: (fragment.versions[0], sum(fragment.versions)))[:surplus]


def admission_of(system: SystemConfig) -> DataAdmission:
    """Data admission of a configuration. Raises ConfigError unless its `blocks` is true or false."""
    admission: DataAdmission = register.data_admission[system.data_admission](system.data_admission_options)
    blocks: object = admission.blocks
    if not isinstance(blocks, bool):
        raise ConfigError(f"{_attribute(system, admission, 'blocks')} must be true or false, not {shown(blocks)}.")
    return admission


def queue_capacity(system: SystemConfig, shards: int) -> int:
    """Fragments that may wait before actors wait. Raises ConfigError for a length that no queue has."""
    admission = admission_of(system)
    if system.data_queue:
        return system.data_queue
    batches = admission.queued_batches
    if not is_count(batches, 1):
        wanted = "must be an integer of at least 1"
        raise ConfigError(f"{_attribute(system, admission, 'queued_batches')} {wanted}, not {shown(batches)}.")
    return int(batches) * shards


def _attribute(system: SystemConfig, admission: DataAdmission, name: str) -> str:
    """Beginning of a sentence on an attribute of the data admission."""
    return f"system.data_admission={system.data_admission}: {type(admission).__name__}.{name}"


def store_rows(system: SystemConfig, shards: int) -> int:
    """Rows that the store needs: one for each fragment that is under way or waits."""
    return queue_capacity(system, shards) + shards
