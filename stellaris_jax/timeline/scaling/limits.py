"""How wide a round can be: the actors of a run, the environments of each, and the widths that are compiled."""

from __future__ import annotations

from typing import NamedTuple

from stellaris_jax.config.tree import Config
from stellaris_jax.registry import register

HALVINGS = 3
"""Widths compiled besides the widest: each half of the one before."""


class Limits(NamedTuple):
    """The most (I_max) and the fewest (I_min) actors of a round, and the environments of each actor.

    buckets: numbers of actors that rounds are compiled for, ascending; a round of I actors runs as the next wider one,
    with the actors beyond I masked.
    """

    maximum: int
    minimum: int
    envs: int
    buckets: tuple[int, ...]

    def bucket(self, actors: int) -> int:
        """The narrowest compiled width that holds so many actors."""
        return next(size for size in self.buckets if size >= actors)

    def clip(self, actors: float) -> int:
        """The nearest whole number of actors that a round may have."""
        return round(min(max(actors, self.minimum), self.maximum))


def is_constant(config: Config) -> bool:
    """Whether all rounds have the same number of actors."""
    constant: bool = register.scaling[config.scaling.rule].constant
    return constant


def is_scaled(config: Config) -> bool:
    """Whether rounds may have fewer actors than there are."""
    return config.scaling.rule != "fixed" or config.scaling.actors > 0


def is_adaptive(config: Config) -> bool:
    """Whether the next round's actors, none after the last, are known only once this round is over."""
    scaling = config.scaling
    return not is_constant(config) or (scaling.ends and (scaling.target is not None or scaling.budget > 0.0))


def is_masked(config: Config) -> bool:
    """Whether some environments may take no part in a round."""
    return is_scaled(config) or is_adaptive(config)


def limits_of(config: Config) -> Limits:
    """The widths of a configuration; without scaling, all of the platform's actors share the environments."""
    scaling, envs = config.scaling, config.env.num_envs
    if not is_scaled(config):
        actors = config.platform.actors
        return Limits(actors, actors, 1, (actors,))
    maximum = scaling.maximum or max(n for n in range(1, envs + 1) if envs % n == 0 and n <= config.platform.actors)
    minimum = scaling.minimum or max(1, maximum // 8)
    each = max(1, envs // maximum)
    if not is_constant(config):
        return Limits(maximum, minimum, each, tuple(sorted({-(-maximum // 2**i) for i in range(HALVINGS + 1)})))
    constant = scaling.actors if scaling.rule == "fixed" and scaling.actors else maximum
    return Limits(maximum, constant, each, (constant,))
