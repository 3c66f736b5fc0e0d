"""Trainer: a schedule of rounds and an executor that carries them out; evaluates and saves.

`execute.run` adds the run directory around it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.evaluate import Evaluation
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.engine.replay_buffer import NOTHING, Transitions
from stellaris_jax.engine.seed_states import SeedStates
from stellaris_jax.engine.state import EngineState
from stellaris_jax.envs.space_data import space_to_data
from stellaris_jax.execute.distributed import BroadcastCheckpoints, LeadingExecutor, SharedSeedStates
from stellaris_jax.execute.executor import ExecutorInputs
from stellaris_jax.execute.executors import executor_of
from stellaris_jax.execute.fixed import Fixed
from stellaris_jax.execute.job import Job, check_and_prepare
from stellaris_jax.execute.live import MakePool
from stellaris_jax.execute.measurements import Measurements
from stellaris_jax.execute.records import Accounts, Counters, Record, actor_staleness
from stellaris_jax.execute.schedule import Executed
from stellaris_jax.runs.checkpoint import CheckpointError, Checkpoints, Saved
from stellaris_jax.runs.start import SPACES
from stellaris_jax.sources.replay_log import ReplayLog
from stellaris_jax.sources.resumption import Resumption
from stellaris_jax.sources.source import source_of
from stellaris_jax.timeline import Usage


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
      config: configuration, which is checked first, so mistakes cost no compilation; or a job that was prepared.
      stopping: event that stops the run; waits for environments end early once it is set.
      programs: cache of compiled programs, shared with other runs; a new one by default.
      make_pool: makes the pool that runs a live run's functions (`executor=live`); `live.pool` by default.

    Attributes:
      config: configuration as it is executed (`stellaris_jax.execute.job.as_executed`).
      schedule: rounds of the run, and who takes part in them.
      executor: carries the rounds out.
      seed_states: states of the seeds on the device.
      source: source of fragments.
      counters: totals of the run.
      stopping: event that stops the run.
      programs: cache of compiled programs.
    """

    FIXED = ("config", "env", "network", "seeds", "spec")
    INSTEAD = "make another Trainer, whose init_from=RUN_DIR goes on from a run's policy"

    def __init__(
        self,
        config: Config | Job,
        stopping: threading.Event | None = None,
        programs: ProgramCache | None = None,
        make_pool: MakePool | None = None,
    ):
        job = config if isinstance(config, Job) else check_and_prepare(config)
        self.config, self.env, self.network, self.seeds, self.spec, recording, start = job
        self.stopping, self.programs = stopping or threading.Event(), programs or ProgramCache()
        config, programs = job.config, self.programs
        env, network, seeds, spec = self.env, self.network, self.seeds, self.spec
        self._log: ReplayLog | None = None
        self.source = source_of(env, network, config, spec, seeds, self.stopping, programs)
        self.engine = programs.engine(config, self.source.env, network, spec)
        states_of = SharedSeedStates if config.engine.distributed else SeedStates
        self.seed_states = states_of(self.engine, Hyper.of(config), seeds)
        if start is not None:
            self.seed_states.begin(*start)
        self.counters = Counters()
        self.probe = programs.probe(config, network, spec, register.scaling[config.scaling.rule].probe)
        self.measurements = Measurements(self.probe, spec, self.seed_states, self.counters)
        inputs = ExecutorInputs(
            config, spec, seeds, self.engine, self.seed_states, self.source, self.measurements, self.counters,
            programs.chunks,
        )  # fmt: skip
        self.executor = executor_of(inputs, recording, make_pool)
        self.schedule = self.executor.schedule

    @property
    def accounts(self) -> Accounts:
        """Usage and money of the run."""
        return self.schedule.accounts

    @property
    def state(self) -> EngineState:
        """State of the engine, every leaf `[S, ...]`; a copy if seeds run in several blocks."""
        return self.seed_states.state

    @state.setter
    def state(self, state: EngineState) -> None:
        self.seed_states.state = state

    @property
    def total_rounds(self) -> int:
        """Number of rounds of the whole run."""
        return self.schedule.total_rounds

    @property
    def steps_per_round(self) -> int:
        """Environment steps per seed and round."""
        return self.accounts.steps_per_round

    @property
    def round(self) -> int:
        """Number of rounds trained."""
        return self.schedule.round

    @property
    def finished(self) -> bool:
        """True once all rounds are done, or every seed has reached its target or spent its budget."""
        return self.schedule.finished

    @property
    def usages(self) -> list[Usage]:
        """Usage of each seed up to the current round."""
        return self.schedule.usages

    # Training ------------------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> bool:
        """Whether the device has begun the next rounds."""
        return self.executor.under_way

    @property
    def compiled(self) -> bool:
        """Whether the next rounds need no compilation."""
        return self.executor.compiled

    def compile(self) -> float:
        """Compile for the next rounds now instead of in `step`; returns the seconds, 0 if compiled."""
        if self.compiled:
            return 0.0
        seconds = self.executor.compile()
        measuring = self.measurements.compile()
        self.engine.compile_seconds += measuring
        return seconds + measuring

    def step(self, ahead: bool = False) -> list[Record]:
        """Train one chunk of rounds; returns one record per round (see `stellaris_jax.telemetry`).

        Args:
          ahead: start the next chunk before this one's records are made, unless an evaluation, a checkpoint, the end of
            `run` or a choice of actors is due. Afterwards only `step` may be called.
        """
        if self.finished:
            return []
        if not self.under_way:
            self.compile()
        done = self.executor.step(ahead)
        records = self._records(done)
        self.schedule.observe(done)
        return records

    def run(self, rounds: int | None = None) -> list[Record]:
        """Train `rounds` more rounds, or to the end; returns all records."""
        end = self.total_rounds if rounds is None else min(self.round + rounds, self.total_rounds)
        self.schedule.pause = end
        records: list[Record] = []
        while self.round < end and not self.finished:
            records += self.step(ahead=True)
        return records

    def _records(self, done: Executed) -> list[Record]:
        """Records of executed rounds."""
        counters, accounts, chunk = self.counters, self.accounts, done.chunk
        counters.train_seconds += done.seconds
        counters.wall_seconds += done.seconds
        usages = [round_.usage for round_ in chunk.rounds[-1]]
        steps = accounts.env_steps(usages) - accounts.env_steps(done.before)
        records = []
        for r, (row, learning) in enumerate(zip(chunk.rounds, accounts.learning(done.metrics), strict=True)):
            counters.computed += chunk.computed[r]
            counters.nonfinite = learning["nonfinite_gradients"]
            occupancy = chunk.collect_occupancy[r] if chunk.collect_occupancy else None
            record = accounts.timeline(row, chunk.factors[r], counters.computed, occupancy)
            per_seed = record["per_seed"] | learning["per_seed"]
            record |= learning | {"wall_seconds": counters.wall_seconds, "per_seed": per_seed}
            record["steps_per_second"] = steps * len(self.seeds) / done.seconds
            records.append(record)
        if done.data_versions is not None:
            records[0]["actor_staleness"] = actor_staleness(chunk.rounds[0], done.data_versions)
        if done.probes:
            records[0]["per_seed"]["probe"] = done.probes
        records[-1] |= done.values
        return records

    def write(self, run_dir: Path) -> None:
        """Write files of the executor about the rounds since the last call, such as the trace of a live run."""
        self.executor.write(run_dir)

    def close(self) -> None:
        """Stop the actors of host environments, and the processes of a live run."""
        self.executor.close()
        self.source.close()

    # Evaluation ----------------------------------------------------------------------------------------------------

    def place_of(self, seed: int | None = None) -> int:
        """Place of one of the seeds, by default of the first. Raises ConfigError for an unknown one."""
        if seed is not None and seed not in self.seeds:
            raise ConfigError(f"seed={seed} is not in the run; accepted: {', '.join(map(str, self.seeds))}.")
        return 0 if seed is None else self.seeds.index(seed)

    def evaluate(self, episodes: int | None = None, stream: int | None = None) -> Evaluation:
        """Play whole episodes with the current policies; `stream` selects other episodes than the round's.

        Episodes of environments without a time limit are cut at `evaluation.episode_limit`.
        """
        episodes = self.config.evaluation.episodes if episodes is None else episodes
        evaluator = self.source.evaluator(episodes)
        begin = time.perf_counter()
        result = evaluator.over(self.seed_states, self.round if stream is None else stream)
        self.counters.wall_seconds += time.perf_counter() - begin
        return result

    def evaluation_record(self, evaluation: Evaluation) -> Record:
        """Record of an evaluation of the current policies."""
        record = self.accounts.evaluation(evaluation, self.usages)
        learned = self.accounts.learned(self.round)
        return {"round": self.round, "wall_seconds": self.counters.wall_seconds, **record, **learned}

    # Saving --------------------------------------------------------------------------------------------------------

    def metadata(self) -> dict[str, Any]:
        """State outside the engine that the next round depends on, as JSON data."""
        spaces = {name: space_to_data(getattr(self.network, name)) for name in SPACES}
        return {**self.schedule.state(), "counters": asdict(self.counters), "spaces": spaces}

    def save(self, checkpoints: Checkpoints) -> None:
        """Write a checkpoint of the current round in the background."""
        data, source = self.metadata(), self.source.state(checkpoints.actions)
        if source is not None:
            data["host"] = source
        state = self.seed_states.state
        if self.spec.buffer is not None:
            data["replay"] = self._replay_log(checkpoints).save(state.loader)
            state = NOTHING.within(state)
        checkpoints.save(self.round, Saved(state, self.source.arrays()), data)

    def _replay_log(self, checkpoints: Checkpoints) -> ReplayLog:
        """Files of the replay buffer beside the checkpoints."""
        if self._log is None or self._log.directory.parent != checkpoints.directory.parent:
            envs, keep = self.spec.envs, self.config.checkpoint.keep
            self._log = ReplayLog(checkpoints.directory.with_name("replay"), keep, envs, envs * self.spec.steps)
        return self._log

    def restore(self, checkpoints: Checkpoints, note: Callable[[str], None] = print, train: bool = True) -> int:
        """Continue from the newest intact checkpoint; returns its round.

        Args:
          checkpoints: checkpoints of the run.
          note: reports skipped checkpoints, and how host environments continue.
          train: restore host environments by stepping them again. Without it they begin new episodes.
        """
        read: Any = BroadcastCheckpoints(checkpoints) if isinstance(self.executor, LeadingExecutor) else checkpoints
        layout = self.engine.layout
        state, transitions = layout.abstract(len(self.seeds)), list[Transitions]()
        abstract = Saved(state, self.source.shapes(layout.replicated))
        if self.spec.buffer is None:
            restored, saved, data = read.restore(abstract, note)
        else:
            log = self._replay_log(checkpoints)
            if train:
                log.check()

            def check(data: dict[str, Any]) -> None:
                marks = data["replay"] if train else []  # evaluation needs no transitions
                transitions[:] = [log.read(marks, Transitions.of(state.loader))]

            restored, saved, data = read.restore(abstract._replace(engine=NOTHING.within(state)), note, check)
            saved = saved._replace(engine=transitions[0].placed(state).within(saved.engine))
        if "scalings" not in data or ("host" in data) != self.spec.host_fragments:
            raise CheckpointError("The checkpoint was written by an earlier version, which it needs to be restored.")
        source = data.get("host")
        self.seed_states.state = saved.engine
        vars(self.counters).update(asdict(Counters(**data["counters"])))
        self.schedule.restore({**data, "round": restored})
        self.executor.restart()
        self.source.restore(source, saved.host)
        if train and not self.finished:
            self.source.resume(Resumption(source, checkpoints.actions, self.seed_states, restored, note))
        return restored

    # Reporting -----------------------------------------------------------------------------------------------------

    def summary(self, evaluation: Evaluation | None) -> Record:
        """Values of `summary.json`; see `Accounts.summary`, and `stellaris_jax.telemetry` on what covers all seeds."""
        counters, compile_seconds = self.counters, self.engine.compile_seconds
        record = self.accounts.summary(evaluation, self.usages, counters.computed)
        seconds = counters.train_seconds
        return record | {
            "rounds": self.round,
            **self.accounts.learned(self.round),
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
