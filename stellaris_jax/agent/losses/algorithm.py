"""What an algorithm is: a loss, its options, and the data it asks for. To add one, subclass and register it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import jax

from stellaris_jax.agent.losses.common import LossInputs, LossMetrics
from stellaris_jax.config.options import Numbered
from stellaris_jax.config.schema import knob
from stellaris_jax.config.tree import Config


class Algorithm(Numbered):
    """A loss with options of its own, which `algorithm.options` sets.

    Options that are floats shape no program: inside `loss` they are arrays, and another value compiles nothing. All
    others are constants there. Two algorithms are equal if they differ in floats alone.

    >>> class Margin(Algorithm):
    ...     margin: float = knob(0.1, "what an action must gain")
    >>> Margin({"margin": 0.2}) == Margin(), Margin({"margin": 0.2}).margin
    (True, 0.2)
    """

    sequences: ClassVar[bool] = False
    """Minibatches are whole environments' fragments instead of single samples, and have `Samples.steps`."""

    truncations: ClassVar[tuple[str, ...]] = ("weight", "surrogate", "artifact", "none")
    """Modes of `system.truncation` that change its loss; it refuses the others."""

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        yield (
            config.system.truncation in cls.truncations,
            f"system.truncation={config.system.truncation} changes nothing under algorithm.name="
            f"{config.algorithm.name}; accepted: {', '.join(cls.truncations)}.",
        )

    def loss(self, inputs: LossInputs) -> tuple[jax.Array, LossMetrics]:
        """The loss of a minibatch, a scalar, and the means of its terms; see `total`."""
        raise NotImplementedError


class TargetNetwork(Algorithm):
    """An algorithm with a target network, whose policy minibatches have as `Samples.target_policy`."""

    target_interval: int = knob(
        16, "versions between refreshes of the target network (pi_t); as many more are kept", within="[1, inf)"
    )
