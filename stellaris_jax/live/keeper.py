"""Run as a program beside a Ray cluster of one's own: once its driver is gone, nothing of the cluster stays behind.

Ray ends its processes when a driver leaves in an orderly way, but some of them outlive a driver that was killed. They
rename themselves, so the only way to know them is to have seen whose children they are. The program is started with a
pipe as its input, which nobody writes to, and which ends with the driver.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

POLL_SECONDS = 1.0
GRACE_SECONDS = 3.0
"""For Ray to end its processes itself."""


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
    """Whether a process is one of Ray's programs."""
    try:
        return b"/ray/" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def cluster(driver: int) -> set[tuple[int, str]]:
    """Ray's programs that a driver has started, and their descendants: process numbers and start times."""
    running = processes()
    found = set()
    wave = {process for process, (parent, _) in running.items() if parent == driver and of_ray(process)}
    while wave:
        found |= {(process, running[process][1]) for process in wave}
        wave = {process for process, (parent, _) in running.items() if parent in wave}
    return found


def alive(known: set[tuple[int, str]]) -> list[int]:
    """Processes among `known` that still run."""
    return [number for number, started in known if (stat := process_stat(number)) is not None and stat[1] == started]


def main() -> None:
    """Wait for the driver's end, then end what is left of it."""
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
