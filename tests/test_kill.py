"""kill -9 at random moments, again and again: what is resumed ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import SCRIPTS, begin
from host_env import Clockwork
from sweeps import records, summary
from training import COMMON, assert_identical

from stellaris_jax import Trainer, load_config, train
from stellaris_jax.envs.registry import register

pytestmark = pytest.mark.usefixtures("shared_programs")
# scripts/train.py, in a process that knows the tests' own host environment.
TRAIN = """
import runpy, sys
from host_env import Clockwork
from stellaris_jax.envs.registry import register
register("test/clockwork", Clockwork)
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
register("test/clockwork", Clockwork)

ROUNDS = 120
JOB = [
    *COMMON, "env.num_envs=8", "delays=pareto", "delays.failure=0.1", "evaluation.episodes=2", "evaluation.points=8",
    "checkpoint.interval=3", "run.progress=false", "num_seeds=2", f"total_steps={ROUNDS * 8 * 16}",
]  # fmt: skip
ENVIRONMENTS = {
    "jax": ["env=gymnax/cartpole", "system.actors=pipelined"],
    "episodes": ["env=gymnax/cartpole", "system.actors=independent", "delays.by=episodes", "system.sync_steps=4"],
    "independent": ["env=gymnax/cartpole", "system.actors=independent", "system.sync_steps=4", "engine.chunk_rounds=2"],
    "own": ["env.name=test/clockwork", "env.kwargs={}"],
    "shards": [
        "env.name=test/clockwork", "env.kwargs={}", "system.actors=independent", "system.actor_shards=4",
        "system.sync_steps=8",
    ],
    "envpool": ["env=envpool/cartpole", "env.overlap=false"],
    "replay": ["env=gymnax/cartpole", "algorithm=dqn", "system=async"],
    "replay, host": ["env.name=test/clockwork", "env.kwargs={}", "algorithm=dqn", "system=async"],
}  # fmt: skip
REPLAY = [
    "env.normalize_observation=false", "algorithm.epochs=1", "algorithm.minibatches=1", "algorithm.options.n_step=3",
    "algorithm.options.updates_per_step=0.0625", "algorithm.options.batch_size=16",
    "algorithm.options.buffer_size=1000",
    "algorithm.options.learning_starts=256",
]  # fmt: skip


def settings(environment: str) -> list[str]:
    """Overrides of the job on an environment."""
    return [*ENVIRONMENTS[environment], *JOB, *(REPLAY if environment.startswith("replay") else [])]


def begun(run_dir: Path, *overrides: str) -> subprocess.Popen[str]:
    return begin(run_dir.parent, sys.executable, "-c", TRAIN, SCRIPTS / "train.py", *overrides)


def lines(run_dir: Path) -> int:
    metrics = run_dir / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def killed(process: subprocess.Popen[str], run_dir: Path, draw: np.random.Generator, early: bool) -> bool:
    """Kill the process while it starts (`early`) or trains; false if it came to its end before."""
    if early:
        pause = draw.uniform(0.5, 4.0)
    else:
        done = lines(run_dir)
        until, pause = done + draw.integers(1, max(2, int(0.8 * (ROUNDS - done)))), draw.uniform(0.0, 0.05)
        # A resumed process drops the lines after its checkpoint first.
        while process.poll() is None and lines(run_dir) < until:
            time.sleep(0.005)
    time.sleep(pause)
    process.kill()
    output, _ = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGKILL), output
    return process.returncode != 0


def figures(run_dir: Path) -> tuple[list[dict[str, object]], dict[str, object]]:
    """Records and summary of a run without clock values."""
    return records(run_dir), summary(run_dir)


def trained(*overrides: str) -> Trainer:
    """The trainer of a run, at its end."""
    trainers: list[Trainer] = []

    def make(*arguments: Any, **options: Any) -> Trainer:
        trainers.append(Trainer(*arguments, **options))
        return trainers[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stellaris_jax.execute.run.Trainer", make)
        train(load_config([*overrides]))
    return trainers[0]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def run(environment: str) -> tuple[Trainer, Any]:
        run_dir = tmp_path_factory.mktemp("uninterrupted") / "run"
        return trained(*settings(environment), f"run.dir={run_dir}"), figures(run_dir)

    return run


def check(environment: str, moments: list[bool], seed: int, uninterrupted: Any, run_dir: Path) -> None:
    """Kill a run at each of the moments (true: while its process starts), let it end, and compare."""
    if environment == "envpool":
        pytest.importorskip("envpool")
    draw = np.random.default_rng(seed)
    overrides = [*settings(environment), f"run.dir={run_dir}"]
    hits = 0
    for early in moments:
        hits += killed(begun(run_dir, *overrides), run_dir, draw, early)
        if (run_dir / "config.yaml").exists():
            overrides = [f"resume={run_dir}"]
        else:
            shutil.rmtree(run_dir, ignore_errors=True)  # killed before there was a run
    assert hits > 0, "the run ended before it could be killed"
    ended = trained(*overrides)
    expected, expected_figures = uninterrupted(environment)
    assert_identical(ended, expected)
    assert figures(run_dir) == expected_figures


@pytest.mark.parametrize("environment", ["jax", "independent", "episodes", "own", "shards", "replay", "replay, host"])
def test_a_killed_run_ends_as_if_nothing_had_happened(environment: str, uninterrupted: Any, tmp_path: Path) -> None:
    """On JAX environments several kills of one run, of which one comes before the process has made any progress."""
    moments = [False, True, False] if environment == "jax" else [False]
    check(environment, moments, len(environment), uninterrupted, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_run_survives_kills_at_any_moment(environment: str, uninterrupted: Any, tmp_path: Path) -> None:
    for seed in range(20 if environment == "jax" else 5):
        draw = np.random.default_rng(1000 + seed)
        moments = [bool(draw.random() < 0.25) for _ in range(draw.integers(1, 4))]
        check(environment, moments, seed, uninterrupted, tmp_path / str(seed))
