"""Defaults on environments without settings of their own: returns at equal env steps, beside PPO of sbx with its own.

Settings are chosen on `CHOSEN_ON` with seeds 100 and above, and judged on `JUDGED_ON` with seeds from 0.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.cards import read
from benchmarks.process import execute, figures
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.statistics import mean_ci95, welch
from stellaris_jax.telemetry.format import significant

CHOSEN_ON = ("Acrobot-v1", "Pendulum-v1", "InvertedPendulum-v5", "Hopper-v5")
JUDGED_ON = (
    "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "InvertedDoublePendulum-v5", "Reacher-v5",
    "Swimmer-v5", "HalfCheetah-v5", "Walker2d-v5",
)  # fmt: skip
"""Environments of gymnasium, from classic control to MuJoCo."""
EPISODES = 32
"""Episodes of the last evaluation, by the most likely actions."""
PEER = "sbx"
Row = dict[str, Any]


def measure(
    envs: Sequence[str],
    ways: Mapping[str, Sequence[str]],
    seeds: Iterable[int],
    steps: int,
    peers: Path | None,
    kept: Path,
    note: Callable[[str], None],
) -> list[Row]:
    """Train every environment in every way with every seed; two runs go side by side.

    Args:
      envs: names of gymnasium environments.
      ways: overrides of ours by the name of a way.
      seeds: seeds of each.
      steps: env steps of each run.
      peers: folder of the peers' environments (`benchmarks/peers/install.sh`); `None` leaves sbx out.
      kept: file of finished runs, which are not repeated.
      note: receives one line for each run.

    Returns:
      One row for each run: `env`, `way`, `seed`, `return_mean`.

    Raises:
      ConfigError, RunError: a run failed.
    """
    rows = [row for row in read(kept, ("env", "way", "seed", "steps_asked")) if row["steps_asked"] == steps]
    done, lock = {(row["env"], row["way"], row["seed"]) for row in rows}, Lock()
    runs: dict[str, Callable[[str, int, int], Row]] = {
        name: partial(ours, tuple(given)) for name, given in ways.items()
    }
    if peers is not None:
        python = peers.resolve() / "torch" / "bin" / "python"
        if not python.exists():
            raise ConfigError(f"--peers={peers} has no {python}; `bash benchmarks/peers/install.sh {peers}` makes it.")
        runs[PEER] = partial(sbx, python)
    kept.parent.mkdir(parents=True, exist_ok=True)

    def one(task: tuple[str, int, str]) -> None:
        env, seed, way = task
        row = {"env": env, "way": way, "seed": seed, "steps_asked": steps, **runs[way](env, seed, steps)}
        with lock, kept.open("a") as file:
            rows.append(row)
            file.write(json.dumps(row) + "\n")
        note(f"{env} {way} seed {seed}: {significant(row['return_mean'])}")

    tasks = [(env, seed, way) for env in envs for seed in seeds for way in runs if (env, way, seed) not in done]
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(one, tasks):
            pass
    wanted = {(env, way, seed) for env in envs for way in runs for seed in seeds}
    return [row for row in rows if (row["env"], row["way"], row["seed"]) in wanted]


def ours(overrides: tuple[str, ...], env: str, seed: int, steps: int) -> Row:
    """Run of ours by the command, with its defaults but for the overrides."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"env=gymnasium/{env}", f"seed={seed}", f"total_steps={steps}", f"run.dir={folder}/run"]
        settings += ["run.progress=false", "evaluation.points=1", f"evaluation.episodes={EPISODES}", *overrides]
        execute([sys.executable, "scripts/train.py", *settings], {"NPROC": "1"})
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    return {"return_mean": summary["eval_return_mean"], "steps": summary["env_steps"]}


def sbx(python: Path, env: str, seed: int, steps: int) -> Row:
    """Run of sbx's PPO with its defaults."""
    asked = ["--steps", str(steps), "--seed", str(seed), "--episodes", str(EPISODES)]
    return figures([str(python), "-W", "ignore", "-m", "benchmarks.peers.sbx_defaults", env, *asked])


def table(rows: Sequence[Row], ways: Iterable[str]) -> list[Row]:
    """Means with half the width of a 95 % interval by environment, and differences from sbx where it is there."""
    found = []
    for env in dict.fromkeys(row["env"] for row in rows):
        returns = {way: [r["return_mean"] for r in rows if (r["env"], r["way"]) == (env, way)] for way in (*ways, PEER)}
        line: Row = {"env": env}
        for way, values in returns.items():
            if not values:
                continue
            mean, half = mean_ci95(values)
            line[way] = f"{significant(mean)} ± {significant(half)}"
            if way != PEER and returns[PEER]:
                difference, width, _ = welch(values, returns[PEER])
                line[f"{way} - {PEER}"] = f"{significant(difference)} ± {significant(width)}"
        found.append(line)
    return found
