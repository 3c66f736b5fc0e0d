"""The gate of Stellaris by its definitions: a diary of facts, from which everything else is looked up.

Nothing is counted along the way. The clock is how many policies have been published; the queue is what was delivered
and neither aggregated nor dropped; delta_max is a maximum over the aggregations of round 0; and so on. So it is slow,
and has no state that could be forgotten or updated too early or too late. From the package come durations (`Stream`)
alone. `Eq.` refers to the Stellaris paper (SC'24).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from stellaris_jax.config.sections import DelaysConfig
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.timeline.delays import Chance, Stream, delay_of


def exactly(seconds: float) -> Fraction:
    """The duration in whole nanoseconds."""
    return Fraction(round(seconds * 1e9), 10**9)


@dataclass(eq=False)
class Task:
    """Something that takes from `start` to `end`; `over` once that moment has come."""

    start: Fraction
    end: Fraction
    over: bool = False


@dataclass(eq=False)
class Rollout(Task):
    """Fragment `number`, rolled by all actors with the policy `version`."""

    number: int = 0
    version: int = 0
    arrived: int = 0


@dataclass(eq=False)
class Invocation(Task):
    """A learner function that computes minibatch `pointer` = (fragment, minibatch) on the policy `version`."""

    learner: int = 0
    pointer: tuple[int, int] = (0, 0)
    version: int = 0
    fails: bool = False
    peers: frozenset[int] = frozenset()
    dropped: int | None = None


@dataclass(eq=False)
class Aggregation(Task):
    """Deliveries that make the policy `clock + 1`, in `round` = the newest fragment that was begun."""

    members: tuple[Invocation, ...] = ()
    clock: int = 0
    round: int = 0
    k: int = 0
    escaped: bool = False
    threshold: Fraction | None = None


class Diary:
    """A system under rule `stellaris` on a platform where nothing but `delays` takes time.

    `live(rounds)` goes on until fragment number `rounds` could be begun; `tasks` is all that has happened.
    """

    def __init__(self, system: SystemConfig, delays: DelaysConfig, actors: int, minibatches: int, seed: int):
        self.system, self.actors, self.minibatches = system, actors, minibatches
        self.failure = delays.failure
        names = ("learner", "actor", "aggregate")
        self.durations = {name: Stream(delay_of(getattr(delays, name)), seed, name) for name in names}
        self.luck = Stream(Chance(), seed, "failure")
        self.now = Fraction(0)
        self.waits = 0
        self.tasks: list[Task] = []
        self.deliveries: list[Invocation] = []

    # What is so, at this moment ----------------------------------------------------------------------------------

    @property
    def rollouts(self) -> list[Rollout]:
        return [task for task in self.tasks if isinstance(task, Rollout)]

    @property
    def aggregations(self) -> list[Aggregation]:
        return [task for task in self.tasks if isinstance(task, Aggregation)]

    @property
    def invocations(self) -> list[Invocation]:
        return [task for task in self.tasks if isinstance(task, Invocation)]

    @property
    def clock(self) -> int:
        return sum(one.over for one in self.aggregations)

    @property
    def in_flight(self) -> dict[int, Invocation]:
        return {one.learner: one for one in self.invocations if not one.over}

    @property
    def queue(self) -> list[Invocation]:
        taken = {member for one in self.aggregations for member in one.members}
        return [one for one in self.deliveries if one not in taken and one.dropped is None]

    @property
    def k(self) -> int:
        """The round of training: the newest fragment of which a gradient has come."""
        return max((one.pointer[0] for one in self.deliveries), default=0)

    def staleness(self, one: Invocation) -> int:
        return self.clock - one.version

    def too_old(self, version: int) -> bool:
        """Whether a policy is no longer among those kept, of which the newest is the clock's."""
        return version < self.clock + 1 - self.system.versions

    def threshold(self) -> Fraction | None:
        """Eq. 3: beta_k = delta_max * d^k, exactly; round 0 has none, and delta_max is the largest staleness in it."""
        if self.k == 0:
            return None
        first = [one.clock - member.version for one in self.aggregations if one.k == 0 for member in one.members]
        return max(first, default=0) * Fraction(self.system.rule_options["decay"]) ** self.k

    def pointers(self) -> list[tuple[int, int]]:
        """Minibatches that nobody computes and nobody has delivered, oldest first."""
        held = {one.pointer for one in self.invocations if not (one.over and one.fails)}
        loaded = [(one.number, minibatch) for one in self.rollouts if one.over for minibatch in range(self.minibatches)]
        return [pointer for pointer in loaded if pointer not in held]

    def consumed(self, fragment: int) -> bool:
        """Whether all its gradients have been used in a published policy, or dropped."""
        used = [member for one in self.aggregations if one.over for member in one.members]
        lost = [one for one in self.deliveries if one.dropped is not None]
        return sum(one.pointer[0] == fragment for one in (*used, *lost)) == self.minibatches

    # What follows ------------------------------------------------------------------------------------------------

    def live(self, rounds: int) -> None:
        ahead = 2 if self.system.actors == "pipelined" else 1
        while True:
            fragment = len(self.rollouts)
            if all(one.over for one in self.rollouts) and (fragment < ahead or self.consumed(fragment - ahead)):
                if fragment == rounds:
                    return
                seconds = exactly(max(self.durations["actor"].take(self.actors)))
                self.tasks.append(Rollout(self.now, self.now + seconds, number=fragment, version=self.clock))
            waiting = [task for task in self.tasks if not task.over]
            if waiting:
                self.finish(min(waiting, key=lambda task: task.end))  # of several, the one that was begun first
            else:
                self.evaluate(nothing_to_wait_for=True)
            self.invoke()

    def finish(self, task: Task) -> None:
        self.now, task.over = task.end, True
        if isinstance(task, Rollout):
            task.arrived = self.clock
        elif isinstance(task, Aggregation):
            self.evaluate()
        elif isinstance(task, Invocation) and not task.fails:
            task.peers = frozenset(other.version for other in self.in_flight.values()) - {task.version}
            self.deliveries.append(task)
            self.evaluate()

    def invoke(self) -> None:
        """A learner function for every pointer, as far as there are free ones, of which the first are taken first."""
        free = [learner for learner in range(self.system.learners) if learner not in self.in_flight]
        for learner, pointer in zip(free, self.pointers(), strict=False):
            seconds, fails = exactly(next(self.durations["learner"])), False
            if self.failure > 0:
                fails, share = next(self.luck) < self.failure, next(self.luck)
                seconds = round(seconds * Fraction(share) * 10**9) / Fraction(10**9) if fails else seconds
            one = Invocation(
                self.now, self.now + seconds, learner=learner, pointer=pointer, version=self.clock, fails=fails
            )
            self.tasks.append(one)

    def evaluate(self, nothing_to_wait_for: bool = False) -> None:
        """At every push, and after every publication, for what was pushed while the parameter function was busy."""
        if any(not one.over for one in self.aggregations):
            return
        round_ = len(self.rollouts) - 1
        if self.system.overflow == "drop":
            for one in self.queue:
                if self.too_old(one.version):
                    one.dropped = round_
        queue = self.queue
        if not queue:
            return
        if self.system.overflow == "wait" and any(self.too_old(one.version - 1) for one in self.in_flight.values()):
            self.waits += 1  # another policy would take the place of one that is being computed on
            return
        threshold = self.threshold()
        closed = threshold is not None and Fraction(sum(map(self.staleness, queue)), len(queue)) > threshold
        if closed and len(queue) < self.system.learners and not nothing_to_wait_for:
            return
        seconds = exactly(next(self.durations["aggregate"]))
        self.tasks.append(
            Aggregation(
                self.now,
                self.now + seconds,
                members=tuple(queue),
                clock=self.clock,
                round=round_,
                k=self.k,
                escaped=closed,
                threshold=threshold,
            )
        )
        if seconds == 0:
            self.finish(self.tasks[-1])

    def weight(self, staleness: int) -> float:
        """Eq. 4: the v-th root of 1 / delta."""
        if staleness == 0 or self.system.weights == "constant":
            return 1.0
        return (1.0 / staleness) ** (1.0 / self.system.weight_options["root"])
