"""Limits of a round: numbers of actors, environments of each actor, and the widths that are compiled."""

from __future__ import annotations

from typing import NamedTuple

from stellaris_jax.base.registry import register
from stellaris_jax.config.tree import Config

HALVINGS = 3
"""Number of widths compiled in addition to the widest; each is half of the one before."""


class Limits(NamedTuple):
    """Limits on the actors of a round.

    Attributes:
      maximum: largest number of actors of a round (I_max).
      minimum: smallest number of actors of a round (I_min).
      envs: environments of each actor.
      buckets: numbers of actors for which rounds are compiled, ascending. A round of I actors runs in the next wider
        bucket, with the actors beyond I masked.
    """

    maximum: int
    minimum: int
    envs: int
    buckets: tuple[int, ...]

    def bucket(self, actors: int) -> int:
        """Smallest compiled width for a number of actors."""
        return next(size for size in self.buckets if size >= actors)

    def clip(self, actors: float) -> int:
        """Nearest whole number of actors within the limits."""
        return round(min(max(actors, self.minimum), self.maximum))


def is_constant(config: Config) -> bool:
    """Whether all rounds have the same number of actors."""
    constant: bool = register.scaling[config.scaling.rule].constant
    return constant


def is_scaled(config: Config) -> bool:
    """Whether rounds may have fewer actors than the platform."""
    return config.scaling.rule != "fixed" or config.scaling.actors > 0


def is_adaptive(config: Config) -> bool:
    """Whether the next round's number of actors (0 after the last round) depends on this round's results."""
    scaling = config.scaling
    return not is_constant(config) or (scaling.ends and (scaling.target is not None or scaling.budget > 0.0))


def is_masked(config: Config) -> bool:
    """Whether rounds may leave out some environments."""
    return is_scaled(config) or is_adaptive(config)


def limits_of(config: Config) -> Limits:
    """Limits of a configuration; without scaling, all of the platform's actors share the environments."""
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
