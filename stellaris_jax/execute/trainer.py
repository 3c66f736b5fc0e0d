"""Trainer: executes its planner's plans on its source's data, evaluates and saves.

`execute.run` adds the run directory around it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk import Chunk
from stellaris_jax.engine.evaluate import Evaluation
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.engine.seed_states import Running, SeedStates, UnderWay
from stellaris_jax.engine.spec import ProgramSpec, in_program
from stellaris_jax.engine.state import EngineState
from stellaris_jax.engine.wave import RoundMetrics
from stellaris_jax.envs.registry import from_config
from stellaris_jax.envs.space_data import space_to_data
from stellaris_jax.execute.fixed import Fixed
from stellaris_jax.execute.footprint import check_run
from stellaris_jax.execute.loading import check_and_start_jax
from stellaris_jax.execute.planner import Planner
from stellaris_jax.execute.plugin_checks import check_plugins
from stellaris_jax.execute.records import Accounts, Counters, Record, data_lag
from stellaris_jax.runs.checkpoint import CheckpointError, Checkpoints, Saved
from stellaris_jax.runs.start import SPACES, start_of
from stellaris_jax.sources.source import source_of
from stellaris_jax.timeline import PlanShape, Timeline, Usage
from stellaris_jax.timeline.scaling import Limits


class Trainer(Fixed):
    """Trainer of `num_seeds` agents, each on its own timeline.

    >>> from stellaris_jax import load_config
    >>> small = ["env.num_envs=4", "algorithm.rollout_length=16", "network.hidden=[8]", "total_steps=64"]
    >>> trainer = Trainer(load_config(["env=gymnax/cartpole", *small]))
    >>> len(trainer.run())
    1
    >>> trainer.evaluate(episodes=2).returns.shape
    (1, 2)

    Args:
      config: see `stellaris_jax.config.tree`; it is validated first, so mistakes cost no compilation.
      stopping: event that stops the run; waits for environments end early once it is set.
      programs: cache of compiled programs, shared with other runs; a new one by default.
    """

    executor: ClassVar[str] = "simulated"
    distributed: ClassVar[bool] = False
    kept_by: ClassVar[type[SeedStates]] = SeedStates
    FIXED = ("config", "env", "network", "seeds", "spec")
    INSTEAD = "make another Trainer, whose init_from=RUN_DIR goes on from a run's policy"

    def __init__(self, config: Config, stopping: threading.Event | None = None, programs: ProgramCache | None = None):
        check_and_start_jax(config)
        if (config.executor, config.engine.distributed) != (self.executor, self.distributed):
            setting = "engine.distributed=true" if config.engine.distributed else f"executor={config.executor}"
            raise ConfigError(
                f"{setting} is not what this trainer does; trainer_of(config) of "
                "stellaris_jax.execute.executors makes the right one."
            )
        self.programs = programs = programs or ProgramCache()
        self.config = config
        self.env = from_config(config.env)
        check_plugins(config)
        self.network = ActorCritic(self.env.observation_space, self.env.action_space, config.network)
        check_run(config, self.env, self.network)
        self.seeds = list(range(config.seed, config.seed + config.num_seeds))
        self.stopping = stopping or threading.Event()
        self.spec = ProgramSpec.of(config, hosted=in_program(self.env) is None)
        self.source = source_of(self.env, self.network, config, self.spec, self.seeds, self.stopping, programs)
        self.engine = programs.engine(config, self.source.env, self.network, self.spec)
        self.members = self.kept_by(self.engine, Hyper.of(config), self.seeds)
        start = start_of(config, self.network)
        if start is not None:
            self.members.begin(*start)
        self.accounts = Accounts(config)
        self.planner = self._planner()
        self.probe = programs.probe(config, self.network, self.spec, self.planner.scalings[0].probe)
        self.counters = Counters()
        self._probed = False
        self._under_way: UnderWay | None = None

    def _planner(self) -> Planner:
        return Planner(self.config, self.spec, self.seeds, self.source, self.accounts, self.programs.plans)

    # Parts ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        """State of the engine, every leaf `[S, ...]`; a copy if seeds run in several blocks."""
        return self.members.state

    @state.setter
    def state(self, state: EngineState) -> None:
        self.members.state = state

    @property
    def shape(self) -> PlanShape:
        """Sizes of the plans."""
        return self.spec.shape

    @property
    def steps_per_round(self) -> int:
        """Environment steps per seed and round."""
        return self.accounts.steps_per_round

    @property
    def total_rounds(self) -> int:
        """Number of rounds of the whole run."""
        return self.planner.total_rounds

    @property
    def timelines(self) -> list[Timeline]:
        """Timelines, one per seed; they include planned rounds."""
        return self.planner.timelines

    @property
    def timeline_states(self) -> list[dict[str, Any]]:
        """State of each timeline at the current round."""
        return self.planner.states

    @property
    def limits(self) -> Limits:
        """Limits on the number of actors in a round."""
        return self.planner.limits

    @property
    def round(self) -> int:
        """Number of rounds trained."""
        return self.planner.round

    @property
    def finished(self) -> bool:
        """True once all rounds are done, or every seed has reached its target or spent its budget."""
        return self.planner.finished

    @property
    def evaluation_rounds(self) -> list[int]:
        """Rounds after which the policy is evaluated."""
        return self.planner.evaluation_rounds

    @property
    def checkpoint_rounds(self) -> list[int]:
        """Rounds after which a checkpoint is due."""
        return self.planner.checkpoint_rounds

    @property
    def usages(self) -> list[Usage]:
        """Usage of each seed up to the current round."""
        return self.planner.usages

    # Training ------------------------------------------------------------------------------------------------------

    def plan(self, begin: int, size: int) -> Chunk:
        """Simulate rounds `begin` to `begin + size - 1` and lay them out for the engine."""
        return self.planner.plan(begin, size)

    def _next(self) -> Chunk:
        """Next chunk; if it has to be planned now, the device idles meanwhile."""
        begin = time.perf_counter()
        chunk = self.planner.next
        self.counters.planning_seconds += time.perf_counter() - begin
        return chunk

    def _plan_ahead(self, running: Running) -> None:
        """Plan while the device is busy; if the device finishes first, the planning time counts as waiting."""
        begin = time.perf_counter()
        self.planner.plan_ahead()
        if running.over:
            self.counters.planning_seconds += time.perf_counter() - begin

    @property
    def under_way(self) -> bool:
        """Whether the device has begun the next chunk."""
        return self._under_way is not None

    @property
    def compiled(self) -> bool:
        """Whether the engine is compiled for the next chunk, which is planned now if it was not."""
        return self.engine.compiled_by_width.keys() >= set(self._next().widths)

    def compile(self) -> float:
        """Compile the engine for the next chunk now instead of in `step`; returns the seconds, 0 if compiled."""
        if self.compiled:
            return 0.0
        chunk = self._next()
        state, hyper, example = self.members.states[0], self.members.hyper, self.source.example(self.spec.seeds)
        seconds = 0.0
        for plan, width in zip(chunk.plans, chunk.widths, strict=True):
            seconds += self.engine.compile(state, hyper, plan, example, width)
        return seconds + self._compile_probe()

    def _compile_probe(self) -> float:
        """Compile the scaling rule's probe; returns the seconds it took, 0 if there is nothing to compile."""
        if self.probe is None or self._probed:
            return 0.0
        self._probed = True
        begin = time.perf_counter()
        counts = jnp.zeros(self.spec.seeds, jnp.int32)
        jax.block_until_ready(self.probe(self.members.hyper, self.members.states[0], jnp.int32(0), counts))
        seconds = time.perf_counter() - begin
        self.engine.compile_seconds += seconds
        return seconds

    @property
    def about_chunk(self) -> str:
        """Text about the next chunk: its rounds, and the compiled number of actors if that can change."""
        chunk = self._next()
        first, last = chunk.begin + 1, chunk.end
        rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
        if len(self.limits.buckets) == 1 or self.spec.hosted:
            return rounds
        return f"{rounds} (up to {max(chunk.widths) // self.limits.envs} actors)"

    def step(self, ahead: bool = False) -> list[Record]:
        """Train one chunk of rounds; returns one record per round (see `stellaris_jax.telemetry`).

        Args:
          ahead: start the next chunk before this one's records are made, unless an evaluation, a checkpoint or a choice
            of actors is due. Afterwards only `step` may be called.
        """
        if self.finished:
            return []
        under_way, self._under_way = self._under_way or self._begin(), None
        chunk, before, received = under_way.chunk, under_way.before, under_way.received
        self._plan_ahead(under_way.running)
        metrics = self.members.finish(under_way.running)
        probes = self._measure(chunk)
        now = time.perf_counter()
        self.planner.executed()
        if ahead and self._may_go_ahead():
            self._under_way = self._begin(now)
        self.source.learned(received, chunk)
        records = self._accounted(chunk, metrics, before, now - under_way.begun, probes)
        if received is not None:
            records[0]["actor_staleness"] = data_lag(chunk.rounds[0], received.versions)
        return records

    def _accounted(
        self, chunk: Chunk, metrics: RoundMetrics, before: list[Usage], seconds: float, probes: list[list[float]]
    ) -> list[Record]:
        """Records of a finished chunk that took `seconds`; `before` is the usage of each seed before it."""
        self.counters.train_seconds += seconds
        self.counters.wall_seconds += seconds
        records = self._records(chunk, metrics)
        steps = self.accounts.env_steps([record.usage for record in chunk.rounds[-1]]) - self.accounts.env_steps(before)
        for record in records:
            record["steps_per_second"] = steps * len(self.seeds) / seconds
        self.planner.observe(chunk, metrics, before, probes)
        if probes:
            records[0]["per_seed"]["probe"] = probes
        return records

    def _begin(self, now: float | None = None) -> UnderWay:
        """Start the next chunk at time `now`; compilation is not counted as training."""
        _ = self.members.states  # initial states are compiled here at the latest, which is not training either
        begin = (time.perf_counter() if now is None else now) + self.compile()
        chunk = self._next()
        received = self.source.receive(self.members, chunk, self.planner.following(chunk))
        running = self.members.start(chunk, None if received is None else received.fragment)
        return UnderWay(chunk, received, running, self.usages, begin)

    def _may_go_ahead(self) -> bool:
        """Whether the next chunk can start before anything else uses the policies or their records."""
        is_independent = not (self.spec.hosted or self.planner.adaptive) and self.probe is None
        return is_independent and not self.finished and not self.planner.is_due(self.round) and self.compiled

    def _measure(self, chunk: Chunk) -> list[list[float]]:
        """Measurements of the scaling rule on each seed's last fragment; empty if it needs none."""
        if self.probe is None:
            return []
        begin = time.perf_counter()
        buffer = chunk.rounds[0][0].index % self.spec.buffers
        counts = np.array([self.spec.minibatch_layout.count(n) for n in chunk.envs], np.int32)
        probe = partial(self.probe, self.members.hyper)
        values = jax.device_get(
            self.members.each(lambda state, count: probe(state, jnp.int32(buffer), count), self.members.blocks(counts))
        )
        self.counters.detection_seconds += time.perf_counter() - begin
        return np.concatenate(values).tolist()

    def write(self, run_dir: Path) -> None:
        """Write files of the executor about the rounds since the last call; none by default."""

    def close(self) -> None:
        """Stop the actors of host environments."""
        self.source.close()

    def run(self, rounds: int | None = None) -> list[Record]:
        """Train `rounds` more rounds (rounded up to chunks), or to the end; returns all records."""
        end = self.total_rounds if rounds is None else min(self.round + rounds, self.total_rounds)
        records: list[Record] = []
        while self.round < end and not self.finished:
            records += self.step(ahead=self.planner.next.end < end)
        return records

    def _records(self, chunk: Chunk, metrics: RoundMetrics) -> list[Record]:
        """Records of a chunk's rounds."""
        records = []
        for r, (row, learning) in enumerate(zip(chunk.rounds, self.accounts.learning(metrics), strict=True)):
            self.counters.computed += chunk.computed[r]
            self.counters.nonfinite = learning["nonfinite_gradients"]
            record = self.accounts.timeline(row, float(chunk.plans[0].learning_rate[r]), self.counters.computed)
            per_seed = record["per_seed"] | learning["per_seed"]
            records.append(record | learning | {"wall_seconds": self.counters.wall_seconds, "per_seed": per_seed})
        return records

    # Evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(self, episodes: int | None = None, stream: int | None = None) -> Evaluation:
        """Play whole episodes with the current policies; `stream` selects other episodes than the round's.

        Episodes of environments without a time limit are cut at `evaluation.episode_limit`.
        """
        episodes = self.config.evaluation.episodes if episodes is None else episodes
        evaluator = self.source.evaluator(episodes)
        begin = time.perf_counter()
        result = evaluator.over(self.members, self.round if stream is None else stream)
        self.counters.wall_seconds += time.perf_counter() - begin
        return result

    def evaluation_record(self, evaluation: Evaluation) -> Record:
        """Record of an evaluation of the current policies."""
        record = self.accounts.evaluation(evaluation, self.usages)
        return {"round": self.round, "wall_seconds": self.counters.wall_seconds, **record}

    # Saving --------------------------------------------------------------------------------------------------------

    def host_state(self) -> dict[str, Any]:
        """State outside the engine that the next round depends on, as JSON data."""
        spaces = {name: space_to_data(getattr(self.network, name)) for name in SPACES}
        return {**self.planner.state(), "counters": asdict(self.counters), "spaces": spaces}

    def save(self, checkpoints: Checkpoints) -> None:
        """Write a checkpoint of the current round in the background."""
        data, source = self.host_state(), self.source.state(checkpoints.actions)
        if source is not None:
            data["host"] = source
        checkpoints.save(self.round, Saved(self.members.state, self.source.arrays()), data)

    def restore(self, checkpoints: Checkpoints, note: Callable[[str], None] = print, train: bool = True) -> int:
        """Continue from the newest intact checkpoint; returns its round.

        Args:
          checkpoints: checkpoints of the run.
          note: reports skipped checkpoints, and how host environments continue.
          train: restore host environments by stepping them again. Without it they begin new episodes.
        """
        layout = self.engine.layout
        abstract = Saved(layout.abstract(len(self.seeds)), self.source.shapes(layout.replicated))
        restored, saved, data = checkpoints.restore(abstract, note)
        if "scalings" not in data or ("host" in data) != self.spec.hosted:
            raise CheckpointError("The checkpoint was written by an earlier version, which it needs to be restored.")
        source = data.get("host")
        self.members.state = saved.engine
        self.counters = Counters(**data["counters"])
        self.planner.restore({**data, "round": restored})
        self.source.restore(source, saved.host)
        if train and not self.finished:
            self.source.resume(source, checkpoints.actions, self.members, restored, note)
        return restored

    # Reporting -----------------------------------------------------------------------------------------------------

    def summary(self, evaluation: Evaluation | None) -> Record:
        """Values of `summary.json`; means over seeds unless they are counts."""
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
            "planning_seconds": counters.planning_seconds,
            "compile_seconds": compile_seconds,
            "steps_per_second": record["env_steps"] * len(self.seeds) / seconds if seconds else None,
            "nonfinite_gradients": counters.nonfinite,
            "parameters": self.network.size,
        }
