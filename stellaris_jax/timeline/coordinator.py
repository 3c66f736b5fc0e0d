"""The parameter function and the data loader as a state machine: what becomes of data, gradients and failures.

It knows no source of time and no distribution: whoever drives it, a simulator from a heap of drawn durations or a live
cluster, tells it what has happened and when, and does what it answers.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.config.schema import RunError, shown
from stellaris_jax.config.tree import SystemConfig
from stellaris_jax.registry import register
from stellaris_jax.timeline.admission import Admission
from stellaris_jax.timeline.records import Gradient, Group, Usage
from stellaris_jax.timeline.rules import Rule


class Start(NamedTuple):
    """A learner is to compute the gradient of a minibatch on a version."""

    learner: int
    fragment: int
    minibatch: int
    version: int


class Publish(NamedTuple):
    """A group is to be aggregated; once that is done, `on_publish` is to be told."""

    group: Group


class Drop(NamedTuple):
    """Gradients are thrown away."""

    gradients: list[Gradient]


Action = Publish | Drop


class Coordinator:
    """The state machine; rules and admission see it as their `View`.

    Args:
      system: the rule, admission, learners and version ring of a configuration.
      usage: where it counts what happens.
    """

    def __init__(self, system: SystemConfig, usage: Usage):
        self.usage = usage
        self.learners, self.versions = system.learners, system.versions
        self.drops = system.overflow == "drop"
        self.rule: Rule = register.rule[system.rule](system.options)
        self.admission: Admission = register.admission[system.admission](system.options)
        self.clock = 0
        self.aggregating = False
        self.iterations = [0] * system.learners
        self.running: dict[int, int] = {}
        self.pointers: deque[tuple[int, int]] = deque()
        self.queue: list[Gradient] = []
        self.remaining: Counter[int] = Counter()

    # What has happened ---------------------------------------------------------------------------------------------

    def on_data(self, fragment: int) -> None:
        """A fragment is complete, and cut into the minibatches it was said to have (`remaining`)."""
        self.pointers.extend((fragment, minibatch) for minibatch in range(self.remaining[fragment]))

    def on_failure(self, learner: int, fragment: int, minibatch: int) -> None:
        """A learner has died; its minibatch is the next one to be computed."""
        del self.running[learner]
        self.usage.failures += 1
        self.pointers.appendleft((fragment, minibatch))

    def on_delivery(self, start: Start, since: float, now: float) -> list[Action]:
        """A learner has pushed the gradient that it started at second `since`."""
        del self.running[start.learner]
        self.iterations[start.learner] += 1
        peers = sorted(set(self.running.values()) - {start.version})
        gradient = Gradient(start.fragment, start.minibatch, start.learner, start.version, since, now, peers)
        self.queue.append(gradient)
        self.rule.delivered(gradient)
        return self._aggregate(now)

    def on_publish(self, fragments: Sequence[int], now: float) -> list[Action]:
        """A group is aggregated, gradients of these fragments; the next version is there."""
        self.aggregating = False
        self.clock += 1
        self.usage.updates += 1
        self._consume(fragments)
        return self._aggregate(now)

    def on_stall(self, now: float) -> list[Action]:
        """Nothing else can happen: what is queued is aggregated although the rule would wait."""
        return self._aggregate(now, stalled=True)

    # What is to be done --------------------------------------------------------------------------------------------

    def starts(self) -> Iterator[Start]:
        """Every learner that is free and allowed to start, lowest number first, while there are pointers."""
        for learner in range(self.learners):
            if not self.pointers:
                return
            if learner in self.running:
                continue
            if self.rule.may_start(learner, self) and self.admission.may_start(learner, self):
                self.running[learner] = self.clock
                self.usage.invocations += 1
                yield Start(learner, *self.pointers.popleft(), self.clock)

    def _aggregate(self, now: float, stalled: bool = False) -> list[Action]:
        """Evaluate the rule on the queue; if it passes, a group is formed."""
        if self.aggregating:
            return []
        oldest = self.clock - (self.versions - 1)
        dropped: list[Action] = self._drop(oldest)
        if not self.queue:
            return dropped
        if not self.drops and any(version <= oldest for version in self.running.values()):
            # The next version would overwrite one that a learner in flight still needs.
            self.usage.waits += 1
            return dropped
        escaped = False
        if not self.rule.ready([self.clock - g.version for g in self.queue], self):
            crowded = self.rule.gated and len(self.queue) >= self.learners
            if not (crowded or stalled):
                return dropped
            escaped = self.rule.gated
        return [*dropped, Publish(self._group(self._take(oldest), escaped, oldest, now))]

    def _drop(self, oldest: int) -> list[Action]:
        """Throw away what admission does not keep, and what the ring does not, unless it is waited for."""
        kept: list[Gradient] = []
        lost: list[Gradient] = []
        for gradient in self.queue:
            in_ring = not self.drops or gradient.version >= oldest
            keeps = in_ring and self.admission.keeps(self.clock - gradient.version, self)
            (kept if keeps else lost).append(gradient)
        if not lost:
            return []
        self.queue = kept
        self.usage.dropped += len(lost)
        self._consume([g.fragment for g in lost])
        return [Drop(lost)]

    def _take(self, oldest: int) -> list[Gradient]:
        """The gradients that the rule takes of the queue, and with them what could not be kept for another version."""
        taken = self.rule.take(len(self.queue))
        if not (isinstance(taken, int | np.integer) and taken >= 1):
            name = type(self.rule).__name__
            raise RunError(f"{name}.take must be at least 1 of the queued gradients, not {shown(taken)}.")
        group, self.queue = self.queue[:taken], self.queue[taken:]
        if not self.drops:
            group += [g for g in self.queue if g.version <= oldest]
            self.queue = [g for g in self.queue if g.version > oldest]
        return group

    def _group(self, gradients: list[Gradient], escaped: bool, oldest: int, now: float) -> Group:
        """A group is aggregated from now on: staleness and weights are fixed."""
        for gradient in gradients:
            gradient.staleness = self.clock - gradient.version
            gradient.peers = [v for v in gradient.peers if v >= oldest]
        staleness = [g.staleness for g in gradients]
        threshold = self.rule.threshold()
        weights = [self.rule.weight(s) for s in staleness]
        for weight in weights:
            if not (isinstance(weight, float | int | np.number) and 0.0 <= weight < math.inf):
                name = type(self.rule).__name__
                raise RunError(f"{name}.weight must be a finite number of at least 0, not {shown(weight)}.")
        self.rule.aggregated(staleness)
        self.usage.gradients += len(gradients)
        self.usage.escapes += escaped
        self.usage.staleness_total += sum(staleness)
        self.usage.staleness_max = max(self.usage.staleness_max, *staleness)
        self.aggregating = True
        return Group(gradients, weights, self.clock, now, escaped, threshold)

    def _consume(self, fragments: Sequence[int]) -> None:
        for fragment in fragments:
            self.remaining[fragment] -= 1

    # Saving --------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that changes, but for `usage`, as JSON data."""
        return {
            "clock": self.clock,
            "aggregating": self.aggregating,
            "iterations": list(self.iterations),
            "running": [list(item) for item in self.running.items()],
            "pointers": [list(p) for p in self.pointers],
            "queue": [asdict(g) for g in self.queue],
            "remaining": [list(item) for item in self.remaining.items()],
            "rule": self.rule.state(),
            "admission": self.admission.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state()` returned (it may have passed through JSON)."""
        self.clock, self.aggregating = state["clock"], state["aggregating"]
        self.iterations = list(state["iterations"])
        self.running = {learner: version for learner, version in state["running"]}
        self.pointers = deque((fragment, minibatch) for fragment, minibatch in state["pointers"])
        self.queue = [Gradient(**g) for g in state["queue"]]
        self.remaining = Counter({fragment: count for fragment, count in state["remaining"]})
        self.rule.restore(state["rule"])
        self.admission.restore(state["admission"])
