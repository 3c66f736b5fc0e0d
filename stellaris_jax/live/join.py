"""Connection of this process to a Ray cluster, existing or local."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.machine import cores
from stellaris_jax.config.schema import shown
from stellaris_jax.live import sessions
from stellaris_jax.live.accelerators import MEMORY
from stellaris_jax.live.vitals import Vitals, own_programs

LOCAL = "local"
"""Address of a cluster that is started on this machine and ends with the process that started it."""
PASSED = (
    *MEMORY, "JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS", "PYTHONPATH", "XDG_CACHE_HOME", "HOME",
)  # fmt: skip
"""Environment variables passed on to processes of the cluster."""
CONNECT_SECONDS = 10.0
_KEEPERS: list[subprocess.Popen[bytes]] = []
_SESSIONS: list[Path] = []


def join(key: str, address: str, store: int) -> Vitals | None:
    """Connect this process to a cluster, until `leave`.

    Ray's processes always listen on all interfaces. They only answer clients with the token that Ray keeps in the home
    directory (unless RAY_AUTH_MODE says otherwise).

    Args:
      key: configuration key of the address, for messages.
      address: address of the cluster, or `LOCAL`.
      store: bytes of memory that a local cluster reserves for objects.

    Returns:
      Parts that the cluster cannot lose; `None` if this process was already connected, by a caller that will also
      leave.

    Raises:
      ConfigError: no cluster can be joined there.
    """
    if ray.is_initialized():
        return None
    local_options: dict[str, Any] = {
        "num_cpus": cores(),
        "include_dashboard": False,
        "object_store_memory": store,
    }
    try:
        _check_listening(address)
        with warnings.catch_warnings(), _in_root_folder():
            # Ray only forks to start its programs.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
            context: Any = ray.init(
                address,
                **(local_options if address == LOCAL else {}),
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": {name: os.environ[name] for name in PASSED if name in os.environ}},
            )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{key}={shown(address)} is no Ray cluster that can be joined: {reason}") from None
    if address != LOCAL:
        return Vitals(store="" if address.startswith("ray://") else ray.get_runtime_context().gcs_address)
    session = Path(context.address_info["session_dir"])
    if not Path("/proc/self/stat").exists():  # the parents of processes are not visible here
        return Vitals(session=str(session))
    _start_keeper()
    sessions.claim(session)
    sessions.clear(session.parent)
    _SESSIONS.append(session)
    return Vitals(own_programs(os.getpid()), session=str(session))


@contextmanager
def _in_root_folder() -> Iterator[None]:
    """Context that changes to the root folder, because Ray's workers first look for modules in Ray's start folder.

    A user's folder may hold a `numpy.py`. Workers return to the driver's folder, and get its path, before they import
    more.
    """
    here = os.getcwd()
    os.chdir("/")
    try:
        yield
    finally:
        os.chdir(here)


def _start_keeper() -> None:
    """Start a keeper process, which kills all that is left of the cluster once this process has ended in any way."""
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


def leave(died: bool = False) -> None:
    """Leave the joined cluster; a local cluster ends, and its folder is removed.

    Args:
      died: the cluster has lost a vital part. Then Ray is not shut down, because it would hang or end this process,
        which will exit with code 1; the folder stays for its logs.
    """
    if died:
        atexit.register(_exit)
    else:
        ray.shutdown()
    while _KEEPERS:
        keeper = _KEEPERS.pop()
        if keeper.stdin is not None:
            keeper.stdin.close()
        keeper.wait()
    while _SESSIONS:
        session = _SESSIONS.pop()
        if not died:
            sessions.remove(session)


def _exit() -> None:
    """Exit this process without Ray's exit handler, which hangs or crashes after a part of the cluster has died."""
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)


def _check_listening(address: str) -> None:
    """Raise OSError at once if nothing listens at HOST:PORT; Ray would retry for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
