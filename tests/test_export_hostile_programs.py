"""Hostile StableHLO programs: each is refused in a sentence, before anything is run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hostile_policies import REAL, real, refusal
from policies import metadata_of, random_policy

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("flatbuffers")

from jax._src.export import _export
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

from stellaris_jax import ConfigError, load_policy
from stellaris_jax.base.registry import register
from stellaris_jax.envs.base import Discrete
from stellaris_jax.policies.export import stablehlo
from stellaris_jax.policies.export.artefact import with_fingerprint
from stellaris_jax.policies.export.bytecode import check_bytecode


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
