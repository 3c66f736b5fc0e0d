"""Checks that the parts of a Ray cluster without which no run can go on are still there, without asking Ray."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import NamedTuple

from stellaris_jax.config.schema import RunError
from stellaris_jax.live.keeper import alive, cluster

PROGRAMS = {"raylet": "node manager, raylet", "gcs_server": "control store, gcs_server"}
"""Programs of Ray that a cluster of one's own cannot lose, and their names in messages; first those that others follow.
"""
CONNECT_SECONDS = 2.0
OUT_OF_REACH_SECONDS = 45.0
"""How long the control store of a cluster that was joined may be out of reach, at most: it may be restarted meanwhile,
but Ray ends its drivers after 60 s."""


class ClusterDied(RunError):
    """A part of the Ray cluster has died, without which the run cannot go on; it can be resumed."""


class Program(NamedTuple):
    """A program of Ray on this machine. name: its file's. number: of its process. started: when, as Linux counts."""

    name: str
    number: int
    started: str


class Vitals(NamedTuple):
    """Parts of a cluster that a run needs.

    programs: those of a cluster of one's own. store: address `HOST:PORT` of the control store of a cluster that was
    joined. session: folder of a cluster of one's own, with its logs.
    """

    programs: tuple[Program, ...] = ()
    store: str = ""
    session: str = ""

    @property
    def about_logs(self) -> str:
        """Where Ray's logs are, as the end of a sentence; empty for the logs of others."""
        return f"; Ray's logs are in {self.session}/logs until the next run" if self.session else ""


def own_programs(driver: int) -> tuple[Program, ...]:
    """The programs that a cluster of one's own cannot lose.

    Args:
      driver: process that has started the cluster.
    """
    found = []
    for number, started in sorted(cluster(driver)):
        try:
            name = Path(Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")[0].decode()).name
        except (OSError, UnicodeDecodeError):
            continue
        if name in PROGRAMS:
            found.append(Program(name, number, started))
    return tuple(sorted(found, key=lambda program: [*PROGRAMS].index(program.name)))


class Watch:
    """Tells what of a cluster has died.

    Args:
      vitals: parts of the cluster.
      patience: seconds for which the control store of a cluster that was joined may be out of reach.
    """

    def __init__(self, vitals: Vitals, patience: float):
        self.vitals, self._patience = vitals, patience
        self._reached = time.monotonic()

    def died(self) -> str:
        """What has died, as the beginning of a sentence; empty if all is there."""
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
