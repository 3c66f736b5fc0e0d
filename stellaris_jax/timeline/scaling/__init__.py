"""Actor scaling: the number of actors of a round is chosen from measurements of the round before."""

from __future__ import annotations

from stellaris_jax.base.registry import register
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.scaling.limits import Limits, is_adaptive, is_masked, is_scaled, limits_of
from stellaris_jax.timeline.scaling.rules import RoundSummary, Scaling
from stellaris_jax.timeline.scaling.scheduler import MinionsRL, Scales, Scheduler


def scaling_of(config: Config) -> Scaling:
    """Scaling rule of one seed of a configuration."""
    rule: Scaling = register.scaling[config.scaling.rule].of(config)
    return rule


__all__ = [
    "Limits",
    "MinionsRL",
    "RoundSummary",
    "Scales",
    "Scaling",
    "Scheduler",
    "is_adaptive",
    "is_masked",
    "is_scaled",
    "limits_of",
    "scaling_of",
]
