"""Keeper program of a local Ray cluster: kills what is left of the cluster once its driver is gone.

Ray ends its processes when a driver leaves in an orderly way, but some outlive a killed driver. They rename themselves,
so the keeper records the driver's descendants while it runs. Its standard input is a pipe that nothing is written to
and that closes with the driver.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

POLL_SECONDS = 1.0
GRACE_SECONDS = 3.0
"""Seconds that Ray gets to end its processes itself."""


def process_stat(process: int) -> tuple[int, str] | None:
    """Parent and start time of a process; `None` if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])


def processes() -> dict[int, tuple[int, str]]:
    """Parent and start time of every process."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {number: stat for number in numbers if (stat := process_stat(number)) is not None}


def of_ray(process: int) -> bool:
    """Whether a process runs one of Ray's programs."""
    try:
        return b"/ray/" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def cluster(driver: int) -> set[tuple[int, str]]:
    """Ray's programs started by a driver, and their descendants: process numbers and start times."""
    running = processes()
    result = set()
    wave = {process for process, (parent, _) in running.items() if parent == driver and of_ray(process)}
    while wave:
        result |= {(process, running[process][1]) for process in wave}
        wave = {process for process, (parent, _) in running.items() if parent in wave}
    return result


def alive(known: set[tuple[int, str]]) -> list[int]:
    """Processes among `known` that still run."""
    return [number for number, started in known if (stat := process_stat(number)) is not None and stat[1] == started]


def main() -> None:
    """Wait for the driver's end, then kill its remaining processes."""
    driver = int(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    known: set[tuple[int, str]] = set()
    while not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
        known |= cluster(driver)
    known |= cluster(driver)
    end = time.monotonic() + GRACE_SECONDS
    while alive(known) and time.monotonic() < end:
        time.sleep(0.1)
    for process in alive(known):
        try:
            os.kill(process, signal.SIGKILL)
        except OSError:
            continue


if __name__ == "__main__":
    main()
