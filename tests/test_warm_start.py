"""Warm starts: imitation of demonstrations, and its cache."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from commands import SCRIPTS, begin, call

from stellaris_jax import ConfigError, Trainer, load_config, train
from stellaris_jax.execute import warm_start
from stellaris_jax.execute.job import prepare
from stellaris_jax.execute.run import enable_compile_cache
from stellaris_jax.execute.session import Interrupted

JOB = [
    "env=tokens/sort", "env.kwargs={length: 2}", "env.num_envs=16", "algorithm.rollout_length=3",
    "network.options={layers: 1, heads: 1, width: 8}", "warm_start.updates=20", "warm_start.batch=16",
    "warm_start.learning_rate=1e-2", "num_seeds=2", "total_steps=48",
]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the cache for one test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "stellaris_jax" / "warm_starts"


def params(*overrides: str) -> np.ndarray:
    trainer = Trainer(load_config([*JOB, *overrides]))
    started = np.asarray(trainer.state.params)
    trainer.close()
    return started


def test_work_is_told_of_once_for_each_seed() -> None:
    told: list[str] = []
    for _ in range(2):  # the second time all is on disk
        prepare(load_config(JOB), told.append)
    assert told == [f"warm start of seed {seed}: 20 updates on demonstrations" for seed in (0, 1)]


def test_a_long_warm_start_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = params("seed=3", "num_seeds=1")
    monkeypatch.setattr(warm_start, "PATIENCE", 0.0)
    monkeypatch.setattr(warm_start, "PARTS", 3)
    told: list[str] = []
    prepare(load_config([*JOB, "warm_start.updates=21", "num_seeds=1"]), told.append)
    first, *others = told
    assert first == "warm start of seed 0: 21 updates on demonstrations"
    assert [line.partition(" updates")[0] for line in others] == [f"warm start of seed 0: {n} of 21" for n in (7, 14)]
    assert all(re.search(r"updates, about .+ left$", line) for line in others)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    whole = prepare(load_config([*JOB, "seed=3", "num_seeds=1"]))  # in three parts, what was computed in twenty
    assert whole.start is not None
    np.testing.assert_array_equal(whole.start.params, computed)


def test_a_signal_ends_a_warm_start(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = warm_start._compiled

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return compiled(*arguments)

    monkeypatch.setattr(warm_start, "_compiled", interrupted)
    run = tmp_path / "run"
    with pytest.raises(Interrupted, match="SIGINT"):
        train(load_config([*JOB, f"run.dir={run}"]))
    assert not cache.exists(), "nothing is imitated any more"
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert train(load_config([f"resume={run}"]))["env_steps"] == 48


def test_imitation_that_ends_in_no_numbers_is_no_start(cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"warm_start.learning_rate=1e\+30 ends in .* with seed 0; accepted: a lower"):
        prepare(load_config([*JOB, "warm_start.learning_rate=1e30"]))
    assert not cache.exists()


def test_the_cache_is_what_would_be_computed(cache: Path) -> None:
    computed = params()
    assert len([*cache.iterdir()]) == 2 and (computed[0] != computed[1]).any()
    np.testing.assert_array_equal(params(), computed)
    np.testing.assert_array_equal(params("seed=1", "num_seeds=1")[0], computed[1])


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "not finite", "directory"])
def test_a_damaged_cache_is_computed_again(cache: Path, damage: str) -> None:
    computed = params()
    for place in cache.iterdir():
        data = bytearray(place.read_bytes())
        if damage == "directory":
            place.unlink()
            place.mkdir()
            continue
        numbers = np.full((len(data) - 32) // 4, np.nan, "<f4").tobytes()
        data[-3] ^= 1
        unknown = hashlib.sha256(numbers).digest() + numbers
        place.write_bytes({"cut": data[:-4], "flipped": data, "empty": b"", "not finite": unknown}[damage])
    np.testing.assert_array_equal(params(), computed)


def test_other_demonstrations_are_another_start(cache: Path) -> None:
    assert (params() != params("warm_start.errors=0.9")).any()
    assert (params() != params("warm_start.updates=21")).any()


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert np.isfinite(params()).all()


def test_no_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers may run as a user that has none."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    assert np.isfinite(params()).all()
    enable_compile_cache()


def test_demonstrations_take_memory() -> None:
    with pytest.raises(ConfigError, match=r"for demonstrations \(warm_start.batch=10000000"):
        params("warm_start.batch=10000000")


def test_environments_without_demonstrations() -> None:
    with pytest.raises(ConfigError, match=r"warm_start.updates=5 needs an environment with demonstrations"):
        Trainer(load_config(["warm_start.updates=5"]))


def test_runs_side_by_side_share_a_warm_start() -> None:
    """Points of a sweep are prepared by threads; the second one reads what the first one has made."""
    told: list[str] = []
    configs = [load_config([*JOB, "num_seeds=1"]) for _ in range(2)]  # Hydra composes one at a time
    with ThreadPoolExecutor(2) as threads:
        jobs = list(threads.map(lambda config: prepare(config, told.append), configs))
    assert len(told) == 1
    first, second = (job.start for job in jobs)
    assert first is not None and second is not None
    np.testing.assert_array_equal(first.params, second.params)


def test_a_run_that_is_killed_meanwhile_begins_again(tmp_path: Path, cache: Path) -> None:
    """The same command, with the lock of the killed one left behind, trains what it would have trained."""
    job = [*JOB, "num_seeds=1", "run.progress=false", "evaluation.episodes=2"]
    slow = [*job, "warm_start.updates=200_000", f"run.dir={tmp_path / 'run'}"]
    process = begin(tmp_path, sys.executable, SCRIPTS / "train.py", *slow)
    assert process.stdout is not None
    for line in process.stdout:
        if "200000 updates on demonstrations" in line:
            break
    time.sleep(2)
    process.kill()
    process.communicate()
    assert not list(cache.glob("*")), "half a warm start is kept"
    done = call("train.py", *job, f"run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    train(load_config([*job, f"run.dir={tmp_path / 'whole'}"]))
    ours, theirs = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "whole"))
    assert ours["eval_return_mean"] == theirs["eval_return_mean"]
