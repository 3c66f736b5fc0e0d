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
"""Variables that control how much of a GPU's memory a JAX process takes."""
SHARED = 0.8
"""Share of a GPU's memory for the processes that Ray places on it; CUDA and the driver need the rest."""


def process_environment(gpus: float, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables of a process.

    Args:
      gpus: number of GPUs for the process; 0.25 is a quarter of one.
      given: variables of the driver; a fraction set by the user stays.

    >>> process_environment(0.0, {})
    {'JAX_PLATFORMS': 'cpu'}
    >>> process_environment(0.25, {})
    {'XLA_CLIENT_MEM_FRACTION': '0.2', 'XLA_PYTHON_CLIENT_MEM_FRACTION': ''}
    """
    if not gpus:
        return {"JAX_PLATFORMS": "cpu"}
    if given.get(FRACTION) or given.get(OLD_FRACTION):
        return {}
    # JAX refuses both at once; an empty value counts as unset and overrides the cluster's environment.
    return {FRACTION: f"{SHARED * min(1.0, gpus):.3g}", OLD_FRACTION: ""}


def take_memory_as_needed() -> None:
    """Make JAX allocate a GPU's memory on demand in this and child processes, unless the user has set otherwise.

    Must be called before JAX starts.
    """
    os.environ.setdefault(PREALLOCATE, "false")
