"""Names of metrics for all loggers: `group/name` after CleanRL, with CleanRL's own names if it has one.

docs/metrics.md lists them in a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class Metric(NamedTuple):
    """Metric of the rows.

    Attributes:
      name: name for loggers.
      about: description.
    """

    name: str
    about: str


METRICS = {
    "train_return": Metric("charts/episodic_return", "mean return of the round's training episodes"),
    "episode_length": Metric("charts/episodic_length", "their mean length in steps"),
    "episodes": Metric("charts/episodes", "how many they are"),
    "learning_rate": Metric("charts/learning_rate", "mean size of a step, schedule and staleness weights included"),
    "steps_per_second": Metric("charts/SPS", "env steps per real second, over all seeds"),
    "wall_seconds": Metric(
        "charts/wall_seconds", "real seconds of rounds and evaluations; in `summary.json` with compiling"
    ),
    "updates": Metric("charts/updates", "versions of the policy so far"),
    "collect_occupancy": Metric("charts/collect_occupancy", "share of the computed segments that actors asked for"),
    "occupancy": Metric("charts/occupancy", "share of the gradients computed so far that were asked for"),
    "policy_loss": Metric("losses/policy_loss", "loss of the policy"),
    "value_loss": Metric("losses/value_loss", "loss of the critic"),
    "q_value": Metric("losses/q_values", "mean action value of the transitions learned from"),
    "temperature": Metric("losses/alpha", "weight of the entropy (SAC)"),
    "entropy": Metric("losses/entropy", "entropy of the policy"),
    "kl": Metric("losses/approx_kl", "Kullback-Leibler divergence of the learner's policy from the one that acted"),
    "clip_fraction": Metric("losses/clipfrac", "share of the samples whose ratio was clipped"),
    "truncated_fraction": Metric("losses/truncated_fraction", "share of the samples whose ratio was truncated (Eq. 2)"),
    "kl_coefficient": Metric("losses/kl_coefficient", "weight of the KL penalty"),
    "grad_norm": Metric("losses/grad_norm", "norm of a gradient"),
    "nonfinite_gradients": Metric("losses/nonfinite_gradients", "gradients so far that were not finite, and rejected"),
    "ess": Metric("drift/ess", "effective sample size of the importance ratios, as a share"),
    "chi2": Metric("drift/chi2", "chi-square divergence from the policy that acted"),
    "k3": Metric("drift/k3", "the estimate k3 of the KL divergence"),
    "m2": Metric("drift/m2", "second moment of the ratios' logarithms"),
    "tv": Metric("drift/tv", "total variation from the policy that acted"),
    "update_norm": Metric("drift/update_norm", "length of an update of the parameters"),
    "update_cosine": Metric("drift/update_cosine", "cosine between an update and the one before"),
    "staleness_mean": Metric("staleness/mean", "mean staleness of the round's gradients, in versions"),
    "staleness_max": Metric("staleness/max", "the largest one"),
    "staleness_in_flight": Metric("staleness/in_flight", "mean staleness when they were delivered"),
    "staleness_queued": Metric("staleness/queued", "what they gained while they waited"),
    "staleness_seconds": Metric("staleness/seconds", "simulated seconds from fetch to aggregation"),
    "data_lag": Metric("staleness/data_lag", "versions between the policy that acted and the one that learns"),
    "data_lag_max": Metric("data/lag_max", "largest data lag of the round's samples, in versions"),
    "data_lag_batches": Metric("data/lag_batches", "mean batches between the begin of a fragment and its own batch"),
    "data_lag_seconds": Metric("data/lag_seconds", "mean seconds from a fragment's begin to a gradient on it"),
    "learned_steps": Metric("data/learned_steps", "env steps learned from so far; env_steps counts those rolled"),
    "data_queue": Metric("data/queue", "fragments that wait for a batch at the round's end"),
    "data_queue_seconds": Metric("data/queue_seconds", "mean seconds that the round's fragments waited for a batch"),
    "actor_utilisation": Metric(
        "data/actor_utilisation",
        "share of the time so far in which actors rolled fragments that have ended, dropped ones included",
    ),
    "actor_blocked": Metric(
        "data/actor_blocked", "share of the time so far in which actors waited to begin a fragment"
    ),
    "fragments_dropped": Metric(
        "data/fragments_dropped", "fragments so far that data admission or dynamic sampling dropped"
    ),
    "fragments_dropped_share": Metric("data/fragments_dropped_share", "share of them among the round's fragments"),
    "fragments_dropped_slowness": Metric(
        "data/fragments_dropped_slowness", "mean duration of the round's dropped fragments over that of all"
    ),
    "fragments_dropped_return": Metric(
        "data/fragments_dropped_return", "mean return of episodes in dropped fragments, less that in used ones"
    ),
    "actors_failed": Metric("data/actors_failed", "rollouts so far that died"),
    "fragments_equal_share": Metric(
        "data/fragments_equal_share", "share of the round's fragments that system.dynamic_sampling dropped"
    ),
    "valid_share": Metric(
        "data/valid_share", "share of the places in the round's batches that hold a sample, with delays.by=episodes"
    ),
    "actor_staleness": Metric("staleness/actors", "versions that the actors' policy was behind when they were done"),
    "gate": Metric("staleness/gate", "the largest mean staleness that is let through (beta of Eq. 3)"),
    "gate_escapes": Metric("staleness/gate_escapes", "groups so far that were aggregated though the gate refused them"),
    "gate_groups": Metric("staleness/gate_groups", "groups so far"),
    "group_size": Metric("staleness/group_size", "gradients aggregated together, on average"),
    "dropped": Metric("staleness/dropped", "gradients so far that were thrown away"),
    "dropped_seconds": Metric("staleness/dropped_seconds", "learner-seconds spent on those of the round"),
    "dropped_slowness": Metric("staleness/dropped_slowness", "how long they took, beside all gradients"),
    "simulated_seconds": Metric("simulated/seconds", "simulated seconds so far; of a live run, those measured"),
    "cost_usd": Metric("simulated/cost_usd", "dollars so far, by the system's own rule"),
    "cost_common_usd": Metric("simulated/cost_common_usd", "dollars so far at the price all systems have in common"),
    "actors": Metric("simulated/actors", "actors of the round"),
    "learner_utilisation": Metric(
        "simulated/learner_utilisation", "share of the time so far in which learners computed"
    ),
    "gradient_seconds": Metric("simulated/gradient_seconds", "mean seconds of a gradient"),
    "failed": Metric("simulated/failed", "invocations so far that died"),
    "replay_deviation": Metric("simulated/replay_deviation", "of a replay: how far it is from the recorded versions"),
    "eval_return_mean": Metric("eval/episodic_return", "mean return of the evaluated policy"),
    "eval_return_ci95": Metric(
        "eval/episodic_return_ci95",
        "half of its 95 % interval (Student's t): over seeds, or over episodes if there is one seed",
    ),
}
"""Metrics by the keys of the rows, in the order of docs/metrics.md."""
SEED = "eval/episodic_return_seed_{}"
"""Name of the evaluated return of a seed."""
STEP = "env_steps"
"""Key of the step that all metrics are logged over."""
OTHER = "charts/{}"
"""Name of any other value of the rows, such as a plug-in's."""
_NOT_LOGGED = {"kind", "round", STEP, "per_seed"}


def named(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and values of a record's numbers. An evaluation has only its own metrics, and every seed's return."""
    evaluated = row["kind"] == "evaluation"
    for key, value in row.items():
        of_rounds = evaluated and key in METRICS and not key.startswith("eval_")
        if key in _NOT_LOGGED or of_rounds or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        yield METRICS[key].name if key in METRICS else OTHER.format(key), value
    if evaluated:
        for seed, value in enumerate(row.get("per_seed", {}).get("eval_return_mean", [])):
            if value is not None:
                yield SEED.format(seed), value
