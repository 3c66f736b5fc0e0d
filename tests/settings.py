"""Configurations as tests write them: parts with options beside fields, values of any key, and complaints."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from stellaris_jax.config.schema import ConfigError
from stellaris_jax.config.tree import Config, DelayConfig, ScalingConfig, SystemConfig
from stellaris_jax.training.loading import load_config


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


def complaint(*overrides: str) -> str:
    """The one sentence that overrides are refused with."""
    with pytest.raises(ConfigError) as caught:
        load_config(overrides)
    message = str(caught.value)
    assert "\n" not in message and message[-1] in ".?", message
    return message


def with_value(key: str, value: object) -> Config:
    """The default configuration with one other value, unchecked."""
    return Config().replace({key: value})
