"""When the parameter function aggregates, which gradients it takes and how much each is trusted.

A rule sees staleness, counts and clocks, never gradient values. To add one, subclass `Rule` and enter it in
`RULES`; nothing else in the package has to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stellaris_jax.config.tree import SystemConfig

if TYPE_CHECKING:
    from stellaris_jax.timeline.records import Gradient
    from stellaris_jax.timeline.simulate import Timeline


class Rule:
    """Aggregates all that is queued at every push; the base of all rules.

    Attributes:
      gated: whether the rule may refuse gradients by their staleness. A gated rule is escaped, and the escape
        counted, when as many gradients wait as there are learners.
      round: the newest round any gradient delivered so far belongs to (k of Eq. 3).
    """

    gated = False

    def __init__(self, system: SystemConfig):
        self.system = system
        self.round = 0

    def may_start(self, learner: int, timeline: Timeline) -> bool:
        """Whether a free learner may take the next minibatch now."""
        return True

    def delivered(self, gradient: Gradient) -> None:
        """Told of every gradient that is pushed."""
        self.round = max(self.round, gradient.fragment)

    def ready(self, staleness: Sequence[int], timeline: Timeline) -> bool:
        """Whether to aggregate now, given the staleness of every queued gradient (never empty)."""
        return True

    def take(self, queued: int) -> int:
        """How many of the queued gradients, oldest first, one aggregation takes."""
        return queued

    def weight(self, staleness: int) -> float:
        """Eq. 4: staleness^(-1/v), 1 for a fresh gradient; 1 throughout where weighting is off."""
        if self.system.weighting and staleness > 0:
            return float(staleness ** (-1.0 / self.system.root))
        return 1.0

    def aggregated(self, staleness: Sequence[int]) -> None:
        """Told of every aggregation, after its weights are fixed."""

    def threshold(self) -> float | None:
        """The bound on mean staleness in force (beta_k), `None` while there is none."""
        return None

    def state(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "system"}

    def restore(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Async(Rule):
    """Every gradient is applied alone as it arrives."""

    def take(self, queued: int) -> int:
        return 1


class Central(Async):
    """One learner that waits for every update: ordinary sequential minibatch descent."""

    def may_start(self, learner: int, timeline: Timeline) -> bool:
        return not timeline.aggregating


class AllReduce(Rule):
    """Synchronous data parallelism: all learners compute on one version and are averaged together."""

    def may_start(self, learner: int, timeline: Timeline) -> bool:
        return not timeline.aggregating and all(g.learner != learner for g in timeline.queue)

    def ready(self, staleness: Sequence[int], timeline: Timeline) -> bool:
        everyone = len(staleness) >= self.system.learners
        return everyone or (not timeline.pointers and not timeline.running)


class SoftSync(Rule):
    """n-softsync (Zhang et al. 2016): aggregate after any c gradients."""

    def ready(self, staleness: Sequence[int], timeline: Timeline) -> bool:
        return len(staleness) >= self.system.softsync_c


class StaleSynchronous(Async):
    """SSP (Ho et al. 2013): a learner may be at most s iterations ahead of the slowest."""

    def may_start(self, learner: int, timeline: Timeline) -> bool:
        return timeline.iterations[learner] - min(timeline.iterations) <= self.system.ssp_s


class Stellaris(Rule):
    """Mean staleness of the queue at most beta_k = delta_max * d^k (Eq. 3).

    Round k = 0 runs ungated, to observe delta_max, the maximum staleness.
    """

    gated = True

    def __init__(self, system: SystemConfig):
        super().__init__(system)
        self.largest = 0

    def threshold(self) -> float | None:
        return self.largest * self.system.decay**self.round if self.round > 0 else None

    def ready(self, staleness: Sequence[int], timeline: Timeline) -> bool:
        beta = self.threshold()
        return beta is None or sum(staleness) <= beta * len(staleness)

    def aggregated(self, staleness: Sequence[int]) -> None:
        if self.round == 0:
            self.largest = max(self.largest, *staleness)


class Artifact(Rule):
    """What the released code does, for comparison.

    The bound comes from the mean staleness of the first round that had any, is floored to an integer and never
    falls below 1. The weight is fed a count of stale gradients instead of the staleness and is 1 wherever it
    would fall below the decay, which for v = 3 is everywhere.
    """

    gated = True

    def __init__(self, system: SystemConfig):
        super().__init__(system)
        self.largest = 0
        self.stale_gradients = 0
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
        bound = int(self.largest * self.system.decay**self.round) + 1
        return float(min(max(bound, 1), self.largest))

    def ready(self, staleness: Sequence[int], timeline: Timeline) -> bool:
        bound = self.threshold()
        return bound is None or sum(staleness) <= bound * len(staleness)

    def weight(self, staleness: int) -> float:
        if not self.system.weighting or self.stale_gradients == 0:
            factor = 1.0
        else:
            factor = self.stale_gradients ** (-1.0 / self.system.root)
        if staleness > 0:
            self.stale_gradients += 1
        return 1.0 if factor < self.system.decay else float(factor)

    def aggregated(self, staleness: Sequence[int]) -> None:
        self.round_total += sum(staleness)
        self.round_count += len(staleness)


RULES: dict[str, type[Rule]] = {
    "allreduce": AllReduce,
    "central": Central,
    "async": Async,
    "softsync": SoftSync,
    "ssp": StaleSynchronous,
    "stellaris": Stellaris,
    "artifact": Artifact,
}
