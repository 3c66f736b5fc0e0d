"""Discrete-event simulation of an asynchronous trainer: actors, data loader, learner functions, parameter function.

Who computes which gradient on which policy version, and when it is aggregated, depends on delays and rules only,
never on gradient values. So the timeline is simulated first, on the host, and executed afterwards.

1. Actors pull the version published when they start through the cache, roll fragment r, and push it there.
2. The data loader takes its time to cut it into minibatches, and emits a pointer for each.
3. A free learner takes the oldest pointer as soon as there is one, starts up if its container is cold, fetches the
   latest version, computes, slower while others on its GPU do, and pushes its gradient; a failed invocation gives its
   pointer back.
4. The parameter function evaluates its rule at every push. An aggregation takes its time, then publishes the next
   version: clock c -> c + 1.
5. Fragment r + 1 is started once the actors are free and fragment r + 1 - depth has been consumed: depth 1 is a
   barrier, depth 2 pipelines collection with learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from heapq import heapify, heappop, heappush
from operator import add
from typing import Any

from stellaris_jax.config.schema import RunError
from stellaris_jax.config.tree import Config, DelaysConfig, PlatformConfig, SystemConfig
from stellaris_jax.registry import register
from stellaris_jax.timeline.coordinator import Action, Coordinator, Drop
from stellaris_jax.timeline.delays import Chance, Stream, delay_of
from stellaris_jax.timeline.platform import Containers, Placement
from stellaris_jax.timeline.records import Gradient, Group, Round, Usage
from stellaris_jax.timeline.scaling.limits import limits_of
from stellaris_jax.timeline.sharing import PARAMETER_FUNCTION, Company, Computation

DATA, DELIVERY, FAILURE, PUBLISH, LOADED = range(5)
"""Kinds of events, of a fragment and how many rolled it, of a gradient and how long its learner took to start up (two
of them), of the fragments of a group's gradients, and of a fragment that is minibatches now."""


