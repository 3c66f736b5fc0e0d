"""Policies of plug-ins, carried away: export, and what a file cannot hold."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from registries import forgetting

from stellaris_jax import ConfigError, export_policy, load_config, load_policy, register, train

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "plugins" / "policy.py"
SETTINGS = [
    "env=gymnax/pendulum", "network.policy=mixture", "network.options.components=2", "network.hidden=[8]",
    "env.num_envs=4", "algorithm.rollout_length=16", "total_steps=128", "evaluation.points=0", "evaluation.episodes=2",
    "run.progress=false", "run.loggers=[]",
]  # fmt: skip


@pytest.fixture
def mixture() -> Iterator[None]:
    """The example's policy is registered, and forgotten again."""
    with forgetting("policy") as patch:
        spec = importlib.util.spec_from_file_location("mixture_example", EXAMPLE)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield


@pytest.mark.usefixtures("mixture")
def test_a_mixture_is_exported(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(load_config([*SETTINGS, f"run.dir={run_dir}"]))
    policy, obs = load_policy(run_dir), np.float32(np.random.default_rng(0).normal(size=(3, 3)))
    for to, ending in (("stablehlo", "stablehlo"), ("flax", "msgpack")):
        path = tmp_path / f"policy.{ending}"
        export_policy(run_dir, to=to, out=path)
        carried = load_policy(path)
        np.testing.assert_allclose(carried(obs), policy(obs), atol=1e-5)
    with pytest.raises(ValueError, match=r"The distribution of network\.policy=mixture is not in the file"):
        load_policy(tmp_path / "policy.stablehlo")(obs, np.random.default_rng(0))
    with pytest.raises(
        ConfigError, match=r"knows the policies actor_critic, .*, not network\.policy=mixture; stablehlo and flax"
    ):
        export_policy(run_dir, to="onnx", out=tmp_path / "policy.onnx")


def test_a_mixture_is_needed_to_read_its_parameters(tmp_path: Path, mixture: None) -> None:
    run_dir = tmp_path / "run"
    train(load_config([*SETTINGS, f"run.dir={run_dir}"]))
    path = export_policy(run_dir, to="flax", out=tmp_path / "policy.msgpack")
    del register.policy._entries["mixture"]
    with pytest.raises(ConfigError, match="its policy mixture is a plug-in's; import that first"):
        load_policy(path)
