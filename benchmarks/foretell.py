"""Simulated runs of independent actors beside live ones, calibrated by one live run of each task."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.counting import Counting, Timed, share_of, timed, without_driver
from benchmarks.live import MEASURED, STORE_BYTES
from benchmarks.shared_cores import SharedCores, alone
from benchmarks.steadiness import steadily
from stellaris_jax.base.machine import cores
from stellaris_jax.base.statistics import mean_ci95
from stellaris_jax.config.tree import Config
from stellaris_jax.execute.job import as_executed
from stellaris_jax.execute.live import LiveExecutor
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.live.emulation import Emulation
from stellaris_jax.live.pool import Pool, make_pool
from stellaris_jax.timeline import Round
from stellaris_jax.timeline.joblog import jobs_of
from stellaris_jax.timeline.jobs import Job
from stellaris_jax.timeline.jobs import write as write_jobs

TASKS = {
    "cartpole": ("env=gymnax/cartpole", "env.num_envs=32"),
    "hopper": ("env=envpool/hopper", "env.num_envs=16", "algorithm.options.value_clip=0.2"),
}
SHARDS = 2
"""Shards of actors, as many as cores of the machine that is measured."""
JOB = (
    "system=async",
    "system.actors=independent",
    f"system.actor_shards={SHARDS}",
    "algorithm.rollout_length=128",
    "algorithm.epochs=4",
    "algorithm.minibatches=4",
    "algorithm.learning_rate=3e-4",
    "network.hidden=[256,256]",
    "platform.gpus=1",
    "platform.slots_per_gpu=4",
    "evaluation.points=0",
    "run.loggers=[]",
    "executor=live",
)
FIFO = ("system.data_admission=fifo",)
CAPACITY = ("system.data_admission=capacity", "system.data_admission_options.eta=1")
BOUNDED = (
    "system.data_admission=bounded",
    "system.data_admission_options.by=wait",
    "system.data_admission_options.bound=1",
)
TAILS = (
    "live.emulate=true",
    "delays.learner={kind: pareto, seconds: 0.04, options: {alpha: 2.0}}",
    "delays.actor={kind: pareto, seconds: 0.2, options: {alpha: 2.0}}",
)
"""Emulated seconds with tails of stragglers, on average twice the minimum."""
KINDS: Mapping[str, tuple[str, ...]] = {
    "fifo-2": ("system.learners=2", *FIFO),
    "fifo-4": ("system.learners=4", *FIFO),
    "capacity-4": ("system.learners=4", *CAPACITY),
    "tails-bounded-2": ("system.learners=2", *BOUNDED, *TAILS),
    "tails-fifo-4": ("system.learners=4", *FIFO, *TAILS),
}
"""Kinds of settings: computing only, and with tails."""
SETTINGS = {f"{task}-{kind}": (*TASKS[task], *JOB, *KINDS[kind]) for task in TASKS for kind in KINDS}
CALIBRATION = ("system.learners=3", *FIFO)
"""Setting of the run that calibrates a task; it is none of those that are foretold."""
CALIBRATING = 100
"""Seed of the run that calibrates."""
SKIPPED = 2
"""First rounds of each run, which are left out."""
GOAL = 0.15
"""Largest mean error of a hit, as a share."""
MEASURES = ("data_lag", "staleness", "learner_utilisation", "actor_utilisation", "seconds")
JUDGED = ("data_lag", "learner_utilisation", "seconds")
"""Measures that have to reach the goal."""
ONE_CORE = "--xla_cpu_multi_thread_eigen=false"
"""XLA's option that a function computes on one core, as the model has it."""


class Figures(NamedTuple):
    """Figures of a run without its first rounds.

    Attributes:
      data_lag: mean versions from the policy that acted to the policy that learns.
      staleness: mean versions from the policy that a gradient is computed on to its aggregation.
      learner_utilisation: busy share of the learners' time.
      actor_utilisation: busy share of the actors' time.
      seconds: seconds a round.
    """

    data_lag: float
    staleness: float
    learner_utilisation: float
    actor_utilisation: float
    seconds: float

    @classmethod
    def of(cls, config: Config, rounds: Sequence[Round]) -> Figures:
        """Figures of rounds, the first `SKIPPED` of which are left out."""
        first, last, kept = rounds[SKIPPED - 1].usage, rounds[-1].usage, rounds[SKIPPED:]
        seconds = last.seconds - first.seconds
        lags = [(lag, count) for one in kept for lag, count in enumerate(one.data_lag_counts)]
        return cls(
            sum(lag * count for lag, count in lags) / sum(count for _, count in lags),
            (last.staleness_total - first.staleness_total) / (last.gradients - first.gradients),
            (last.learner_busy - first.learner_busy) / (seconds * config.system.learners),
            (last.actor_busy - first.actor_busy) / (seconds * config.actor_shards),
            seconds / len(kept),
        )


