"""Exported files that somebody made up: each is refused in a sentence, before memory is taken or anything is run.

Hostile files are real ones, edited and sealed again: a seal proves nothing about the author.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from policies import metadata_of, random_policy

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("flatbuffers")

import onnx
from flax import serialization
from jax._src.export import _export
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

from stellaris_jax import ConfigError, load_policy
from stellaris_jax.base.registry import register
from stellaris_jax.envs.base import Box, Discrete, Space
from stellaris_jax.policies.export import artefact, protobuf, stablehlo
from stellaris_jax.policies.export.artefact import ENDINGS, SEAL, UNSEALED, with_fingerprint
from stellaris_jax.policies.export.bytecode import check_bytecode

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


# Metadata


def replaced(path: str, value: Any) -> Callable[[Metadata], None]:
    """An edit that sets one value, at a dotted path."""

    def edit(metadata: Metadata) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            metadata = metadata[parent]
        metadata[name] = value

    return edit


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


# Files


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


# StableHLO


def with_program(edit: Callable[[str], str], **fields: Any) -> bytes:
    """A file whose program is edited as text."""
    line, _, data = real("stablehlo").partition(b"\n")
    exported = jax.export.deserialize(bytearray(data))
    text = edit(exported.mlir_module())
    with mlir.make_ir_context():
        program = _export._module_to_bytecode(ir.Module.parse(text))
    return line + b"\n" + bytes(dataclasses.replace(exported, mlir_module_serialized=program, **fields).serialize())


def inserted(operations: str, kept: str = "", kind: str = "") -> Callable[[str], str]:
    """An edit that puts operations at the beginning of the program.

    Args:
      operations: text; %arg0 is the number of the platform, %arg1 are the observations.
      kept: the result that something seems to need, so that MLIR keeps it.
      kind: its type.
    """
    if kept:
        operations += (
            "\n%yes = stablehlo.constant dense<true> : tensor<i1>\n"
            f"stablehlo.custom_call @shape_assertion(%yes, {kept}) {{api_version = 2 : i32, error_message = "
            f'"{{0}}", has_side_effect = true}} : (tensor<i1>, {kind}) -> ()'
        )
    return lambda text: re.sub(r"(func\.func public @main\(.*\{\n)", rf"\1{operations}\n", text, count=1)


def call(target: str, more: str = "") -> Callable[[str], str]:
    """An edit that puts in a call of a function outside the program."""
    return inserted(
        f"%evil = stablehlo.custom_call @{target}(%arg1) {{has_side_effect = true{more}}} : "
        "(tensor<?x4xf32>) -> tensor<?x4xf32>"
    )


BIG = "tensor<100000x100000xf32>"
ONE = "%one = stablehlo.constant dense<1.0> : tensor<f32>"
WHILE = """%again = stablehlo.while(%x = %arg1) : tensor<?x4xf32> cond {
  %true = stablehlo.constant dense<true> : tensor<i1>
  stablehlo.return %true : tensor<i1>
} do { stablehlo.return %x : tensor<?x4xf32> }"""
DYNAMIC = f"""{ONE}
%sizes = stablehlo.constant dense<[1000000000, 1000]> : tensor<2xi32>
%big = stablehlo.dynamic_broadcast_in_dim %one, %sizes, dims = [] : (tensor<f32>, tensor<2xi32>) -> tensor<?x?xf32>
%part = stablehlo.slice %big [0:1, 0:1] : (tensor<?x?xf32>) -> tensor<1x1xf32>
%scalar = stablehlo.reshape %part : (tensor<1x1xf32>) -> tensor<f32>
%least = stablehlo.convert %scalar : (tensor<f32>) -> tensor<i32>"""
DOUBLING = "\n".join(
    f"func.func private @f{i}(%x: tensor<f32>) -> tensor<f32> {{ %a = func.call @f{i + 1}(%x) : (tensor<f32>) -> "
    f"tensor<f32>\n %b = func.call @f{i + 1}(%a) : (tensor<f32>) -> tensor<f32>\n func.return %b : tensor<f32> }}"
    for i in range(40)
)
LEAF = "func.func private @f40(%x: tensor<f32>) -> tensor<f32> { func.return %x : tensor<f32> }"


def functions(more: str) -> Callable[[str], str]:
    """An edit that adds functions."""
    return lambda text: text.replace("  func.func public", f"{more}\n  func.func public", 1)


def nested(levels: int) -> Callable[[str], str]:
    """An edit that puts operations inside one another."""
    text = "stablehlo.return %arg0 : tensor<i32>"
    for i in range(levels):
        text = f'%x{i} = "stablehlo.case"(%arg0) ({{ {text} }}) : (tensor<i32>) -> tensor<i32>\n'
        text += f"stablehlo.return %x{i} : tensor<i32>"
    case = f'%nested = "stablehlo.case"(%arg0) ({{ {text} }}) : (tensor<i32>) -> tensor<i32>'
    return inserted(case, "%nested", "tensor<i32>")


PROGRAMS = {
    "call": (call("evil_name"), "it calls evil_name, which no exported policy does"),
    "quoted call": (call('"evil-name"'), "it calls evil-name, which no exported policy does"),
    "call of Python": (call("xla_ffi_python_cpu_callback"), "it calls xla_ffi_python_cpu_callback, which"),
    "assertion of another kind": (call("shape_assertion", ', backend_config = "x"'), "it calls shape_assertion as no"),
    "outfeed": (
        inserted(
            '%token = stablehlo.create_token : !stablehlo.token\n%out = "stablehlo.outfeed"(%arg1, %token) '
            '{outfeed_config = ""} : (tensor<?x4xf32>, !stablehlo.token) -> !stablehlo.token'
        ),
        "which no exported policy has",
    ),
    "random numbers": (
        inserted(
            "%u = stablehlo.constant dense<0> : tensor<2xui64>\n%s, %r = stablehlo.rng_bit_generator %u, "
            "algorithm = DEFAULT : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)",
            "%r",
            "tensor<4xui32>",
        ),
        "it has the operation stablehlo.rng_bit_generator, which no exported policy has",
    ),
    "endless loop": (
        inserted(WHILE, "%again", "tensor<?x4xf32>"),
        "it has the operation stablehlo.while, which no exported policy has",
    ),
    "composite": (
        lambda text: inserted(
            '%made = stablehlo.composite "evil.op" %arg0 {decomposition = @f40} : (tensor<i32>) -> tensor<i32>',
            "%made",
            "tensor<i32>",
        )(functions(LEAF.replace("f32>", "i32>"))(text)),
        "it has the operation stablehlo.composite, which no exported policy has",
    ),
    "large constant": (
        inserted(f"%big = stablehlo.constant dense<0.0> : {BIG}", "%big", BIG),
        "its program makes arrays of more than",
    ),
    "large broadcast": (
        inserted(f"{ONE}\n%big = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<f32>) -> {BIG}", "%big", BIG),
        "its program makes arrays of more than",
    ),
    "large dynamic array": (inserted(DYNAMIC, "%least", "tensor<i32>"), "its program makes arrays of more than"),
    "functions that double": (functions(f"{DOUBLING}\n{LEAF}"), "its program has more than 20000 operations"),
    "recursion": (
        functions(
            "func.func private @f0(%x: tensor<f32>) -> tensor<f32> { %a = func.call @f0(%x) : (tensor<f32>) -> "
            "tensor<f32>\n func.return %a : tensor<f32> }"
        ),
        "its function f0 calls itself",
    ),
    "attribute": (
        inserted(
            '%host = stablehlo.abs %arg1 {mhlo.frontend_attributes = {a = "host"}} : tensor<?x4xf32>',
            "%host",
            "tensor<?x4xf32>",
        ),
        "its operation stablehlo.abs has the attribute mhlo.frontend_attributes, which no exported policy has",
    ),
    "nesting": (nested(40), "its operations stand too deep in one another"),
}


@pytest.mark.parametrize(("edit", "sentence"), PROGRAMS.values(), ids=PROGRAMS)
def test_programs_that_do_more_than_arithmetic(edit: Callable[[str], str], sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal("stablehlo", with_program(edit), tmp_path)


def test_an_edit_that_is_harmless_is_read(tmp_path: Path) -> None:
    """So that the refusals above are of what was put in."""
    path = tmp_path / "policy.stablehlo"
    path.write_bytes(
        with_fingerprint(with_program(inserted("%same = stablehlo.abs %arg0 : tensor<i32>", "%same", "tensor<i32>")))
    )
    assert load_policy(path)(np.zeros(4)).shape == (3,)


def test_programs_of_other_forms(tmp_path: Path) -> None:
    line, _, data = real("stablehlo").partition(b"\n")
    exported = jax.export.deserialize(bytearray(data))

    def refused(content: bytes) -> str:
        return refusal("stablehlo", line + b"\n" + content, tmp_path)

    def with_fields(**fields: Any) -> bytes:
        return bytes(dataclasses.replace(exported, **fields).serialize())

    text = exported.mlir_module().encode()
    assert "its program is no MLIR bytecode" in refused(with_fields(mlir_module_serialized=text))
    program = exported.mlir_module_serialized
    assert "its program is cut off" in refused(with_fields(mlir_module_serialized=program[: len(program) // 2]))
    assert "accepted: cpu, cuda, tpu" in refused(with_fields(platforms=("cpu",)))
    assert "version 99 of JAX's calling convention" in refused(with_fields(calling_convention_version=99))
    assert "it is for 0 other platforms" in refused(b"\0" * 64)
    for content in (b"", b"\xff" * 64, bytes(exported.serialize())[:100]):
        assert "it holds no program of jax.export, or is cut off" in refused(content)


def test_types_and_trees_of_the_file_are_not_read(tmp_path: Path) -> None:
    """JAX would make objects of registered classes of a tree, and evaluate the texts of shapes."""
    line, _, data = real("stablehlo").partition(b"\n")
    exported = jax.export.deserialize(bytearray(data))
    tree = jax.tree.structure((({"a": [1, {"b": (None, 2)}]},), {}))
    path = tmp_path / "policy.stablehlo"
    changed = dataclasses.replace(exported, in_tree=tree, in_avals=exported.in_avals * 2)
    path.write_bytes(with_fingerprint(line + b"\n" + bytes(changed.serialize())))
    assert load_policy(path)(np.zeros(4)).shape == (3,)


@pytest.mark.parametrize("byte", [0x00, 0x01, 0x7F, 0xFF])
def test_bytecode_of_any_bytes_is_read_to_its_end(byte: int) -> None:
    """Changed bytes are found, or harmless: no other error, and no endless loop."""
    data = real("stablehlo").partition(b"\n")[2]
    program = jax.export.deserialize(bytearray(data)).mlir_module_serialized
    check_bytecode(program, 8)
    for i in range(0, min(len(program), 4000), 3):
        try:
            check_bytecode(program[:i] + bytes([byte]) + program[i + 1 :], 8)
        except ValueError as error:
            assert "its " in str(error)


class Factor(nn.Module):
    kernel_init: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(4)(x) + jnp.linalg.cholesky(jnp.eye(4) + x[0, 0] ** 2)[0]


def test_what_could_not_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(register.torso._entries, "test/factor", Factor)
    policy = random_policy(REAL, Discrete(3), torso="test/factor")
    with pytest.raises(ConfigError, match=r"--to stablehlo cannot hold this policy of network.torso=test/factor: it "):
        stablehlo.write(policy, metadata_of(policy))


# ONNX


def with_model(edit: Callable[[Any], None]) -> bytes:
    """A file whose model is edited."""
    model = onnx.load_model_from_string(real("onnx"))
    edit(model)
    data: bytes = model.SerializeToString()
    return data


def external(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "secret.bin"


def external_entries(model: Any) -> None:
    model.graph.initializer[0].external_data.add().key = "location"


def location_alone(model: Any) -> None:
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL


def sparse(model: Any) -> None:
    model.graph.sparse_initializer.add().dims.append(4)


def function(model: Any) -> None:
    model.functions.add().name = "Tanh"


def domain(model: Any) -> None:
    model.graph.node[0].domain = "com.evil"
    model.opset_import.add().domain = "com.evil"


def node_domain(model: Any) -> None:
    model.graph.node[0].domain = "com.microsoft"


def operator(model: Any) -> None:
    model.graph.node[0].op_type = "Loop"


def graph_attribute(model: Any) -> None:
    attribute = model.graph.node[0].attribute.add()
    attribute.name, attribute.type = "body", onnx.AttributeProto.GRAPH
    attribute.g.name = "body"


def tensor_attribute(model: Any) -> None:
    attribute = model.graph.node[0].attribute.add()
    attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
    attribute.t.data_location = onnx.TensorProto.EXTERNAL


def attribute(model: Any) -> None:
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("axis", 1))


def training(model: Any) -> None:
    model.training_info.add()


def options(model: Any) -> None:
    entry = model.metadata_props.add()
    entry.key, entry.value = "ort_config", '{"session_options": {"profile_file_prefix": "x"}}'


def version(model: Any) -> None:
    model.ir_version = 99


def operator_version(model: Any) -> None:
    model.opset_import[0].version = 9


def producer(model: Any) -> None:
    model.producer_name = "other"


def expanding(model: Any) -> None:
    """Terabytes, from a hundred bytes."""
    sizes = onnx.numpy_helper.from_array(np.array([10**6, 10**6]), "sizes")
    one = onnx.numpy_helper.from_array(np.float32(1.0).reshape(1, 1), "one")
    model.graph.initializer.extend([sizes, one])
    model.graph.node.append(onnx.helper.make_node("Expand", ["one", "sizes"], ["big"], "big"))


def doubling(model: Any) -> None:
    last = "observation"
    for i in range(40):
        model.graph.node.append(onnx.helper.make_node("Concat", [last, last], [f"x{i}"], f"x{i}", axis=-1))
        last = f"x{i}"


def outer(model: Any) -> None:
    """Products of all observations with one another."""
    nodes = [
        onnx.helper.make_node("ArgMax", ["distribution"], ["row"], "row", axis=-1, keepdims=0),
        onnx.helper.make_node("ArgMax", ["distribution"], ["column"], "column", axis=-1, keepdims=1),
        onnx.helper.make_node("Add", ["row", "column"], ["table"], "table"),
    ]
    model.graph.node.extend(nodes)


def wide(model: Any) -> None:
    model.graph.initializer[0].dims[:] = [2**62, 4]


def negative(model: Any) -> None:
    model.graph.initializer[0].dims[:] = [-1, -4]


def text_tensor(model: Any) -> None:
    model.graph.initializer[0].data_type = onnx.TensorProto.STRING


def layers(model: Any) -> None:
    for i in range(20_000):
        model.graph.node.append(onnx.helper.make_node("Identity", ["observation"], [f"i{i}"]))


def extra_output(model: Any) -> None:
    output = model.graph.output.add()
    output.CopyFrom(model.graph.output[0])
    output.name = "distribution2"


def other_output(model: Any) -> None:
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE


def endless(model: Any) -> None:
    model.graph.node[0].input[0] = "value"


def twice(model: Any) -> None:
    model.graph.node.add().CopyFrom(model.graph.node[0])


MODELS = {
    external: "its tensor has the field external_data, a tensor outside the file, which no exported policy has",
    external_entries: "its tensor has the field external_data, a tensor outside the file, which no exported policy has",
    location_alone: "its tensor has the field data_location, of a tensor outside the file",
    sparse: "its graph has the field sparse_initializer, which no exported policy has",
    function: "its model has the field functions, which no exported policy has",
    domain: "accepted: IR version 8 and the operators [('', 17)]",
    node_domain: "it has the operator com.microsoft.",
    operator: "it has the operator Loop; accepted: Add, ArgMax,",
    graph_attribute: "its attribute has the field g, a graph, which no exported policy has",
    tensor_attribute: "its attribute has the field t, a tensor, which no exported policy has",
    attribute: "has the attribute 'axis' of type 2",
    training: "its model has the field training_info, which no exported policy has",
    options: "it is no policy that was exported here",
    version: "it has IR version 99 and the operators [('', 17)]; accepted: IR version 8",
    operator_version: "it has IR version 8 and the operators [('', 9)]; accepted: IR version 8",
    producer: "it is no policy that was exported here",
    expanding: "its operator Expand has a shape that is not that of a tensor",
    doubling: "its tensors have more than 268435456 elements",
    outer: "makes a tensor whose first axis alone is not the batch",
    wide: "a constant of shape [4611686018427387904, 4] has",
    negative: "a constant has the shape [-1, -4]",
    text_tensor: "a constant has element type 8",
    layers: "it has more than 5000 nodes",
    extra_output: "its outputs are action, distribution, value, distribution2; accepted: action, distribution, value",
    other_output: "its output action is not of float32 [3], as its spaces say",
    endless: "reads value, which nothing before it makes",
    twice: "it has two tensors of the name",
}


@pytest.mark.parametrize("edit", MODELS, ids=lambda edit: edit.__name__)
def test_models_that_are_more_than_a_policy(edit: Callable[[Any], None], tmp_path: Path) -> None:
    """A file of the name in them lies beside the model, and is not read."""
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    assert MODELS[edit] in refusal("onnx", with_model(edit), tmp_path)


@pytest.mark.parametrize("runtime", ["onnxruntime", "onnx"])
def test_external_tensors_are_refused_without_help_of_a_runtime(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = with_model(external)
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda *_, **__: pytest.fail("it was loaded"))
    monkeypatch.setattr("onnx.load_model_from_string", lambda *_, **__: pytest.fail("it was loaded"))
    monkeypatch.setitem(sys.modules, runtime, None)
    assert "a tensor outside the file" in refusal("onnx", data, tmp_path)


def test_messages_that_parsers_read_differently(tmp_path: Path) -> None:
    data = real("onnx")
    assert "its model has the field graph twice" in refusal("onnx", data + b"\x3a\x00", tmp_path)
    assert "its model has a field of number 99, which" in refusal("onnx", data + b"\x9a\x06\x00", tmp_path)
    assert "its field ir_version has wire type 2" in refusal("onnx", b"\x0a\x00" + data[2:], tmp_path)
    assert "it is no ONNX model, or is cut off" in refusal("onnx", data + b"\x80", tmp_path)


def test_fields_of_messages_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "MOST_FIELDS", 50)
    with pytest.raises(ValueError, match="it has more than 50 fields, the most that are read"):
        protobuf.read_model(b"\x3a\x64" + b"\x0a\x00" * 50)  # a graph of nodes with nothing in them


# Flax


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
    "metadata": (replaced("metadata", {}), "its metadata is no text"),
    "other keys": (replaced("more", {}), "it is no mapping of metadata, normalizer, params"),
}


@pytest.mark.parametrize(("edit", "sentence"), TREES.values(), ids=TREES)
def test_arrays_are_compared_with_the_network(edit: Callable[[Any], None], sentence: str, tmp_path: Path) -> None:
    data = with_tree(edit)
    if b"fingerprint" not in data:
        data += msgpack.packb(f'"fingerprint": "{UNSEALED}"')  # so that the fingerprint finds a place
        sentence = ""
    assert sentence in refusal("flax", data, tmp_path)


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
