"""Exported files that somebody made up, for tests: real files, edited and sealed again, and their refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from policies import metadata_of, random_policy

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("flatbuffers")

import onnx
from flax import serialization

from stellaris_jax import ConfigError, load_policy
from stellaris_jax.envs.base import Box, Space
from stellaris_jax.policies.export.artefact import ENDINGS, SEAL, UNSEALED, with_fingerprint

REAL = Box((4,), (-9.0,) * 4, (9.0,) * 4)
JOINTS = Box((3,), (-1.0,) * 3, (1.0,) * 3)
Metadata = dict[str, Any]


@cache
def real(to: str, action: Space = JOINTS) -> bytes:
    """A file of a policy, which is not sealed."""
    policy = random_policy(REAL, action)
    data: bytes = import_module(f"stellaris_jax.policies.export.{to}").write(policy, metadata_of(policy))
    return data


def refusal(to: str, data: bytes, folder: Path) -> str:
    """The message by which a file is refused, once it is sealed: one line that begins with the file's name."""
    path = folder / f"policy{ENDINGS[to]}"
    path.write_bytes(with_fingerprint(SEAL.sub(f'"fingerprint": "{UNSEALED}"'.encode(), data, count=1)))
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    message = str(caught.value)
    assert message.startswith(f"{path} cannot be read: ") and message.count("\n") == 0 and message.endswith(".")
    return message.removeprefix(f"{path} cannot be read: ")


def with_metadata(to: str, edit: Callable[[Metadata], None], action: Space = JOINTS) -> bytes:
    """A file whose metadata is edited."""

    def edited(text: str | bytes) -> str:
        metadata = json.loads(text)
        edit(metadata)
        return json.dumps(metadata)

    data = real(to, action)
    if to == "stablehlo":
        line, _, program = data.partition(b"\n")
        return edited(line).encode() + b"\n" + program
    if to == "flax":
        tree = serialization.msgpack_restore(data)
        return serialization.msgpack_serialize({**tree, "metadata": edited(tree["metadata"])})
    model = onnx.load_model_from_string(data)
    model.metadata_props[0].value = edited(model.metadata_props[0].value)
    return model.SerializeToString()


def replaced(path: str, value: Any) -> Callable[[Metadata], None]:
    """An edit that sets one value, at a dotted path."""

    def edit(metadata: Metadata) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            metadata = metadata[parent]
        metadata[name] = value

    return edit
