"""Admission policies: which learners may start, and which gradients are dropped.

Together with a `Rule`, an admission policy forms a staleness policy. It sees staleness, counts and clocks, never
gradient values. To add one, subclass `Admission` and register it.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from stellaris_jax.base.registry import register
from stellaris_jax.base.renamed import warn_renamed
from stellaris_jax.config.optioned import Optioned
from stellaris_jax.config.schema import knob
from stellaris_jax.timeline.records import Gradient
from stellaris_jax.timeline.view import View


@register.admission("all")
class Admission(Optioned):
    """Admission of every learner and every gradient; the base of all policies."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        if "patience" in cls.__dict__ and "largest_staleness" not in cls.__dict__:
            warn_renamed(f"the method patience of {cls.__name__}", "largest_staleness")
            cls.largest_staleness = cls.patience  # type: ignore[attr-defined, method-assign]
        super().__init_subclass__(**arguments)

    def may_start(self, learner: int, view: View) -> bool:
        """Whether a free learner may take the next minibatch now, if the rule allows it, too."""
        return True

    def keeps(self, staleness: int, view: View) -> bool:
        """Whether a queued gradient of that staleness is kept; the coordinator drops and counts the others."""
        return True

    def admits(self, gradient: Gradient, view: View) -> bool:
        """Whether a delivered gradient may join the queue now; evaluated again at every delivery."""
        return True

    def largest_staleness(self) -> int | None:
        """Largest staleness that a gradient may reach before the next version is delayed for it; `None`: no bound."""
        return None


@register.admission("bounded")
class Bounded(Admission):
    """Bound on staleness: staler gradients are dropped, mostly those of slow learners (TorchRL, verl, prime-rl).

    >>> policy = Bounded({"bound": 2})
    >>> [staleness for staleness in (0, 1, 2, 3, 9) if policy.keeps(staleness, view=None)]
    [0, 1, 2]
    """

    bound: int = knob(8, "the most versions a gradient may be behind", within="[0, inf)")

    def keeps(self, staleness: int, view: View) -> bool:
        return staleness <= self.bound


@register.admission("waiting")
class Waiting(Admission):
    """Bound on staleness without drops: the next version waits for learners in flight that would exceed the bound.

    This is SSP's bound, applied to versions. Its cost is the time that gradients wait. A bound of 0 is a barrier.
    """

    bound: int = knob(8, "the most versions a gradient may be behind", within="[0, inf)")

    def may_start(self, learner: int, view: View) -> bool:
        return self.bound > 0 or not (view.queue or view.aggregating)

    def largest_staleness(self) -> int | None:
        return self.bound


@register.admission("capacity")
class Capacity(Admission):
    """AReaL's capacity: a learner starts only while fewer than (eta + 1) B gradients are in the system.

    Gradients under way, queued or being aggregated are in the system, and B gradients make a version. AReaL's formula
    is (eta + version + 1) B - accepted, and each version contains B of the accepted gradients.

    If learners take turns, the mean staleness is at most eta; the cost is idle learners. AReaL counts *data*:
    responses that actors have begun or delivered. Here the bound counts *gradients*, and learners and queue hold only a
    limited number of them. With 8 learners and B = 4, an eta of 3 or more has shown no effect.

    >>> from types import SimpleNamespace
    >>> policy = Capacity({"eta": 1, "batch": 2})
    >>> view = SimpleNamespace(queue=[None], running={0: 5, 3: 5}, aggregating=False)
    >>> policy.may_start(1, view)
    True
    >>> view.queue.append(None)
    >>> policy.may_start(1, view)
    False
    """

    eta: int = knob(4, "versions that data may be behind on average (eta)", within="[0, inf)")
    batch: int = knob(1, "gradients that make a version (B): 1 for async, c for softsync", within="[1, inf)")

    def may_start(self, learner: int, view: View) -> bool:
        under_way = len(view.queue) + len(view.running) + self.batch * view.aggregating
        return under_way < (self.eta + 1) * self.batch


@register.admission("in_order")
class InOrder(Admission):
    """Admission in the order in which minibatches were handed out (NeMo-RL).

    A delivered gradient waits until at most `window` earlier gradients are missing. So slow gradients are neither
    dropped nor overtaken by more than `window` places.
    """

    window: int = knob(0, "earlier gradients that may still be missing", within="[0, inf)")

    def admits(self, gradient: Gradient, view: View) -> bool:
        place = (gradient.fragment, gradient.minibatch)
        missing = sum((running.fragment, running.minibatch) < place for running in view.computing.values())
        # A failed learner returns its minibatch to the front of the queue of pointers.
        missing += sum(pointer < place for pointer in islice(view.pointers, view.learners))
        return missing <= self.window
