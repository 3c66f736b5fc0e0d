"""Measurements: training throughput beside a peer, and the cost of asynchrony."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from stellaris_jax.config.schema import ConfigError
from stellaris_jax.report.telemetry.format import significant
from stellaris_jax.training.loading import load_config
from stellaris_jax.training.run import device_name, enable_compile_cache, versions
from stellaris_jax.training.trainer import Trainer

Figures = dict[str, Any]

JOBS: dict[str, list[str]] = {
    "cartpole_small": [
        "env=gymnax/cartpole",
        "env.normalize_reward=false",
        "env.num_envs=4",
        "algorithm.rollout_length=128",
        "algorithm.minibatches=4",
        "algorithm.learning_rate=2.5e-4",
        "algorithm.anneal=false",
        "total_steps=500_000",
        "engine.chunk_rounds=256",
    ],
    "cartpole_large": [
        "env=gymnax/cartpole",
        "env.normalize_reward=false",
        "env.num_envs=2048",
        "algorithm.rollout_length=32",
        "algorithm.minibatches=8",
        "algorithm.learning_rate=1e-3",
        "algorithm.anneal=false",
        "total_steps=10_000_000",
        "engine.chunk_rounds=32",
    ],
    "hopper_spring": [
        "env=brax/hopper",
        "env.num_envs=2048",
        "env.kwargs={backend: spring}",
        "env.normalize_observation=true",
        "env.normalize_reward=false",
        "network.hidden=[256,256]",
        "network.activation=tanh",
        "algorithm.rollout_length=10",
        "algorithm.epochs=4",
        "algorithm.minibatches=32",
        "algorithm.learning_rate=3e-4",
        "algorithm.anneal=false",
        "algorithm.entropy_coefficient=0",
        "total_steps=1_000_000",
    ],
    "minatar_spaceinvaders": [
        "env=gymnax/spaceinvaders_minatar",
        "env.num_envs=64",
        "network.hidden=[64,64]",
        "network.activation=relu",
        "algorithm.rollout_length=128",
        "algorithm.minibatches=8",
        "algorithm.learning_rate=5e-3",
        "algorithm.anneal=false",
        "total_steps=1_000_000",
        "engine.chunk_rounds=32",
    ],
    "atari_spaceinvaders": [
        "env=envpool/spaceinvaders",
        "env.num_envs=8",
        "algorithm.rollout_length=128",
        "algorithm.minibatches=4",
        "total_steps=32_768",
    ],
}
"""Same networks, epochs, minibatches and steps as `benchmarks/peers/`."""

PEERS = {job: "cleanrl" if job.startswith("atari") else "rejax" for job in JOBS}
"""Whom a job is measured beside: `benchmarks/peers/<peer>_ppo.py`."""

SYSTEMS: dict[str, list[str]] = {
    "central": ["system=central"],
    "allreduce": ["system=allreduce"],
    "stellaris, no truncation": ["system=stellaris", "system.truncation=none"],
    "stellaris": ["system=stellaris"],
}
"""`central` is the algorithm of the peers: one minibatch after the other on the newest policy."""


def measure(job: str, system: str, seed: int = 0) -> Figures:
    """Train one job once in this process: steps/s without compilation and evaluation, and the return reached."""
    config = load_config([*JOBS[job], *SYSTEMS[system], f"seed={seed}", "evaluation.points=1"])
    trainer = Trainer(config)
    compile_seconds = trainer.compile()
    begin = time.perf_counter()
    trainer.run()
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    evaluation = trainer.evaluate()
    steps = trainer.round * trainer.steps_per_round
    return {
        "job": job,
        "system": system,
        "seed": seed,
        "steps": steps,
        "seconds": seconds,
        "steps_per_second": steps / seconds,
        "compile_seconds": compile_seconds,
        "peak_memory_mb": peak / 2**20,
        "return_mean": evaluation.mean_ci95()[0],
    }


def in_own_process(command: list[str], environment: dict[str, str] | None = None) -> Figures:
    """Run a command whose last line of output is one JSON object. A ConfigError there is one here."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 2 and done.stderr.startswith("error: "):
        raise ConfigError(done.stderr.removeprefix("error: ").strip())
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def throughput(
    jobs: list[str], systems: list[str], repeats: int, pythons: dict[str, str], note: Callable[[str], None]
) -> list[Figures]:
    """Measure jobs beside their peers, in turn, each in a process of its own, so that memory and load compare.

    `pythons` has the Python of every peer that is there.
    """
    here = Path(__file__).resolve().parent
    script = str(here.parent / "scripts" / "benchmark.py")
    table = []
    for job in jobs:
        commands = {system: [sys.executable, script, "measure", job, system] for system in systems}
        peer = PEERS[job]
        if peer in pythons:
            commands[peer] = [pythons[peer], str(here / "peers" / f"{peer}_ppo.py"), job]
        runs: dict[str, list[Figures]] = {name: [] for name in commands}
        for repeat in range(repeats):
            for name, command in commands.items():
                figures = in_own_process([*command, "--seed", str(repeat)])
                runs[name].append(figures)
                speed, reached = figures["steps_per_second"], figures["return_mean"]
                note(f"{job} {name} seed {repeat}: {speed:,.0f} steps/s, return {significant(reached)}")
        for name, results in runs.items():
            row: Figures = {"job": job, "what": name, "repeats": repeats}
            for key in ("steps_per_second", "compile_seconds", "peak_memory_mb"):
                row[key] = statistics.median(r[key] for r in results)
            row["return_mean"] = statistics.mean(r["return_mean"] for r in results)
            row["returns"] = [r["return_mean"] for r in results]
            if peer in runs and name != peer:
                pairs = zip(results, runs[peer], strict=True)
                ratios = [ours["steps_per_second"] / theirs["steps_per_second"] for ours, theirs in pairs]
                row[f"ratio_to_{peer}"] = statistics.median(ratios)
                row[f"ratios_to_{peer}"] = ratios
            table.append(row)
    return table