class Timeline:
    """Simulates one run. `next_round()` advances it; `state()` is all of it, as plain JSON data.

    Args:
      system, platform, delays: see `stellaris_jax.config.tree`.
      gradients_per_round: minibatches the loader cuts a fragment into, over all epochs (G).
      seed: seeds the durations.
      actors: the most that roll a fragment; all of the platform's by default.
      detects: whether choosing the next round's actors takes time.
    """

    @classmethod
    def of(cls, config: Config, seed: int) -> Timeline:
        """The timeline of one seed of a configuration."""
        return cls(
            config.system,
            config.platform,
            config.delays,
            gradients_per_round=config.algorithm.epochs * config.algorithm.minibatches,
            seed=seed,
            actors=limits_of(config).maximum,
            detects=register.scaling[config.scaling.rule].detects,
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
    ):
        self.system = system
        self.gradients_per_round = gradients_per_round
        self.depth = 2 if system.actors == "pipelined" else 1
        self.actors, self.detects = actors or platform.actors, detects
        self.placement = Placement(platform, system.learners)
        self.passing = [2 * self.placement.passing(learner) for learner in range(system.learners)]
        self.containers = Containers(platform, system.learners, platform.cold_start, platform.warm_start)
        self.actor_containers = Containers(platform, self.actors, platform.actor_cold_start, 0.0)
        self.actor_passing = 2 * platform.cache
        self.failure = delays.failure
        shared = platform.contention > 0 or platform.interference > 0
        self.company = Company(self.placement, platform.interference) if shared else None
        self.streams = {
            "learner": Stream(delay_of(delays.learner), seed, "learner"),
            "actor": Stream(delay_of(delays.actor), seed, "actor"),
            "aggregate": Stream(delay_of(delays.aggregate), seed, "aggregate"),
            "failure": Stream(Chance(), seed, "failure"),
            "scaling": Stream(delay_of(delays.scaling), seed, "scaling"),
            "loader": Stream(delay_of(delays.loader), seed, "loader"),
        }
        self.usage = Usage()
        self.draw = self.streams["learner"].__next__
        self.coordinator = Coordinator(system, self.usage)
        self.now = 0.0
        self.fragment = 0
        self.collecting = False
        self._events: list[tuple[float, int, int, tuple[Any, ...]]] = []
        self._order = 0
        self._forming: Group | None = None

    def next_round(self, actors: int | None = None, gradients: int | None = None) -> Round:
        """Collect the next fragment, and simulate until the one after it can be started.

        Args:
          actors: how many roll it; all by default. With 0 nothing happens, and no time passes.
          gradients: minibatches it is cut into; as many as there are by default.
        """
        coordinator, remaining, events = self.coordinator, self.coordinator.remaining, self._events
        actors = self.actors if actors is None else actors
        record = Round(self.fragment, coordinator.clock, self.now, actors)
        if actors == 0:
            record.arrived, record.complete, record.usage = coordinator.clock, self.now, self.usage.copy()
            self.fragment += 1
            return record
        detection = next(self.streams["scaling"]) if self.detects and self.fragment > 0 else 0.0
        invoked = self.now + detection
        passing = self.actor_passing
        durations = [seconds + passing for seconds in self.streams["actor"].take(actors)]
        startups = self.actor_containers.startups(actors, invoked)
        total = sum(durations)
        self.usage.scaling_busy += detection
        self.usage.actor_startup += sum(startups)
        self.usage.actor_busy += total
        self.usage.actor_invocations += actors
        record.actor_seconds = total / actors
        remaining[self.fragment] = self.gradients_per_round if gradients is None else gradients
        self.collecting = True
        self._schedule(detection + max(map(add, startups, durations)), DATA, (self.fragment, actors))
        self.fragment += 1
        consumed = self.fragment - self.depth
        while self.collecting or remaining[consumed] > 0:
            if events:
                self.now, _, kind, payload = heappop(events)
                self._handle(kind, payload, record)
            elif not coordinator.queue:
                raise RunError(
                    f"system.rule={self.system.rule} and system.admission={self.system.admission} let no learner start "
                    f"at {self.now:g} simulated seconds, while nothing else is under way; one must be allowed to then."
                )
            else:
                self._do(coordinator.on_stall(self.now), record)
            for start in coordinator.starts():
                self._invoke(start)
            if self.company is not None:
                self._pace(self.company)
        remaining.pop(consumed, None)
        self.usage.seconds = self.now
        record.usage = self.usage.copy()
        return record

    def _schedule(self, delay: float, kind: int, payload: tuple[Any, ...]) -> None:
        self._order += 1
        heappush(self._events, (self.now + delay, self._order, kind, payload))

    def _handle(self, kind: int, payload: tuple[Any, ...], record: Round) -> None:
        """Tell the coordinator of an event, and do what it answers."""
        coordinator = self.coordinator
        if kind == DATA:
            fragment, actors = payload
            self.actor_containers.release_all(actors, self.now)
            loading = next(self.streams["loader"])
            if loading > 0.0:
                self._schedule(loading, LOADED, (fragment,))
            else:
                self._loaded(fragment, record)
        elif kind == LOADED:
            self._loaded(payload[0], record)
        elif kind == PUBLISH:
            if self.company is not None:
                self.company.under_way.pop(PARAMETER_FUNCTION, None)
            self._do(coordinator.on_publish(payload[0], self.now), record)
        else:
            gradient, startup = payload
            usage, now = self.usage, self.now
            if self.company is not None:
                self.company.under_way.pop(gradient.learner, None)
            self.containers.release(gradient.learner, now)
            usage.learner_startup += startup
            if kind == FAILURE:
                usage.learner_failed += now - gradient.start
                coordinator.on_failure(gradient)
            else:
                usage.learner_busy += now - gradient.start
                if actions := coordinator.on_delivery(gradient, now):
                    self._do(actions, record)

    def _loaded(self, fragment: int, record: Round) -> None:
        """Learners can have a fragment's minibatches."""
        self.collecting = False
        record.arrived, record.complete = self.coordinator.clock, self.now
        self.coordinator.on_data(fragment)

    def _do(self, actions: Sequence[Action], record: Round) -> None:
        """Write down what the coordinator has decided, and let aggregations take their time."""
        for action in actions:
            if isinstance(action, Drop):
                record.dropped += action.gradients
                continue
            record.groups.append(action)
            duration = next(self.streams["aggregate"])
            self.usage.aggregate_busy += duration
            action.published = self.now + duration
            fragments = [gradient.fragment for gradient in action.gradients]
            if duration > 0.0:
                self._schedule(duration, PUBLISH, (fragments,))
                self._forming = action
                if self.company is not None:
                    self.company.under_way[PARAMETER_FUNCTION] = Computation(self.now, duration, self._order)
            else:
                self._do(self.coordinator.on_publish(fragments, self.now), record)

    def _invoke(self, gradient: Gradient) -> None:
        """Draw how long a learner takes, from now on, to start up and to compute."""
        learner = gradient.learner
        startup = self.containers.startup(learner, self.now)
        seconds, passing = self.draw(), self.passing[learner]
        kind, share = DELIVERY, 1.0
        if self.failure > 0.0:
            fails, fraction = next(self.streams["failure"]), next(self.streams["failure"])
            if fails < self.failure:
                kind, share = FAILURE, fraction
        gradient.start = self.now + startup
        self._schedule(startup + (seconds + passing) * share, kind, (gradient, startup))
        if self.company is not None:
            begin = gradient.start + passing * share
            self.company.under_way[learner] = Computation(begin, seconds * share, self._order)

    def _pace(self, company: Company) -> None:
        """Whatever computes ends sooner or later than it would have, because of what began or ended now."""
        for one, work, slowdown in company.changed():
            seconds = work.paced(self.now, slowdown)
            place = next(i for i, event in enumerate(self._events) if event[1] == work.order)
            end, _, kind, payload = self._events.pop(place)
            heapify(self._events)
            self._schedule(seconds, kind, payload)
            work.order = self._order
            if one == PARAMETER_FUNCTION:
                self.usage.aggregate_busy += self.now + seconds - end
                if self._forming is not None:
                    self._forming.published = self.now + seconds

    _PLAIN = ("now", "fragment", "collecting", "_order")

    def state(self) -> dict[str, Any]:
        """Everything that changes as the timeline advances, as JSON data."""
        return {
            **{name: getattr(self, name) for name in self._PLAIN},
            **self.coordinator.state(),
            "events": [[time, order, kind, _saved(kind, payload)] for time, order, kind, payload in self._events],
            "usage": asdict(self.usage),
            "company": self.company and self.company.state(),
            "containers": self.containers.state(),
            "actor_containers": self.actor_containers.state(),
            "streams": {name: stream.state() for name, stream in self.streams.items()},
        }

    @staticmethod
    def usage_of(state: dict[str, Any]) -> Usage:
        """The usage recorded in what `state()` returned."""
        return Usage(**state["usage"])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state()` returned (it may have passed through JSON)."""
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self._events = [(time, order, kind, _restored(kind, data)) for time, order, kind, data in state["events"]]
        self.usage = self.coordinator.usage = Usage(**state["usage"])
        self.coordinator.restore(state)
        self._forming = None
        if self.company is not None:
            self.company.restore(state.get("company") or [])
        self.containers.restore(state["containers"])
        self.actor_containers.restore(state["actor_containers"])
        for name, drawn in state["streams"].items():  # an earlier version's lacks those that were not there yet
            self.streams[name].restore(drawn)


def _saved(kind: int, payload: tuple[Any, ...]) -> list[Any]:
    """An event's payload as JSON data."""
    if kind in (DELIVERY, FAILURE):
        gradient, startup = payload
        return [gradient.fragment, gradient.minibatch, gradient.learner, gradient.version, gradient.start, startup]
    return list(payload)


def _restored(kind: int, data: list[Any]) -> tuple[Any, ...]:
    if kind in (DELIVERY, FAILURE):
        *gradient, startup = data
        return Gradient(*gradient), startup
    return tuple(data)
