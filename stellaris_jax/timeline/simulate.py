"""Discrete-event simulation of an asynchronous trainer: actors, data loader, learner functions, parameter function.

Who computes which gradient on which policy version, and when it is aggregated, depends on delays and rules only,
never on gradient values. So the timeline is simulated first, on the host, and executed afterwards.

1. Actors pull the version published when they start through the cache, roll fragment r, and push it there.
2. The data loader cuts it into minibatches and emits a pointer for each.
3. A free learner takes the oldest pointer as soon as there is one, starts up if its container is cold, fetches the
   latest version, computes, slower beside others on its GPU, and pushes its gradient; a failed invocation gives its
   pointer back.
4. The parameter function evaluates its rule at every push. An aggregation takes its time, then publishes the next
   version: clock c -> c + 1.
5. Fragment r + 1 is started once the actors are free and fragment r + 1 - depth has been consumed: depth 1 is a
   barrier, depth 2 pipelines collection with learning.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, replace
from heapq import heappop, heappush
from typing import Any

from stellaris_jax.config.tree import Config, DelaysConfig, PlatformConfig, SystemConfig
from stellaris_jax.timeline.delays import Stream
from stellaris_jax.timeline.platform import Containers, Placement
from stellaris_jax.timeline.records import Gradient, Group, Round, Usage
from stellaris_jax.timeline.rules import RULES
from stellaris_jax.timeline.scaling.width import DETECTING, width_of

DATA, DELIVERY, FAILURE, PUBLISH = range(4)


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
            actors=width_of(config).maximum,
            detects=config.scaling.rule in DETECTING,
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
        self.rule = RULES[system.rule](system)
        self.placement = Placement(platform)
        self.containers = Containers(platform, system.learners, platform.cold_start, platform.warm_start)
        self.actor_containers = Containers(platform, self.actors, platform.actor_cold_start, 0.0)
        self.actor_passing = 2 * platform.cache
        self.failure = delays.failure
        self.streams = {
            "learner": Stream(delays.learner, seed, "learner"),
            "actor": Stream(delays.actor, seed, "actor"),
            "aggregate": Stream(delays.aggregate, seed, "aggregate"),
            "failure": Stream(None, seed, "failure"),
            "scaling": Stream(delays.scaling, seed, "scaling"),
        }
        self.usage = Usage()
        self.now = 0.0
        self.clock = 0
        self.fragment = 0
        self.aggregating = False
        self.collecting = False
        self.iterations = [0] * system.learners
        self.running: dict[int, int] = {}
        self.pointers: deque[tuple[int, int]] = deque()
        self.queue: list[Gradient] = []
        self.remaining: Counter[int] = Counter()
        self._events: list[tuple[float, int, int, list[Any]]] = []
        self._order = 0

    def next_round(self, actors: int | None = None, gradients: int | None = None) -> Round:
        """Collect the next fragment, and simulate until the one after it can be started.

        Args:
          actors: how many roll it; all by default. With 0 nothing happens, and no time passes.
          gradients: minibatches it is cut into; as many as there are by default.
        """
        actors = self.actors if actors is None else actors
        record = Round(self.fragment, self.clock, self.now, actors)
        if actors == 0:
            record.arrived, record.complete, record.usage = self.clock, self.now, replace(self.usage)
            self.fragment += 1
            return record
        detection = next(self.streams["scaling"]) if self.detects and self.fragment > 0 else 0.0
        invoked = self.now + detection
        durations = [seconds + self.actor_passing for seconds in self.streams["actor"].take(actors)]
        startups = [self.actor_containers.startup(actor, invoked) for actor in range(actors)]
        self.usage.scaling_busy += detection
        self.usage.actor_startup += sum(startups)
        self.usage.actor_busy += sum(durations)
        self.usage.actor_invocations += actors
        record.actor_seconds = sum(durations) / actors
        self.remaining[self.fragment] = self.gradients_per_round if gradients is None else gradients
        self.collecting = True
        self._schedule(detection + max(map(sum, zip(startups, durations, strict=True))), DATA, [self.fragment, actors])
        self.fragment += 1
        while self.collecting or self.remaining[self.fragment - self.depth] > 0:
            if self._events:
                self.now, _, kind, payload = heappop(self._events)
                self._handle(kind, payload, record)
            elif not self.queue:
                raise RuntimeError(f"stuck at {self.now:g} s: rule {self.system.rule} starts no learner")
            else:
                # Nothing else can happen: what is queued is aggregated although the rule would wait.
                self._aggregate(record, stalled=True)
            self._dispatch()
        self.remaining.pop(self.fragment - self.depth, None)
        self.usage.seconds = self.now
        record.usage = replace(self.usage)
        return record

    def _schedule(self, delay: float, kind: int, payload: list[Any]) -> None:
        self._order += 1
        heappush(self._events, (self.now + delay, self._order, kind, payload))

    def _handle(self, kind: int, payload: list[Any], record: Round) -> None:
        if kind == DATA:
            self.collecting = False
            fragment, actors = payload
            for actor in range(actors):
                self.actor_containers.release(actor, self.now)
            record.arrived, record.complete = self.clock, self.now
            self.pointers.extend((fragment, minibatch) for minibatch in range(self.remaining[fragment]))
        elif kind == PUBLISH:
            self._publish(payload[0])
            self._aggregate(record)
        else:
            fragment, minibatch, learner, version, start, startup = payload
            del self.running[learner]
            self.containers.release(learner, self.now)
            self.usage.learner_startup += startup
            if kind == FAILURE:
                self.usage.learner_failed += self.now - start
                self.usage.failures += 1
                self.pointers.appendleft((fragment, minibatch))
                return
            self.usage.learner_busy += self.now - start
            self.iterations[learner] += 1
            peers = sorted(set(self.running.values()) - {version})
            gradient = Gradient(fragment, minibatch, learner, version, start, self.now, peers)
            self.queue.append(gradient)
            self.rule.delivered(gradient)
            self._aggregate(record)

    def _dispatch(self) -> None:
        """Start every learner that is free and allowed, lowest number first, while there are pointers."""
        for learner in range(self.system.learners):
            if not self.pointers:
                return
            if learner in self.running or not self.rule.may_start(learner, self):
                continue
            fragment, minibatch = self.pointers.popleft()
            startup = self.containers.startup(learner, self.now)
            duration = next(self.streams["learner"]) * self.placement.slowdown(learner, self.running)
            duration += 2 * self.placement.passing(learner)
            kind = DELIVERY
            if self.failure > 0.0:
                fails, fraction = next(self.streams["failure"]), next(self.streams["failure"])
                if fails < self.failure:
                    kind, duration = FAILURE, duration * fraction
            self.running[learner] = self.clock
            self.usage.invocations += 1
            start = self.now + startup
            self._schedule(startup + duration, kind, [fragment, minibatch, learner, self.clock, start, startup])

    def _aggregate(self, record: Round, stalled: bool = False) -> None:
        """Evaluate the rule on the queue and, if it passes, form a group and start aggregating it."""
        if self.aggregating:
            return
        oldest = self.clock - (self.system.versions - 1)
        if self.system.overflow == "drop":
            fresh = [g for g in self.queue if g.version >= oldest]
            if len(fresh) < len(self.queue):
                lost = [g for g in self.queue if g.version < oldest]
                self.queue = fresh
                self.usage.dropped += len(lost)
                record.dropped += lost
                self._consume([g.fragment for g in lost])
        if not self.queue:
            return
        if self.system.overflow == "wait" and any(v <= oldest for v in self.running.values()):
            # The next version would overwrite one that a learner in flight still needs.
            self.usage.waits += 1
            return
        staleness = [self.clock - g.version for g in self.queue]
        escaped = False
        if not self.rule.ready(staleness, self):
            crowded = self.rule.gated and len(self.queue) >= self.system.learners
            if not (crowded or stalled):
                return
            escaped = self.rule.gated
        taken = self.rule.take(len(self.queue))
        group, self.queue = self.queue[:taken], self.queue[taken:]
        if self.system.overflow == "wait":
            # What could not be kept for another version joins now.
            group += [g for g in self.queue if g.version <= oldest]
            self.queue = [g for g in self.queue if g.version > oldest]
        for gradient in group:
            gradient.staleness = self.clock - gradient.version
            gradient.peers = [v for v in gradient.peers if v >= oldest]
        staleness = [g.staleness for g in group]
        threshold = self.rule.threshold()
        weights = [self.rule.weight(s) for s in staleness]
        self.rule.aggregated(staleness)
        self.usage.gradients += len(group)
        self.usage.escapes += escaped
        self.usage.staleness_total += sum(staleness)
        self.usage.staleness_max = max(self.usage.staleness_max, *staleness)
        record.groups.append(Group(group, weights, self.clock, self.now, escaped, threshold))
        duration = next(self.streams["aggregate"])
        self.usage.aggregate_busy += duration
        consumed = [g.fragment for g in group]
        if duration > 0.0:
            self.aggregating = True
            self._schedule(duration, PUBLISH, [consumed])
        else:
            self._publish(consumed)
            self._aggregate(record)

    def _publish(self, consumed: list[int]) -> None:
        self.aggregating = False
        self.clock += 1
        self.usage.updates += 1
        self._consume(consumed)

    def _consume(self, fragments: list[int]) -> None:
        for fragment in fragments:
            self.remaining[fragment] -= 1

    _PLAIN = ("now", "clock", "fragment", "aggregating", "collecting", "_order")

    def state(self) -> dict[str, Any]:
        """Everything that changes as the timeline advances, as JSON data."""
        return {
            **{name: getattr(self, name) for name in self._PLAIN},
            "iterations": list(self.iterations),
            "running": [list(item) for item in self.running.items()],
            "pointers": [list(p) for p in self.pointers],
            "queue": [asdict(g) for g in self.queue],
            "remaining": [list(item) for item in self.remaining.items()],
            "events": [list(e) for e in self._events],
            "usage": asdict(self.usage),
            "rule": self.rule.state(),
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
        self.iterations = list(state["iterations"])
        self.running = {learner: version for learner, version in state["running"]}
        self.pointers = deque((fragment, minibatch) for fragment, minibatch in state["pointers"])
        self.queue = [Gradient(**g) for g in state["queue"]]
        self.remaining = Counter({fragment: count for fragment, count in state["remaining"]})
        self._events = [(time, order, kind, payload) for time, order, kind, payload in state["events"]]
        self.usage = Usage(**state["usage"])
        self.rule.restore(state["rule"])
        self.containers.restore(state["containers"])
        self.actor_containers.restore(state["actor_containers"])
        for name, stream in self.streams.items():
            stream.restore(state["streams"][name])
