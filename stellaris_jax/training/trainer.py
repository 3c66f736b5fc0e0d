"""The trainer: plans rounds, executes them, evaluates, saves. `training.run` adds the run directory around it."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.probes import make_probe
from stellaris_jax.engine.program import Engine, RoundMetrics
from stellaris_jax.engine.static import Static
from stellaris_jax.envs.base import HostEnv
from stellaris_jax.envs.registry import from_config
from stellaris_jax.timeline import Plan, Round, Timeline, Usage, build_plan, minibatch_order, wave_count
from stellaris_jax.timeline.scaling import Observation, is_adaptive, is_scaled, scaling_of, width_of
from stellaris_jax.training.checkpoint import CheckpointError, Checkpoints
from stellaris_jax.training.evaluate import Evaluation, Evaluator, HostEvaluator
from stellaris_jax.training.footprint import check_run
from stellaris_jax.training.loading import validate
from stellaris_jax.training.records import Accounts, Record, mean
from stellaris_jax.training.sources.actionlog import ActionLogError
from stellaris_jax.training.sources.actors import Actors, Behaviour, Received
from stellaris_jax.training.sources.host import Ahead, HostSource


@dataclass
class Counters:
    """Host-side totals of a run that its timelines do not carry; saved with every checkpoint.

    train_seconds: real seconds spent executing chunks, compilation apart. detection_seconds: of them, measuring what
    scaling asks for. computed: gradient slots executed per seed, empty ones included.
    """

    train_seconds: float = 0.0
    wall_seconds: float = 0.0
    detection_seconds: float = 0.0
    computed: int = 0
    nonfinite: int = 0


class Saved(NamedTuple):
    """The arrays of a checkpoint: the engine's state, and the host source's (`None` without one)."""

    engine: Any
    host: Any


@dataclass
class _Chunk:
    """A planned chunk: what the engine runs, compiled for how many environments, and what the host knows of it."""

    plan: Plan
    width: int
    rounds: list[list[Round]]
    computed: list[int]


class Trainer:
    """Trains `num_seeds` agents, each on its own timeline.

    >>> trainer = Trainer(load_config(["env=gymnax/cartpole"]))
    >>> trainer.run()
    >>> trainer.evaluate().mean_ci95()

    Args:
      config: see `stellaris_jax.config.tree`; it is validated first, so mistakes cost no compilation.
      stopping: set by whoever wants the run to stop: nobody waits long for an environment then.
    """

    def __init__(self, config: Config, stopping: threading.Event | None = None):
        validate(config)
        self.config = config
        self.env = from_config(config.env)
        host = isinstance(self.env, HostEnv)
        self.network = ActorCritic(self.env.observation_space, self.env.action_space, config.network)
        check_run(config, self.env, self.network)
        self.seeds = list(range(config.seed, config.seed + config.num_seeds))
        self.accounts = Accounts(config)
        self.steps_per_round = self.accounts.steps_per_round
        self.total_rounds = config.rounds
        self.static = Static.of(config, hosted=host)
        self.shape, self.cut = self.static.shape, self.static.cut
        self.timelines = [Timeline.of(config, seed) for seed in self.seeds]
        self.engine = Engine(config, None if isinstance(self.env, HostEnv) else self.env, self.network, self.static)
        self.state = self.engine.init(self.seeds)
        self.width = width_of(config)
        self.scalings = [scaling_of(config) for _ in self.seeds]
        self.probe = make_probe(self.network, config, self.static, self.scalings[0].probe)
        self.stopping = stopping or threading.Event()
        self.host: HostSource | None = None
        if isinstance(self.env, HostEnv):
            actors = Actors(self.env, self.network, config, self.seeds, self.stopping)
            self.host = HostSource(actors, config, self.steps_per_round)
        self.round = 0
        self.counters = Counters()
        self._evaluators: dict[int, Evaluator | HostEvaluator] = {}
        self._planned: _Chunk | None = None
        self._timeline_states = [timeline.state() for timeline in self.timelines]

    # Training ------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """All rounds are done, or every seed has reached its target or spent its budget."""
        return self.round >= self.total_rounds or all(scaling.finished for scaling in self.scalings)

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
        actors, envs, width = self._allot(self.host.ahead.actors if self.host and self.host.ahead else None)
        counts = [self.cut.epochs * self.cut.count(n) for n in envs]
        simulated = list(zip(self.timelines, actors, counts, strict=True))
        rounds = [[timeline.next_round(i, count) for timeline, i, count in simulated] for _ in range(size)]
        orders = [
            [minibatch_order(seed, begin + r, self.cut, n, width) for seed, n in zip(self.seeds, envs, strict=True)]
            for r in range(size)
        ]
        factors = [self._learning_rate_factor(begin + r) for r in range(size)]
        plan = build_plan(self.shape, rounds, orders, factors, [envs] * size)
        slots = self.shape.wave_size
        computed = [max(wave_count(record, slots) for record in row) * slots for row in rounds]
        return _Chunk(plan, width, rounds, computed)

    def _allot(self, asked: list[int] | None) -> tuple[list[int], list[int], int]:
        """Every seed's actors and environments in the next round, and the width all of them fit into.

        `asked` are the actors whose fragments are under way already.
        """
        if not is_scaled(self.config):
            going, all_ = [not scaling.finished for scaling in self.scalings], self.config.env.num_envs
            return [self.width.maximum * go for go in going], [all_ * go for go in going], all_
        actors = asked or [scaling.actors for scaling in self.scalings]
        actors = [n * (not scaling.finished) for n, scaling in zip(actors, self.scalings, strict=True)]
        # Host environments are stepped as they are needed; their fragments always have the same shape. Over several
        # devices all environments stay where they are, so that the first ones are the same on any number of devices.
        narrow = self.host is None and self.config.engine.devices == 1
        bucket = self.width.bucket(max(actors)) if narrow else self.width.maximum
        return actors, [n * self.width.envs for n in actors], bucket * self.width.envs

    def _learning_rate_factor(self, round_: int) -> float:
        return 1.0 - round_ / self.total_rounds if self.config.algorithm.anneal else 1.0

    @property
    def compiled(self) -> bool:
        """Whether the engine is compiled for the next chunk, which is planned if it was not."""
        return self._next().width in self.engine.widths

    def _next(self) -> _Chunk:
        if self._planned is None:
            self._planned = self.plan(self.round, self._chunk_size(self.round))
        return self._planned

    def compile(self) -> float:
        """Compile the engine for the next chunk now rather than in `step`; returns the seconds it took, 0 if it was."""
        if self.compiled:
            return 0.0
        chunk = self._next()
        first = not self.engine.widths
        example = None if self.host is None else self.host.actors.example()
        seconds = self.engine.compile(self.state, chunk.plan, example, chunk.width)
        if first and self.probe is not None:
            begin = time.perf_counter()
            nothing = jnp.zeros(len(self.seeds), jnp.int32)
            jax.block_until_ready(self.probe(self.state, jnp.int32(0), nothing))
            self.engine.compile_seconds += time.perf_counter() - begin
            seconds += time.perf_counter() - begin
        return seconds

    @property
    def about_chunk(self) -> str:
        """The next chunk in words: its rounds, and how many actors they are compiled for, where that may change."""
        chunk = self._next()
        first, last = self.round + 1, self.round + len(chunk.rounds)
        rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
        if len(self.width.buckets) == 1 or self.host is not None:
            return rounds
        return f"{rounds} (up to {chunk.width // self.width.envs} actors)"

    def step(self) -> list[Record]:
        """Train one chunk of rounds; one record per round (see `stellaris_jax.report.telemetry`)."""
        if self.finished:
            return []
        begin = time.perf_counter()
        begin += self.compile()
        chunk, self._planned = self._next(), None
        size = len(chunk.rounds)
        received = self._receive(chunk) if self.host is not None else None
        fragment = None if received is None else received.fragment
        self.state, metrics = self.engine.run(self.state, chunk.plan, size, fragment, chunk.width)
        # While the device works, plan the next chunk; what a checkpoint needs is the timelines as they are now.
        before = self.usages
        self._timeline_states = [timeline.state() for timeline in self.timelines]
        upcoming = self.round + size
        if upcoming < self.total_rounds and not is_adaptive(self.config):
            self._planned = self.plan(upcoming, self._chunk_size(upcoming))
        metrics = jax.device_get(metrics)
        metrics = jax.tree.map(lambda x: x[:size], metrics)
        probes = self._measure(chunk)
        seconds = time.perf_counter() - begin
        self.counters.train_seconds += seconds
        self.counters.wall_seconds += seconds
        self.round = upcoming
        if self.host is not None and received is not None:
            self.host.learned(received, chunk.plan.envs[0].tolist(), self.round)
        records = self._records(chunk, metrics)
        steps = self.accounts.env_steps(self.usages) - self.accounts.env_steps(before)
        for record in records:
            record["steps_per_second"] = steps * len(self.seeds) / seconds
        if received is not None:
            lags = [row.arrived - version for row, version in zip(chunk.rounds[0], received.versions, strict=True)]
            records[0]["actor_staleness"] = mean(lags)
        self._observe(chunk, metrics, before, probes)
        if probes:
            records[0]["per_seed"]["probe"] = probes
        return records

    def _measure(self, chunk: _Chunk) -> list[list[float]]:
        """What the scaling rule wants to know of each seed's last fragment; nothing where it wants nothing."""
        if self.probe is None:
            return []
        begin = time.perf_counter()
        buffer = chunk.rounds[0][0].index % self.shape.buffers
        counts = [self.cut.count(n) for n in chunk.plan.envs[0].tolist()]
        values = jax.device_get(self.probe(self.state, jnp.int32(buffer), jnp.array(counts, jnp.int32)))
        self.counters.detection_seconds += time.perf_counter() - begin
        return np.asarray(values).tolist()

    def _observe(self, chunk: _Chunk, metrics: RoundMetrics, before: list[Usage], probes: list[list[float]]) -> None:
        """Tell every seed's scaling rule of the round that is over."""
        if not is_adaptive(self.config):
            return
        for r, row in enumerate(chunk.rounds):
            costs = self.accounts.money([record.usage for record in row])["cost_usd"]
            for s, (scaling, record) in enumerate(zip(self.scalings, row, strict=True)):
                if scaling.finished:
                    continue
                ended = float(metrics.episodes.ended[r, s])
                scaling.observe(
                    Observation(
                        round=record.index + 1,
                        actors=record.actors,
                        reward=float(metrics.episodes.total_return[r, s]) / ended if ended else math.nan,
                        loss=float(metrics.loss.policy_loss[r, s] + metrics.loss.value_loss[r, s]),
                        kl=float(metrics.loss.kl[r, s]),
                        learner_seconds=record.usage.learner_busy - before[s].learner_busy,
                        actor_seconds=record.actor_seconds,
                        seconds=record.usage.seconds - before[s].seconds,
                        cost_usd=costs[s],
                        probe=tuple(probes[s]) if probes else (),
                    )
                )
            before = [record.usage for record in row]

    def _receive(self, chunk: _Chunk) -> Received:
        """The fragment of the next round from the host's actors; with overlap they go on to the one after it."""
        assert self.host is not None
        (row,), envs = chunk.rounds, chunk.plan.envs[0].tolist()
        versions = [record.behaviour_version for record in row]
        if not self.host.actors.opened:
            self._open_host()
        received = self.host.receive(lambda: self._behaviour(versions, chunk.plan), envs)
        if self.config.env.overlap:
            # The next fragment is asked for before this one has taught anything: by the version the round began with.
            actors, upcoming, _ = self._allot(None)
            newest = Behaviour(versions, *jax.device_get((self.state.params, self.state.normalizers)))
            self.host.ask(Ahead(newest, actors), upcoming if self.round + 1 < self.total_rounds else None)
        return received

    def _open_host(self) -> None:
        """Start host environments anew; episodes that were under way are gone, and so is what they had earned."""
        assert self.host is not None
        self.host.open(self.round)
        actor = self.state.actor
        nothing = jax.device_put(np.zeros(actor.totals.shape, np.float32), actor.totals.sharding)
        self.state = self.state._replace(actor=actor._replace(totals=nothing))

    def _behaviour(self, versions: list[int], plan: Plan) -> Behaviour:
        """What the plan's next fragment is rolled with."""
        params = self.engine.behaviour(self.state, plan.behaviour[0])
        return Behaviour(versions, *jax.device_get((params, self.state.normalizers)))

    def close(self) -> None:
        """Stop the actors of host environments; others need nothing."""
        if self.host is not None:
            self.host.close()
        for evaluator in self._evaluators.values():
            evaluator.close()

    def run(self, rounds: int | None = None) -> list[Record]:
        """Train `rounds` more rounds (rounded up to chunks), or to the end; returns all records."""
        end = self.total_rounds if rounds is None else min(self.round + rounds, self.total_rounds)
        records: list[Record] = []
        while self.round < end and not self.finished:
            records += self.step()
        return records

    def _records(self, chunk: _Chunk, metrics: RoundMetrics) -> list[Record]:
        """The records of a chunk's rounds."""
        records = []
        for r, (row, learning) in enumerate(zip(chunk.rounds, self.accounts.learning(metrics), strict=True)):
            self.counters.computed += chunk.computed[r]
            self.counters.nonfinite = learning["nonfinite_gradients"]
            record = self.accounts.timeline(row, float(chunk.plan.learning_rate[r]), self.counters.computed)
            per_seed = record["per_seed"] | learning["per_seed"]
            records.append(record | learning | {"wall_seconds": self.counters.wall_seconds, "per_seed": per_seed})
        return records

    # Evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(self, episodes: int | None = None, stream: int | None = None) -> Evaluation:
        """Play whole episodes with the current policies; `stream` picks other episodes than the round's own."""
        episodes = self.config.evaluation.episodes if episodes is None else episodes
        if episodes not in self._evaluators:
            if isinstance(self.env, HostEnv):
                self._evaluators[episodes] = HostEvaluator(self.env, self.network, self.config, episodes, self.stopping)
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
        record = self.accounts.evaluation(evaluation, self.usages)
        return {"round": self.round, "wall_seconds": self.counters.wall_seconds, **record}

    # Saving --------------------------------------------------------------------------------------------------------

    @property
    def usages(self) -> list[Usage]:
        """What each seed has used up to the current round."""
        return [Timeline.usage_of(state) for state in self._timeline_states]

    def host_state(self) -> dict[str, Any]:
        """Everything outside the engine state that the next round depends on, as JSON data."""
        return {
            "round": self.round,
            "timelines": self._timeline_states,
            "scalings": [scaling.state() for scaling in self.scalings],
            "counters": asdict(self.counters),
        }

    def save(self, checkpoints: Checkpoints) -> None:
        """Write a checkpoint of the current round, in the background."""
        host = self.host_state()
        if self.host is not None:
            host["host"] = self.host.state(checkpoints.actions)
        checkpoints.save(self.round, Saved(self.state, self.host and self.host.arrays()), host)

    def restore(self, checkpoints: Checkpoints, note: Callable[[str], None] = print, train: bool = True) -> int:
        """Continue from the newest intact checkpoint; returns its round.

        Args:
          checkpoints: those of the run.
          note: told of what was passed over, and of how host environments go on.
          train: bring host environments to where they stood, which takes as long as stepping them. Without it they
            begin new episodes if the run is trained on.
        """
        layout = self.engine.layout
        abstract = Saved(layout.abstract(), self.host and self.host.shapes(layout.replicated))
        restored, saved, host = checkpoints.restore(abstract, note)
        if "scalings" not in host or ("host" in host) != (self.host is not None):
            raise CheckpointError("The checkpoint was written by an earlier version, which it needs to be restored.")
        self.state = saved.engine
        self.round = restored
        self.counters = Counters(**host["counters"])
        self._planned = None
        self._timeline_states = host["timelines"]
        for timeline, state in zip(self.timelines, host["timelines"], strict=True):
            timeline.restore(state)
        for scaling, state in zip(self.scalings, host["scalings"], strict=True):
            scaling.restore(state)
        if self.host is not None:
            self.host.restore(host["host"], saved.host)
            if train and not self.finished:
                try:
                    note(f"environments stand where they stood: {self.host.replay(host['host'], checkpoints.actions)}")
                except ActionLogError as error:
                    checkpoints.actions.clear()
                    self._open_host()
                    note(f"environments begin new episodes, so the run does not go on bit for bit: {error}")
        return restored

    # Reporting -----------------------------------------------------------------------------------------------------

    def summary(self, evaluation: Evaluation | None) -> Record:
        """The figures of `summary.json`; means over seeds unless they are counts."""
        counters, compile_seconds = self.counters, self.engine.compile_seconds
        record = self.accounts.summary(evaluation, self.usages, counters.computed)
        seconds = counters.train_seconds
        return record | {
            "rounds": self.round,
            "total_steps": self.config.total_steps,
            "ended_early": self.finished and self.round < self.total_rounds,
            "annealed": self.config.algorithm.anneal,
            "wall_seconds": counters.wall_seconds + compile_seconds,
            "train_seconds": seconds,
            "detection_seconds": counters.detection_seconds,
            "compile_seconds": compile_seconds,
            "steps_per_second": record["env_steps"] * len(self.seeds) / seconds if seconds else None,
            "nonfinite_gradients": counters.nonfinite,
            "parameters": self.network.size,
        }
