"""What may start and what is thrown away: the other half of what is called a staleness policy.

A policy sees staleness, counts and clocks, never gradient values. To add one, subclass `Admission` and register it.
"""

from __future__ import annotations

from stellaris_jax.config.options import Optioned
from stellaris_jax.config.schema import knob
from stellaris_jax.registry import register
from stellaris_jax.timeline.view import View


@register.admission("all")
class Admission(Optioned):
    """Every free learner may start, and every gradient is kept; the base of all policies."""

    def may_start(self, learner: int, view: View) -> bool:
        """Whether a free learner may take the next minibatch now, as far as the rule allows it."""
        return True

    def keeps(self, staleness: int, view: View) -> bool:
        """Whether a queued gradient of that staleness is kept; what is not is thrown away, and counted."""
        return True


@register.admission("bounded")
class Bounded(Admission):
    """Gradients staler than a bound are thrown away.

    >>> policy = Bounded({"bound": 2})
    >>> [staleness for staleness in (0, 1, 2, 3, 9) if policy.keeps(staleness, view=None)]
    [0, 1, 2]
    """

    bound: int = knob(8, "the most versions a gradient may be behind", within="[0, inf)")

    def keeps(self, staleness: int, view: View) -> bool:
        return staleness <= self.bound
