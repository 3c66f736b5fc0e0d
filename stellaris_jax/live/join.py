"""This process becomes part of a Ray cluster, or starts one of its own."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from typing import Any

import ray

from stellaris_jax.config.memory import cores
from stellaris_jax.config.schema import ConfigError, shown

LOCAL = "local"
"""The address of a cluster that is started on this machine, and ends with who started it."""
PASSED = ("JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS", "PYTHONPATH", "XDG_CACHE_HOME", "HOME")
"""Variables that processes of the cluster run with as well."""
CONNECT_SECONDS = 10.0


def join(key: str, address: str, store: int) -> bool:
    """Connect this process to a cluster; whether that was not so before, and is to be undone by `ray.shutdown`.

    A cluster of one's own listens on this machine alone.

    Args:
      key: what the address was written for, for messages.
      address: of the cluster, or `LOCAL`.
      store: bytes of memory that a cluster of one's own reserves for objects.

    Raises:
      ConfigError: nobody can be joined there.
    """
    if ray.is_initialized():  # by whoever calls us, who will also leave it
        return False
    own: dict[str, Any] = {
        "num_cpus": cores(),
        "include_dashboard": False,
        "object_store_memory": store,
        "_node_ip_address": "127.0.0.1",
    }
    try:
        _listens(address)
        with warnings.catch_warnings():
            # Ray starts programs of its own, and forks for nothing else.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
            ray.init(
                address,
                **(own if address == LOCAL else {}),
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": {name: os.environ[name] for name in PASSED if name in os.environ}},
            )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{key}={shown(address)} is no Ray cluster that can be joined: {reason}") from None
    return True


def _listens(address: str) -> None:
    """Raise OSError at once where nobody listens at HOST:PORT: Ray would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
