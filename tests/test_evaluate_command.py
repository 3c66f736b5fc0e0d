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


def test_another_environment_than_the_run_has(tmp_path: Path) -> None:
    """Arguments of the environment as on a training's command line; everything else is the run's."""
    train(load_config([*SMALL, f"run.dir={tmp_path / 'run'}"]))
    evaluate = ("evaluate.py", tmp_path / "run")
    shorter = call(*evaluate, "--episodes", 4, "env.kwargs.max_steps_in_episode=3", "--json")
    found = json.loads(shorter.stdout)
    assert shorter.returncode == 0, shorter.stderr
    assert (found["length_mean"], found["env.kwargs.max_steps_in_episode"]) == (3.0, 3)
    said = call(*evaluate, "env.kwargs.max_steps_in_episode=3", "--episodes", 4)
    assert said.stdout.startswith("gymnax/CartPole-v1, round 1, env.kwargs.max_steps_in_episode=3\n")
    for line in ("seed=3", "env.kwargs=3", "env.kwargs.a", "env.kwargs.max_steps_in_episode=3,4", "env.kwargs.a.b=1"):
        refused = call(*evaluate, line)
        assert refused.returncode == 2, line
        assert (
            refused.stderr == f"error: {line!r} is no argument of the environment; accepted: env.kwargs.NAME=VALUE.\n"
        )
    unknown = call(*evaluate, "env.kwargs.max_step=3")
    assert unknown.returncode == 2 and "max_steps_in_episode" in unknown.stderr and "Traceback" not in unknown.stderr
