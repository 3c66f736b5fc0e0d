"""StableHLO format: the policy serialized by `jax.export`, for any batch size, on CPUs, NVIDIA GPUs and TPUs.

The file's first line is the metadata; the rest is input of `jax.export.deserialize`. `read` takes only the program and
the version of JAX's calling convention from the rest. Types come from the checked metadata.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.policies.export.artefact import ExportedPolicy, Metadata, Outputs
from stellaris_jax.policies.export.bytecode import check_bytecode

if TYPE_CHECKING:
    from stellaris_jax.policies.policy import Policy

PLATFORMS = ("cpu", "cuda", "tpu")
ELEMENTS = {"float32": "f32", "int32": "i32", "uint8": "ui8"}
"""Element types by their MLIR names."""


def write(policy: Policy, metadata: Metadata) -> bytes:
    """Contents of a policy's file. Raises ConfigError for a torso with operations that `read` would refuse."""
    import jax

    check_packages("--to stablehlo")
    space = policy.network.observation_space
    (batch,) = jax.export.symbolic_shape("batch")
    program = jax.jit(lambda obs: tuple(policy.outputs(obs)))
    exported = jax.export.export(program, platforms=PLATFORMS)(jax.ShapeDtypeStruct((batch, *space.shape), space.dtype))
    data = metadata.to_json().encode() + b"\n" + bytes(exported.serialize())
    try:
        read(data)
    except ValueError as error:
        torso = policy.config.network.torso
        raise ConfigError(f"--to stablehlo cannot hold this policy of network.torso={torso}: {error}.") from None
    return data


def read(data: bytes) -> ExportedPolicy:
    """Read the policy in a file. Raises ValueError, or an error of JAX, if the file holds none.

    For some malformed programs MLIR ends the process ("LLVM ERROR"): nothing is executed, but nothing can be caught.
    """
    import jax

    check_packages("a .stablehlo file")
    line, _, content = data.partition(b"\n")
    metadata = Metadata.from_json(line)
    exported = _exported(content, metadata)
    run = jax.jit(exported.call)
    space = metadata.observation_space
    compiled: dict[int, Any] = {}

    def lowered(batch: int) -> Any:
        """Program lowered for a batch, with checked sizes."""
        from jax._src.interpreters import mlir

        from stellaris_jax.policies.export.program import check_sizes

        program: Any = run.lower(jax.ShapeDtypeStruct((batch, *space["shape"]), space["dtype"]))
        with mlir.make_ir_context():
            check_sizes(mlir.refine_polymorphic_shapes(program.compiler_ir()), len(data), batch)
        return program

    def forward(obs: np.ndarray) -> Outputs:
        if len(obs) not in compiled:
            compiled[len(obs)] = lowered(len(obs)).compile()
        return Outputs(*map(np.asarray, compiled[len(obs)](obs)))

    lowered(1)
    return ExportedPolicy(metadata, forward)


def _exported(content: bytes, metadata: Metadata) -> Any:
    """Program in the bytes of `jax.export`, checked. Raises ValueError.

    Trees, shapes and effects in the bytes are ignored. They come from a template with the right types that is exported
    here; the file's program replaces the template's own.
    """
    import jax
    import jax.numpy as jnp
    from jax._src.export.serialization_generated import Exported
    from jax._src.interpreters import mlir

    from stellaris_jax.policies.export.program import DEEPEST, check_program

    space, outputs = metadata.observation_space, metadata.outputs().values()
    try:
        table = Exported.GetRootAs(bytearray(content))
        platforms = tuple(table.Platforms(i) for i in range(min(table.PlatformsLength(), len(PLATFORMS) + 1)))
        version, arguments = table.CallingConventionVersion(), table.ModuleKeptVarIdxLength()
        program = bytes(table.MlirModuleSerializedAsNumpy())
    except (struct.error, IndexError, TypeError, ValueError):
        raise ValueError("it holds no program of jax.export, or is cut off") from None
    if platforms != tuple(name.encode() for name in PLATFORMS):
        raise ValueError(f"it is for {len(platforms)} other platforms; accepted: {', '.join(PLATFORMS)}")
    oldest = jax.export.minimum_supported_calling_convention_version
    newest = jax.export.maximum_supported_calling_convention_version
    if not oldest <= version <= newest or arguments != 1:
        accepted = f"versions {oldest} to {newest} and one argument"
        raise ValueError(
            f"it has version {version} of JAX's calling convention, {arguments} arguments; accepted: {accepted}"
        )

    check_bytecode(program, DEEPEST)

    def same_types(obs: jax.Array) -> list[jax.Array]:
        return [jnp.zeros((obs.shape[0], *shape), dtype) for dtype, shape in outputs]

    (batch,) = jax.export.symbolic_shape("batch")
    observations = jax.ShapeDtypeStruct((batch, *space["shape"]), space["dtype"])
    template = jax.export.export(jax.jit(same_types), platforms=PLATFORMS)(observations)
    exported = replace(
        template,
        mlir_module_serialized=program,
        calling_convention_version=version,
        uses_global_constants=True,
        module_kept_var_idx=(0,),
    )
    with mlir.make_ir_context():
        module = exported.mlir_module(serialized=False)
        input_types = ["tensor<i32>", _type(space["dtype"], space["shape"])]  # the platform's number comes first
        check_program(module, input_types, [_type(dtype, shape) for dtype, shape in outputs], len(content))
    return exported


def _type(dtype: str, shape: Any) -> str:
    """MLIR type of a batch of arrays."""
    return f"tensor<{'x'.join(['?', *map(str, shape), ELEMENTS[dtype]])}>"


def check_packages(what: str) -> None:
    """Raise ConfigError if a package that JAX needs for serialization is missing."""
    try:
        import flatbuffers  # noqa: F401
    except ImportError:
        raise ConfigError(f"{what} needs flatbuffers: pip install 'stellaris-jax[stablehlo]'.") from None
