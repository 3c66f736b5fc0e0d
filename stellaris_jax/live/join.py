"""This process becomes part of a Ray cluster, or starts one of its own."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import ray

from stellaris_jax.config.memory import cores
from stellaris_jax.config.schema import ConfigError, shown

LOCAL = "local"
"""The address of a cluster that is started on this machine, and ends with who started it."""
PASSED = ("JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS", "PYTHONPATH", "XDG_CACHE_HOME", "HOME")
"""Variables that processes of the cluster run with as well."""
CONNECT_SECONDS = 10.0
_KEEPERS: list[subprocess.Popen[bytes]] = []


def join(key: str, address: str, store: int) -> bool:
    """Connect this process to a cluster; whether that was not so before, and is to be undone by `leave`.

    Ray's processes listen on all interfaces, whatever they are told, but they answer only who has the token that Ray
    keeps in the home directory (unless RAY_AUTH_MODE says otherwise).

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
    if address == LOCAL and Path("/proc/self/stat").exists():  # where it can see whose children processes are
        _keep()
    return True


def _keep() -> None:
    """Have somebody see to it that nothing of the cluster outlives this process, however it ends."""
    program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
        _KEEPERS.append(
            subprocess.Popen(
                [*program, str(os.getpid())],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        )


def leave() -> None:
    """Leave the cluster that was joined; one of one's own ends."""
    ray.shutdown()
    while _KEEPERS:
        keeper = _KEEPERS.pop()
        if keeper.stdin is not None:
            keeper.stdin.close()
        keeper.wait()


def _listens(address: str) -> None:
    """Raise OSError at once where nobody listens at HOST:PORT: Ray would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
