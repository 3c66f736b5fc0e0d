"""Stellaris in JAX: asynchronous deep reinforcement learning with staleness-aware learners.

Asynchrony is planned first and executed second: a timeline decides from delays and rules which learner computes which
gradient on which policy version, and one compiled program carries the plan out.
"""

from __future__ import annotations

__version__ = "0.1.0.dev0"

__all__ = [
    "Config",
    "ConfigError",
    "Delay",
    "Policy",
    "Rule",
    "Scaling",
    "Trainer",
    "__version__",
    "knob",
    "load_config",
    "load_policy",
    "register",
    "train",
]

_HOMES = {
    "Config": "config.tree",
    "ConfigError": "config.schema",
    "Policy": "training.policy",
    "Trainer": "training.trainer",
    "load_config": "training.loading",
    "load_policy": "training.policy",
    "Delay": "timeline.delays",
    "Rule": "timeline.rules",
    "Scaling": "timeline.scaling.rules",
    "knob": "config.schema",
    "register": "registry",
    "train": "training.run",
}


def __getattr__(name: str) -> object:
    # Resolved on first use, so that importing the package imports nothing heavy.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"stellaris_jax.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
