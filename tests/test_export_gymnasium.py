"""The loop of docs/policies.md: in gymnasium, exported policies reach the return of their run's own evaluation."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import REPOSITORY

pytest.importorskip("gymnasium")
pytest.importorskip("onnxruntime")

import gymnasium

from stellaris_jax import load_config, load_policy
from stellaris_jax.base.statistics import mean_ci95
from stellaris_jax.execute.run import train
from stellaris_jax.policies.export.writing import export_policy

PAGE = (REPOSITORY / "docs" / "policies.md").read_text()
(LOOP,) = re.findall(r"```python\nimport gymnasium\n\n(env = .*?)```", PAGE, re.S)


def played(name: str, policy: Any, episodes: int) -> list[float]:
    """Returns of the loop's episodes, each on another seed."""
    program = compile(LOOP.replace('"CartPole-v1"', repr(name)).replace("seed=0", "seed=seed"), "policies.md", "exec")
    returns = []
    for seed in range(episodes):
        scope: dict[str, Any] = {"gymnasium": gymnasium, "np": np, "policy": policy, "seed": seed}
        exec(program, scope)
        returns.append(scope["total"])
    return returns


def assert_reaches(run_dir: Path, name: str, policy: Any, episodes: int) -> None:
    summary = json.loads((run_dir / "summary.json").read_text())
    ours, half_width = mean_ci95(played(name, policy, episodes))
    within = math.hypot(half_width, summary["eval_return_ci95"])
    assert abs(ours - summary["eval_return_mean"]) <= within, (ours, half_width, summary["eval_return_mean"])


def test_loop_has_five_lines() -> None:
    assert LOOP.count("\n") == 5


def test_cartpole_learned_in_gymnax_is_played_in_gymnasium(tmp_path: Path) -> None:
    """So little trained that episodes differ; a policy of other parameters is told apart."""
    run_dir = tmp_path / "run"
    small = ["network.hidden=[16]", "total_steps=10240", "evaluation.episodes=64", "evaluation.points=1"]
    train(load_config(["env=gymnax/cartpole", *small, f"run.dir={run_dir}", "run.progress=false"]))
    policy = load_policy(export_policy(run_dir, "onnx"))
    assert_reaches(run_dir, "CartPole-v1", policy, 32)
    assert_reaches(run_dir, "CartPole-v1", load_policy(run_dir), 8)
    with pytest.raises(AssertionError):
        assert_reaches(run_dir, "CartPole-v1", lambda obs: np.int64(0), 8)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "stablehlo"])
def test_hopper(to: str, tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    run_dir = tmp_path / "run"
    small = ["env.num_envs=8", "env.normalize_observation=true", "total_steps=40960", "evaluation.episodes=32"]
    small += ["evaluation.points=1", "algorithm.learning_rate=3e-4"]
    train(load_config(["env=gymnasium/Hopper-v5", *small, f"run.dir={run_dir}", "run.progress=false"]))
    policy = load_policy(export_policy(run_dir, to))
    assert_reaches(run_dir, "Hopper-v5", policy, 32)
    if to == "onnx":  # as the papers' experiments are evaluated
        generator = np.random.default_rng(0)
        sampled, _ = mean_ci95(played("Hopper-v5", lambda obs: policy(obs, generator), 8))
        assert math.isfinite(sampled)
