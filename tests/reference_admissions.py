"""Data admissions of the literal system with independent actors (`reference_actors.py`), each from its formula.

An admission says when an idle shard may begin a fragment, which waiting fragments make the next batch, and which are
evicted. The age of a fragment is the number of batches formed minus the number completed when it began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Protocol


@dataclass(eq=False)
class Fragment:
    """One attempt of a shard at one of its fragments.

    `order` counts the begins of all shards; `batch` is the number of batches completed at the begin; `versions` has one
    version for each segment. `fate` is `rolling`, `dead`, `waiting`, `dropped` or `used`. `end` is the moment at which
    the rollout ends or the attempt dies, `left` the moment at which the fragment leaves the waiting list. `steps` are
    the steps so far, if fragments end with their episodes.
    """

    shard: int
    number: int
    order: int
    batch: int
    begin: Fraction
    versions: list[int]
    actor_seconds: Fraction = Fraction(0)
    steps: int = 0
    fate: str = "rolling"
    end: Fraction | None = None
    left: Fraction | None = None
    used_in: int | None = None

    @property
    def name(self) -> tuple[int, int]:
        return self.shard, self.number


@dataclass
class Shard:
    """A group of actors that collects fragments together; `attempt` is its rollout, `None` while it is idle.

    `number` is its place among the shards, `actors` the platform's actors that it stands for, `fragment` the number of
    the fragment that it collects or begins next.
    """

    number: int
    actors: range
    fragment: int = 0
    attempt: Fragment | None = None
    died: bool = False
    idle_since: Fraction = Fraction(0)


@dataclass
class Batch:
    """Fragments of a batch, sorted by shard and number; the round and the second in which it was formed."""

    index: int
    round: int
    second: Fraction
    fragments: list[Fragment] = field(default_factory=list)


class Data(Protocol):
    """What admissions see: fragments that wait (in the order of their completion), shards, and counts of batches."""

    shards: list[Shard]
    waiting: list[Fragment]
    room: int
    formed: int

    @property
    def completed(self) -> int: ...


class Admission:
    """No gate, completion order, nothing is evicted: `fifo`."""

    waits_for_room = True
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, options: Mapping[str, Any], data: Data):
        assert options.keys() <= self.defaults.keys(), options
        self.options = {**self.defaults, **options}
        self.data = data

    def may_begin(self, shard: Shard) -> bool:
        return True

    def evicted(self) -> list[Fragment]:
        """Waiting fragments to drop now."""
        return []

    def accepts(self, age: int) -> bool:
        """Whether a waiting fragment of that age would not be dropped for it."""
        return True

    def chosen(self) -> list[Fragment]:
        """Waiting fragments that may make the next batch, the preferred ones first."""
        return list(self.data.waiting)

    # What several of them need ------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        return len(self.data.shards)

    def age(self, fragment: Fragment) -> int:
        return self.data.formed - fragment.batch

    def rolling(self) -> list[Fragment]:
        return [shard.attempt for shard in self.data.shards if shard.attempt is not None]

    def outstanding(self) -> int:
        dead = sum(shard.died for shard in self.data.shards)
        return len(self.data.waiting) + len(self.rolling()) + dead

    def room_within(self, eta: int) -> bool:
        """AReaL's formula: whether one more fragment stays within eta batches beyond the one that is learned from."""
        begun = self.data.formed * self.batch_size + self.outstanding()
        return (eta + self.data.completed + 1) * self.batch_size - begun > 0

    def by_begin(self) -> list[Fragment]:
        return sorted(self.data.waiting, key=lambda fragment: fragment.order)

    def older_than(self, bound: int) -> list[Fragment]:
        return [fragment for fragment in self.data.waiting if self.age(fragment) > bound]


class ReadyFirst(Admission):
    defaults: ClassVar[Mapping[str, Any]] = {"eta": 1}

    def may_begin(self, shard: Shard) -> bool:
        return self.room_within(self.options["eta"])


class Capacity(ReadyFirst):
    def chosen(self) -> list[Fragment]:
        return self.by_begin()


class Newest(Admission):
    defaults: ClassVar[Mapping[str, Any]] = {"bound": 2}

    def accepts(self, age: int) -> bool:
        return age <= self.options["bound"]

    def evicted(self) -> list[Fragment]:
        return self.older_than(self.options["bound"])

    def chosen(self) -> list[Fragment]:
        return self.by_begin()[::-1]


class Bounded(Admission):
    defaults: ClassVar[Mapping[str, Any]] = {"bound": 1, "by": "drop"}

    def may_begin(self, shard: Shard) -> bool:
        return self.options["by"] == "drop" or self.room_within(self.options["bound"])

    def accepts(self, age: int) -> bool:
        return self.options["by"] == "wait" or age <= self.options["bound"]

    def evicted(self) -> list[Fragment]:
        return self.older_than(self.options["bound"]) if self.options["by"] == "drop" else []

    def chosen(self) -> list[Fragment]:
        bound = self.options["bound"]
        if self.options["by"] == "wait" and any(self.age(fragment) >= bound for fragment in self.rolling()):
            return []  # it must be in this batch
        return self.by_begin()


class Window(Admission):
    defaults: ClassVar[Mapping[str, Any]] = {"bound": 1}

    def may_begin(self, shard: Shard) -> bool:
        return self.room_within(self.options["bound"])

    def accepts(self, age: int) -> bool:
        return age <= self.options["bound"]

    def evicted(self) -> list[Fragment]:
        return self.older_than(self.options["bound"])

    def chosen(self) -> list[Fragment]:
        return self.by_begin()


class Fixed(Admission):
    defaults: ClassVar[Mapping[str, Any]] = {"lag": 1}

    def may_begin(self, shard: Shard) -> bool:
        return self.data.completed >= shard.fragment - self.options["lag"]

    def begun(self, shard: Shard) -> int:
        """Number of fragments that a shard has begun at least once."""
        return shard.fragment + (shard.attempt is not None or shard.died)

    def chosen(self) -> list[Fragment]:
        batch = self.data.formed
        if any(self.begun(shard) <= batch + self.options["lag"] for shard in self.data.shards):
            return []
        return [fragment for fragment in self.data.waiting if fragment.number == batch]


class InOrder(Admission):
    defaults: ClassVar[Mapping[str, Any]] = {"window": 0}

    def chosen(self) -> list[Fragment]:
        def earlier(fragment: Fragment) -> int:
            return sum(other.order < fragment.order for other in self.rolling())

        return [fragment for fragment in self.by_begin() if earlier(fragment) <= self.options["window"]]


class EvictStalest(Admission):
    waits_for_room = False

    def evicted(self) -> list[Fragment]:
        left, evicted = list(self.data.waiting), []
        while len(left) > self.data.room:
            # The first of several is the one that has waited longest.
            stalest = min(left, key=lambda fragment: (fragment.versions[0], sum(fragment.versions)))
            left.remove(stalest)
            evicted.append(stalest)
        return evicted


ADMISSIONS: dict[str, Callable[[Mapping[str, Any], Data], Admission]] = {
    "fifo": Admission,
    "ready_first": ReadyFirst,
    "capacity": Capacity,
    "newest": Newest,
    "bounded": Bounded,
    "window": Window,
    "fixed": Fixed,
    "in_order": InOrder,
    "evict_stalest": EvictStalest,
}
