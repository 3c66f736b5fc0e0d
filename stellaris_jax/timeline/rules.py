"""Aggregation rules: when the parameter function aggregates, and which gradients it takes.

A rule sees staleness, counts and clocks, never gradient values. To add one, subclass `Rule` and register it; no other
module has to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import Optioned
from stellaris_jax.config.schema import knob
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.records import Gradient
from stellaris_jax.timeline.view import View


def lasting(may_start: Callable[..., bool]) -> Callable[..., bool]:
    """Decorator of a `may_start` whose refusals last until a version is published or gradients are dropped.

    A refused learner is not checked again before then, which saves time with many learners.
    """
    vars(may_start)["lasting"] = True
    return may_start


class Rule(Optioned):
    """Aggregation of the whole queue at every push; the base of all rules.

    Attributes:
      gated: whether the rule refuses by staleness. Such a rule is overruled as soon as as many gradients wait as there
        are learners. Any rule is overruled if nothing else could complete a group: no other event is pending, or
        learners are idle and no batch may be formed. Both are counted as gate escapes, of gated rules only.
      round: newest round of any gradient delivered so far (k of Eq. 3).
    """

    gated = False
    round: int

    def __init__(self, options: Mapping[str, Any] | None = None):
        super().__init__(options)
        self.round = 0

    def may_start(self, learner: int, view: View) -> bool:
        """Whether a free learner may take the next minibatch now."""
        return True

    def delivered(self, gradient: Gradient) -> None:
        """Callback for every gradient that is pushed."""
        if gradient.fragment > self.round:
            self.round = gradient.fragment

    def ready(self, staleness: Sequence[int], view: View) -> bool:
        """Whether to aggregate now, given the staleness of every queued gradient (never empty)."""
        return True

    def take(self, queued: int) -> int:
        """Number of queued gradients, oldest first, that one aggregation takes."""
        return queued

    def aggregated(self, staleness: Sequence[int]) -> None:
        """Callback for every aggregation, with the staleness of its gradients."""

    def threshold(self) -> float | None:
        """Current bound on mean staleness (beta_k); `None` without one."""
        return None


@register.rule("async")
class Async(Rule):
    """Pure asynchrony: every gradient is applied alone as it arrives.

    A gradient that arrives during an aggregation waits for its own. With many learners these waits add up, because one
    parameter function aggregates one group at a time. `coalesce=true` takes all that wait as one group, whose mean
    makes one update. So a group is as large as the parameter function is late: one gradient if it keeps up. Softsync
    differs: it waits for c gradients even if the parameter function is idle. `platform.parameter_shards` shortens
    aggregations instead.
    """

    coalesce: bool = knob(False, "one aggregation takes all gradients that wait, as one group")

    def take(self, queued: int) -> int:
        return queued if self.coalesce else 1


@register.rule("central")
class Central(Rule):
    """Sequential minibatch descent: one learner, which waits for every update."""

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        learners = config.system.learners
        one = "system.rule=central has one learner, so system.learners must be 1"
        yield learners == 1, f"{one}, not {learners}; system=async has several."

    def may_start(self, learner: int, view: View) -> bool:
        return not view.aggregating


@register.rule("allreduce")
class AllReduce(Rule):
    """Synchronous data parallelism: all learners compute on one version, and their gradients are averaged."""

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        orderly = config.system.admission != "in_order"
        yield orderly, "system.admission=in_order is not for system.rule=allreduce, whose gradients come all at once."

    @lasting
    def may_start(self, learner: int, view: View) -> bool:
        return not view.aggregating and all(g.learner != learner for g in reversed(view.queue))

    def ready(self, staleness: Sequence[int], view: View) -> bool:
        everyone = len(staleness) >= view.learners
        return everyone or (not view.pointers and not view.running)


@register.rule("softsync")
class SoftSync(Rule):
    """n-softsync (Zhang et al. 2016): aggregation after any c gradients, FedBuff's buffer of K (Nguyen et al. 2022).

    Zhang et al. set the splitting parameter n: c = floor(learners / n). Here c is set directly. A group takes all
    gradients that wait, which may be more than c after a long aggregation.
    """

    c: int = knob(4, "gradients per aggregation (c)", within="[1, inf)")

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        c, learners = cls(config.system.rule_options).c, config.system.learners
        yield c <= learners, f"system.rule_options.c={c} must be at most system.learners={learners}."

    def ready(self, staleness: Sequence[int], view: View) -> bool:
        return len(staleness) >= self.c


@register.rule("ssp")
class StaleSynchronous(Async):
    """SSP (Ho et al. 2013): a learner may be at most s iterations ahead of the slowest."""

    s: int = knob(2, "iterations a learner may run ahead of the slowest (s)", within="[0, inf)")
    _slowest: tuple[Sequence[int], int, int] = ((), 0, 0)
    """Cached minimum: the counts of iterations, the index of the smallest, and its value; valid until it grows."""
    FIXED = ("_slowest",)

    def may_start(self, learner: int, view: View) -> bool:
        iterations = view.iterations
        cached, slowest, least = self._slowest
        if cached is not iterations or iterations[slowest] != least:
            least = min(iterations)
            self._slowest = iterations, iterations.index(least), least
        return iterations[learner] - least <= self.s


@register.rule("stellaris")
class Stellaris(Rule):
    """Stellaris's gate: the mean staleness of the queue is at most beta_k = delta_max d^k (SC'24, Eq. 3).

    Round k = 0 runs without the gate, to measure delta_max, the maximum staleness.

    >>> rule = Stellaris({"decay": 0.5})
    >>> rule.aggregated([0, 3, 8])
    >>> rule.round = 2
    >>> rule.threshold(), rule.ready([0, 4], view=None), rule.ready([1, 4], view=None)
    (2.0, True, False)
    """

    gated = True
    decay: float = knob(0.96, "decay of the staleness threshold per round (d of Eq. 3)", within="(0, 1]")

    def __init__(self, options: Mapping[str, Any] | None = None):
        super().__init__(options)
        self.largest = 0

    def threshold(self) -> float | None:
        return self.largest * self.decay**self.round if self.round > 0 else None

    def ready(self, staleness: Sequence[int], view: View) -> bool:
        beta = self.threshold()
        return beta is None or sum(staleness) <= beta * len(staleness)

    def aggregated(self, staleness: Sequence[int]) -> None:
        if self.round == 0:
            self.largest = max(self.largest, *staleness)


@register.rule("artifact")
class Artifact(Rule):
    """Gate of Stellaris's released code, for comparison.

    The bound comes from the mean staleness of the first round with stale gradients. It is rounded down to an integer,
    and never falls below 1. The matching weights are `system.weights=artifact`.
    """

    gated = True
    decay: float = knob(0.96, "decay of the staleness threshold per round (d of Eq. 3)", within="(0, 1]")

    def __init__(self, options: Mapping[str, Any] | None = None):
        super().__init__(options)
        self.largest = 0
        self.round_total = 0
        self.round_count = 0

    def delivered(self, gradient: Gradient) -> None:
        if gradient.fragment > self.round:
            if self.largest == 0 and self.round_total > 0:
                self.largest = int(self.round_total / self.round_count) + 1
            self.round_total = self.round_count = 0
        super().delivered(gradient)

    def threshold(self) -> float | None:
        if self.largest == 0:
            return None
        bound = int(self.largest * self.decay**self.round) + 1
        return float(min(max(bound, 1), self.largest))

    def ready(self, staleness: Sequence[int], view: View) -> bool:
        bound = self.threshold()
        return bound is None or sum(staleness) <= bound * len(staleness)

    def aggregated(self, staleness: Sequence[int]) -> None:
        self.round_total += sum(staleness)
        self.round_count += len(staleness)
