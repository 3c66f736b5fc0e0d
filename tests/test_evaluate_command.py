"""The command `evaluate`: how many episodes it plays, and of which trained seeds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import call

from stellaris_jax import load_config
from stellaris_jax.execute.run import train

SMALL = ["env.num_envs=8", "network.hidden=[4]", "algorithm.rollout_length=8", "algorithm.epochs=2",
         "run.progress=false", "total_steps=64", "evaluation.episodes=0"]  # fmt: skip


def test_more_episodes_than_fit(tmp_path: Path) -> None:
    train(load_config([*SMALL, f"run.dir={tmp_path / 'run'}"]))
    refused = call("evaluate.py", tmp_path / "run", "--episodes", 1000000000000)
    assert refused.returncode == 2 and "evaluation.episodes=1000000000000" in refused.stderr
    last = call("evaluate.py", tmp_path / "run", "--episodes", 2, "--seed", 2**32 - 1, "--json")
    assert last.returncode == 0 and json.loads(last.stdout)["episodes"] == 2


def test_one_of_the_trained_seeds(tmp_path: Path) -> None:
    train(load_config([*SMALL, "seed=3", "num_seeds=2", f"run.dir={tmp_path / 'run'}"]))
    evaluate = ("evaluate.py", tmp_path / "run", "--episodes", 5)
    whole = call(*evaluate)
    every = dict(re.findall(r"(\d+): ([\d.]+)", whole.stdout.partition("per seed: ")[2]))
    assert whole.returncode == 0 and list(every) == ["3", "4"] and every["3"] != every["4"]
    for seed, value in every.items():
        one = call(*evaluate, "--trained-seed", seed, "--json")
        found = json.loads(one.stdout)
        assert one.returncode == 0 and found["episodes"] == 5
        assert found["return_mean"] == pytest.approx(float(value), rel=0.01)
    refused = call(*evaluate, "--trained-seed", 2)
    assert refused.returncode == 2 and "seed=2 is not in the run; accepted: 3, 4." in refused.stderr
