"""Discrete-event simulation of an asynchronous trainer: actors, data loader, learner functions, parameter function.

The schedule (learner, version and aggregation of each gradient) depends only on delays and rules, never on gradient
values. So the timeline is simulated first, on the host, and executed afterwards.

Time is counted in whole nanoseconds (`stellaris_jax.timeline.ticks`). Events of the same nanosecond happen in the order
in which they were scheduled: first in, first out.

1. Actors fetch the newest version from the cache when they start, roll fragment r, and push it to the cache.
2. The data loader cuts the fragment into minibatches, which takes time, and emits a pointer for each.
3. A free learner takes the oldest pointer, starts its container if that is cold, fetches the latest version, computes
   its gradient and pushes it. Learners that compute on the same GPU slow each other down. A failed invocation returns
   its pointer.
4. The parameter function evaluates its rule at every push. An aggregation takes time, then publishes the next
   version: clock c -> c + 1. Several parameter functions aggregate at once, each its part of the parameters.
5. Fragment r + 1 starts once the actors are free and fragment r + 1 - depth is consumed: depth 1 is a
   barrier, depth 2 overlaps collection with learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush
from operator import add
from typing import Any

from stellaris_jax.base.errors import RunError
from stellaris_jax.base.registry import register
from stellaris_jax.config.buffer import minibatches_per_round
from stellaris_jax.config.sections import DelaysConfig, PlatformConfig
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.batch_rounds import Measure, batch_round
from stellaris_jax.timeline.coordinator import Action, Coordinator, Drop
from stellaris_jax.timeline.data_rounds import usage_of
from stellaris_jax.timeline.delays import Chance, Stream, stream_of
from stellaris_jax.timeline.events import (
    ActorDied,
    ComputationBegun,
    ComputationEnded,
    Event,
    FragmentEnded,
    FragmentLoaded,
    GroupAggregated,
    InvocationEnded,
    RolloutEnded,
    Scheduled,
    SegmentBegun,
    restored,
    saved,
)
from stellaris_jax.timeline.free_actors import ActorLayout, FreeActors, Streams
from stellaris_jax.timeline.old_states import converted
from stellaris_jax.timeline.platform import Containers, Placement
from stellaris_jax.timeline.record_json import as_data, record_of
from stellaris_jax.timeline.records import DURATIONS, Gradient, Group, Round, Usage
from stellaris_jax.timeline.scaling.limits import limits_of
from stellaris_jax.timeline.sharing import PARAMETER_FUNCTION, Computation, Contention
from stellaris_jax.timeline.ticks import SECOND, ticks


class Timeline:
    """Simulation of one run. `next_round()` advances it; `state()` returns its state as plain JSON data.

    Args:
      system, platform, delays: see `stellaris_jax.config.tree`.
      gradients_per_round: minibatches of a fragment, over all epochs (G).
      seed: seed of the durations.
      actors: largest number of actors of a round; all of the platform's by default.
      detects: whether choosing the next round's actors takes time.
      layout: shards of independent actors; `None` for other actors.

    Attributes:
      measure: measures the lengths of segments, if durations follow episodes.
      forming: group whose aggregation is under way on a platform with slowdowns; its `published` is corrected until
        then. `None` otherwise.
    """

    @classmethod
    def of(cls, config: Config, seed: int) -> Timeline:
        """Timeline of one seed of a configuration."""
        return cls(
            config.system,
            config.platform,
            config.delays,
            gradients_per_round=minibatches_per_round(config),
            seed=seed,
            actors=limits_of(config).maximum,
            detects=register.scaling[config.scaling.rule].detects,
            layout=ActorLayout.of(config),
        )

    def __init__(
        self,
        system: SystemConfig,
        platform: PlatformConfig,
        delays: DelaysConfig,
        *,
        gradients_per_round: int,
        seed: int,
        actors: int | None = None,
        detects: bool = False,
        layout: ActorLayout | None = None,
    ):
        self.system = system
        self.gradients_per_round = gradients_per_round
        self.depth = system.fragments_in_flight
        self.actors, self.detects = actors or platform.actors, detects
        self.placement = Placement(platform, system.learners)
        self.passing = [self.placement.passing(learner) for learner in range(system.learners)]
        self.containers = Containers(platform, system.learners, platform.cold_start, platform.warm_start)
        self.actor_containers = Containers(platform, self.actors, platform.actor_cold_start, 0.0)
        self.actor_passing = 2 * ticks(platform.cache)
        self.failure = delays.failure
        self.parameter_shards = platform.parameter_shards
        self.loads = delays.loader.seconds > 0.0
        shared = platform.contention > 0 or platform.interference > 0
        self.contention = Contention(self.placement, platform.interference) if shared else None
        self.streams = {
            "learner": stream_of(delays, "learner", seed),
            "actor": stream_of(delays, "actor", seed),
            "aggregate": stream_of(delays, "aggregate", seed),
            "failure": Stream(Chance(), seed, "failure"),
            "scaling": stream_of(delays, "scaling", seed),
            "loader": stream_of(delays, "loader", seed),
        }
        self.spent = Usage(**dict.fromkeys(DURATIONS, 0))  # in ticks
        self.draw = self.streams["learner"].__next__
        self.coordinator = Coordinator(system, self.spent)
        self.measure: Measure | None = None
        self.free: FreeActors | None = None
        if layout is not None:
            chances = Stream(Chance(), seed, "actor_failure")
            self.free = FreeActors(
                system,
                layout,
                ticks(platform.cache),
                delays.actor_failure,
                self.actor_containers,
                Streams(self.streams["actor"], chances),
                self.spent,
                self.schedule,
            )
            self.streams["actor_failure"] = chances
        self.tick = 0
        self.fragment = 0
        self.collecting = False
        self.forming: Group | None = None
        self._events: list[Scheduled] = []
        self._order = 0

    @property
    def now(self) -> float:
        """Simulated seconds since the run began."""
        return self.tick / SECOND

    @property
    def usage(self) -> Usage:
        """Usage up to the end of the last round, in seconds."""
        return usage_of(self.spent, self.free.next_update if self.free else None).in_seconds()

    def next_round(self, actors: int | None = None, gradients: int | None = None) -> Round:
        """Collect the next fragment, and simulate until the following one can start.

        Args:
          actors: number of actors; all by default. With 0 no event happens, and no time passes.
          gradients: number of minibatches; `gradients_per_round` by default.

        Returns:
          The round's record.

        Raises:
          RunError: rule and admission let no learner start although no other event is pending.
        """
        coordinator, remaining = self.coordinator, self.coordinator.remaining
        actors = self.actors if actors is None else actors
        record = Round(self.fragment, coordinator.clock, self.now, actors)
        if actors == 0:
            record.arrived, record.complete, record.usage = coordinator.clock, self.now, self.usage
            self.fragment += 1
            return record
        if self.free is not None:
            batch_round(self, record, self.gradients_per_round if gradients is None else gradients)
            return record
        self._begin_rollout(record, actors)
        remaining[self.fragment] = self.gradients_per_round if gradients is None else gradients
        self.fragment += 1
        consumed = self.fragment - self.depth
        while self.collecting or remaining[consumed] > 0:
            self.happen(record)
            for start in coordinator.starts():
                self.invoke(start)
            if self.contention is not None:
                self.pace(self.contention)
        remaining.pop(consumed, None)
        self.spent.seconds = self.tick
        record.usage = self.usage
        return record

    def _begin_rollout(self, record: Round, actors: int) -> None:
        """Draw the durations of a round's actors, and schedule their end."""
        detection = next(self.streams["scaling"]) if self.detects and self.fragment > 0 else 0
        spent, durations = self.spent, self.streams["actor"].take(actors)
        startups = self.actor_containers.startups(actors, self.tick + detection)
        total = sum(durations) + actors * self.actor_passing
        spent.scaling_busy += detection
        spent.actor_startup += sum(startups)
        spent.actor_busy += total
        spent.actor_invocations += actors
        record.actor_seconds = total / (actors * SECOND)
        self.collecting = True
        longest = max(map(add, startups, durations)) if any(startups) else max(durations)
        self.schedule(detection + longest + self.actor_passing, RolloutEnded(self.fragment, actors))

    def happen(self, record: Round) -> None:
        """Process the next event; without any, aggregate the queue although the rule would wait."""
        if self._events:
            self.tick, _, event = heappop(self._events)
            if type(event) is InvocationEnded:
                self._end(event, record)
            else:
                self._handle(event, record)
        elif actions := self.coordinator.on_stall(self.now):
            self.do(actions, record)
        else:
            moment = f"{self.now:g} simulated seconds"
            if self.free is None or self.coordinator.has_work:
                raise RunError(self.coordinator.stuck(moment))
            raise RunError(self.free.queue.stuck(moment))

    def schedule(self, delay: int, event: Event) -> None:
        self._order += 1
        heappush(self._events, (self.tick + delay, self._order, event))

    def _handle(self, event: Event, record: Round) -> None:
        """Process an event that is not the end of an invocation, the most frequent kinds first."""
        match event:
            case GroupAggregated():
                if self.contention is not None:
                    del self.contention.under_way[PARAMETER_FUNCTION]
                    self.forming = None
                self.do(self.coordinator.on_publish(event.fragments, self.tick / SECOND), record)
            case RolloutEnded():
                self.actor_containers.release_all(event.actors, self.tick)
                loading = next(self.streams["loader"])
                if loading > 0:
                    self.schedule(loading, FragmentLoaded(event.fragment))
                else:
                    self.loaded(event.fragment, record)
            case FragmentLoaded():
                self.loaded(event.fragment, record)
            case SegmentBegun() | FragmentEnded() | ActorDied():
                assert self.free is not None, "actors are not independent"
                self.free.queue.clock = self.coordinator.clock
                self.free.handle(event, self.tick, record)
            case ComputationBegun():
                self._compute(event)
            case ComputationEnded():
                assert self.contention is not None, "nothing is shared"
                del self.contention.under_way[event.end.gradient.learner]
                if event.passing > 0:
                    self.schedule(event.passing, event.end)
                else:
                    self._end(event.end, record)

    def _end(self, event: InvocationEnded, record: Round) -> None:
        """Process the end of an invocation, which has delivered its gradient or died."""
        gradient, spent, tick = event.gradient, self.spent, self.tick
        self.containers.release(gradient.learner, tick)
        if event.startup:
            spent.learner_startup += event.startup
        if event.died:
            spent.learner_failed += tick - event.start
            self.coordinator.on_failure(gradient)
        else:
            spent.learner_busy += tick - event.start
            if actions := self.coordinator.on_delivery(gradient, tick / SECOND):
                self.do(actions, record)

    def loaded(self, fragment: int, record: Round) -> None:
        """Hand a fragment's minibatches to the learners."""
        self.collecting = False
        if self.free is not None:
            self.free.queue.loading = False
            self.free.batches[fragment].loaded = self.now
        record.arrived, record.complete = self.coordinator.clock, self.now
        self.coordinator.on_data(fragment)

    def do(self, actions: Sequence[Action], record: Round) -> None:
        """Record the coordinator's actions, and schedule the ends of aggregations."""
        for action in actions:
            if isinstance(action, Drop):
                record.dropped += action.gradients
                self.spent.learner_dropped += sum(ticks(g.end) - ticks(g.start) for g in action.gradients)
                continue
            record.groups.append(action)
            record.sequence.append(action)
            duration = -(-next(self.streams["aggregate"]) // self.parameter_shards)
            self.spent.aggregate_busy += duration * self.parameter_shards
            action.published = (self.tick + duration) / SECOND
            fragments = [gradient.fragment for gradient in action.gradients]
            if duration > 0:
                self.schedule(duration, GroupAggregated(fragments))
                if self.contention is not None:
                    self.forming = action
                    self.contention.under_way[PARAMETER_FUNCTION] = Computation(self.tick, duration, self._order)
            else:
                self.do(self.coordinator.on_publish(fragments, self.now), record)

    def invoke(self, gradient: Gradient) -> None:
        """Draw the durations of an invocation (start-up, data passing, computation), and schedule its events."""
        learner, tick = gradient.learner, self.tick
        startup = self.containers.startup(learner, tick)
        computing, passing = self.draw(), self.passing[learner]
        died, duration = False, passing + computing + passing
        if self.failure > 0.0:
            fails, fraction = next(self.streams["failure"]), next(self.streams["failure"])
            if fails < self.failure:
                died, duration = True, round(duration * Fraction(fraction))
        start = tick + startup
        gradient.start = start / SECOND
        end = InvocationEnded(gradient, startup, start, died)
        if self.contention is None or duration <= passing or computing == 0:
            self._order += 1  # `_schedule` inlined: a call for every gradient would cost time
            heappush(self._events, (start + duration, self._order, end))
            return
        work = min(duration - passing, computing)
        begun = ComputationBegun(end, duration - passing - work, work)
        if startup + passing > 0:
            self.schedule(startup + passing, begun)
        else:
            self._compute(begun)

    def _compute(self, event: ComputationBegun) -> None:
        """Start the computation of a learner function that has fetched its policy."""
        assert self.contention is not None, "nothing is shared"
        self.schedule(event.work, ComputationEnded(event.end, event.passing))
        self.contention.under_way[event.end.gradient.learner] = Computation(self.tick, event.work, self._order)

    def pace(self, contention: Contention) -> None:
        """Reschedule the ends of computations whose slowdown has just changed."""
        for number, work, slowdown in contention.changed():
            left = work.paced(self.tick, slowdown)
            place = next(i for i, (_, order, _) in enumerate(self._events) if order == work.order)
            end, _, event = self._events.pop(place)
            heapify(self._events)
            self.schedule(left, event)
            work.order = self._order
            if number == PARAMETER_FUNCTION:
                self.spent.aggregate_busy += (self.tick + left - end) * self.parameter_shards
                if self.forming is not None:  # states of earlier versions lack it
                    self.forming.published = (self.tick + left) / SECOND

    _PLAIN = ("tick", "fragment", "collecting", "_order")

    def state(self) -> dict[str, Any]:
        """State of the timeline, as JSON data."""
        return {
            **{name: getattr(self, name) for name in self._PLAIN},
            **self.coordinator.state(),
            "events": [saved(event) for event in self._events],
            "usage": as_data(self.usage),
            "spent": as_data(self.spent),
            "forming": self.forming and as_data(self.forming),
            "company": self.contention and self.contention.state(),  # key of every stored checkpoint
            "containers": self.containers.state(),
            "actor_containers": self.actor_containers.state(),
            "streams": {name: stream.state() for name, stream in self.streams.items()},
            **({"actors": self.free.state()} if self.free is not None else {}),
        }

    @staticmethod
    def usage_of(state: dict[str, Any]) -> Usage:
        """Usage recorded in what `state()` returned."""
        return Usage(**state["usage"])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state()` of this version or an earlier one; it may have passed through JSON."""
        state = converted(state)
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self._events = [restored(event) for event in state["events"]]
        self.spent = self.coordinator.usage = Usage(**state["spent"])
        self.coordinator.restore(state)
        self.forming = record_of(Group, state["forming"]) if state["forming"] else None
        if self.contention is not None:
            self.contention.restore(state.get("company") or [])
        self.containers.restore(state["containers"])
        self.actor_containers.restore(state["actor_containers"])
        if self.free is not None:
            self.free.usage = self.free.queue.usage = self.spent
            self.free.restore(state["actors"])
            if update := self.free.next_update:
                self.coordinator.before = update.before
                self.forming = self.forming and update.group
        for name, drawn in state["streams"].items():  # states of earlier versions lack newer streams
            self.streams[name].restore(drawn)
