"""Scaling actors: how many a round has, chosen from what was observed of the round before."""

from __future__ import annotations

from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.scaling.rules import Adapt, Hydrozoa, KungFu, Max, Nitro, Observation, Scaling
from stellaris_jax.timeline.scaling.scheduler import MinionsRL, Scales, Scheduler
from stellaris_jax.timeline.scaling.width import Width, is_adaptive, is_masked, is_scaled, width_of

SCALINGS: dict[str, type[Scaling]] = {
    "fixed": Scaling,
    "max": Max,
    "adapt": Adapt,
    "hydrozoa": Hydrozoa,
    "kungfu": KungFu,
    "nitro": Nitro,
}
"""The rules that need no training."""


def scaling_of(config: Config) -> Scaling:
    """The rule of one seed of a configuration."""
    if config.scaling.rule == "minionsrl":
        return MinionsRL(config.scaling, width_of(config), Scales.of(config))
    return SCALINGS[config.scaling.rule](config.scaling, width_of(config))


__all__ = [
    "SCALINGS",
    "MinionsRL",
    "Observation",
    "Scales",
    "Scaling",
    "Scheduler",
    "Width",
    "is_adaptive",
    "is_masked",
    "is_scaled",
    "scaling_of",
    "width_of",
]
