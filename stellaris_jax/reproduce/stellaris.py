"""What the figures of "Stellaris" (SC'24) train, on our engine."""

from __future__ import annotations

from stellaris_jax.reproduce.training import Variant

LEARNING_RATES = ("5e-5", "1.5e-4", "5e-4")
"""The grid of every rule; it holds the paper's rates of PPO (5e-5) and IMPACT (5e-4)."""
TUNING_SEEDS = range(100, 103)
"""Seeds of the grid, which no result uses."""

# An aggregation rule in Stellaris's place, and everything else as in Stellaris (Fig. 11a: "all inside Stellaris").
_INSIDE = ("system.learner_billing=serverless", "system.truncation=weight")

SYSTEMS: dict[str, tuple[str, ...]] = {
    "stellaris": ("system=stellaris",),
    **{f"softsync-c{c}": ("system=softsync", f"system.softsync_c={c}", *_INSIDE) for c in (2, 4, 8)},
    **{f"ssp-s{s}": ("system=ssp", f"system.ssp_s={s}", *_INSIDE) for s in (1, 2, 3)},
    "async": ("system=async", *_INSIDE),
    "stellaris-none": ("system=stellaris_no_truncation",),
    "stellaris-surrogate": ("system=stellaris", "system.truncation=surrogate"),
    "stellaris-artifact": ("system=stellaris", "system.truncation=artifact"),
    "no-async": ("system=stellaris_no_async",),
    "no-serverless": ("system=stellaris_no_serverless",),
    "ppo": ("system=central",),
    "impact": ("system=impact",),
    "rllib": ("system=rllib",),
    "minionsrl": ("system=minionsrl",),
    "stellaris-serverless-actors": ("system=stellaris", "system.actor_billing=serverless"),
}
"""Systems of the comparison, by the name of their folders."""


def variant(env: str, system: str, algorithm: str = "ppo", learning_rate: str | None = None) -> Variant:
    """One system on one environment with the paper's hyper-parameters, or with another learning rate."""
    experiment = "stellaris" if algorithm == "ppo" else "stellaris_impact"
    base = Variant(f"{env}/{algorithm}-{system}", (f"experiment={experiment}/{env}", *SYSTEMS[system]))
    if learning_rate is None:
        return base
    return base.with_settings(f"lr{learning_rate}", f"algorithm.learning_rate={learning_rate}")