class Lived(NamedTuple):
    """Live run.

    Attributes:
      figures: its figures.
      share: computing share of its busy seconds, the rest of which are emulated.
      jobs: all of its jobs.
      begin: second at which its first rounds end.
    """

    figures: Figures
    share: float
    jobs: list[Timed]
    begin: float


def lived(config: Config) -> Lived:
    """Live run of a configuration."""
    pools: list[Counting] = []

    def make(config: Config, actors: int) -> Pool:
        pools.append(Counting(make_pool(config, actors)))
        return pools[-1]

    with closing(Trainer(config, make_pool=make)) as trainer:
        trainer.compile()
        pools[0].begin_anew()
        trainer.run(SKIPPED)
        before = pools[0].computed, pools[0].emulated
        trainer.run()
        assert isinstance(trainer.executor, LiveExecutor)
        traced = trainer.executor.conductor.traced
    rounds = [one.record for one in traced]
    jobs = timed(list(jobs_of((one.record, one.rolls) for one in traced)), pools[0].ended)
    share = share_of(pools[0].computed - before[0], pools[0].emulated - before[1])
    return Lived(Figures.of(as_executed(config), rounds), share, jobs, rounds[SKIPPED].start)


def foretell(config: Config, log: Path, on: int) -> list[Round]:
    """Rounds that the simulator foretells.

    Args:
      config: configuration of the live run.
      log: jobs of functions that compute alone.
      on: number of cores.
    """
    executed = as_executed(config)
    emulation = Emulation(executed, config.seed) if config.live.emulate else None
    delays = load_config(["delays=trace", f"delays.log={log}"]).delays
    timeline = SharedCores.on(executed.replace({"delays": delays, "executor": "simulated", **MEASURED}), on)
    timeline.emulation = emulation
    return [timeline.next_round() for _ in range(config.rounds)]


