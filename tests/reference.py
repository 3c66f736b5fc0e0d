"""The literal system, as the paper draws it: actors, a data loader, learner functions, a parameter function, a cache.

It is slow on purpose and shares no code with the package's timeline, plan, engine, aggregator, learner or loss: events
are callbacks on a clock, gradients are computed one at a time (`reference_training.py`), and the cache is a dictionary
that forgets nothing. What it takes from the package is what both must be given alike: durations (`Stream`), networks
and collected samples. `Eq.` and `§` refer to the Stellaris paper (SC'24).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Protocol

from reference_events import NANOSECOND, Aggregation, Clock, Delivery, Learner, Log, Work, exactly

from stellaris_jax.config.sections import DelaysConfig, PlatformConfig
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.timeline.delays import Chance, Stream, delay_of


class Training(Protocol):
    """Interface of the computations beside the events; `reference_training.Training` has it."""

    def collect(self, fragment: int, version: int) -> None: ...

    def update(self, clock: int, aggregation: Aggregation) -> None: ...


class LearnerSystem:
    """Learners and parameter function of the literal system; subclasses add the actors and the data loader."""

    def __init__(
        self, settings: SystemConfig, platform: PlatformConfig, delays: DelaysConfig, minibatches: int, seed: int
    ):
        self.settings, self.platform, self.failure = settings, platform, delays.failure
        self.training: Training | None = None
        self.minibatches = minibatches
        self.learner_seconds = Stream(delay_of(delays.learner), seed, "learner")
        self.parameter_functions = platform.parameter_shards
        self.aggregate_seconds = Stream(delay_of(delays.aggregate), seed, "aggregate")
        self.loader_seconds = Stream(delay_of(delays.loader), seed, "loader")
        self.luck = Stream(Chance(), seed, "failure")
        self.time = Clock()
        self.log = Log()
        self.warm_since = Fraction(0) if platform.prewarm else None
        self.learners = [Learner(number, self.warm_since) for number in range(settings.learners)]
        self.pointers: deque[tuple[int, int]] = deque()
        self.unused: dict[int, int] = {}
        self.parameter_function = ParameterFunction(self)

    @property
    def round(self) -> int:
        """Number of the round that events belong to now."""
        raise NotImplementedError

    @property
    def updates(self) -> list[Aggregation]:
        """Aggregations of the rounds so far."""
        return self.log.aggregations

    def update_begins(self) -> None:
        """An aggregation that takes time begins, before it has a round."""

    def update(self, aggregation: Aggregation) -> None:
        """Compute the version that an aggregation makes."""
        if self.training:
            self.training.update(aggregation.clock, aggregation)

    def share(self) -> None:
        """Everybody who computes goes on as fast as those beside them leave them to."""
        busy = [learner for learner in self.learners if learner.work is not None]
        contention, interference = exactly(self.platform.contention), exactly(self.platform.interference)
        aggregation = self.parameter_function.work
        if aggregation:
            end = aggregation.go_on(self.time, 1 + interference * bool(busy))
            if end is not None:
                self.log.aggregate_busy += (end - self.parameter_function.ends) * self.parameter_functions
                self.parameter_function.ends = self.log.aggregations[-1].published = end
        for learner in busy:
            beside = [one for one in busy if (one.number - learner.number) % self.platform.gpus == 0]
            slower = 1 + contention * (len(beside) - 1)
            assert learner.work is not None
            learner.work.go_on(self.time, slower + interference * (aggregation is not None))

    def start_learners(self) -> bool:
        """Start all learners that may; whether there were any."""
        before = self.log.invocations
        for learner in self.learners:
            if self.pointers and learner.holds is None and self.parameter_function.lets_start(learner):
                self.invoke(learner, self.pointers.popleft())
        return self.log.invocations > before

    def invoke(self, learner: Learner, pointer: tuple[int, int]) -> None:
        startup = self.startup(learner.last_used, self.platform.warm_start, self.platform.cold_start)
        gpu = learner.number % self.platform.gpus
        passing = exactly(self.platform.shared_memory if gpu < self.platform.gpus_per_vm else self.platform.rpc)
        seconds, finish = exactly(next(self.learner_seconds)), self.deliver
        whole = passing + seconds + passing  # the policy comes, the learner computes, the gradient goes
        if self.failure > 0:
            fails, dies = next(self.luck), next(self.luck)
            if fails < self.failure:
                whole, finish = round(whole * Fraction(dies) / NANOSECOND) * NANOSECOND, self.fail
        learner.holds = self.parameter_function.clock
        self.log.invocations += 1
        start = self.time.now + startup
        end = partial(finish, learner, pointer, start, startup)
        alone = not (self.platform.contention or self.platform.interference)
        if alone or whole <= passing or seconds == 0:  # nobody slows it down, it dies before, or it has nothing to do
            self.time.after(startup + whole, end)
        else:
            work = min(whole - passing, seconds)
            self.later(startup + passing, partial(self.compute, learner, work, whole - passing - work, end))

    def compute(self, learner: Learner, work: Fraction, rest: Fraction, end: Callable[[], None]) -> None:
        """A learner has its policy; from now on it is slowed down by others, and slows them down, until it is done."""

        def done() -> None:
            learner.work = None
            self.later(rest, end)

        learner.work = Work(self.time.now, work, self.time.after(work, done), done)

    def later(self, seconds: Fraction, action: Callable[[], None]) -> None:
        """At once if that takes no time."""
        if seconds > 0:
            self.time.after(seconds, action)
        else:
            action()

    def startup(self, last_used: Fraction | None, warm: float, cold: float) -> Fraction:
        idle = float("inf") if last_used is None else self.time.now - last_used
        return exactly(warm if idle <= exactly(self.platform.keep_alive) else cold)

    def fail(self, learner: Learner, pointer: tuple[int, int], start: Fraction, startup: Fraction) -> None:
        learner.holds, learner.last_used = None, self.time.now
        self.log.learner_startup += startup
        self.log.failures += 1
        self.log.learner_failed += self.time.now - start
        self.pointers.appendleft(pointer)

    def deliver(self, learner: Learner, pointer: tuple[int, int], start: Fraction, startup: Fraction) -> None:
        version = learner.holds
        self.log.learner_startup += startup
        learner.holds, learner.last_used = None, self.time.now
        learner.iterations += 1
        self.log.learner_busy += self.time.now - start
        peers = {other.holds for other in self.learners} - {None, version}
        delivery = Delivery(*pointer, learner.number, version, start, self.time.now, sorted(peers))
        self.parameter_function.receive(delivery)


class System(LearnerSystem):
    """Everything together. `run(rounds)` goes on until fragment number `rounds` could be started."""

    def __init__(
        self,
        settings: SystemConfig,
        platform: PlatformConfig,
        delays: DelaysConfig,
        minibatches: int,
        seed: int,
        training: Training | None = None,
    ):
        super().__init__(settings, platform, delays, minibatches, seed)
        self.training = training
        self.actor_seconds = Stream(delay_of(delays.actor), seed, "actor")
        self.actors_rolling = 0
        self.loading = False
        self.actors_last_used = self.warm_since

    @property
    def round(self) -> int:
        return len(self.log.fragments) - 1

    def run(self, rounds: int) -> None:
        lead = 2 if self.settings.actors == "pipelined" else 1
        while True:
            started = len(self.log.fragments)
            if self.actors_rolling == 0 and not self.loading and self.unused.get(started - lead, 0) == 0:
                if started == rounds:
                    return
                self.start_actors(started)
            if not self.time.advance():
                assert self.parameter_function.queue, "nothing can ever happen again"
                self.parameter_function.evaluate(nothing_else_can_happen=True)
            self.start_learners()
            self.share()

    def start_actors(self, fragment: int) -> None:
        version = self.parameter_function.clock
        self.log.fragments.append((version, self.time.now))
        self.unused[fragment] = self.minibatches
        self.actors_rolling = self.platform.actors
        if self.training:
            self.training.collect(fragment, version)
        startup = self.startup(self.actors_last_used, 0, self.platform.actor_cold_start)
        for _ in range(self.platform.actors):
            # An actor pulls a policy and pushes a trajectory.
            seconds = exactly(next(self.actor_seconds)) + 2 * exactly(self.platform.cache)
            self.log.actor_busy += seconds
            self.log.actor_startup += startup
            self.log.actor_invocations += 1
            self.time.after(startup + seconds, partial(self.actor_done, fragment))

    def actor_done(self, fragment: int) -> None:
        self.actors_rolling -= 1
        if self.actors_rolling == 0:
            self.actors_last_used = self.time.now
            self.loading = True
            seconds = exactly(next(self.loader_seconds))
            if seconds > 0:
                self.time.after(seconds, partial(self.loaded, fragment))
            else:
                self.loaded(fragment)

    def loaded(self, fragment: int) -> None:
        self.loading = False
        self.pointers += [(fragment, minibatch) for minibatch in range(self.minibatches)]


class ParameterFunction:
    """Queues gradients, decides when to aggregate them, publishes policies; `clock` counts what it has published."""

    def __init__(self, system: LearnerSystem):
        self.system, self.settings = system, system.settings
        options = {**system.settings.rule_options, **system.settings.weight_options}
        self.decay, self.root = options.get("decay", 0.96), options.get("root", 3)
        self.clock = 0
        self.busy = False
        self.work: Work | None = None
        self.ends = Fraction(0)
        self.queue: list[Delivery] = []
        self.round = 0
        self.first_round: list[int] = []  # staleness of all that round 0 aggregated
        self.this_round: list[int] = []
        self.artifact_bound = 0
        self.artifact_steps = 0

    def lets_start(self, learner: Learner) -> bool:
        match self.settings.rule:
            case "central":
                return not self.busy
            case "allreduce":  # whoever has delivered waits for the next version
                return not self.busy and learner.number not in [d.learner for d in self.queue]
            case "ssp":  # t - min_q clock_q <= s
                slowest = min(other.iterations for other in self.system.learners)
                return learner.iterations - slowest <= self.settings.rule_options.get("s", 2)
            case _:
                return True

    def receive(self, delivery: Delivery) -> None:
        if delivery.fragment > self.round:
            mean = sum(self.this_round) / max(len(self.this_round), 1)
            if self.artifact_bound == 0 and mean > 0:
                self.artifact_bound = int(mean) + 1
            self.this_round = []
            self.round = delivery.fragment
        self.queue.append(delivery)
        self.evaluate()

    def threshold(self) -> float | None:
        """Eq. 3, or what the released code has in its place; `None` while there is no bound."""
        if self.settings.rule == "stellaris" and self.round > 0:
            return max(self.first_round, default=0) * self.decay**self.round
        if self.settings.rule == "artifact" and self.artifact_bound > 0:
            bound = int(self.artifact_bound * self.decay**self.round) + 1
            return max(1, min(bound, self.artifact_bound))
        return None

    def passes(self, staleness: list[int]) -> bool:
        match self.settings.rule:
            case "allreduce":
                nobody_comes = not self.system.pointers and all(o.holds is None for o in self.system.learners)
                return len(staleness) == self.settings.learners or nobody_comes
            case "softsync":
                return len(staleness) >= self.settings.rule_options.get("c", 4)
            case "stellaris" | "artifact":
                threshold = self.threshold()
                return threshold is None or sum(staleness) / len(staleness) <= threshold
            case _:
                return True

    def evaluate(self, nothing_else_can_happen: bool = False) -> None:
        """Evaluated at every push and after every publication."""
        if self.busy:
            return
        oldest_kept = self.clock - (self.settings.versions - 1)
        if self.settings.overflow == "drop":
            for lost in [d for d in self.queue if d.version < oldest_kept]:
                self.queue.remove(lost)
                self.system.log.dropped.append((self.system.round, lost))
                self.system.unused[lost.fragment] -= 1
        if not self.queue:
            return
        # Publishing clock + 1 takes the place of the oldest version that is kept.
        held = [learner.holds for learner in self.system.learners if learner.holds is not None]
        if self.settings.overflow == "wait" and min(held, default=self.clock) <= oldest_kept:
            self.system.log.waits += 1
            return
        escaped = unready = False
        if not self.passes([self.clock - d.version for d in self.queue]):
            gated = self.settings.rule in ("stellaris", "artifact")
            everyone_waits = gated and len(self.queue) >= self.settings.learners
            if not (everyone_waits or nothing_else_can_happen):
                return
            escaped, unready = gated, True
        one = self.settings.rule in ("async", "central", "ssp") and not self.settings.rule_options.get("coalesce")
        group, rest = (self.queue[:1], self.queue[1:]) if one else (self.queue, [])
        last_call = [d for d in rest if self.settings.overflow == "wait" and d.version <= oldest_kept]
        self.queue = [d for d in rest if d not in last_call]
        self.aggregate(group + last_call, oldest_kept, escaped, unready)

    def aggregate(self, group: list[Delivery], oldest_kept: int, escaped: bool, unready: bool) -> None:
        log, threshold = self.system.log, self.threshold()
        for delivery in group:
            delivery.staleness = self.clock - delivery.version
            delivery.peers = [version for version in delivery.peers if version >= oldest_kept]
        weights = [self.weight(delivery.staleness) for delivery in group]
        ages = [delivery.staleness for delivery in group]
        self.this_round += ages
        if self.round == 0:
            self.first_round += ages
        # Each of the parameter functions works on its part, in whole nanoseconds.
        parts = self.system.parameter_functions
        seconds = Fraction(ceil(exactly(next(self.system.aggregate_seconds)) * 10**9 / parts), 10**9)
        if seconds > 0:
            self.system.update_begins()
        now = self.system.time.now
        log.aggregations.append(
            Aggregation(self.system.round, self.clock, now, group, weights, escaped, threshold, unready)
        )
        log.aggregate_busy += seconds * parts
        log.aggregations[-1].published = self.system.time.now + seconds
        self.busy = True
        self.system.update(log.aggregations[-1])
        if seconds > 0:
            time, end = self.system.time, partial(self.publish, group)
            self.work, self.ends = Work(time.now, seconds, time.after(seconds, end), end), time.now + seconds
        else:
            self.publish(group)

    def publish(self, group: list[Delivery]) -> None:
        self.busy, self.work = False, None
        self.clock += 1
        for delivery in group:
            self.system.unused[delivery.fragment] -= 1
        self.evaluate()

    def weight(self, staleness: int) -> float:
        """Eq. 4: 1 / delta^(1/v); the released code feeds the number of stale gradients before this one instead."""
        decay, root = self.decay, self.root
        weight = 1.0
        if self.settings.weights == "constant":
            return weight
        if self.settings.weights == "artifact":
            if self.artifact_steps > 0 and 1.0 / self.artifact_steps ** (1.0 / root) >= decay:
                weight = 1.0 / self.artifact_steps ** (1.0 / root)
            self.artifact_steps += staleness > 0
        elif staleness > 0:
            weight = 1.0 / staleness ** (1.0 / root)
        return weight
