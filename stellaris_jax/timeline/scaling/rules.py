"""Scaling rules: each chooses the next round's number of actors from measurements of the last round.

To add one, subclass `Scaling` and register it; no other module has to change. Rules run on the host, one per seed.
Their state is plain JSON data, so a resumed run makes the same choices as an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stellaris_jax.base.errors import RunError
from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import Optioned
from stellaris_jax.config.schema import knob, shown
from stellaris_jax.config.sections import ScalingConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.scaling.limits import Limits, limits_of
from stellaris_jax.timeline.scaling.noise import noise_scale
from stellaris_jax.timeline.scaling.ratio import MODES, curvature_ratio


@dataclass(frozen=True)
class RoundSummary:
    """Measurements of one round, for a scaling rule.

    Attributes:
      round: number of rounds so far (k).
      actors: number of actors (I_k).
      reward: mean return of the episodes that ended in the round; NaN without any.
      loss: mean loss over the round's gradients.
      kl: mean KL over the round's gradients.
      learner_seconds: learners' busy time in the round (P^l), in simulated seconds.
      actor_seconds: mean time of an actor (P^a), in simulated seconds.
      seconds: duration of the round (P_k), in simulated seconds.
      cost_usd: cost of the run so far, in dollars.
      probe: measurements that the rule requested (`Scaling.probe`).
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


class Scaling(Optioned):
    """Same number of actors in every round; the base of all rules.

    Attributes:
      probe: measurement on the device after every round: `curvature` (smallest and largest eigenvalue), `noise`
        (squared norms of small and big gradients, and their sizes), or empty for none.
      constant: whether all rounds have the same number of actors.
      detects: whether measuring the last round takes (simulated) time before the next round's actors can start.
      finished: whether the target is reached or the budget spent, so that training ends.
    """

    probe: ClassVar[str] = ""
    constant: ClassVar[bool] = False
    detects: ClassVar[bool] = False
    config: ScalingConfig
    limits: Limits
    finished: bool
    next: int
    FIXED: ClassVar[tuple[str, ...]] = ("config", "limits")

    def __init__(self, config: ScalingConfig, limits: Limits):
        super().__init__(config.options)
        self.config, self.limits = config, limits
        self.finished = False
        self.next = config.actors or limits.minimum

    @classmethod
    def of(cls, config: Config) -> Scaling:
        """Rule of one seed of a configuration."""
        return cls(config.scaling, limits_of(config))

    @property
    def actors(self) -> int:
        """Actors of the next round; 0 once training is finished."""
        return 0 if self.finished else self.next

    def observe(self, seen: RoundSummary) -> None:
        """Update the rule with the measurements of the last round."""
        reached = self.config.target is not None and seen.reward >= self.config.target
        spent = self.config.budget > 0.0 and seen.cost_usd >= self.config.budget
        self.finished = self.finished or (self.config.ends and (reached or spent))
        if not self.finished:
            self.next = self._within(self.choose(seen))

    def _within(self, chosen: Any) -> int:
        low, high = self.limits.minimum, self.limits.maximum
        if not (isinstance(chosen, int | np.integer) and low <= chosen <= high):
            raise RunError(
                f"scaling.rule={self.config.rule} has chosen {shown(chosen)} actors for the next round; it must be an "
                f"integer from {low} to {high} (self.limits.clip makes one of any number)."
            )
        return int(chosen)

    def choose(self, seen: RoundSummary) -> int:
        """Actors of the next round, within the limits."""
        return self.next


@register.scaling("fixed")
class Fixed(Scaling):
    """Same number of actors in every round."""

    constant = True


@register.scaling("max")
class Max(Scaling):
    """All actors in every round (MinionsRL-Max, AAAI'24, §5.2)."""

    constant = True

    def __init__(self, config: ScalingConfig, limits: Limits):
        super().__init__(config, limits)
        self.next = limits.maximum


@register.scaling("adapt")
class Adapt(Scaling):
    """Number of actors in proportion to the return, as a share of its target (MinionsRL-Adapt, AAAI'24, §5.2).

    I_k = clip(J_k / J I_max, I_min, I_max), where J_k is the mean return of the last n rounds in which episodes ended.
    """

    window: int = knob(6, "rounds looked back on (n)", within="[1, inf)")

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        yield greater_than_zero(config, "target")

    def __init__(self, config: ScalingConfig, limits: Limits):
        super().__init__(config, limits)
        self.rewards: list[float] = []

    def choose(self, seen: RoundSummary) -> int:
        if math.isfinite(seen.reward):
            self.rewards = [*self.rewards, seen.reward][-self.window :]
        if not self.rewards:
            return self.next
        reached = sum(self.rewards) / len(self.rewards)
        return self.limits.clip(reached / (self.config.target or 1.0) * self.limits.maximum)


