"""Rules that choose how many actors the next round has, from what was observed of the last one.

To add one, subclass `Scaling` and enter it in `SCALINGS`; nothing else in the package has to know. A rule lives on the
host, one for each seed. What it knows is plain JSON data, so that a resumed run chooses as the uninterrupted one does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from stellaris_jax.config.tree import ScalingConfig
from stellaris_jax.timeline.scaling.noise import noise_scale
from stellaris_jax.timeline.scaling.ratio import curvature_ratio
from stellaris_jax.timeline.scaling.width import Width


@dataclass(frozen=True)
class Observation:
    """One round as a rule sees it.

    round: how many there have been (k). actors: I_k. reward: mean return of the episodes that ended in it, NaN without
    any. loss, kl: means over its gradients. learner_seconds, actor_seconds, seconds: of the round's learners' busy time
    (P^l), of its mean actor (P^a) and of all of it (P_k), simulated. cost_usd: of the run so far. probe: what the rule
    asked to be measured (`Scaling.probe`).
    """

    round: int
    actors: int
    reward: float
    loss: float
    kl: float
    learner_seconds: float
    actor_seconds: float
    seconds: float
    cost_usd: float
    probe: tuple[float, ...] = ()


class Scaling:
    """As many actors in every round; the base of all rules, and rule `fixed`.

    Attributes:
      probe: what is measured on the device after every round: `curvature` (smallest and largest eigenvalue), `noise`
        (squared norms of small and big gradients, and their sizes), or nothing.
      finished: the target is reached or the budget spent; there are no more rounds.
    """

    probe: ClassVar[str] = ""

    def __init__(self, config: ScalingConfig, width: Width):
        self.config, self.width = config, width
        self.finished = False
        self.next = config.actors or width.minimum

    @property
    def actors(self) -> int:
        """Actors of the next round; 0 once training is finished."""
        return 0 if self.finished else self.next

    def observe(self, seen: Observation) -> None:
        """Take the last round into account."""
        reached = self.config.target != 0.0 and seen.reward >= self.config.target
        spent = self.config.budget > 0.0 and seen.cost_usd >= self.config.budget
        self.finished = self.finished or (self.config.ends and (reached or spent))
        if not self.finished:
            self.next = self.choose(seen)

    def choose(self, seen: Observation) -> int:
        """Actors of the next round, within the width."""
        return self.next

    def state(self) -> dict[str, Any]:
        """Everything that changes, as JSON data."""
        return {key: value for key, value in vars(self).items() if key not in ("config", "width")}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state()` returned."""
        vars(self).update(state)


class Max(Scaling):
    """All actors in every round (MinionsRL-Max, AAAI'24, §5.2)."""

    def __init__(self, config: ScalingConfig, width: Width):
        super().__init__(config, width)
        self.next = width.maximum


class Adapt(Scaling):
    """As large a share of the actors as the return has come of its target (MinionsRL-Adapt, AAAI'24, §5.2).

    I_k = clip(J_k / J I_max, I_min, I_max), where J_k is the mean return of the last n rounds in which episodes ended.
    """

    def __init__(self, config: ScalingConfig, width: Width):
        super().__init__(config, width)
        self.rewards: list[float] = []

    def choose(self, seen: Observation) -> int:
        if math.isfinite(seen.reward):
            self.rewards = [*self.rewards, seen.reward][-self.config.window :]
        if not self.rewards:
            return self.next
        reached = sum(self.rewards) / len(self.rewards)
        return self.width.clip(reached / self.config.target * self.width.maximum)


class Hydrozoa(Scaling):
    """Twice as many actors every `interval` rounds (Hydrozoa, as Nitro, VLDB'25, §6.2, compares with it)."""

    def choose(self, seen: Observation) -> int:
        return self.width.clip(2 * self.next) if seen.round % self.config.interval == 0 else self.next


class KungFu(Scaling):
    """As many times more actors as the gradient noise scale has grown, never fewer (KungFu, as Nitro compares with it).

    The noise scale is McCandlish et al.'s, from the gradients of parts of the round and of all of it at the newest
    policy; the growth is that since the number of actors was last changed. A round whose estimate has no value changes
    nothing. Mode `artifact` is what Nitro's code has for KungFu: the growth is always that since the first round, so
    that noise above it multiplies the actors round by round.
    """

    probe = "noise"

    def __init__(self, config: ScalingConfig, width: Width):
        super().__init__(config, width)
        self.scale = math.nan

    def choose(self, seen: Observation) -> int:
        scale = noise_scale(*seen.probe)[-1]
        if not math.isfinite(scale) or scale <= 0.0:
            return self.next
        if math.isnan(self.scale):
            self.scale = scale
        if scale <= self.scale:
            return self.next
        wider = self.width.clip(self.next * min(scale / self.scale, self.width.maximum))
        if wider > self.next and self.config.mode == "paper":
            self.scale = scale
        return wider


class Nitro(Scaling):
    """Boost while the objective is concave around the policy (Nitro, VLDB'25, §5).

    R = -lambda_max / lambda_min of the Hessian, and over the last n rounds S_k = (R_max - R_k) / (R_max - R_min) d^k;
    I_k = clip(I_max S_k, I_min, I_max). Where all R of the window are alike, the fraction is 1. An R without a value (a
    Hessian that is not finite) leaves the number of actors as it is; one of an objective that curves downwards nowhere
    is infinite, and its fraction 0.

    Mode `artifact` is what the released code does: boost where R is *high*, R decayed before it is scored, both R d^k
    and R in a window of n, and a floor I_max d^(k k) instead of I_min, but at least I_min.
    """

    probe = "curvature"

    def __init__(self, config: ScalingConfig, width: Width):
        super().__init__(config, width)
        self.ratios: list[float] = []

    def choose(self, seen: Observation) -> int:
        ratio = curvature_ratio(seen.probe[0], seen.probe[1], self.config.mode)
        if math.isnan(ratio):
            return self.next
        decay, most = self.config.decay, self.width.maximum
        if self.config.mode == "artifact":
            decayed = ratio * decay**seen.round
            self.ratios = [*self.ratios, decayed, ratio][-self.config.window :]
            score = 1.0 - boost(decayed, self.ratios) if len(self.ratios) > 2 else 1.0
            floor = max(most * decay ** (seen.round**2), self.width.minimum)
            return self.width.clip(max(most * score, floor))
        self.ratios = [*self.ratios, ratio][-self.config.window :]
        return self.width.clip(most * boost(ratio, self.ratios) * decay**seen.round)


def boost(ratio: float, window: list[float]) -> float:
    """(R_max - R) / (R_max - R_min) over a window; 1 where that is flat, 0 at an infinite R."""
    finite = [value for value in window if math.isfinite(value)]
    if math.isinf(ratio) or not finite:
        return 0.0
    low, high = min(finite), max(finite)
    return (high - ratio) / (high - low) if high > low else 1.0
