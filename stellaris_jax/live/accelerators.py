"""Environment variables that let several processes share the GPUs of a machine.

By default JAX takes every GPU it sees, and three quarters of the first one's memory at once. Ray hides no GPU from a
process that asks for none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
FRACTION, OLD_FRACTION = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
MEMORY = (PREALLOCATE, FRACTION, OLD_FRACTION)
"""Variables by which JAX decides how much of a GPU's memory a process takes."""
SHARED = 0.8
"""Share of a GPU's memory for the processes that Ray places on it; the rest is for CUDA and for the driver."""


def process_environment(gpus: float, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables of a process.

    Args:
      gpus: GPUs that it has for itself, 0.25 for a quarter of one.
      given: variables of the driver; a fraction that a user has set stays.

    >>> process_environment(0.0, {})
    {'JAX_PLATFORMS': 'cpu'}
    >>> process_environment(0.25, {})
    {'XLA_CLIENT_MEM_FRACTION': '0.2', 'XLA_PYTHON_CLIENT_MEM_FRACTION': ''}
    """
    if not gpus:
        return {"JAX_PLATFORMS": "cpu"}
    if given.get(FRACTION) or given.get(OLD_FRACTION):
        return {}
    # JAX refuses both; empty counts as unset, whatever the cluster was started with.
    return {FRACTION: f"{SHARED * min(1.0, gpus):.3g}", OLD_FRACTION: ""}


def take_memory_as_needed() -> None:
    """Have JAX, here and in processes started from here, take a GPU's memory as needed, unless a user has said how.

    This must be called before JAX starts.
    """
    os.environ.setdefault(PREALLOCATE, "false")
