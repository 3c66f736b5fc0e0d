"""What may start and what is thrown away: the other half of what is called a staleness policy.

A policy sees staleness, counts and clocks, never gradient values. To add one, subclass `Admission` and register it.
"""

from __future__ import annotations

from itertools import islice

from stellaris_jax.config.options import Optioned
from stellaris_jax.config.schema import knob
from stellaris_jax.registry import register
from stellaris_jax.timeline.records import Gradient
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

    def admits(self, gradient: Gradient, view: View) -> bool:
        """Whether a gradient that has been delivered may join the queue by now; asked again at every delivery."""
        return True

    def patience(self) -> int | None:
        """The most versions that a gradient may be behind, for which the next version is put off; `None`: any."""
        return None


@register.admission("bounded")
class Bounded(Admission):
    """Gradients staler than a bound are thrown away, above all those of slow learners (TorchRL, verl, prime-rl).

    >>> policy = Bounded({"bound": 2})
    >>> [staleness for staleness in (0, 1, 2, 3, 9) if policy.keeps(staleness, view=None)]
    [0, 1, 2]
    """

    bound: int = knob(8, "the most versions a gradient may be behind", within="[0, inf)")

    def keeps(self, staleness: int, view: View) -> bool:
        return staleness <= self.bound


@register.admission("waiting")
class Waiting(Admission):
    """No gradient gets staler than a bound: the next version waits for learners in flight that it would leave behind
    (SSP's bound, on versions).

    Nothing is thrown away; what it costs are the seconds that gradients wait. A bound of 0 is a barrier.
    """

    bound: int = knob(8, "the most versions a gradient may be behind", within="[0, inf)")

    def may_start(self, learner: int, view: View) -> bool:
        return self.bound > 0 or not (view.queue or view.aggregating)

    def patience(self) -> int | None:
        return self.bound


@register.admission("capacity")
class Capacity(Admission):
    """A learner starts only while fewer than (eta + 1) B gradients are under way, queued or being aggregated, where B
    make a version: AReaL's capacity, (eta + version + 1) B - accepted, B of those accepted being in each version.

    The mean staleness is at most eta then, if learners take turns; what it costs are idle learners. AReaL counts
    *data*: responses that actors have begun or delivered. Here the bound is on *gradients*, of which only so many can
    be under way as learners and queue hold: with 8 learners and B = 4, an eta of 3 or more is not seen to bind.

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
    """Gradients join the queue in the order in which their minibatches were handed out, so that slow work is neither
    lost nor late: what is ready waits until at most `window` earlier ones are missing (NeMo-RL)."""

    window: int = knob(0, "earlier gradients that may still be missing", within="[0, inf)")

    def admits(self, gradient: Gradient, view: View) -> bool:
        place = (gradient.fragment, gradient.minibatch)
        missing = sum((other.fragment, other.minibatch) < place for other in view.computing.values())
        missing += sum(pointer < place for pointer in islice(view.pointers, view.learners))  # given back by failures
        return missing <= self.window