def engine_cost(rounds: int, repeats: int, overrides: list[str]) -> Figures:
    """Time per gradient of stellaris against allreduce, chunks of all systems in turn within one process.

    Both compute the same number of gradients from the same amount of data; time includes collecting it and planning.
    Programs compiled after the first chunk are counted.
    """
    names = ("allreduce", "stellaris, no truncation", "stellaris")
    common = ["total_steps=1e12", "evaluation.points=0", f"engine.chunk_rounds={rounds}"]
    # all-reduce has no gate whose options could be set
    general = [line for line in overrides if not line.startswith("system.options.")]
    own = {name: general if name == "allreduce" else overrides for name in names}
    trainers = {name: Trainer(load_config([*common, *own[name], *SYSTEMS[name]])) for name in names}
    compiled: list[str] = []
    for trainer in trainers.values():
        trainer.compile()
        trainer.step()

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, trainer in trainers.items():
            begin = time.perf_counter()
            trainer.step()
            times[name].append(time.perf_counter() - begin)
    gradients = rounds * trainers["allreduce"].shape.gradients
    base = times["allreduce"]
    return {
        "env": trainers["allreduce"].config.env.name,
        "gradients_per_chunk": gradients,
        "chunks": repeats,
        "microseconds_per_gradient": {n: statistics.median(t) / gradients * 1e6 for n, t in times.items()},
        "ratio_to_allreduce": {
            n: statistics.median(a / b for a, b in zip(t, base, strict=True)) for n, t in times.items()
        },
        "occupancy": {n: t.summary(None)["occupancy"] for n, t in trainers.items()},
        "staleness_mean": {n: t.summary(None)["staleness_mean"] for n, t in trainers.items()},
        "compiled_after_first_chunk": len(compiled),
    }


def context() -> Figures:
    """Hardware and versions a figure belongs to."""
    return {"device": device_name(load_config()), "versions": versions()}


__all__ = ["JOBS", "PEERS", "SYSTEMS", "context", "enable_compile_cache", "engine_cost", "measure", "throughput"]