def measure(
    settings: Sequence[str],
    seeds: int,
    rounds: int,
    pool: str,
    runs: Path | None,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Foretell and live through every setting with every seed.

    Args:
      settings: names of `SETTINGS`.
      seeds: number of seeds, from 0.
      rounds: rounds of every run, of which the first `SKIPPED` are left out.
      pool: `live.pool`.
      runs: directory that keeps each live run's figures, so that a stopped measurement goes on; none by default.
      note: told of every run.

    Returns:
      JSON data with four keys. Each of the `rows` has the measures' `live`, `foretold`, `error` and `error_ci95`,
      `share` and `hit`. The number of hits is `hits`. The number of settings that compute half of the time or more is
      `computing`. The number of live runs that were thrown away, because the machine was not as fast as for the
      calibration, is `repeated`.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if ONE_CORE not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_CORE}".strip()  # before JAX starts here, and in all processes
    with ExitStack() as stack:
        directory = runs or Path(stack.enter_context(TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        if pool == "ray":
            from stellaris_jax.live.join import LOCAL, join, leave

            if join("live.address", LOCAL, STORE_BYTES):
                stack.callback(leave)
        rows, repeated = _rows(settings, seeds, rounds, pool, directory, note)
    return {
        "cores": cores(),
        "rounds": rounds,
        "seeds": seeds,
        "pool": pool,
        "repeated": repeated,
        "rows": rows,
        "hits": sum(row["hit"] for row in rows),
        "computing": sum(row["share"] >= 0.5 for row in rows),
    }


def _rows(
    settings: Sequence[str], seeds: int, rounds: int, pool: str, directory: Path, note: Callable[[str], None]
) -> tuple[list[dict[str, Any]], int]:
    """Rows of settings, and the number of live runs that were thrown away."""
    logs, usual = {}, None
    for task in TASKS:
        if _of_task(settings, task):
            logs[task], machine = _calibrated(task, rounds, pool, directory, usual, note)
            usual = machine if usual is None else usual
    real: dict[str, list[Figures]] = {name: [] for name in settings}
    foretold: dict[str, list[Figures]] = {name: [] for name in settings}
    shares: dict[str, list[float]] = {name: [] for name in settings}
    repeated = 0
    for seed in range(seeds):
        for name in settings:
            overrides = overrides_of(SETTINGS[name], seed, rounds, pool)
            path = directory / f"{name}-{seed}.json"
            kept = _kept(path, overrides, lambda config: _figures(lived(config)), usual, note)
            repeated += kept["repeated"]
            config = load_config(overrides)
            real[name].append(Figures(**kept["figures"]))
            shares[name].append(kept["share"])
            simulated = foretell(config, logs[name.partition("-")[0]], cores())
            foretold[name].append(Figures.of(as_executed(config), simulated))
            note(_told(seed, name, real[name][-1], foretold[name][-1]))
    return [row_of(name, real[name], foretold[name], shares[name]) for name in settings], repeated


def _of_task(settings: Sequence[str], task: str) -> bool:
    return any(name.startswith(f"{task}-") for name in settings)


def overrides_of(setting: Sequence[str], seed: int, rounds: int, pool: str) -> list[str]:
    """Overrides of a live run."""
    own = [*setting, f"seed={seed}", f"live.pool={pool}"]
    config = load_config(own)
    return [*own, f"total_steps={config.env.num_envs * config.algorithm.rollout_length * rounds}"]


def _kept(
    path: Path,
    overrides: list[str],
    run: Callable[[Config], dict[str, Any]],
    usual: float | None,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Result of a live run, from its file if that is of the same overrides; otherwise it is run, and written.

    The machine has to be as fast as `usual`, see `steadily`.
    """
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text())
        if kept.pop("overrides", None) == overrides:
            return kept
    steady = steadily(lambda: run(load_config(overrides)), usual, note)
    result = {**steady.result, "machine": steady.seconds, "repeated": steady.repeated}
    path.write_text(json.dumps({"overrides": overrides, **result}) + "\n")
    return result


def _figures(run: Lived) -> dict[str, Any]:
    return {"figures": run.figures._asdict(), "share": run.share}


def _jobs(run: Lived) -> dict[str, Any]:
    return {"jobs": [[[*job], computed] for job, computed in run.jobs], "begin": run.begin}


def _calibrated(
    task: str, rounds: int, pool: str, directory: Path, usual: float | None, note: Callable[[str], None]
) -> tuple[Path, float]:
    """Log of the jobs of a task's functions as they would compute alone, from one live run, and the machine's seconds.

    `usual` are the machine's seconds for the run of another task, if there is one.
    """
    overrides = overrides_of((*TASKS[task], *JOB, *CALIBRATION), CALIBRATING, rounds, pool)
    path = directory / f"calibration-{task}.json"
    kept = _kept(path, overrides, lambda config: _jobs(lived(config)), usual, note)
    shared = without_driver([Timed(Job(*job), computed) for job, computed in kept["jobs"]])
    jobs = [job for job in alone(shared, cores()) if job.start >= kept["begin"]]
    log = directory / f"calibration-{task}.jsonl"
    with log.open("w") as file:
        write_jobs(file, [job._replace(version_start=None, version_end=None) for job in jobs], "jsonl")
    for kind in ("learner", "actor", "aggregate", "loader"):
        seconds = [job.end - job.start for job in jobs if job.kind == kind]
        note(f"{task}: {kind} {statistics.median(seconds or [0.0]):.3g} s alone, the median of {len(seconds)}")
    return log, kept["machine"]


def row_of(name: str, real: Sequence[Figures], foretold: Sequence[Figures], shares: Sequence[float]) -> dict[str, Any]:
    """Row of a setting: means over seeds, errors as a share of the live figure, and whether it is a hit."""
    row: dict[str, Any] = {"setting": name, "share": statistics.mean(shares)}
    for measure in MEASURES:
        pairs = [(getattr(a, measure), getattr(b, measure)) for a, b in zip(real, foretold, strict=True)]
        error = mean_ci95([b / a - 1.0 if a else (0.0 if b == a else float("inf")) for a, b in pairs])
        row[measure] = {
            "live": statistics.mean(a for a, _ in pairs),
            "foretold": statistics.mean(b for _, b in pairs),
            "error": error[0],
            "error_ci95": error[1],
        }
    row["hit"] = all(abs(row[measure]["error"]) <= GOAL for measure in JUDGED)
    return row


def _told(seed: int, name: str, real: Figures, foretold: Figures) -> str:
    figures = ", ".join(f"{m} {getattr(real, m):.3g} / {getattr(foretold, m):.3g}" for m in MEASURES)
    return f"seed {seed}, {name}, live / foretold: {figures}"


def rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Table of the result."""
    return [
        {
            "setting": row["setting"],
            "computing": f"{row['share']:.0%}",
            **{
                name: f"{row[name]['live']:.3g} / {row[name]['foretold']:.3g} "
                f"({row[name]['error']:+.0%} ± {row[name]['error_ci95']:.0%})"
                for name in MEASURES
            },
            "hit": "yes" if row["hit"] else "no",
        }
        for row in result["rows"]
    ]
