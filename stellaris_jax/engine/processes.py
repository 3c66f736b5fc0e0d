"""Several processes whose devices form one mesh (`jax.distributed`): start, data placement and broadcasts.

Every process executes the same programs in the same order, with the same data. Arrays are distributed over the devices
of all processes; replicated arrays can be read by every process.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stellaris_jax.base.errors import ConfigError, RunError

T = TypeVar("T")

ADDRESS, NUMBER, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
"""Environment variables: address of the first process, number of processes, and number of this process."""
WAIT_SECONDS, PARTING_SECONDS = 300, 10
"""Timeouts in seconds for the other processes to start, and to end."""


def join(devices: int) -> None:
    """Join the processes that have `devices` devices in total.

    If the environment variables are not set, JAX detects Slurm, Open MPI or Kubernetes.

    Raises:
      ConfigError: the processes cannot be joined, or have another number of devices.
    """
    if not jax.distributed.is_initialized():
        given = [os.environ.get(name) for name in (ADDRESS, NUMBER, INDEX)]
        if all(given):
            number = _integer(NUMBER, 1)
            arguments: dict[str, Any] = {
                "coordinator_address": given[0],
                "num_processes": number,
                "process_id": _integer(INDEX, 0, number - 1),
                "cluster_detection_method": "deactivate",
            }
            _emulate(devices, number)
        elif any(given):
            missing = ", ".join(name for name, value in zip((ADDRESS, NUMBER, INDEX), given, strict=True) if not value)
            raise ConfigError(f"engine.distributed=true: {missing} must be set in the environment as well.")
        else:
            _emulate(devices, int(os.environ.get("SLURM_NTASKS", devices)))
            arguments = {}
        jax.config.update("jax_enable_preemption_service", False)  # it would replace our handler of SIGTERM
        try:
            jax.distributed.initialize(
                **arguments, initialization_timeout=WAIT_SECONDS, shutdown_timeout_seconds=PARTING_SECONDS
            )
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            where = f"{ADDRESS}={given[0]}" if given[0] else f"{ADDRESS}, {NUMBER} and {INDEX}, which are not set"
            reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise ConfigError(
                f"engine.distributed=true: the processes could not be joined by {where} ({reason})."
            ) from error
    if devices != jax.device_count():
        actual = f"{jax.process_count()} process(es) with {jax.device_count()} device(s) together"
        raise ConfigError(f"engine.devices={devices} must be the number of all devices: JAX sees {actual}.")


def _integer(name: str, low: int, high: int = 2**16) -> int:
    text = os.environ[name]
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ConfigError(f"{name}={text} must be an integer from {low} to {high}.")
    return int(text)


def _emulate(devices: int, number: int) -> None:
    """Emulate each process's share of the devices on its CPU."""
    if devices % number:
        raise ConfigError(f"engine.devices={devices} must be a multiple of the {number} processes.")
    try:
        jax.config.update("jax_num_cpu_devices", devices // number)
    except RuntimeError as error:
        raise ConfigError("engine.distributed=true must be known before JAX starts, and it has started.") from error


def is_first() -> bool:
    """Whether this is the first process, which decides and writes files."""
    return jax.process_index() == 0


def put(tree: T, shardings: Any) -> T:
    """Place arrays on devices, as `jax.device_put`; with several processes each places its own part.

    Args:
      tree: arrays, which every process has in full.
      shardings: one sharding for all arrays, or a tree of shardings that is a prefix of `tree`.
    """
    if jax.process_count() == 1:
        placed: T = jax.device_put(tree, shardings)
        return placed
    parts: T = jax.tree.map(lambda where, part: jax.tree.map(lambda x: _put(x, where), part), shardings, tree)
    return parts


def _put(x: Any, sharding: NamedSharding) -> jax.Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(jax.random.key_data(x), sharding))
    array = np.asarray(x)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def local_data(tree: T) -> T:
    """Local data of arrays: replicated arrays in full, and the local part of sharded ones."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def gather(tree: T, mesh: Mesh) -> T:
    """Gather sharded arrays: each process gets them in full. All processes must call this."""
    return local_data(jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))(tree))


def broadcast_from_first(tree: T) -> T:
    """Broadcast NumPy arrays from the first process; their shapes must be equal in all processes."""
    result: T = multihost_utils.broadcast_one_to_all(tree)
    return result


def broadcast_bytes(data: bytes) -> bytes:
    """Broadcast bytes from the first process; the other processes need not know their number."""
    size = int(broadcast_from_first(np.int64(len(data))))
    padded = np.frombuffer(data.ljust(size)[:size], np.uint8)
    return bytes(np.asarray(broadcast_from_first(padded), np.uint8))


GONE = re.compile("gloo|nccl|connection|socket|peer|coordination|heartbeat|unavailable|aborted", re.IGNORECASE)
"""Pattern of the error messages of collectives in which another process has not taken part."""


@contextmanager
def naming_lost_process(advice: str) -> Iterator[None]:
    """Context that converts errors caused by a lost process into a RunError with advice."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, RunError | ConfigError) or not GONE.search(str(error)):
            raise
        atexit.register(_leave)
        raise RunError(f"another process of this run is gone; {advice}") from error


def _leave() -> None:
    """Exit without JAX's shutdown barrier, which needs all processes and would abort this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
