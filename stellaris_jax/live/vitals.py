"""Checks that the vital parts of a Ray cluster are alive, without asking Ray."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import NamedTuple

from stellaris_jax.base.errors import RunError
from stellaris_jax.live.keeper import alive, cluster

PROGRAMS = {"raylet": "node manager, raylet", "gcs_server": "control store, gcs_server"}
"""Programs of Ray that a local cluster cannot lose, and their names in messages; causes come before consequences."""
CONNECT_SECONDS = 2.0
OUT_OF_REACH_SECONDS = 45.0
"""Longest outage of a joined cluster's control store, in seconds: it may restart meanwhile, but Ray ends its drivers
after 60 s."""


class ClusterDied(RunError):
    """Error: a vital part of the Ray cluster has died; the run can be resumed."""


class Program(NamedTuple):
    """Program of Ray on this machine.

    Attributes:
      name: file name.
      number: process number.
      started: start time, in Linux's count.
    """

    name: str
    number: int
    started: str


class Vitals(NamedTuple):
    """Parts of a cluster that a run needs.

    Attributes:
      programs: programs of a local cluster.
      store: address `HOST:PORT` of a joined cluster's control store.
      session: folder of a local cluster, with its logs.
    """

    programs: tuple[Program, ...] = ()
    store: str = ""
    session: str = ""

    @property
    def about_logs(self) -> str:
        """Place of Ray's logs, as the end of a sentence; empty for a joined cluster."""
        return f"; Ray's logs are in {self.session}/logs until the next run" if self.session else ""


def own_programs(driver: int) -> tuple[Program, ...]:
    """Programs that a local cluster cannot lose.

    Args:
      driver: number of the process that started the cluster.
    """
    programs = []
    for number, started in sorted(cluster(driver)):
        try:
            name = Path(Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")[0].decode()).name
        except (OSError, UnicodeDecodeError):
            continue
        if name in PROGRAMS:
            programs.append(Program(name, number, started))
    return tuple(sorted(programs, key=lambda program: [*PROGRAMS].index(program.name)))


class Watch:
    """Watch over the vital parts of a cluster.

    Args:
      vitals: parts of the cluster.
      patience: longest outage of a joined cluster's control store, in seconds.
    """

    def __init__(self, vitals: Vitals, patience: float):
        self.vitals, self._patience = vitals, patience
        self._reached = time.monotonic()

    def died(self) -> str:
        """Part that has died, as the beginning of a sentence; empty if all parts are alive."""
        for name, number, started in self.vitals.programs:
            if not alive({(number, started)}):
                return f"Ray's {PROGRAMS[name]} (process {number}), has died"
        if not self.vitals.store:
            return ""
        host, _, port = self.vitals.store.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except OSError:
            silent = time.monotonic() - self._reached
            if silent > self._patience:
                return f"Ray's control store at {self.vitals.store} has been out of reach for {silent:.0f} seconds"
        else:
            self._reached = time.monotonic()
        return ""
