"""Staleness weights of gradients: w in Eq. 4, theta <- theta - (1/H) sum_i alpha_0 w_i g_i.

A weight sees staleness, never gradient values. `system.aggregation` says how weights enter the optimizer's step.
To add one, subclass `Weight` and register it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import Optioned
from stellaris_jax.config.schema import knob


class Weight(Optioned):
    """Base of all weights: 1 for a fresh gradient, and never more for a staler one."""

    def weight(self, staleness: int) -> float:
        """Weight of a gradient of this staleness; called once for each gradient, in order."""
        raise NotImplementedError


@register.weight("power")
class Power(Weight):
    """Power law: w = s^(-1/v) (Stellaris, Eq. 4; with v = 1 the 1/s of Zhang et al. 2016).

    >>> [round(Power().weight(staleness), 3) for staleness in (0, 1, 8, 27)]
    [1.0, 1.0, 0.5, 0.333]
    """

    root: int = knob(3, "root of the staleness weight (v of Eq. 4): w = staleness^(-1/v)", within="[1, inf)")

    def weight(self, staleness: int) -> float:
        return float(staleness ** (-1.0 / self.root)) if staleness > 0 else 1.0


@register.weight("constant")
class Constant(Weight):
    """Constant weight w = 1: staleness is ignored."""

    def weight(self, staleness: int) -> float:
        return 1.0


@register.weight("inverse")
class Inverse(Weight):
    """Inverse weight: w = 1 / (1 + s), as TorchRL's sampler weights data.

    >>> [Inverse().weight(staleness) for staleness in (0, 1, 3)]
    [1.0, 0.5, 0.25]
    """

    def weight(self, staleness: int) -> float:
        return 1.0 / (1.0 + staleness)


@register.weight("polynomial")
class Polynomial(Weight):
    """Polynomial weight: w = (1 + s)^(-a) (FedAsync, Xie et al. 2019, Section 5.2).

    FedBuff (Nguyen et al. 2022) has a = 1/2.

    >>> [Polynomial().weight(staleness) for staleness in (0, 3, 15)]
    [1.0, 0.5, 0.25]
    """

    exponent: float = knob(0.5, "how fast the weight falls: a of (1 + s)^(-a), with the staleness s", within="[0, inf)")

    def weight(self, staleness: int) -> float:
        return float((1.0 + staleness) ** -self.exponent)


@register.weight("hinge")
class Hinge(Weight):
    """Hinge: w = 1 up to s = b, then 1 / (a (s - b) + 1) (FedAsync, Xie et al. 2019, Section 5.2).

    >>> [round(Hinge({"slope": 1.0}).weight(staleness), 3) for staleness in (0, 4, 5, 6)]
    [1.0, 1.0, 0.5, 0.333]
    """

    slope: float = knob(
        10.0, "how fast the weight falls beyond the knee b: a of 1 / (a (s - b) + 1)", within="[0, inf)"
    )
    knee: int = knob(4, "versions a gradient may be behind at full weight (b)", within="[0, inf)")

    def weight(self, staleness: int) -> float:
        return 1.0 / (self.slope * max(staleness - self.knee, 0) + 1.0)


@register.weight("exponential")
class Exponential(Weight):
    """Exponential weight: w = exp(-a s).

    >>> [round(Exponential().weight(staleness), 3) for staleness in (0, 1, 10)]
    [1.0, 0.905, 0.368]
    """

    rate: float = knob(0.1, "how fast the weight falls: a of exp(-a s), with the staleness s", within="[0, inf)")

    def weight(self, staleness: int) -> float:
        return math.exp(-self.rate * staleness)


@register.weight("artifact")
class Artifact(Weight):
    """Weight of Stellaris's released code: Eq. 4 of a count of stale gradients instead of the staleness.

    The weight is 1 wherever it would fall below the gate's decay. For v = 3 that is everywhere.
    """

    root: int = knob(3, "root of the staleness weight (v of Eq. 4): w = staleness^(-1/v)", within="[1, inf)")
    decay: float = knob(0.96, "decay of the staleness threshold per round (d of Eq. 3)", within="(0, 1]")

    def __init__(self, options: Mapping[str, Any] | None = None):
        super().__init__(options)
        self.stale_gradients = 0

    def weight(self, staleness: int) -> float:
        factor = self.stale_gradients ** (-1.0 / self.root) if self.stale_gradients > 0 else 1.0
        if staleness > 0:
            self.stale_gradients += 1
        return 1.0 if factor < self.decay else float(factor)
