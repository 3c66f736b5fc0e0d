"""Records and summary of a run as plain data, from its timelines, its engine and its evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stellaris_jax.agent.losses.common import effective_sample_size
from stellaris_jax.base.registry import register
from stellaris_jax.base.statistics import mean
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.evaluate import Evaluation
from stellaris_jax.engine.wave import RoundMetrics
from stellaris_jax.execute.data_records import data_record, dropped_return, learned_steps
from stellaris_jax.timeline import Group, Round, Usage
from stellaris_jax.timeline.billing import bill, common_bill
from stellaris_jax.timeline.scaling.limits import is_scaled, limits_of

Record = dict[str, Any]

WARNINGS = ("entropy", "ess", "chi2", "k3", "m2", "tv", "grad_norm", "update_norm", "update_cosine")
"""Metrics that a record has for every seed, because they may announce that learning breaks down (docs/methods.md)."""


@dataclass
class Counters:
    """Host-side totals of a run that its timelines do not carry; saved with every checkpoint.

    Attributes:
      train_seconds: real seconds spent executing chunks, without compilation.
      wall_seconds: real seconds of the run.
      detection_seconds: part of `train_seconds` spent on measurements for scaling.
      planning_seconds: upper bound on the seconds that the device waited for plans.
      computed: gradients computed, padding of waves included.
      nonfinite: gradients rejected because they were not finite.
    """

    train_seconds: float = 0.0
    wall_seconds: float = 0.0
    detection_seconds: float = 0.0
    planning_seconds: float = 0.0
    computed: int = 0
    nonfinite: int = 0


class Accounts:
    """Accounts of one configuration: usage, money and records.

    A record's values cover all seeds. `stellaris_jax.telemetry` lists which are means over seeds, pooled over gradients
    or groups, sums, and maxima. In the summary `gradients` and each of `cost_items_usd` are means over seeds.
    """

    def __init__(self, config: Config):
        self.config = config
        limits = limits_of(config)
        self.actors, self.reserved = limits.maximum, limits.buckets[-1]
        self.steps_per_round = config.env.num_envs * config.algorithm.rollout_length

    def env_steps(self, usages: list[Usage]) -> float:
        """Environment steps made by the actors; a whole number if all seeds have the same number."""
        total = sum(usage.actor_invocations for usage in usages) * self.steps_per_round
        steps, rest = divmod(total, self.actors * len(usages))
        return steps if rest == 0 else total / (self.actors * len(usages))

    def money(self, usages: list[Usage]) -> dict[str, list[float]]:
        """Seconds, and dollars by the system's own rule and at the common price, one value per seed."""
        config = self.config
        rules = {"cost_usd": bill, "cost_common_usd": common_bill}
        return {
            "simulated_seconds": [usage.seconds for usage in usages],
            **{
                name: [rule(config.system, config.prices, usage, self.reserved).total for usage in usages]
                for name, rule in rules.items()
            },
        }

    def gate(self, usages: list[Usage]) -> dict[str, int | None]:
        """Numbers of groups aggregated so far and of gate escapes among them, over all seeds; None without a gate."""
        if not register.rule[self.config.system.rule].gated:
            return {"gate_escapes": None, "gate_groups": None}
        return {
            "gate_escapes": sum(usage.escapes for usage in usages),
            "gate_groups": sum(usage.updates for usage in usages),
        }

    def _mean_weight(self, groups: list[Group]) -> float:
        """Mean factor of staleness weights on the learning rate, over the optimizer's steps.

        The optimizer makes one step per group; the group's mean weight scales it if aggregation is `factored` or
        `fractional`. In mode `gradient`, weights never reach the step size. In mode `sequential`, each gradient is a
        step.
        """
        aggregation = self.config.system.aggregation
        if aggregation == "gradient":
            return 1.0
        if aggregation == "sequential":
            return mean([weight for group in groups for weight in group.weights], 1.0)
        return mean([mean(group.weights) for group in groups], 1.0)

    def _wasted(self, row: list[Round]) -> Record:
        """Waste of admission: idle learner time, and whether slow gradients are dropped more often than others.

        A value is None if the round does not define it: nothing was computed, or nothing was dropped.
        """
        used = [g.end - g.start for record in row for group in record.groups for g in group.gradients]
        dropped = [g.end - g.start for record in row for g in record.dropped]
        mean_seconds = mean(used + dropped)
        n, usages = self.config.system.learners, [record.usage for record in row]
        return {
            "learner_utilisation": mean([u.learner_busy / (n * u.seconds) for u in usages if u.seconds > 0.0]),
            "gradient_seconds": mean_seconds if used or dropped else None,
            "dropped_seconds": sum(dropped),
            "dropped_slowness": mean(dropped) / mean_seconds if dropped and mean_seconds > 0.0 else None,
        }

    def timeline(
        self, row: list[Round], factor: float, computed: int, collect_occupancy: float | None = None
    ) -> Record:
        """Record of a round from its timelines.

        Args:
          row: `[S]`, the round of each seed.
          factor: factor of the learning rate schedule.
          computed: gradients computed so far, padding included.
          collect_occupancy: share of the computed segments of independent actors that were asked for.
        """
        staleness = [record.staleness() for record in row]
        groups = [group for record in row for group in record.groups]
        waits = [
            (g.in_flight, g.staleness - g.in_flight, group.second - g.start)
            for group in groups
            for g in group.gradients
        ]
        in_flight, queued, seconds = zip(*waits, strict=True) if waits else ((), (), ())
        flat = [s for values in staleness for s in values]
        thresholds = [record.groups[-1].threshold for record in row if record.groups]
        gates = [threshold for threshold in thresholds if threshold is not None]
        usages = [record.usage for record in row]
        money, useful = self.money(usages), sum(usage.gradients for usage in usages)
        return {
            "round": row[0].index + 1,
            "env_steps": self.env_steps(usages),
            "actors": mean([record.actors for record in row]),
            "updates": mean([usage.updates for usage in usages]),
            "staleness_mean": mean(flat),
            "staleness_max": max(flat, default=0),
            "staleness_in_flight": mean(in_flight),
            "staleness_queued": mean(queued),
            "staleness_seconds": mean(seconds),
            "staleness_counts": np.bincount(flat).tolist() if flat else [],
            "in_flight_counts": np.bincount(in_flight).tolist() if in_flight else [],
            "queued_counts": np.bincount(queued).tolist() if queued else [],
            "gate": mean(gates) if gates else None,
            **self.gate(usages),
            "group_size": mean([len(group.gradients) for group in groups]),
            "actor_staleness": actor_staleness(row, [record.behaviour_version for record in row]),
            "learning_rate": self.config.algorithm.learning_rate * factor * self._mean_weight(groups),
            **{name: mean(values) for name, values in money.items()},
            "occupancy": useful / computed if computed else 1.0,
            **self._wasted(row),
            **data_record(self.config, row),
            **({} if collect_occupancy is None else {"collect_occupancy": collect_occupancy}),
            "dropped": sum(usage.dropped for usage in usages),
            "failed": sum(usage.failures for usage in usages),
            "per_seed": {
                **money,
                "env_steps": [self.env_steps([usage]) for usage in usages],
                "actors": [record.actors for record in row],
                "staleness_mean": [mean(values) for values in staleness],
            },
        }

    def learning(self, metrics: RoundMetrics) -> list[Record]:
        """Records of each round of a chunk from the engine's metrics, arrays `[R, S]`."""
        with np.errstate(invalid="ignore", divide="ignore"):
            returns = metrics.episodes.total_return / metrics.episodes.ended
            lengths = metrics.episodes.total_length / metrics.episodes.ended
        losses, drift = dict(metrics.loss), {}
        if losses.pop("ratio", None) is not None:  # its mean is about 1; losses on a replay buffer have no ratios
            drift = {"ess": effective_sample_size(metrics.loss), "chi2": losses.pop("ratio_square") - 1.0}
        over_seeds = {
            **losses,
            **drift,
            "grad_norm": metrics.gradient_norm,
            "update_norm": metrics.update_norm,
            "update_cosine": metrics.update_cosine,
            "data_lag": metrics.data_lag,
            "kl_coefficient": metrics.kl_coefficient,
        }
        learned = metrics.gradients > 0  # a finished seed has no losses, nor has a round that aggregates nothing
        counted = learned.sum(axis=1)
        columns = {
            name: [total / seeds if seeds else None for total, seeds in zip(totals, counted.tolist(), strict=True)]
            for name, totals in ((name, (values * learned).sum(axis=1).tolist()) for name, values in over_seeds.items())
        }
        columns["train_return"] = [_finite_mean(row) for row in returns.tolist()]
        columns["episode_length"] = [_finite_mean(row) for row in lengths.tolist()]
        columns["episodes"] = metrics.episodes.ended.sum(axis=1).astype(int).tolist()
        columns["nonfinite_gradients"] = metrics.rejected.sum(axis=1).tolist()
        each = {name: np.where(learned, over_seeds[name], np.nan).tolist() for name in WARNINGS if name in over_seeds}
        columns["per_seed"] = [
            {"train_return": row, **{name: rows[r] for name, rows in each.items()}}
            for r, row in enumerate(returns.tolist())
        ]
        return [
            {name: values[r] for name, values in columns.items()}
            | dropped_return(metrics.episodes, metrics.dropped_episodes, r)
            for r in range(len(returns))
        ]

    @property
    def actions(self) -> str:
        """Choice of actions in evaluations: `greedy` or `sampled`."""
        return "greedy" if self.config.evaluation.greedy else "sampled"

    def learned(self, rounds: int) -> Record:
        """Env steps learned from after so many rounds, of independent actors; of others they are those rolled."""
        return {"learned_steps": learned_steps(self.config, [rounds])} if self.config.actor_shards else {}

    def evaluation(self, evaluation: Evaluation, usages: list[Usage]) -> Record:
        """Record of an evaluation; `usages` `[S]` is the usage of the evaluated policies so far."""
        value, ci95 = evaluation.mean_ci95()
        money = self.money(usages)
        return {
            "env_steps": self.env_steps(usages),
            "actions": self.actions,
            "eval_return_mean": value,
            "eval_return_ci95": ci95,
            **{name: mean(values) for name, values in money.items()},
            "per_seed": {
                "eval_return_mean": evaluation.per_seed,
                "env_steps": [self.env_steps([usage]) for usage in usages],
                **money,
            },
        }

    def summary(self, evaluation: Evaluation | None, usages: list[Usage], computed: int) -> Record:
        """Part of `summary.json` that comes from evaluation and timelines.

        Args:
          evaluation: last evaluation; None without any.
          usages: `[S]`, usage of each seed.
          computed: gradients computed, padding included.
        """
        config = self.config
        items = [bill(config.system, config.prices, usage, self.reserved).items for usage in usages]
        gradients, dropped = sum(u.gradients for u in usages), sum(u.dropped for u in usages)
        value, ci95 = evaluation.mean_ci95() if evaluation is not None else (None, None)
        return {
            "env": config.env.name,
            "executor": config.executor,
            "system": config.system.name,
            "algorithm": config.algorithm.name,
            "scaling": config.scaling.name,
            "seed": config.seed,
            "num_seeds": config.num_seeds,
            "num_envs": config.env.num_envs,
            "actors": self.reserved,
            "envs_per_actor": limits_of(config).envs if is_scaled(config) else None,
            "actor_billing": config.system.actor_billing,
            "env_steps": self.env_steps(usages),
            "updates": mean([u.updates for u in usages]),
            "gradients": gradients / len(usages),
            "eval_return_mean": value,
            "eval_return_ci95": ci95,
            "eval_return_per_seed": evaluation.per_seed if evaluation is not None else None,
            "eval_actions": self.actions,
            "eval_episodes": int(evaluation.returns.size) if evaluation is not None else 0,
            "staleness_mean": sum(u.staleness_total for u in usages) / gradients if gradients else 0.0,
            "staleness_max": max(u.staleness_max for u in usages),
            **self.gate(usages),
            "occupancy": gradients / computed if computed else 1.0,
            **{name: mean(values) for name, values in self.money(usages).items()},
            "cost_items_usd": {item: mean([row[item] for row in items]) for item in items[0]},
            "dropped_gradients": dropped,
            "dropped_share": dropped / (dropped + gradients) if dropped else 0.0,
            "dropped_seconds": sum(u.learner_dropped for u in usages),
            "failed_invocations": sum(u.failures for u in usages),
        }


def actor_staleness(row: Iterable[Round], versions: Iterable[int]) -> float:
    """Mean number of versions between a round's policy and the newest version when its data was complete.

    Only seeds with active actors count; finished seeds have no data. `versions` `[S]` holds the rounds' policies.
    """
    pairs = zip(row, versions, strict=True)
    return mean([record.arrived - version for record, version in pairs if record.actors > 0])


def _finite_mean(values: list[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
