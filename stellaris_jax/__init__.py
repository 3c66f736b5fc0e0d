"""Stellaris in JAX: asynchronous deep reinforcement learning with staleness-aware learners.

Asynchrony is planned first and executed second: a timeline decides from delays and rules which learner computes which
gradient on which policy version, and one compiled program carries the plan out.
"""

from __future__ import annotations

import time

__version__ = "0.3.0"
IMPORTED = time.time()
"""Time at which the process began to import the package; what it executes was in the sources then."""

__all__ = [
    "GAE",
    "ActorCritic",
    "Admission",
    "Advantage",
    "Algorithm",
    "AutoResetEnv",
    "Box",
    "Cell",
    "Config",
    "ConfigError",
    "Correction",
    "DataAdmission",
    "Delay",
    "Discrete",
    "Estimate",
    "ExportedPolicy",
    "HostStep",
    "Logger",
    "Mask",
    "MultiBinary",
    "MultiDiscrete",
    "Optimizer",
    "Policy",
    "PolicyNetwork",
    "PolicyObjective",
    "PolyakTarget",
    "Pool",
    "Population",
    "Rule",
    "Scaling",
    "TargetNetwork",
    "Trainer",
    "Weight",
    "Wrapper",
    "__version__",
    "check_env",
    "export_policy",
    "knob",
    "load_config",
    "load_policy",
    "register",
    "train",
]

_HOMES = {
    "ActorCritic": "agent.networks.actor_critic",
    "Admission": "timeline.admission",
    "Advantage": "agent.advantages",
    "Algorithm": "agent.losses",
    "AutoResetEnv": "envs.autoreset",
    "Box": "envs.base",
    "Cell": "agent.networks.recurrent",
    "Config": "config.tree",
    "ConfigError": "base.errors",
    "Correction": "engine.corrections",
    "DataAdmission": "timeline.data_admission",
    "Delay": "timeline.delays",
    "Discrete": "envs.base",
    "Estimate": "agent.advantages",
    "ExportedPolicy": "policies.export.artefact",
    "GAE": "agent.advantages",
    "HostStep": "envs.base",
    "Logger": "telemetry.logger",
    "Mask": "agent.losses",
    "MultiBinary": "envs.base",
    "MultiDiscrete": "envs.base",
    "Optimizer": "agent.optimizers",
    "Policy": "policies.policy",
    "PolicyNetwork": "agent.networks.policy_network",
    "PolicyObjective": "agent.losses",
    "PolyakTarget": "agent.losses",
    "Pool": "live.pool",
    "Population": "many.population",
    "Rule": "timeline.rules",
    "Scaling": "timeline.scaling.rules",
    "TargetNetwork": "agent.losses",
    "Trainer": "execute.trainer",
    "Weight": "timeline.weights",
    "Wrapper": "envs.wrappers",
    "check_env": "envs.check",
    "export_policy": "policies.export.writing",
    "knob": "config.schema",
    "load_config": "execute.loading",
    "load_policy": "policies.export.reading",
    "register": "base.registry",
    "train": "execute.run",
}


def __getattr__(name: str) -> object:
    # Resolved on first use, so that importing the package imports nothing heavy.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"stellaris_jax.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
