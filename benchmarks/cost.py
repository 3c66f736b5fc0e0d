"""What being live costs: env steps per second of live runs, of the compiled engine and of RLlib, with the same work.

All have as many actors and environments, of the same kind, as many steps a round, the same network, and as many
gradients of as many samples. RLlib runs in an environment of its own, which `benchmarks/peers/install.sh` makes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import ray

from benchmarks.beside import INSTALL, has
from benchmarks.live import JOB
from benchmarks.process import figures
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer

JOBS = {
    "gymnax": JOB,
    "cartpole": ("env=gymnasium/CartPole-v1", *JOB[1:]),
    "hopper": ("env=envpool/Hopper-v4", *JOB[1:]),
}
OURS = {"live": Trainer, "compiled": Trainer}
RLLIB = {f"RLlib's {algorithm.upper()}": (algorithm, ("cartpole", "hopper")) for algorithm in ("ppo", "appo")}
"""Its algorithms, as `benchmarks.peers.rllib` calls them, and the jobs that it knows."""
MODULES = ("ray.rllib", "torch", "envpool")


def cost(
    jobs: Sequence[str], learners: int, rounds: int, repeats: int, peers: Path | None, note: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Measure, in turn, with seeds 0, 1, ...

    Args:
      jobs: of `JOBS`.
      learners: asynchronous ones, of live runs and of the compiled engine.
      rounds: of each of our runs, of which the first is left out.
      repeats: runs of each.
      peers: where the environments of other programs are; without, RLlib is left out.
      note: told of every run.

    Returns:
      A row for each job and way: `steps_per_second`, the median of `runs`, env steps that were learned from (of RLlib's
      APPO, more are `sampled`), and `ratio`, how many times as fast as it a live run is, the median of pairs with the
      same seed.

    Raises:
      ConfigError: `peers` has no RLlib.
    """
    python = None if peers is None else peers.resolve() / "rllib" / "bin" / "python"
    if python is not None and not has(python, MODULES):
        raise ConfigError(f"--peers={peers} has no environment of RLlib; `{INSTALL} {peers}` makes one.")
    table = []
    for job in jobs:
        others = [way for way, (_, jobs) in RLLIB.items() if python is not None and job in jobs]
        found: dict[str, list[float]] = {way: [] for way in (*OURS, *others)}
        sampled: dict[str, list[float]] = {way: [] for way in found}
        for seed in range(repeats):
            for way in found:
                if way in OURS:
                    speed = sampling = ours(way, job, learners, rounds, seed)
                else:
                    asked = ["benchmarks.peers.rllib", f"{RLLIB[way][0]}_{job}", "--seed", str(seed)]
                    run = figures([str(python), "-W", "ignore", "-m", *asked])
                    speed, sampling = float(run["learned_per_second"]), float(run["steps_per_second"])
                found[way].append(speed)
                sampled[way].append(sampling)
                note(f"{job} {way} seed {seed}: {speed:,.0f} env steps/s")
        table += [
            {
                "job": job,
                "way": way,
                "steps_per_second": statistics.median(runs),
                "sampled": statistics.median(sampled[way]),
                "ratio": statistics.median(a / b for a, b in zip(found["live"], runs, strict=True)),
                "runs": runs,
            }
            for way, runs in found.items()
        ]
    return table


def ours(way: str, job: str, learners: int, rounds: int, seed: int) -> float:
    """Env steps per second of one of our runs, the median of its rounds."""
    steps = 16 * 128 * rounds
    own = (f"system.learners={learners}", f"seed={seed}", f"total_steps={steps}", "system=async")
    config = load_config([*JOBS[job], *own, "executor=live"])
    if way != "live":
        config = config.replace({"executor": "simulated"})
    with closing(OURS[way](config)) as trainer:
        trainer.compile()
        trainer.step()
        records = trainer.run()
    if not records:
        raise RunError(f"--rounds={rounds} leaves nothing to measure; 2 or more do.")
    return float(statistics.median(record["steps_per_second"] for record in records))


def speeds(learners: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Live and in the compiled engine, on environments of JAX: medians, and the median of their ratios."""
    # The engine takes eight rounds at a time.
    live, compiled = cost(["gymnax"], learners, max(24, rounds), repeats, None, lambda _: None)
    return {
        "learners": learners,
        "steps_per_second": {row["way"]: row["steps_per_second"] for row in (live, compiled)},
        "ratio": compiled["ratio"],
        "ray": ray.__version__,
    }


def rows(table: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Rows of `cost` as cells to be printed."""
    return [
        {
            "job": row["job"],
            "way": row["way"],
            "env steps/s": f"{row['steps_per_second']:,.0f}",
            "sampled": f"{row['sampled']:,.0f}",
            "live / it": f"{row['ratio']:.2f}",
        }
        for row in table
    ]
