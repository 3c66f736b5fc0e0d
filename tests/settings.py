"""Parts of a configuration as tests write them: options beside fields."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from stellaris_jax.config.tree import DelayConfig, ScalingConfig, SystemConfig


def _part(kind: Any, settings: dict[str, Any]) -> Any:
    own = {entry.name for entry in fields(kind)}
    mine = {key: value for key, value in settings.items() if key in own}
    return kind(**mine, options={key: value for key, value in settings.items() if key not in own})


def system_of(rule: str = "stellaris", **settings: Any) -> SystemConfig:
    """A system with fields and options of its rule."""
    part: SystemConfig = _part(SystemConfig, {"rule": rule, **settings})
    return part


def scaling_of(rule: str, **settings: Any) -> ScalingConfig:
    """Scaling with fields and options of its rule."""
    part: ScalingConfig = _part(ScalingConfig, {"rule": rule, **settings})
    return part


def delay(kind: str = "constant", seconds: float = 1.0, **options: Any) -> DelayConfig:
    """A delay model with its options."""
    return DelayConfig(kind, seconds, options)
