"""When the parameter function aggregates, and which gradients it takes.

A rule sees staleness, counts and clocks, never gradient values. To add one, subclass `Rule` and register it; nothing
else in the package has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stellaris_jax.config.options import Optioned
from stellaris_jax.config.schema import knob
from stellaris_jax.config.tree import Config
from stellaris_jax.registry import register
from stellaris_jax.timeline.records import Gradient
from stellaris_jax.timeline.view import View


def lasting(may_start: Callable[..., bool]) -> Callable[..., bool]:
    """Marks a `may_start` whose refusals last: the learner is not asked about again before a version is published or
    gradients are thrown away. It only saves time where there are many learners."""
    vars(may_start)["lasting"] = True
    return may_start


class Rule(Optioned):
    """Aggregates all that is queued at every push; the base of all rules.

    Attributes:
      gated: whether the rule may refuse gradients by their staleness. A gated rule is escaped, and the escape
        counted, when as many gradients wait as there are learners.
      round: the newest round any gradient delivered so far belongs to (k of Eq. 3).
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
        """Told of every gradient that is pushed."""
        if gradient.fragment > self.round:
            self.round = gradient.fragment

    def ready(self, staleness: Sequence[int], view: View) -> bool:
        """Whether to aggregate now, given the staleness of every queued gradient (never empty)."""
        return True

    def take(self, queued: int) -> int:
        """How many of the queued gradients, oldest first, one aggregation takes."""
        return queued

    def aggregated(self, staleness: Sequence[int]) -> None:
        """Told of every aggregation."""

    def threshold(self) -> float | None:
        """The bound on mean staleness in force (beta_k), `None` while there is none."""
        return None


@register.rule("async")
class Async(Rule):
    """Every gradient is applied alone as it arrives."""

    def take(self, queued: int) -> int:
        return 1


@register.rule("central")
class Central(Async):
    """One learner that waits for every update: ordinary sequential minibatch descent."""

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        learners = config.system.learners
        yield learners == 1, f"system.rule=central has one learner, so system.learners must be 1, not {learners}."

    def may_start(self, learner: int, view: View) -> bool:
        return not view.aggregating


@register.rule("allreduce")
class AllReduce(Rule):
    """Synchronous data parallelism: all learners compute on one version and are averaged together."""

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
    """n-softsync (Zhang et al. 2016): aggregate after any c gradients, FedBuff's buffer of K (Nguyen et al. 2022).

    Zhang et al. name the splitting parameter n instead: c = floor(learners / n). Here c is set directly.
    """

    c: int = knob(4, "gradients per aggregation (c)", within="[1, inf)")

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        c, learners = cls(config.system.options).c, config.system.learners
        yield c <= learners, f"system.options.c={c} must be at most system.learners={learners}."

    def ready(self, staleness: Sequence[int], view: View) -> bool:
        return len(staleness) >= self.c


@register.rule("ssp")
class StaleSynchronous(Async):
    """SSP (Ho et al. 2013): a learner may be at most s iterations ahead of the slowest."""

    s: int = knob(2, "iterations a learner may run ahead of the slowest (s)", within="[0, inf)")
    _slowest: tuple[Sequence[int], int, int] = ((), 0, 0)
    """Of these counts of iterations, where the least is and what it is: it stays the least until it grows."""
    FIXED = ("_slowest",)

    def may_start(self, learner: int, view: View) -> bool:
        iterations = view.iterations
        of, slowest, least = self._slowest
        if of is not iterations or iterations[slowest] != least:
            least = min(iterations)
            self._slowest = iterations, iterations.index(least), least
        return iterations[learner] - least <= self.s


@register.rule("stellaris")
class Stellaris(Rule):
    """Mean staleness of the queue at most beta_k = delta_max d^k (Stellaris, SC'24, Eq. 3).

    Round k = 0 runs ungated, to observe delta_max, the maximum staleness.

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
    """What Stellaris's released code does, for comparison.

    The bound comes from the mean staleness of the first round that had any, is floored to an integer and never
    falls below 1. Its weights are those of `system.weights=artifact`.
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
