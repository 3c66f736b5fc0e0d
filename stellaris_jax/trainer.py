"""The trainer: plans rounds, executes them, evaluates, saves. `stellaris_jax.run` adds the run directory around it."""

from __future__ import annotations

import math
import time
from bisect import bisect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from stellaris_jax.actors import Actors, Behaviour, Received
from stellaris_jax.billing import bill, common_bill
from stellaris_jax.checkpoint import Checkpoints
from stellaris_jax.config import Config, validate
from stellaris_jax.engine import Engine, RoundMetrics
from stellaris_jax.envs.base import HostEnv
from stellaris_jax.envs.registry import from_config
from stellaris_jax.evaluate import Evaluation, Evaluator, HostEvaluator
from stellaris_jax.losses import ALGORITHMS
from stellaris_jax.networks import ActorCritic
from stellaris_jax.timeline import Plan, PlanShape, Round, Timeline, Usage, build_plan, minibatch_order, wave_count

Record = dict[str, Any]


@dataclass
class Counters:
    """Host-side totals of a run that its timelines do not carry; saved with every checkpoint.

    train_seconds: real seconds spent executing chunks, compilation apart. computed: gradient slots executed per
    seed, empty ones included.
    """

    train_seconds: float = 0.0
    wall_seconds: float = 0.0
    computed: int = 0
    nonfinite: int = 0


@dataclass
class _Chunk:
    """A planned chunk: what the engine runs, and what the host knows of it."""

    plan: Plan
    rounds: list[list[Round]]
    computed: list[int]


