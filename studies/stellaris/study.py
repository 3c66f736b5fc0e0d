"""Training runs for the evaluation of "Stellaris" (SC'24), on our engine."""

from __future__ import annotations

import numpy as np

from stellaris_jax.base.errors import RunError
from studies.study import Study
from studies.training import Variant

RATES = {"ppo": ("5e-5", "1.7e-5", "1.5e-4"), "impact": ("5e-4", "1.7e-4", "1.5e-3")}
"""Grid of learning rates: the paper's own (SC'24, Table III), a third of it, and three times as much."""
STEPS = 4096
"""Env steps of a round on MuJoCo."""
TUNING_SEEDS = range(100, 103)
"""Seeds of the grid, which no result uses."""
EXPERIMENTS = {"ppo": "stellaris", "impact": "stellaris_impact"}
TUNED_ON = {"humanoid": "hopper", "walker2d": "hopper", "gravitar": "spaceinvaders", "qbert": "spaceinvaders"}
"""Environments that use the choice made on another environment of their kind."""

ATARI = ("gravitar", "spaceinvaders", "qbert")
"""Atari environments. Their evaluations take longer than their training, so a run has ten of them instead of fifty."""

# Other aggregation rules, with everything else as in Stellaris (Fig. 11a).
_INSIDE = ("system.learner_billing=serverless", "system.truncation=weight")

SYSTEMS: dict[str, tuple[str, ...]] = {
    "stellaris": ("system=stellaris",),
    **{f"softsync-c{c}": ("system=softsync", f"system.rule_options.c={c}", *_INSIDE) for c in (2, 4, 8)},
    **{f"ssp-s{s}": ("system=ssp", f"system.rule_options.s={s}", *_INSIDE) for s in (1, 2, 3)},
    "async": ("system=async", *_INSIDE),
    "no-truncation": ("system=stellaris_no_truncation",),
    "surrogate": ("system=stellaris", "system.truncation=surrogate"),
    "artifact": ("system=stellaris", "system.truncation=artifact"),
    "no-async": ("system=stellaris_no_async",),
    "central": ("system=central",),
    "impact": ("system=impact", "system.actors=pipelined"),
    "stellaris-pipelined": ("system=stellaris", "system.actors=pipelined"),
    "rllib": ("system=rllib",),
    "par-rl": ("system=par_rl",),
}
"""Systems to train, by the names of their folders."""

SWEPT = {"softsync": ("softsync-c4", "softsync-c2", "softsync-c8"), "ssp": ("ssp-s2", "ssp-s1", "ssp-s3")}
"""Rules with a parameter that the paper does not give."""


def variant(env: str, system: str, algorithm: str = "ppo", rate: str = "") -> Variant:
    """Variant of one system on one environment, with the paper's hyper-parameters or another learning rate.

    Args:
      env: environment.
      system: key of `SYSTEMS`.
      algorithm: key of `RATES`.
      rate: learning rate; empty for the paper's.
    """
    evaluations = ("evaluation.points=10",) if env in ATARI else ()
    settings = (f"experiment={EXPERIMENTS[algorithm]}/{env}", *SYSTEMS[system], *evaluations)
    base = Variant(f"{env}/{algorithm}-{system}", settings)
    if rate in ("", RATES[algorithm][0]):
        return base
    return base.with_settings(f"lr{rate}", f"algorithm.learning_rate={rate}")


def swept(study: Study, env: str, rule: str) -> str:
    """Best of a rule's parameters at the paper's learning rate, chosen on the tuning seeds."""
    env = TUNED_ON.get(env, env)
    candidates = {variant(env, system): system for system in SWEPT[rule]}
    return candidates[best(study, list(candidates))]


def tuned(study: Study, env: str, system: str, algorithm: str = "ppo") -> Variant:
    """System at the best learning rate of the grid, chosen on the tuning seeds."""
    home = TUNED_ON.get(env, env)
    candidates = {variant(home, system, algorithm, rate): rate for rate in RATES[algorithm]}
    return variant(env, system, algorithm, candidates[best(study, list(candidates))])


def best(study: Study, candidates: list[Variant]) -> Variant:
    """Variant with the highest mean final return over the tuning seeds, among those with finite returns.

    Raises RunError if there is none.
    """
    results = study.learned(candidates, TUNING_SEEDS)
    means = {candidate: np.mean([run.final_return for run in results[candidate]]) for candidate in candidates}
    finite = [candidate for candidate in candidates if np.isfinite(means[candidate])]
    if not finite:
        names = ", ".join(candidate.name for candidate in candidates)
        raise RunError(f"none of {names} ends with a finite return on the tuning seeds, so none of them is the best.")
    return max(finite, key=lambda candidate: means[candidate])
