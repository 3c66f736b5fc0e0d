"""Exported policies: they act as the policy they were made from, take any batch, and refuse what they cannot be."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from commands import REPOSITORY, call, said
from policies import metadata_of, random_policy, written
from training import steps, tiny

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("flatbuffers")

from stellaris_jax import ConfigError, load_policy
from stellaris_jax.agent.networks.torsos import Convolutions, Layer
from stellaris_jax.base.errors import RunError
from stellaris_jax.base.registry import register
from stellaris_jax.envs.base import Box, Discrete, MultiBinary, MultiDiscrete, Space
from stellaris_jax.envs.rescale import unit_box
from stellaris_jax.envs.space_data import space_from_data, space_to_data
from stellaris_jax.execute.run import train
from stellaris_jax.policies.export import onnx as to_onnx
from stellaris_jax.policies.export.artefact import ENDINGS, sampled, with_fingerprint
from stellaris_jax.policies.export.writing import export_policy
from stellaris_jax.policies.policy import Policy
from stellaris_jax.telemetry.format import significant

REAL = Box((4,), (-9.0,) * 4, (9.0,) * 4)
OWN = Box((3,), (0.0, -3.0, 5.0), (4.0, 10.0, 7.0))
JOINTS = Box((3,), (-0.5, -math.inf, -0.1), (0.5, 0.2, math.inf))


def image(height: int, width: int, channels: int = 3, dtype: str = "uint8") -> Box:
    size, high = height * width * channels, 255.0 if dtype == "uint8" else 1.0
    return Box((height, width, channels), (0.0,) * size, (high,) * size, dtype)


def observations(space: Box, count: int) -> np.ndarray:
    drawn = np.random.default_rng(count).uniform(space.low[0], space.high[0], (count, *space.shape))
    return drawn.astype(space.dtype)


CASES: dict[str, tuple[Box, Space, dict[str, Any]]] = {
    "discrete": (REAL, Discrete(3), {}),
    "continuous": (REAL, JOINTS, {"hidden": (16, 8), "activation": "relu"}),
    "state": (REAL, JOINTS, {"log_std": "state", "normalize": False}),
    "shared": (REAL, JOINTS, {"shared": True, "hidden": (16, 8)}),
    "linear": (Box((), (-1.0,), (1.0,)), Discrete(2), {"hidden": ()}),
    "choices": (Box((2, 3), (-1.0,) * 6, (1.0,) * 6), MultiDiscrete((2, 4, 3)), {}),
    "switches": (REAL, MultiBinary(4), {}),
    "rescaled": (REAL, unit_box(OWN), {"own": OWN}),
    "bytes": (Box((5,), (0.0,) * 5, (255.0,) * 5, "uint8"), Discrete(3), {"normalize": True}),
    "nature_cnn": (image(39, 36), Discrete(4), {"torso": "nature_cnn", "activation": "relu"}),
    "rllib_cnn": (image(84, 81, 2), Discrete(4), {"torso": "rllib_cnn", "shared": True}),
    "impala_cnn": (image(5, 6), Discrete(4), {"torso": "impala_cnn", "shared": True}),
    "q_network": (REAL, Discrete(3), {"policy": "q_network", "activation": "relu"}),
    "dueling": (
        image(39, 36),
        Discrete(4),
        {"policy": "q_network", "torso": "nature_cnn", "activation": "relu", "options": {"dueling": True}},
    ),
    "squashed": (REAL, OWN, {"policy": "squashed_gaussian_twin_q", "hidden": (16, 8), "activation": "relu"}),
    "minatar_cnn": (image(10, 10, 4, "float32"), JOINTS, {"torso": "minatar_cnn"}),
}


@pytest.fixture(scope="module", params=CASES)
def policy(request: pytest.FixtureRequest) -> Policy:
    observed, acted, settings = CASES[request.param]
    return random_policy(observed, acted, **settings)


@pytest.mark.parametrize("to", ENDINGS)
def test_acts_as_the_policy_it_was_made_from(to: str, policy: Policy, tmp_path: Path) -> None:
    """Outputs to 1e-5, on batches of any size, and on one observation."""
    carried = load_policy(written(policy, to, tmp_path))
    space = policy.network.observation_space
    obs = observations(space, 7)
    for ours, theirs in zip(policy.outputs(obs), carried.outputs(obs), strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)
    one = carried(obs[3].tolist())
    assert one.shape == policy.network.action_space.shape
    np.testing.assert_allclose(one, policy(obs[3]), rtol=1e-5, atol=1e-5)
    again, carry = carried.step(obs[3], None)  # as policies of run directories, with memory and without
    np.testing.assert_array_equal(again, one)
    assert carry is None
    if policy.network.action_space is JOINTS and space is REAL:
        actions = np.asarray(carried(observations(space, 100)))
        assert (actions >= np.float32(JOINTS.low)).all() and (actions <= np.float32(JOINTS.high)).all()
        assert (actions == np.float32(JOINTS.high)).any(), "no bound was met"


@pytest.mark.parametrize("to", ENDINGS)
def test_rescaled_actions_are_those_of_the_environment(to: str, tmp_path: Path) -> None:
    """Greedy and sampled ones, up to both bounds."""
    policy = random_policy(REAL, unit_box(OWN), own=OWN)
    carried = load_policy(written(policy, to, tmp_path))
    obs = observations(REAL, 100)
    key = jax.random.key(0) if isinstance(carried, Policy) else np.random.default_rng(0)
    for actions in map(np.asarray, (policy(obs), carried(obs), carried(obs, key))):  # type: ignore[arg-type]
        assert (actions >= np.float32(OWN.low)).all() and (actions <= np.float32(OWN.high)).all()
    mean = np.asarray(policy.outputs(obs).distribution[:, :3])
    expected = np.array([2.0, 3.5, 6.0]) + np.clip(mean, -1, 1) * np.array([2.0, 6.5, 1.0])
    np.testing.assert_allclose(carried(obs), expected, rtol=1e-5, atol=1e-5)
    sampled_ones = np.asarray(carried(obs, key))  # type: ignore[arg-type]
    assert (sampled_ones == np.float32(OWN.low)).any() and (sampled_ones == np.float32(OWN.high)).any()


def test_every_torso_is_tested() -> None:
    assert {settings.get("torso", "mlp") for _, _, settings in CASES.values()} == set(register.torso)


def test_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    carried = load_policy(written(random_policy(REAL, Discrete(3)), "onnx", tmp_path))
    with pytest.raises(ValueError, match=r"accepted: \(4,\) or \(B, 4\)"):
        carried(np.zeros(3))
    assert repr(carried).endswith(", float32 observations of shape (4,), actions of Discrete)")


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2, 3)), MultiBinary(2), JOINTS], ids=str)
def test_samples_from_the_distribution_it_tells(space: Space) -> None:
    """Frequencies and moments of 20,000 draws, to some five deviations."""
    size = {"Discrete": 3, "MultiDiscrete": 5, "MultiBinary": 2, "Box": 6}[type(space).__name__]
    parameters = np.random.default_rng(1).normal(size=size).astype(np.float32)
    drawn = sampled(np.tile(parameters, (20_000, 1)), space_to_data(space), np.random.default_rng(0))
    assert drawn.shape == (20_000, *space.shape) and drawn.dtype == space.dtype
    if isinstance(space, Box):
        mean, log_std = np.split(parameters, 2)
        free = np.random.default_rng(2).normal(mean, np.exp(log_std), (20_000, 3))
        clipped = np.clip(free, space.low, space.high)
        np.testing.assert_allclose(drawn.mean(axis=0), clipped.mean(axis=0), atol=0.05 * np.exp(log_std).max())
        np.testing.assert_allclose(drawn.std(axis=0), clipped.std(axis=0), atol=0.05 * np.exp(log_std).max())
        return
    if isinstance(space, MultiBinary):
        np.testing.assert_allclose(drawn.mean(axis=0), 1 / (1 + np.exp(-parameters)), atol=0.02)
        return
    sizes = (space.n,) if isinstance(space, Discrete) else space.nvec
    logits = np.split(parameters, np.cumsum(sizes)[:-1])
    for column, part in zip(drawn.reshape(20_000, -1).T, logits, strict=True):
        shares = np.bincount(column, minlength=len(part)) / len(column)
        np.testing.assert_allclose(shares, np.exp(part) / np.exp(part).sum(), atol=0.02)


@pytest.mark.parametrize("space", [REAL, JOINTS, image(2, 3), Discrete(2), MultiDiscrete((2, 3)), MultiBinary(4)])
def test_spaces_survive_json(space: Space) -> None:
    assert space_from_data(json.loads(json.dumps(space_to_data(space), allow_nan=False))) == space


def test_a_torso_made_of_our_parts_is_exported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Convolutions((Layer(4, 4, 3, "SAME"), Layer(8, 2, 1, "VALID")))
    monkeypatch.setitem(register.torso._entries, "test/two_layers", ours)
    policy = random_policy(image(11, 8), Discrete(4), torso="test/two_layers")
    obs = observations(policy.network.observation_space, 3)
    carried = load_policy(written(policy, "onnx", tmp_path))
    np.testing.assert_allclose(carried.outputs(obs).distribution, policy.outputs(obs).distribution, atol=1e-5)


class Foreign(nn.Module):
    kernel_init: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.tanh(nn.DenseGeneral(8)(x))


def test_a_torso_of_a_plugin_is_refused_for_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(register.torso._entries, "test/dense", Foreign)
    policy = random_policy(REAL, Discrete(3), torso="test/dense")
    with pytest.raises(ConfigError, match=r"knows our own torsos, not network.torso=test/dense; stablehlo and flax"):
        to_onnx.write(policy, metadata_of(policy))
    obs = observations(REAL, 3)
    for to in ("stablehlo", "flax"):
        carried = load_policy(written(policy, to, tmp_path))
        np.testing.assert_allclose(carried.outputs(obs).value, policy.outputs(obs).value, atol=1e-5)
    monkeypatch.delitem(register.torso._entries, "test/dense")
    load_policy(tmp_path / "policy.stablehlo")
    with pytest.raises(ConfigError, match="its torso test/dense is a plug-in's; import that first"):
        load_policy(tmp_path / "policy.msgpack")


# Files that are not as they should be


@pytest.mark.parametrize("to", ENDINGS)
def test_damage_is_told_in_a_sentence(to: str, tmp_path: Path) -> None:
    path = written(random_policy(REAL, Discrete(3)), to, tmp_path)
    data = path.read_bytes()
    for damaged in (data[:-1], data + b"\0", data[:700] + bytes([data[700] ^ 1]) + data[701:], data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"is damaged: its contents|is no policy that was exported here"):
            load_policy(path)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="is no policy that was exported here"):
        load_policy(path)
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_policy(path)


@pytest.mark.parametrize("to", ENDINGS)
def test_another_version_is_told_in_a_sentence(to: str, tmp_path: Path) -> None:
    policy = random_policy(REAL, Discrete(3))
    data = import_module(f"stellaris_jax.policies.export.{to}").write(policy, metadata_of(policy))
    path = tmp_path / f"policy{ENDINGS[to]}"
    path.write_bytes(with_fingerprint(data.replace(b'"version": 1,', b'"version": 7,')))
    with pytest.raises(ConfigError, match="cannot be read: its format is version 7, and 1 is what can be read"):
        load_policy(path)


def test_a_missing_package_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy(REAL, Discrete(3))
    carried = {to: written(policy, to, tmp_path) for to in ENDINGS}
    obs = observations(REAL, 3)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    reference = load_policy(carried["onnx"])  # by ONNX's own reference
    np.testing.assert_allclose(reference.outputs(obs).value, policy.outputs(obs).value, atol=1e-5)
    for name in ("onnx", "flatbuffers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"needs onnxruntime: pip install onnxruntime"):
        load_policy(carried["onnx"])
    with pytest.raises(ConfigError, match=r"needs ONNX: pip install 'stellaris-jax\[onnx\]'"):
        to_onnx.write(policy, metadata_of(policy))
    with pytest.raises(ConfigError, match=r"needs flatbuffers: pip install 'stellaris-jax\[stablehlo\]'"):
        load_policy(carried["stablehlo"])


# From a run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    train(tiny(steps(4), f"run.dir={path}", "num_seeds=2"))
    return path


def test_command_exports_a_run_with_a_card(run_dir: Path, tmp_path: Path) -> None:
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    own = load_policy(run_dir, seed=1)
    for to, ending in ENDINGS.items():
        out = tmp_path / f"new/carried{ending}"
        done = call("export.py", run_dir, "--to", to, "--out", out, "--seed", 1)
        assert done.returncode == 0, done.stderr
        assert str(out) in done.stdout and f"{out}.md" in done.stdout
        np.testing.assert_allclose(load_policy(out).outputs(obs).distribution, own.outputs(obs).distribution, atol=1e-5)
        text = Path(f"{out}.md").read_text()
        per_seed = json.loads((run_dir / "summary.json").read_text())["eval_return_per_seed"]
        assert "| task | gymnax/CartPole-v1, episodes of at most 500 steps |" in text
        assert f"| return of this seed | {significant(per_seed[1])} |" in text
        assert "2 seeds, 8 episodes, the most likely actions |" in text
        assert f"stellaris-jax export {run_dir} --to {to} --out {out} --seed 1" in text and "jax 0" in text
    assert {path.name.partition(".")[0] for path in (tmp_path / "new").iterdir()} == {"carried"}, "left something"


def test_policies_with_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(tiny(steps(4), "network.memory=gru", "run.dir=gru"))
    with pytest.raises(ConfigError, match=r"gru has network.memory=gru, and no format has memory"):
        export_policy("gru", "flax")


def test_mistakes_of_a_command_are_one_line(run_dir: Path, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        done = call("export.py", *arguments)
        assert done.returncode == 2 and done.stdout == "" and len(said(done.stderr)) == 1, done.stderr
        return done.stderr

    out = tmp_path / "policy.onnx"
    assert "must end in .onnx for --to onnx" in refused(run_dir, "--to", "onnx", "--out", tmp_path / "policy.pb")
    assert "seed=7 is not in the run; accepted: 0, 1." in refused(run_dir, "--to", "onnx", "--seed", 7)
    assert "invalid choice: 'pickle'" in refused(run_dir, "--to", "pickle")
    assert "holds no run" in refused(tmp_path, "--to", "onnx")
    for existing in (out, tmp_path / "policy.onnx.md"):
        existing.write_text("mine")
        assert f"{existing} exists; name another file" in refused(run_dir, "--to", "onnx", "--out", out)
        assert existing.read_text() == "mine"
        existing.unlink()
    with pytest.raises(ConfigError, match="is no format; accepted: stablehlo, onnx, flax"):
        export_policy(run_dir, "pickle")
    with pytest.raises(ConfigError, match="seed=1 chooses among those of a run"):
        load_policy(out, seed=1)
    with pytest.raises(ConfigError, match=r"is no policy; accepted: a run directory, .stablehlo, .onnx, .msgpack"):
        load_policy(run_dir / "config.yaml")
    assert not list(run_dir.glob("policy*")) and not list(tmp_path.iterdir())


def test_what_cannot_be_written_leaves_nothing(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="could not be written: No space left on device"):
        export_policy(run_dir, "onnx", tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


TRAINING = ("hydra", "omegaconf", "yaml", "orbax", "flax", "optax", "gymnax", "matfree", "matplotlib", "rich")
BLOCKED = {
    "onnx": (*TRAINING, "jax", "jaxlib", "scipy", "onnx"),
    "stablehlo": (*TRAINING, "onnx", "onnxruntime"),  # SciPy is one of JAX's own
}
ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(f"{{name}} is not installed", name=name)

sys.meta_path.insert(0, Blocked())
import numpy as np
from stellaris_jax import load_policy

policy = load_policy("{path}")
print(policy(np.load("obs.npy")).tolist())
assert not {blocked} & {{name.partition(".")[0] for name in sys.modules}}
"""


@pytest.mark.parametrize("to", BLOCKED)
def test_runs_without_what_training_takes(to: str, run_dir: Path, tmp_path: Path) -> None:
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    np.save(tmp_path / "obs.npy", obs)
    path = export_policy(run_dir, to, tmp_path / f"policy{ENDINGS[to]}")
    code = ALONE.format(blocked=set(BLOCKED[to]), path=path.name)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == load_policy(run_dir)(obs).tolist()


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.flax: there is no such file"):
        load_policy("nowhere.flax")
