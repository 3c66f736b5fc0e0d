"""Configurations as tests write them: parts with options beside fields, values of any key, and complaints."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import LossInputs, drift
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import completed
from stellaris_jax.config.sections import AlgorithmConfig, DelayConfig, ScalingConfig
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.execute.loading import load_config


def _part(kind: Any, settings: dict[str, Any], *keys: str) -> Any:
    """A section with fields, and the rest of the settings below each of the keys."""
    own = {entry.name for entry in fields(kind)}
    mine = {key: value for key, value in settings.items() if key in own}
    options = {key: value for key, value in settings.items() if key not in own}
    return kind(**mine, **dict.fromkeys(keys, options))


def system_of(rule: str = "stellaris", **settings: Any) -> SystemConfig:
    """A system with fields and options of its rule, weights and admission."""
    weights = "artifact" if rule == "artifact" else "power"
    part: SystemConfig = _part(
        SystemConfig,
        {"rule": rule, "weights": weights, **settings},
        *("rule_options", "weight_options", "admission_options"),
    )
    return part


def algorithm_of(name: str = "ppo", **settings: Any) -> AlgorithmConfig:
    """An algorithm with its fields and options."""
    part: AlgorithmConfig = _part(AlgorithmConfig, {"name": name, **settings}, "options")
    return replace(part, mask_options=dict.fromkeys(part.masks, part.options))


def scaling_of(rule: str, **settings: Any) -> ScalingConfig:
    """Scaling with fields and options of its rule."""
    part: ScalingConfig = _part(ScalingConfig, {"rule": rule, **settings}, "options")
    return part


def delay(kind: str = "constant", seconds: float = 1.0, **options: Any) -> DelayConfig:
    """A delay model with its options."""
    return DelayConfig(kind, seconds, options)


def numbers_and_options(algorithm: AlgorithmConfig) -> SimpleNamespace:
    """The fields of an algorithm's section and its options, those that are not given at their defaults."""
    return SimpleNamespace(**vars(algorithm), **completed(register.algorithm[algorithm.name], algorithm.options))


def loss_of(algorithm: AlgorithmConfig, inputs: LossInputs) -> Any:
    """The loss of an algorithm with its options, and its metrics."""
    value, metrics = register.algorithm[algorithm.name](algorithm.options).loss(inputs)
    return value, {**metrics, **drift(inputs)}


def hyper_of(algorithm: AlgorithmConfig | None = None, rho: float = 1.0) -> Hyper:
    """The numbers of an algorithm, and the threshold of Eq. 2."""
    return Hyper.of(Config(algorithm=algorithm or AlgorithmConfig(), system=SystemConfig(rho=rho)))


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
