"""Devices and the compiler."""

from __future__ import annotations

import jax
from jax.sharding import AxisType, Mesh

AXIS = "learner"


def make_mesh(devices: int) -> Mesh:
    """The first `devices` devices on one axis."""
    return jax.make_mesh((devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""XLA's library fusions beyond single products slow the many small operations of physics by a sixth."""


def compile_for_backend(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile, on CPU with `CPU_OPTIONS` where this XLA has them."""
    if jax.default_backend() == "cpu":
        try:
            return lowered.compile(compiler_options=CPU_OPTIONS)
        except jax.errors.JaxRuntimeError as error:
            if not any(name in str(error) for name in CPU_OPTIONS):
                raise
    return lowered.compile()