@register.scaling("hydrozoa")
class Hydrozoa(Scaling):
    """Twice as many actors every `interval` rounds (Hydrozoa, the baseline in Nitro, VLDB'25, §6.2)."""

    interval: int = knob(10, "rounds between doublings", within="[1, inf)")

    def choose(self, seen: RoundSummary) -> int:
        return self.limits.clip(2 * self.next) if seen.round % self.interval == 0 else self.next


@register.scaling("kungfu")
class KungFu(Scaling):
    """Number of actors that grows with the gradient noise scale, and never shrinks (KungFu, a baseline in Nitro).

    The noise scale is McCandlish et al.'s, from gradients of parts of the round and of the whole round at the newest
    policy. The actors are multiplied by its growth since their last change. A round without a valid estimate changes
    nothing. Mode `artifact` is KungFu in Nitro's code: it always uses the growth since the first round, so higher
    noise multiplies the actors in every round.
    """

    probe = "noise"
    mode: str = knob(
        "paper",
        "noise compared with that of the last change (paper), or with the first round's, as in Nitro's code (artifact)",
        choices=MODES,
    )

    def __init__(self, config: ScalingConfig, limits: Limits):
        super().__init__(config, limits)
        self.scale = math.nan

    def choose(self, seen: RoundSummary) -> int:
        scale = noise_scale(*seen.probe)[-1]
        if not math.isfinite(scale) or scale <= 0.0:
            return self.next
        if math.isnan(self.scale):
            self.scale = scale
        if scale <= self.scale:
            return self.next
        wider = self.limits.clip(self.next * min(scale / self.scale, self.limits.maximum))
        if wider > self.next and self.mode == "paper":
            self.scale = scale
        return wider


@register.scaling("nitro")
class Nitro(Scaling):
    """More actors while the objective is concave around the policy (Nitro, VLDB'25, §5).

    R = -lambda_max / lambda_min of the Hessian, and over the last n rounds S_k = (R_max - R_k) / (R_max - R_min) d^k;
    I_k = clip(I_max S_k, I_min, I_max). If all R of the window are equal, the fraction is 1. If the Hessian is not
    finite, R is nan and the number of actors stays. If the objective curves downwards nowhere, R is infinite and the
    fraction is 0.

    Mode `artifact` follows the released code. It adds actors where R is *high*, decays R before scoring it, and keeps
    both R d^k and R in a window of n. It has a floor I_max d^(k k) instead of I_min, but at least I_min.
    """

    probe = "curvature"
    detects = True
    window: int = knob(6, "rounds looked back on (n)", within="[1, inf)")
    decay: float = knob(0.96, "decay of the boosting score per round (d)", within="(0, 1]")
    mode: str = knob(
        "paper", "score, window and floor as the paper has them, or as its released code does", choices=MODES
    )
    lanczos: int = knob(20, "Lanczos steps, each a Hessian-vector product", within="[2, inf)")
    subsample: int = knob(
        1, "minibatches of the round that curvature is measured on; 0: all of its first epoch", within="[0, 1e6]"
    )

    def __init__(self, config: ScalingConfig, limits: Limits):
        super().__init__(config, limits)
        self.ratios: list[float] = []

    def choose(self, seen: RoundSummary) -> int:
        ratio = curvature_ratio(seen.probe[0], seen.probe[1], self.mode)
        if math.isnan(ratio):
            return self.next
        decay, most = self.decay, self.limits.maximum
        if self.mode == "artifact":
            decayed = ratio * decay**seen.round
            self.ratios = [*self.ratios, decayed, ratio][-self.window :]
            score = 1.0 - boost(decayed, self.ratios) if len(self.ratios) > 2 else 1.0
            floor = max(most * decay ** (seen.round**2), self.limits.minimum)
            return self.limits.clip(max(most * score, floor))
        self.ratios = [*self.ratios, ratio][-self.window :]
        return self.limits.clip(most * boost(ratio, self.ratios) * decay**seen.round)


def boost(ratio: float, window: list[float]) -> float:
    """Nitro's fraction (R_max - R) / (R_max - R_min) over a window; 1 if all R are equal, 0 if R is infinite."""
    finite = [value for value in window if math.isfinite(value)]
    if math.isinf(ratio) or not finite:
        return 0.0
    low, high = min(finite), max(finite)
    return (high - ratio) / (high - low) if high > low else 1.0


def greater_than_zero(config: Config, key: str) -> tuple[bool, str]:
    """Condition of rules that use shares of a target or budget: the key is set and positive."""
    value = getattr(config.scaling, key)
    return (
        value is not None and value > 0.0,
        f"scaling.{key}={'null' if value is None else value} must be greater than 0 under "
        f"scaling.rule={config.scaling.rule}, which goes by shares of it.",
    )
