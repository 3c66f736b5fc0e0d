"""StableHLO: the policy as `jax.export` serialises it, for any size of batch, on CPUs, NVIDIA GPUs and TPUs.

The file's first line is the metadata; the rest is what `jax.export.deserialize` takes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from stellaris_jax.config.schema import ConfigError
from stellaris_jax.training.export.artefact import ExportedPolicy, Metadata, Outputs

if TYPE_CHECKING:
    from stellaris_jax.training.policy import Policy

PLATFORMS = ("cpu", "cuda", "tpu")
CALLS = {"shape_assertion"}
"""Functions outside the program that it may call: those that check sizes. Others could be any code of a process."""


def write(policy: Policy, metadata: Metadata) -> bytes:
    """The file of a policy."""
    import jax

    check_packages("--to stablehlo")
    space = policy.network.observation_space
    (batch,) = jax.export.symbolic_shape("batch")
    program = jax.jit(lambda obs: tuple(policy.outputs(obs)))
    exported = jax.export.export(program, platforms=PLATFORMS)(jax.ShapeDtypeStruct((batch, *space.shape), space.dtype))
    return metadata.to_json().encode() + b"\n" + bytes(exported.serialize())


def read(data: bytes) -> ExportedPolicy:
    """The policy in a file. Raises ValueError, or what JAX raises, where there is none."""
    import jax

    check_packages("a .stablehlo file")
    line, _, program = data.partition(b"\n")
    metadata = Metadata.from_json(line)
    exported = jax.export.deserialize(bytearray(program))
    if foreign := set(re.findall(r"custom_call\s*@(\w+)", exported.mlir_module())) - CALLS:
        raise ValueError(f"it calls {', '.join(sorted(foreign))}, which no exported policy does")
    run = jax.jit(exported.call)

    def forward(obs: np.ndarray) -> Outputs:
        return Outputs(*map(np.asarray, run(obs)))

    return ExportedPolicy(metadata, forward)


def check_packages(what: str) -> None:
    """Raise ConfigError where JAX lacks what it serialises with."""
    try:
        import flatbuffers  # noqa: F401
    except ImportError:
        raise ConfigError(f"{what} needs flatbuffers: pip install 'stellaris-jax[stablehlo]'.") from None
