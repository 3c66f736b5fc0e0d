"""Hostile exported files: their metadata and arrays are refused in a sentence, before memory is taken.

A seal proves nothing about the author, so hostile files are real ones, edited and sealed again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hostile_policies import real, refusal, replaced, with_metadata

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("flatbuffers")

from flax import serialization

from stellaris_jax import ConfigError, load_policy
from stellaris_jax.policies.export import artefact
from stellaris_jax.policies.export.artefact import ENDINGS, UNSEALED, with_fingerprint

METADATA = {
    "version": ("version", [1], "its format is version [1], and 1 is what can be read"),
    "true version": ("version", True, "its format is version True, and 1 is what can be read"),
    "env": ("env", 3, "its env is 3; accepted: a text"),
    "normalize": ("normalize_observation", "yes", "its normalize_observation is 'yes'; accepted: true or false"),
    "seed": ("seed", -1, "its seed is -1; accepted: an integer from 0 to 4294967295"),
    "steps": ("env_steps", "many", "its env_steps is 'many'; accepted: a number from 0"),
    "infinite steps": ("env_steps", float("inf"), "its metadata is no JSON: Infinity is no number"),
    "no space": ("observation_space", [], "its observation_space is []; accepted: a mapping"),
    "unknown kind": ("action_space.kind", "Dict", "its action_space.kind is 'Dict'; accepted: one of Box, Discrete"),
    "kind of a list": ("action_space.kind", ["Box"], "its action_space.kind is ['Box']; accepted: one of Box"),
    "missing field": ("action_space", {"kind": "Discrete"}, "accepted: a mapping with the keys kind, n"),
    "other field": ("action_space", {"kind": "Discrete", "n": 3, "m": 1}, "a mapping with the keys kind, n"),
    "no actions": (
        "action_space",
        {"kind": "Discrete", "n": 0},
        "its action_space.n is 0; accepted: an integer from 1",
    ),
    "true actions": ("action_space", {"kind": "Discrete", "n": True}, "its action_space.n is True; accepted"),
    "all actions": ("action_space", {"kind": "Discrete", "n": 10**18}, "its action_space.n is 1000000000000000000;"),
    "no choices": ("action_space", {"kind": "MultiDiscrete", "nvec": []}, "accepted: at least one choice"),
    "choices of text": ("action_space", {"kind": "MultiDiscrete", "nvec": "33"}, "nvec is '33'; accepted: a list"),
    "too many choices": ("action_space", {"kind": "MultiDiscrete", "nvec": [2**24] * 2}, "at most 16777216 parameters"),
    "discrete observations": ("observation_space", {"kind": "Discrete", "n": 4}, "kind is 'Discrete'; accepted: Box"),
    "dtype": ("observation_space.dtype", "float64", "dtype is 'float64'; accepted: float32 or uint8"),
    "object": ("observation_space.dtype", "O", "its observation_space.dtype is 'O'; accepted: float32 or uint8"),
    "no dtype": ("observation_space.dtype", None, "dtype is None; accepted: float32 or uint8"),
    "action bytes": ("action_space.dtype", "uint8", "its action_space.dtype is 'uint8'; accepted: float32"),
    "shape": ("observation_space.shape", 4, "its observation_space.shape is 4; accepted: a list"),
    "negative": ("observation_space.shape", [-4], "its observation_space.shape is -4; accepted: an integer from 1"),
    "huge": ("observation_space.shape", [2**20, 2**20], "shape is [1048576, 1048576]; accepted: at most 16777216"),
    "many axes": ("observation_space.shape", [1] * 99, "accepted: a list of at most 8 integers"),
    "action axes": ("action_space.shape", [3, 1], "its action_space.shape is [3, 1]; accepted: a list of one integer"),
    "nan": ("action_space.low", "nan", "its action_space.low is 'nan'; accepted: a number as text, or a list of 3"),
    "words": ("action_space.high", ["1", "2", "x"], "its action_space.high is ['1', '2', 'x']; accepted: a number"),
    "few bounds": (
        "action_space.low",
        ["-1", "-1"],
        "its action_space.low is ['-1', '-1']; accepted: a number as text",
    ),
    "no bounds": ("action_space.low", -1.0, "its action_space.low is -1.0; accepted: a number as text"),
    "crossed": ("action_space.low", "2.0", "its action_space.low is '2.0'; accepted: at most action_space.high, '1.0'"),
    "network": ("network", "mlp", "its network is 'mlp'; accepted: a mapping"),
    "network key": ("network.layers", 3, "its network.'layers' is no key of this version's configurations"),
    "widths": ("network.hidden", ["8"], "network.hidden must be a list of integers, not ['8']"),
    "no width": ("network.hidden", [0], "network.hidden must be at least 1, not 0"),
    "layers": ("network.hidden", [1] * 20_000, "accepted: at most 64 layers"),
    "activation": ("network.activation", "gelu", "network.activation must be one of tanh, relu, not 'gelu'"),
    "memory": ("network.memory", "gru", "its network.memory is 'gru'; accepted: none, for no format has memory"),
}


@pytest.mark.parametrize("to", ENDINGS)
@pytest.mark.parametrize(("path", "value", "sentence"), METADATA.values(), ids=METADATA)
def test_metadata_is_checked_at_load(to: str, path: str, value: Any, sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal(to, with_metadata(to, replaced(path, value)), tmp_path)


@pytest.mark.parametrize("to", ENDINGS)
def test_metadata_lacks_a_field(to: str, tmp_path: Path) -> None:
    message = refusal(to, with_metadata(to, lambda metadata: metadata.pop("action_space")), tmp_path)
    assert message == "its metadata lacks action_space."


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"version": 1' + "0" * 5000])
def test_metadata_that_is_no_json(deep: str, tmp_path: Path) -> None:
    data = deep.encode() + b'"fingerprint": "' + UNSEALED.encode() + b'"\n'
    assert refusal("stablehlo", data, tmp_path).startswith("its metadata is no JSON")


@pytest.mark.parametrize("to", ENDINGS)
def test_spaces_of_another_policy(to: str, tmp_path: Path) -> None:
    """The program or the parameters are compared with the spaces at load, not at the first call."""
    wider = {"kind": "Box", "shape": [5], "low": "-1.0", "high": "1.0", "dtype": "float32"}
    for key in ("observation_space", "action_space"):
        message = refusal(to, with_metadata(to, replaced(key, wider)), tmp_path)
        assert re.search("its program is of type|is not of float32|do not fit|its network has|its params", message)


@pytest.mark.parametrize("to", ENDINGS)
def test_only_regular_files_of_bounded_size_are_read(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"policy{ENDINGS[to]}"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=r"cannot be read: it is a pipe, not a regular file\.$"):
        load_policy(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"cannot be read: it is a device, not a regular file\.$"):
        load_policy(path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(2**30 + 1)  # a sparse file: it takes no space
    with pytest.raises(ConfigError, match=r"it holds more than 1,024 MiB, the most that is read\.$"):
        load_policy(path)
    with pytest.raises(ConfigError, match="cannot be read: embedded null byte"):
        load_policy(f"{tmp_path}/a\0b{ENDINGS[to]}")
    monkeypatch.setattr(artefact, "MOST_BYTES", 2**10)
    with pytest.raises(ConfigError, match="accepted: at most"):
        with_fingerprint(real(to))


def with_tree(edit: Callable[[Any], None]) -> bytes:
    """A file whose arrays are edited."""
    tree = serialization.msgpack_restore(real("flax"))
    edit(tree)
    data: bytes = serialization.msgpack_serialize(tree)
    return data


TREES = {
    "shape": (
        replaced("params.actor.Dense_0.kernel", np.zeros((8, 4), np.float32)),
        "its params.actor.Dense_0.kernel is [8, 4]; accepted: an array of shape [4, 8]",
    ),
    "name": (
        replaced("params.evil", np.zeros(0, np.float32)),
        "its params holds ['actor', 'critic', 'evil', 'log_std']",
    ),
    "size": (replaced("params.evil", np.zeros(7, np.float32)), "its network has 119 parameters, but it holds 126"),
    "dtype": (
        replaced("params.log_std", np.zeros(3, np.float64)),
        "it holds an array of dtype 'float64' and shape [3]; accepted: float32",
    ),
    "objects": (replaced("params.log_std", "zeros"), "its params hold 'zeros'; accepted: mappings of arrays"),
    "no arrays": (replaced("normalizer.mean", 0.5), "its normalizer.mean is 0.5; accepted: an array of shape [4]"),
    "statistics": (replaced("normalizer.mean", np.zeros(5, np.float32)), "its normalizer.mean is [5]; accepted"),
    "no statistics": (replaced("normalizer", {}), "its normalizer holds []; accepted: mean, samples, variance"),
    "complex": (replaced("params.log_std", 1j), "it holds an object of type 2; accepted: arrays"),
    "metadata": (replaced("metadata", {"seal": f'"fingerprint": "{UNSEALED}"'}), "its metadata is no text"),
    "other keys": (replaced("more", {}), "it is no mapping of metadata, normalizer, params"),
}


@pytest.mark.parametrize(("edit", "sentence"), TREES.values(), ids=TREES)
def test_arrays_are_compared_with_the_network(edit: Callable[[Any], None], sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal("flax", with_tree(edit), tmp_path)


@pytest.mark.parametrize("hidden", [[2**30, 2**30], [2**62], [10**6] * 64])
def test_sizes_are_checked_before_memory_is_taken(hidden: list[int], tmp_path: Path) -> None:
    message = refusal("flax", with_metadata("flax", replaced("network.hidden", hidden)), tmp_path)
    assert message.startswith("its network.hidden is [") and message.endswith("but it holds 119 parameters.")


def packed_array(shape: Any, dtype: str, content: bytes) -> Any:
    return msgpack.ExtType(1, msgpack.packb((shape, dtype, content)))


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"params": packed_array([2**40], "float32", b"")}, "an array of shape [1099511627776] with 0 bytes"),
        ({"params": packed_array([-1, -1], "float32", b"0000")}, "an array of dtype 'float32' and shape [-1, -1]"),
        ({"params": packed_array([1] * 99, "float32", b"0000")}, "99 exceeds max_array_len(8)"),
        ({"params": packed_array([1], "O", b"0" * 8)}, "an array of dtype 'O' and shape [1]; accepted: float32"),
        ({"params": packed_array("4", "float32", b"0000")}, "not made of a shape, a dtype and bytes"),
        ({"params": msgpack.ExtType(5, b"")}, "it holds an object of type 5; accepted: arrays"),
        ({"params": [[]]}, "exceeds max_array_len(0)"),
        ({str(i): {} for i in range(2000)}, "2001 exceeds max_map_len(1000)"),
    ],
)
def test_counts_in_msgpack_are_bounded(tree: Any, sentence: str, tmp_path: Path) -> None:
    """Memory for as many elements as a file states would be taken before they are read, at every level."""
    metadata = serialization.msgpack_restore(real("flax"))["metadata"]
    assert sentence in refusal("flax", msgpack.packb({"metadata": metadata, **tree}), tmp_path)


def test_nested_counts_in_msgpack(tmp_path: Path) -> None:
    metadata = serialization.msgpack_restore(real("flax"))["metadata"]
    bomb = b"\x82" + msgpack.packb("metadata") + msgpack.packb(metadata) + msgpack.packb("params")
    assert "exceeds max_array_len(0)" in refusal("flax", bomb + b"\xdd\x00\x10\x00\x00" * 2**18, tmp_path)
