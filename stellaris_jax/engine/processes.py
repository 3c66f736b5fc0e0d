"""Several processes whose devices are one mesh (`jax.distributed`): how they find each other, and what each holds.

Every process executes the same programs in the same order, with the same data. Arrays live on the devices of all of
them; what is whole on every device (`replicated`) can be read anywhere.
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

from stellaris_jax.config.schema import ConfigError, RunError

T = TypeVar("T")

ADDRESS, NUMBER, OWN = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
"""Environment variables by which a process is told where the first one listens, how many there are, and which it is."""
WAIT_SECONDS, PARTING_SECONDS = 300, 10
"""How long a process waits for the others to begin, and to end."""


def join(devices: int) -> None:
    """Become one of the processes that have so many devices together.

    Where the environment variables say nothing, JAX asks Slurm, Open MPI or Kubernetes.

    Raises:
      ConfigError: the processes cannot be had, or have another number of devices.
    """
    if not jax.distributed.is_initialized():
        given = [os.environ.get(name) for name in (ADDRESS, NUMBER, OWN)]
        if all(given):
            number = _integer(NUMBER, 1)
            arguments: dict[str, Any] = {
                "coordinator_address": given[0],
                "num_processes": number,
                "process_id": _integer(OWN, 0, number - 1),
                "cluster_detection_method": "deactivate",
            }
            _emulate(devices, number)
        elif any(given):
            missing = ", ".join(name for name, value in zip((ADDRESS, NUMBER, OWN), given, strict=True) if not value)
            raise ConfigError(f"engine.distributed=true: {missing} must be set in the environment as well.")
        else:
            _emulate(devices, int(os.environ.get("SLURM_NTASKS", devices)))
            arguments = {}
        jax.config.update("jax_enable_preemption_service", False)  # it would take our SIGTERM
        try:
            jax.distributed.initialize(
                **arguments, initialization_timeout=WAIT_SECONDS, shutdown_timeout_seconds=PARTING_SECONDS
            )
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            where = f"{ADDRESS}={given[0]}" if given[0] else f"{ADDRESS}, {NUMBER} and {OWN}, which are not set"
            reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise ConfigError(
                f"engine.distributed=true: the processes could not be joined by {where} ({reason})."
            ) from error
    if devices != jax.device_count():
        found = f"{jax.process_count()} process(es) with {jax.device_count()} device(s) together"
        raise ConfigError(f"engine.devices={devices} must be the number of all devices: JAX sees {found}.")


def _integer(name: str, low: int, high: int = 2**16) -> int:
    text = os.environ[name]
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ConfigError(f"{name}={text} must be an integer from {low} to {high}.")
    return int(text)


def _emulate(devices: int, number: int) -> None:
    """Have the CPU of each process pass for its share of the devices."""
    if devices % number:
        raise ConfigError(f"engine.devices={devices} must be a multiple of the {number} processes.")
    try:
        jax.config.update("jax_num_cpu_devices", devices // number)
    except RuntimeError as error:
        raise ConfigError("engine.distributed=true must be known before JAX starts, and it has started.") from error


def is_first() -> bool:
    """Whether this process is the one that decides and writes."""
    return jax.process_index() == 0


def put(tree: T, shardings: Any) -> T:
    """Arrays `jax.device_put` where they belong; with several processes each puts its own part, unasked.

    Args:
      tree: of arrays that every process has whole.
      shardings: one for all of them, or a tree of them, a prefix of theirs.
    """
    if jax.process_count() == 1:
        placed: T = jax.device_put(tree, shardings)
        return placed
    parts: T = jax.tree.map(lambda one, part: jax.tree.map(lambda x: _put(x, one), part), shardings, tree)
    return parts


def _put(x: Any, sharding: NamedSharding) -> jax.Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(jax.random.key_data(x), sharding))
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def own(tree: T) -> T:
    """Arrays as this process has them: those that are whole on every device are whole, of others it is a part."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def gathered(tree: T, mesh: Mesh) -> T:
    """Arrays that are parted over the devices, whole, and this process's own. All processes must ask for that."""
    return own(jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))(tree))


def broadcast_from_first(tree: T) -> T:
    """What the first process says, NumPy arrays of equal shapes in all of them."""
    said: T = multihost_utils.broadcast_one_to_all(tree)
    return said


def broadcast_bytes(data: bytes) -> bytes:
    """The same of bytes, of which only the first process knows how many there are."""
    size = int(broadcast_from_first(np.int64(len(data))))
    padded = np.frombuffer(data.ljust(size)[:size], np.uint8)
    return bytes(np.asarray(broadcast_from_first(padded), np.uint8))


GONE = re.compile("gloo|nccl|connection|socket|peer|coordination|heartbeat|unavailable|aborted", re.IGNORECASE)
"""What is in the message of an exchange that another process has not taken part in."""


@contextmanager
def naming_lost_process(advice: str) -> Iterator[None]:
    """Tell of a process that is lost in one sentence, a RunError, with what can be done."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, RunError | ConfigError) or not GONE.search(str(error)):
            raise
        atexit.register(_leave)
        raise RunError(f"another process of this run is gone; {advice}") from error


def _leave() -> None:
    """End without taking leave of the others, which takes all of them and would abort this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