class Trainer:
    """Trains `num_seeds` agents, each on its own timeline.

    >>> trainer = Trainer(load_config(["env=gymnax/cartpole"]))
    >>> trainer.run()
    >>> trainer.evaluate().mean_ci95()

    Args:
      config: see `stellaris_jax.config`; it is validated first, so mistakes cost no compilation.
    """

    def __init__(self, config: Config):
        validate(config)
        self.config = config
        algorithm, system = config.algorithm, config.system
        self.env = from_config(config.env)
        host = isinstance(self.env, HostEnv)
        self.network = ActorCritic(self.env.observation_space, self.env.action_space, config.network)
        self.seeds = list(range(config.seed, config.seed + config.num_seeds))
        self.steps_per_round = config.env.num_envs * algorithm.rollout_length
        self.total_rounds = math.ceil(config.total_steps / self.steps_per_round)
        gradients = algorithm.epochs * algorithm.minibatches
        self.timelines = [Timeline.of(config, seed) for seed in self.seeds]
        truncates = system.truncation != "none"
        self.shape = PlanShape(
            rounds=1 if host else config.engine.chunk_rounds,
            seeds=config.num_seeds,
            width=config.engine.lanes * config.engine.devices,
            peers=min(system.learners, system.versions) - 1 if truncates else 0,
            gradients=gradients,
            batch=self.steps_per_round // algorithm.minibatches,
            versions=system.versions,
            buffers=self.timelines[0].depth,
        )
        self.engine = Engine(config, self.env, self.network, self.shape)
        self.state = self.engine.init(self.seeds)
        self.actors = Actors(self.env, self.network, config, self.seeds) if isinstance(self.env, HostEnv) else None
        self._asked = False
        self.round = 0
        self.counters = Counters()
        self._evaluators: dict[int, Evaluator | HostEvaluator] = {}
        self._planned: _Chunk | None = None
        self._timeline_states = [timeline.state() for timeline in self.timelines]

    # Training ------------------------------------------------------------------------------------------------------

    @cached_property
    def evaluation_rounds(self) -> list[int]:
        """Rounds after which the policy is evaluated, spread evenly, the last round among them."""
        points = self.config.evaluation.points if self.config.evaluation.episodes > 0 else 0
        return sorted({math.ceil(self.total_rounds * i / points) for i in range(1, points + 1)})

    @cached_property
    def checkpoint_rounds(self) -> list[int]:
        """Rounds after which a checkpoint is due, the last round among them."""
        interval = self.config.checkpoint.interval
        due = self.evaluation_rounds if interval == 0 else range(interval, self.total_rounds, interval)
        return sorted({*due, self.total_rounds})

    def _chunk_size(self, begin: int) -> int:
        """Rounds of the chunk that begins at round `begin`: it ends where an evaluation or a checkpoint is due."""
        due = [rounds[bisect(rounds, begin) :][:1] for rounds in (self.evaluation_rounds, self.checkpoint_rounds)]
        return min([self.shape.rounds, *(stop - begin for stops in due for stop in stops)])

    def plan(self, begin: int, size: int) -> _Chunk:
        """Simulate the next `size` rounds, of which the first is `begin`, and lay them out for the engine."""
        algorithm = self.config.algorithm
        rounds = [[timeline.next_round() for timeline in self.timelines] for _ in range(size)]
        length = algorithm.rollout_length if ALGORITHMS[algorithm.name].sequences else 1
        cut = (algorithm.epochs, algorithm.minibatches, self.steps_per_round, length)
        orders = [[minibatch_order(seed, begin + r, *cut) for seed in self.seeds] for r in range(size)]
        factors = [self._learning_rate_factor(begin + r) for r in range(size)]
        plan = build_plan(self.shape, rounds, orders, factors, algorithm.target_interval)
        computed = [max(wave_count(record, self.shape.width) for record in row) * self.shape.width for row in rounds]
        return _Chunk(plan, rounds, computed)

    def _learning_rate_factor(self, round_: int) -> float:
        return 1.0 - round_ / self.total_rounds if self.config.algorithm.anneal else 1.0

    def compile(self) -> float:
        """Compile the engine now rather than at the first step; returns the seconds it took."""
        if self._planned is None:
            self._planned = self.plan(self.round, self._chunk_size(self.round))
        if self.engine.compile_seconds == 0.0:
            example = None if self.actors is None else self.actors.example()
            self.engine.compile(self.state, self._planned.plan, example)
        return self.engine.compile_seconds

    def step(self) -> list[Record]:
        """Train one chunk of rounds; one record per round (see `stellaris_jax.telemetry`)."""
        if self.round >= self.total_rounds:
            return []
        self.compile()
        chunk, self._planned = self._planned, None
        assert chunk is not None
        begin = time.perf_counter()
        size = len(chunk.rounds)
        received = self._receive(chunk) if self.actors is not None else None
        fragment = None if received is None else received.fragment
        self.state, metrics = self.engine.run(self.state, chunk.plan, size, fragment)
        # While the device works, plan the next chunk; what a checkpoint needs is the timelines as they are now.
        self._timeline_states = [timeline.state() for timeline in self.timelines]
        upcoming = self.round + size
        if upcoming < self.total_rounds:
            self._planned = self.plan(upcoming, self._chunk_size(upcoming))
        metrics = jax.device_get(metrics)
        seconds = time.perf_counter() - begin
        self.counters.train_seconds += seconds
        self.counters.wall_seconds += seconds
        rate = size * self.steps_per_round * len(self.seeds) / seconds
        records = self._records(chunk, metrics, rate)
        if received is not None:
            lags = [row.arrived - version for row, version in zip(chunk.rounds[0], received.versions, strict=True)]
            records[0]["actor_staleness"] = _mean(lags)
        self.round = upcoming
        return records

    def _receive(self, chunk: _Chunk) -> Received:
        """The fragment of the next round from the host's actors; with overlap they go on to the one after it."""
        assert self.actors is not None
        versions = [row.behaviour_version for row in chunk.rounds[0]]
        if not self._asked:
            self.actors.begin(self.round, self._behaviour(versions, chunk.plan))
            # The episodes that were under way are gone, and so is what they had earned.
            actor = self.state.actor
            nothing = jax.device_put(np.zeros(actor.totals.shape, np.float32), actor.totals.sharding)
            self.state = self.state._replace(actor=actor._replace(totals=nothing))
        elif not self.config.env.overlap:
            self.actors.request(self._behaviour(versions, chunk.plan))
        received = self.actors.receive()
        # Where a checkpoint is due, environments start anew, so that the run goes on alike after a restart.
        self._asked = self.round + 1 not in self.checkpoint_rounds
        if self._asked and self.config.env.overlap:
            newest = [row.arrived for row in chunk.rounds[0]]
            self.actors.request(Behaviour(newest, *jax.device_get((self.state.params, self.state.normalizers))))
        return received

    def _behaviour(self, versions: list[int], plan: Plan) -> Behaviour:
        """What the plan's next fragment is rolled with."""
        params = self.engine.behaviour(self.state, plan.behaviour[0])
        return Behaviour(versions, *jax.device_get((params, self.state.normalizers)))

    def close(self) -> None:
        """Stop the actors of host environments; others need nothing."""
        if self.actors is not None:
            self.actors.close()

    def run(self, rounds: int | None = None) -> list[Record]:
        """Train `rounds` more rounds (rounded up to chunks), or to the end; returns all records."""
        end = self.total_rounds if rounds is None else min(self.round + rounds, self.total_rounds)
        records: list[Record] = []
        while self.round < end:
            records += self.step()
        return records

    def _records(self, chunk: _Chunk, metrics: RoundMetrics, rate: float) -> list[Record]:
        """The records of a chunk's rounds."""
        size = len(chunk.rounds)
        metrics = jax.tree.map(lambda x: x[:size], metrics)
        with np.errstate(invalid="ignore", divide="ignore"):
            returns = metrics.episodes.total_return / metrics.episodes.ended
            lengths = metrics.episodes.total_length / metrics.episodes.ended
        over_seeds = {
            **metrics.loss._asdict(),
            "grad_norm": metrics.gradient_norm,
            "kl_coefficient": metrics.kl_coefficient,
        }
        columns = {name: values.mean(axis=1).tolist() for name, values in over_seeds.items()}
        columns["train_return"] = [_finite_mean(row) for row in returns.tolist()]
        columns["episode_length"] = [_finite_mean(row) for row in lengths.tolist()]
        rejected, per_seed = metrics.rejected.sum(axis=1).tolist(), returns.tolist()
        records = []
        for r, row in enumerate(chunk.rounds):
            self.counters.computed += chunk.computed[r]
            self.counters.nonfinite = rejected[r]
            record = self._timeline_record(row, float(chunk.plan.learning_rate[r]))
            record |= {name: values[r] for name, values in columns.items()}
            record |= {"wall_seconds": self.counters.wall_seconds, "steps_per_second": rate}
            record["nonfinite_gradients"] = rejected[r]
            record["per_seed"]["train_return"] = per_seed[r]
            records.append(record)
        return records

    def _timeline_record(self, row: list[Round], factor: float) -> Record:
        """What the timelines know of a round, one of which `row` holds per seed; `factor` is the schedule's."""
        staleness = [record.staleness() for record in row]
        flat = [s for values in staleness for s in values]
        groups = [group for record in row for group in record.groups]
        gates = [record.groups[-1].threshold for record in row if record.groups]
        gates = [gate for gate in gates if gate is not None]
        trust = _mean([sum(group.weights) / len(group.weights) for group in groups], 1.0)
        usages = [record.usage for record in row]
        money, useful = self._money(usages), _mean([usage.gradients for usage in usages])
        return {
            "round": row[0].index + 1,
            "env_steps": (row[0].index + 1) * self.steps_per_round,
            "updates": _mean([usage.updates for usage in usages]),
            "staleness_mean": _mean(flat),
            "staleness_max": max(flat, default=0),
            "staleness_counts": np.bincount(flat).tolist() if flat else [],
            "gate": _mean(gates) if gates else None,
            "gate_escapes": sum(usage.escapes for usage in usages),
            "group_size": _mean([len(group.gradients) for group in groups]),
            "actor_staleness": _mean([record.arrived - record.behaviour_version for record in row]),
            "learning_rate": self.config.algorithm.learning_rate * factor * trust,
            **{name: _mean(values) for name, values in money.items()},
            "occupancy": useful / self.counters.computed if self.counters.computed else 1.0,
            "dropped": sum(usage.dropped for usage in usages),
            "failed": sum(usage.failures for usage in usages),
            "per_seed": {**money, "staleness_mean": [_mean(values) for values in staleness]},
        }

    def _money(self, usages: list[Usage]) -> dict[str, list[float]]:
        """Seconds, dollars by the system's own rule and at the common price, one figure per seed."""
        config = self.config
        rules = {"cost_usd": bill, "cost_common_usd": common_bill}
        return {
            "simulated_seconds": [usage.seconds for usage in usages],
            **{
                name: [rule(config.system, config.prices, usage, config.platform.actors).total for usage in usages]
                for name, rule in rules.items()
            },
        }

    # Evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(self, episodes: int | None = None, stream: int | None = None) -> Evaluation:
        """Play whole episodes with the current policies; `stream` picks other episodes than the round's own."""
        episodes = self.config.evaluation.episodes if episodes is None else episodes
        if episodes not in self._evaluators:
            if isinstance(self.env, HostEnv):
                self._evaluators[episodes] = HostEvaluator(self.env, self.network, self.config, episodes)
            else:
                self._evaluators[episodes] = Evaluator(self.env, self.network, self.config, episodes)
        begin = time.perf_counter()
        result = self._evaluators[episodes](
            self.state.params, self.state.normalizers, self.seeds, self.round if stream is None else stream
        )
        self.counters.wall_seconds += time.perf_counter() - begin
        return result

    def evaluation_record(self, evaluation: Evaluation) -> Record:
        """An evaluation of the current policies as a record."""
        mean, ci95 = evaluation.mean_ci95()
        usages = [Timeline.usage_of(state) for state in self._timeline_states]
        money = self._money(usages)
        return {
            "round": self.round,
            "env_steps": self.round * self.steps_per_round,
            "wall_seconds": self.counters.wall_seconds,
            "eval_return_mean": mean,
            "eval_return_ci95": ci95,
            **{name: _mean(values) for name, values in money.items()},
            "per_seed": {"eval_return_mean": evaluation.per_seed, **money},
        }

    # Saving --------------------------------------------------------------------------------------------------------

    def host_state(self) -> dict[str, Any]:
        """Everything outside the engine state that the next round depends on, as JSON data."""
        return {"round": self.round, "timelines": self._timeline_states, "counters": asdict(self.counters)}

    def save(self, checkpoints: Checkpoints, eval_return: float | None = None) -> None:
        """Write a checkpoint of the current round, in the background."""
        checkpoints.save(self.round, self.state, self.host_state(), eval_return)

    def restore(self, checkpoints: Checkpoints, note: Callable[[str], None] = print) -> int:
        """Continue from the newest intact checkpoint; returns its round."""
        restored, state, host = checkpoints.restore(self.engine.abstract_state(), note)
        self.state = state
        self.round = restored
        self.counters = Counters(**host["counters"])
        self._planned = None
        self._asked = False
        self._timeline_states = host["timelines"]
        for timeline, saved in zip(self.timelines, host["timelines"], strict=True):
            timeline.restore(saved)
        return restored

    # Reporting -----------------------------------------------------------------------------------------------------

    def summary(self, evaluation: Evaluation | None) -> dict[str, Any]:
        """The figures of `summary.json`; means over seeds unless they are counts."""
        usages = [Timeline.usage_of(state) for state in self._timeline_states]
        prices, actors = self.config.prices, self.config.platform.actors
        items = [bill(self.config.system, prices, usage, actors).items for usage in usages]
        gradients = sum(u.gradients for u in usages)
        mean, ci95 = evaluation.mean_ci95() if evaluation is not None else (None, None)
        steps = self.round * self.steps_per_round
        seconds = self.counters.train_seconds
        return {
            "env": self.config.env.name,
            "system": self.config.system.name,
            "algorithm": self.config.algorithm.name,
            "seed": self.config.seed,
            "num_seeds": self.config.num_seeds,
            "rounds": self.round,
            "env_steps": steps,
            "updates": _mean([u.updates for u in usages]),
            "gradients": gradients / len(usages),
            "eval_return_mean": mean,
            "eval_return_ci95": ci95,
            "eval_return_per_seed": evaluation.per_seed if evaluation is not None else None,
            "eval_episodes": int(evaluation.returns.size) if evaluation is not None else 0,
            "wall_seconds": self.counters.wall_seconds + self.engine.compile_seconds,
            "train_seconds": seconds,
            "compile_seconds": self.engine.compile_seconds,
            "steps_per_second": steps * len(self.seeds) / seconds if seconds else None,
            "staleness_mean": sum(u.staleness_total for u in usages) / gradients if gradients else 0.0,
            "staleness_max": max(u.staleness_max for u in usages),
            "gate_escapes": sum(u.escapes for u in usages),
            "occupancy": gradients / len(usages) / self.counters.computed if self.counters.computed else 1.0,
            **{name: _mean(values) for name, values in self._money(usages).items()},
            "cost_items_usd": {item: _mean([row[item] for row in items]) for item in items[0]},
            "nonfinite_gradients": self.counters.nonfinite,
            "dropped_gradients": sum(u.dropped for u in usages),
            "failed_invocations": sum(u.failures for u in usages),
            "parameters": self.network.size,
        }


def _mean(values: Any, empty: float = 0.0) -> float:
    values = list(values)
    return float(sum(values) / len(values)) if values else empty


def _finite_mean(values: list[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
