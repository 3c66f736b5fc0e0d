"""This process becomes part of a Ray cluster, or starts one of its own."""

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

from stellaris_jax.config.machine import cores
from stellaris_jax.config.schema import ConfigError, shown
from stellaris_jax.live import sessions
from stellaris_jax.live.accelerators import MEMORY
from stellaris_jax.live.vitals import Vitals, own_programs

LOCAL = "local"
"""The address of a cluster that is started on this machine, and ends with who started it."""
PASSED = (
    *MEMORY, "JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS", "PYTHONPATH", "XDG_CACHE_HOME", "HOME",
)  # fmt: skip
"""Variables that processes of the cluster run with as well."""
CONNECT_SECONDS = 10.0
_KEEPERS: list[subprocess.Popen[bytes]] = []
_SESSIONS: list[Path] = []


def join(key: str, address: str, store: int) -> Vitals | None:
    """Connect this process to a cluster, until `leave`.

    Ray's processes listen on all interfaces, whatever they are told, but they answer only who has the token that Ray
    keeps in the home directory (unless RAY_AUTH_MODE says otherwise).

    Args:
      key: what the address was written for, for messages.
      address: of the cluster, or `LOCAL`.
      store: bytes of memory that a cluster of one's own reserves for objects.

    Returns:
      What the cluster cannot lose; `None` if this process was connected before, by a caller who will also leave it.

    Raises:
      ConfigError: nobody can be joined there.
    """
    if ray.is_initialized():
        return None
    own: dict[str, Any] = {
        "num_cpus": cores(),
        "include_dashboard": False,
        "object_store_memory": store,
    }
    try:
        _listens(address)
        with warnings.catch_warnings(), _elsewhere():
            # Ray starts programs of its own, and forks for nothing else.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
            context: Any = ray.init(
                address,
                **(own if address == LOCAL else {}),
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
    if not Path("/proc/self/stat").exists():  # where nobody can see whose children processes are
        return Vitals(session=str(session))
    _keep()
    sessions.claim(session)
    sessions.clear(session.parent)
    _SESSIONS.append(session)
    return Vitals(own_programs(os.getpid()), session=str(session))


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Be in the root folder meanwhile: Ray has its workers look for modules first where it is started, and somebody's
    folder may hold a `numpy.py`. Workers go back to the driver's folder, and get its path, before they import more."""
    here = os.getcwd()
    os.chdir("/")
    try:
        yield
    finally:
        os.chdir(here)


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


def leave(died: bool = False) -> None:
    """Leave the cluster that was joined; one of one's own ends, and its folder is removed.

    Args:
      died: it has lost what it cannot lose. Ray is not asked then, for it would wait, or end this process, which will
        exit with code 1; the folder stays for its logs.
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
    """End this process at its exit without Ray's own end, which waits for what has died, or crashes."""
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)


def _listens(address: str) -> None:
    """Raise OSError at once where nobody listens at HOST:PORT: Ray would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
