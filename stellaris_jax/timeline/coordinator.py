"""Event-driven state machine of the parameter function and the data loader; the caller supplies time.

Two drivers use it: the simulator, with a heap of drawn durations, and a live cluster. A driver reports each event and
its time, and executes the actions that the coordinator returns.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.base.errors import RunError
from stellaris_jax.base.registry import register
from stellaris_jax.config.schema import shown
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.timeline.admission import Admission
from stellaris_jax.timeline.answers import decision, is_count, is_inherited
from stellaris_jax.timeline.record_json import as_data, record_of
from stellaris_jax.timeline.records import Gradient, Group, Usage
from stellaris_jax.timeline.rules import Rule
from stellaris_jax.timeline.weights import Weight


class Drop(NamedTuple):
    """Action: gradients are dropped."""

    gradients: list[Gradient]


Action = Group | Drop
"""Instruction to a driver: aggregate a group, then call `on_publish`; or drop gradients."""

COUNTED = ("gradients", "escapes", "unready", "staleness_total", "staleness_max", "aggregate_busy")
"""Counters of usage that grow as soon as a group is formed, not only when its version is published."""
LEAST_WEIGHT = 1e-30
"""Lower bound of weights: on the device, a weight of 0 marks an empty place."""
NUMBER = (float, int, np.number)
_COUNTERS = attrgetter(*COUNTED)


class Coordinator:
    """State machine of the parameter function and the data loader; the `View` of rules and admission policies.

    Args:
      system: the rule, admission, learners and version ring of a configuration.
      usage: counters that the coordinator increments.
    """

    def __init__(self, system: SystemConfig, usage: Usage):
        self.system, self.usage = system, usage
        self.learners, self.versions = system.learners, system.versions
        self.drops = system.overflow == "drop"
        self.rule: Rule = register.rule[system.rule](system.rule_options)
        self.weights: Weight = register.weight[system.weights](system.weight_options)
        self.admission: Admission = register.admission[system.admission](system.admission_options)
        gated: object = self.rule.gated
        if not isinstance(gated, bool):
            raise RunError(f"{type(self.rule).__name__}.gated must be true or false, not {shown(gated)}.")
        self.clock = 0
        self.aggregating = False
        self.before: list[float] = []  # values of COUNTED before the last group was formed
        self.iterations = [0] * system.learners
        self.running: dict[int, int] = {}
        self.pointers: deque[tuple[int, int]] = deque()
        self.remaining: Counter[int] = Counter()
        # Derived from `running` and updated with it: the number of learners on each version, oldest first; free
        # learners; idle learners whose start was refused for now.
        self.learners_by_version: dict[int, int] = {}
        self.free, self.refused = list(range(system.learners)), list[int]()
        self._set_queue([])
        # Most rules and policies keep the defaults, which allow everything: those need no call.
        hooks: list[tuple[Rule | Admission, Any]] = [(self.rule, Rule.may_start), (self.admission, Admission.may_start)]
        self._start_checks = [
            (policy, getattr(policy.may_start, "lasting", False))
            for policy, default in hooks
            if not is_inherited(policy.may_start, default)
        ]
        self._keeps_all = not self.drops and is_inherited(self.admission.keeps, Admission.keeps)
        self._orders = not is_inherited(self.admission.admits, Admission.admits)
        self.computing: dict[int, Gradient] = {}
        self.waiting_for_order: list[Gradient] = []
        # Largest staleness that a gradient may have when the next version is published.
        bounds = [self.admission.largest_staleness(), None if self.drops else self.versions - 1]
        if not (bounds[0] is None or is_count(bounds[0], 0)):
            name, wanted = type(self.admission).__name__, "None or an integer of at least 0"
            raise RunError(f"{name}.largest_staleness must return {wanted}, not {shown(bounds[0])}.")
        self._largest_staleness = min((bound for bound in bounds if bound is not None), default=None)

    # Events --------------------------------------------------------------------------------------------------------

    def on_data(self, fragment: int) -> None:
        """Queue the minibatches of a complete fragment; their number is `remaining[fragment]`."""
        self.pointers.extend(zip(repeat(fragment), range(self.remaining[fragment])))

    def on_failure(self, gradient: Gradient) -> None:
        """Put the minibatch of a learner that died at the front of the queue."""
        self._stop(gradient)
        self.usage.failures += 1
        self.pointers.appendleft((gradient.fragment, gradient.minibatch))

    def on_delivery(self, gradient: Gradient, now: float, peers: list[int] | None = None) -> Sequence[Action]:
        """Queue a gradient that a learner has pushed, and evaluate the rule.

        Args:
          gradient: the delivered gradient.
          now: second of the delivery.
          peers: other versions in flight, oldest first; by default those of the learners that run now.

        Returns:
          Actions for the driver.
        """
        self._stop(gradient)
        self.iterations[gradient.learner] += 1
        gradient.end = now
        gradient.peers = [v for v in self.learners_by_version if v != gradient.version] if peers is None else peers
        gradient.in_flight = self.clock - gradient.version
        self.rule.delivered(gradient)
        for joining in self._admitted(gradient) if self._orders else (gradient,):
            self.queue.append(joining)
            self.staleness.append(self.clock - joining.version)
        return self._aggregate(now)

    def _admitted(self, gradient: Gradient) -> list[Gradient]:
        """Gradients that may join the queue after this delivery, in the order of their minibatches."""
        self.waiting_for_order = sorted([*self.waiting_for_order, gradient], key=lambda g: (g.fragment, g.minibatch))
        admission = self.admission
        joining = [one for one in self.waiting_for_order if decision(admission, "admits", admission.admits(one, self))]
        self.waiting_for_order = [early for early in self.waiting_for_order if early not in joining]
        return joining

    def on_publish(self, fragments: Iterable[int], now: float) -> Sequence[Action]:
        """Publish the next version, once a group with gradients of these fragments is aggregated."""
        self.aggregating = False
        self.clock += 1
        self.usage.updates += 1
        self._consume(fragments)
        self._set_queue(self.queue)
        self._ask_again()
        return self._aggregate(now)

    def on_stall(self, now: float) -> Sequence[Action]:
        """Aggregate the queue although the rule would wait, because no other event is pending.

        Without an action the next version waits for gradients that learners compute, or that admission holds back.
        """
        return self._aggregate(now, stalled=True)

    @property
    def has_work(self) -> bool:
        """Whether minibatches wait for a learner, or gradients for an aggregation."""
        return bool(self.pointers or self.queue or self.waiting_for_order)

    def stuck(self, moment: str) -> str:
        """Sentence on why nothing can go on at a moment without events, such as `3 simulated seconds`."""
        rule, admission, policy = self.system.rule, self.system.admission, type(self.admission).__name__
        when, held = f"at {moment}, while nothing else is under way", len(self.waiting_for_order)
        if self.queue:
            return (
                f"system.admission={admission} lets none of {len(self.queue)} queued gradients be aggregated {when}: "
                f"the next version would make {held} others too stale, which {policy}.admits must let join the queue."
            )
        if held:
            return (
                f"system.admission={admission} holds {held} gradients back {when}; {policy}.admits must let one join."
            )
        return (
            f"system.rule={rule} and system.admission={admission} let no learner start {when}; one must be allowed to."
        )

    # Actions -------------------------------------------------------------------------------------------------------

    def starts(self) -> Iterator[Gradient]:
        """Gradients to compute now: one for each free learner that may start, lowest number first, while pointers
        last."""
        if not self.pointers:
            return
        for learner in [*self.free]:
            for policy, lasting in self._start_checks:
                if not decision(policy, "may_start", policy.may_start(learner, self)):
                    if lasting:
                        self.free.remove(learner)
                        self.refused.append(learner)
                    break
            else:
                fragment, minibatch = self.pointers.popleft()
                self.free.remove(learner)
                self.running[learner] = version = self.clock
                self.learners_by_version[version] = self.learners_by_version.get(version, 0) + 1
                self.usage.invocations += 1
                gradient = Gradient(fragment, minibatch, learner, version)
                if self._orders:
                    self.computing[learner] = gradient
                yield gradient
                if not self.pointers:
                    return

    def _stop(self, gradient: Gradient) -> None:
        """Mark the learner of a gradient as free."""
        learner, version = gradient.learner, gradient.version
        del self.running[learner]
        if self._orders:
            del self.computing[learner]
        insort(self.free, learner)
        if self.learners_by_version[version] > 1:
            self.learners_by_version[version] -= 1
        else:
            del self.learners_by_version[version]

    def _ask_again(self) -> None:
        """Return refused learners to the free ones, so that their start is checked again."""
        if self.refused:
            self.free, self.refused = sorted(self.free + self.refused), []

    def _set_queue(self, gradients: list[Gradient]) -> None:
        """Replace the queue, and compute the staleness of its gradients."""
        self.queue = gradients
        self.staleness = [self.clock - gradient.version for gradient in gradients]

    def _aggregate(self, now: float, stalled: bool = False) -> Sequence[Action]:
        """Evaluate the rule on the queue, and form a group if the rule is ready or must be overridden."""
        if self.aggregating:
            return ()
        dropped = () if self._keeps_all else self._drop(self.clock - (self.versions - 1))
        if not self.queue:
            return dropped
        if self._largest_staleness is not None and self._needed() <= self.clock - self._largest_staleness:
            # The next version would overwrite one that a learner in flight needs, or exceed the bound on staleness.
            self.usage.waits += 1
            return dropped
        ready = decision(self.rule, "ready", self.rule.ready(self.staleness[:], self))
        if not (ready or stalled):
            crowded = self.rule.gated and len(self.queue) + len(self.waiting_for_order) >= self.learners
            if not crowded:
                return dropped
        self.before = [*_COUNTERS(self.usage)]
        self.usage.unready += not ready
        return (*dropped, self._group(self._take(), self.rule.gated and not ready, now))

    def _needed(self) -> int:
        """Oldest version that a learner in flight holds, or a gradient that admission holds back; else the next one."""
        oldest = next(iter(self.learners_by_version), self.clock + 1)
        return min(oldest, *(g.version for g in self.waiting_for_order)) if self.waiting_for_order else oldest

    def _drop(self, oldest: int) -> Sequence[Drop]:
        """Drop queued gradients that admission rejects or, under `overflow=drop`, that are too old for the ring."""
        kept: list[Gradient] = []
        lost: list[Gradient] = []
        admission = self.admission
        for gradient in self.queue:
            in_ring = not self.drops or gradient.version >= oldest
            keeps = in_ring and decision(admission, "keeps", admission.keeps(self.clock - gradient.version, self))
            (kept if keeps else lost).append(gradient)
        if not lost:
            return ()
        self._set_queue(kept)
        self._ask_again()
        self.usage.dropped += len(lost)
        self._consume(g.fragment for g in lost)
        return (Drop(lost),)

    def _take(self) -> list[Gradient]:
        """Gradients that the rule takes from the queue, and those that would be too stale for the next version."""
        taken = self.rule.take(len(self.queue))
        if not (is_count(taken, 1)):
            name = type(self.rule).__name__
            raise RunError(f"{name}.take must be at least 1 of the queued gradients, not {shown(taken)}.")
        group, left = self.queue[:taken], self.queue[taken:]
        if left and self._largest_staleness is not None:
            edge = self.clock - self._largest_staleness
            group += [g for g in left if g.version <= edge]
            left = [g for g in left if g.version > edge]
        self.queue = left  # its staleness is computed when the next version is published
        return group

    def _group(self, gradients: list[Gradient], escaped: bool, now: float) -> Group:
        """Group of gradients that is aggregated from now on: fixes their staleness and weights."""
        oldest = self.clock - (self.versions - 1)
        threshold = self.rule.threshold()
        staleness, weights = list[int](), list[float]()
        for gradient in gradients:
            gradient.staleness = stale = self.clock - gradient.version
            if gradient.peers and gradient.peers[0] < oldest:  # peers are sorted, oldest first
                gradient.peers = gradient.peers[bisect_left(gradient.peers, oldest) :]
            weight = self.weights.weight(stale)
            if not (type(weight) is float or isinstance(weight, NUMBER)) or not 0.0 <= weight < math.inf:
                name = type(self.weights).__name__
                raise RunError(f"{name}.weight must be a finite number of at least 0, not {shown(weight)}.")
            staleness.append(stale)
            weights.append(weight if weight > LEAST_WEIGHT else LEAST_WEIGHT)
        self.rule.aggregated(staleness)
        usage = self.usage
        usage.gradients += len(gradients)
        usage.escapes += escaped
        usage.staleness_total += sum(staleness)
        usage.staleness_max = max(usage.staleness_max, *staleness)
        self.aggregating = True
        return Group(gradients, weights, self.clock, now, escaped, threshold)

    def _consume(self, fragments: Iterable[int]) -> None:
        for fragment in fragments:
            self.remaining[fragment] -= 1

    # Saving --------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """State without `usage`, as JSON data."""
        return {
            "clock": self.clock,
            "aggregating": self.aggregating,
            "iterations": list(self.iterations),
            "running": [list(item) for item in self.running.items()],
            "pointers": [list(p) for p in self.pointers],
            "queue": [as_data(g) for g in self.queue],
            "early": [as_data(g) for g in self.waiting_for_order],
            "computing": [as_data(g) for g in self.computing.values()],
            "remaining": [list(item) for item in self.remaining.items()],
            "rule": self.rule.state(),
            "admission": self.admission.state(),
            "weights": self.weights.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state()` returned (it may have passed through JSON)."""
        self.clock, self.aggregating = state["clock"], state["aggregating"]
        self.iterations = list(state["iterations"])
        self.running = {learner: version for learner, version in state["running"]}
        self.learners_by_version = dict(Counter(self.running.values()))
        self.free, self.refused = [n for n in range(self.learners) if n not in self.running], []
        self.pointers = deque((fragment, minibatch) for fragment, minibatch in state["pointers"])
        self._set_queue([record_of(Gradient, g) for g in state["queue"]])
        self.waiting_for_order = [record_of(Gradient, g) for g in state["early"]]
        self.computing = {g["learner"]: record_of(Gradient, g) for g in state["computing"]}
        self.remaining = Counter({fragment: count for fragment, count in state["remaining"]})
        self.rule.restore(state["rule"])
        self.admission.restore(state["admission"])
        self.weights.restore(state["weights"])
