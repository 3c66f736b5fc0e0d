"""Ray's own programs are killed: a live run saves what it has, says what has died, and goes on; so do sweeps."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import REPOSITORY, SCRIPTS, start
from sweeps import SWEPT

from stellaris_jax import load_config
from stellaris_jax.execute.run import train
from stellaris_jax.live.sessions import OWNER, claim, clear
from stellaris_jax.live.vitals import ClusterDied, Program, Vitals, Watch
from stellaris_jax.timeline import trace

ray = pytest.importorskip("ray")

from stellaris_jax.live.keeper import cluster, process_stat, processes  # noqa: E402

LIVE = (
    "env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=16", "network.hidden=[8]", "executor=live",
    "live.actors=1", "system.learners=1", "evaluation.points=0", "algorithm.anneal=false", "run.loggers=[]",
    "run.progress=false", "live.timeout=20",
)  # fmt: skip


SWEEP = (
    "-m", *SWEPT, "total_steps=64000000", "checkpoint.interval=8", "engine.chunk_rounds=1", "hydra.sweep.dir=s",
    "sweep.ray=local",
)  # fmt: skip


def children(driver: int) -> dict[str, int]:
    """Ray's programs below a process, by the file that each is made of, and the process that drives them."""
    found = {}
    below = {driver}
    for number, (parent, _) in sorted(processes().items()):
        if parent in below:
            below.add(number)
            arguments = Path(f"/proc/{number}/cmdline").read_bytes().decode().split("\0")
            found[Path(arguments[0]).name] = number
            if "live.broker" in " ".join(arguments):
                found["broker"] = number
    return found


def until(holds: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    """Wait while a process runs."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raylet", r"error: Ray's node manager, raylet \(process \d+\), has died; Ray's logs are in (.*)/logs until"),
        pytest.param(
            "gcs_server",
            r"error: Ray's control store, gcs_server \(process \d+\), has died; Ray's logs are in (.*)/logs until",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "broker",
            r"error: Ray's driver \(process \d+\) was ended by SIGKILL; Ray's logs are in (.*)/logs until",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["raylet", "gcs_server", "broker"],
)
def test_a_live_run_is_saved_and_goes_on(name: str, said: str, tmp_path: Path) -> None:
    """No checkpoint is due before the end: what is there was saved when the program died."""
    run = tmp_path / "run"
    process = start(run, *LIVE, "total_steps=1000000", f"run.dir={run}")
    until(lambda: lines(run / "metrics.jsonl") > 3, process)
    known = children(process.pid)
    rest = cluster(known["broker"])
    os.kill(known[name], signal.SIGKILL)
    killed = time.monotonic()
    told, _ = process.communicate(timeout=60)
    assert time.monotonic() - killed < 20.0 + 20.0  # live.timeout, and the end of the process
    done = lines(run / "metrics.jsonl")
    assert process.returncode == 1, told
    match = re.search(said, told)
    assert match and f"round {done} is saved; continue with: python" in told and "Traceback" not in told, told
    session = Path(match[1])
    assert session.is_dir()
    deadline = time.monotonic() + 20.0
    while any(process_stat(number) == stat for number, stat in rest) and time.monotonic() < deadline:
        time.sleep(0.1)
    summary = train(load_config([f"resume={run}", f"total_steps={64 * (done + 2)}"]))
    assert summary["rounds"] == done + 2
    assert [one.record.index for one in trace.read(run / trace.NAME).rounds] == list(range(done + 2))
    assert not session.exists(), "the folder of a dead run is removed by the next one"


@pytest.mark.slow
def test_a_sweep_is_saved_and_says_what_has_died(tmp_path: Path) -> None:
    process = start(tmp_path / "s", *SWEEP)
    until(lambda: bool(list(tmp_path.glob("s/*/checkpoints/[0-9]*"))), process)
    os.kill(children(process.pid)["gcs_server"], signal.SIGKILL)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 1, told
    assert re.search(r"error: Ray's control store, gcs_server \(process \d+\), has died; ", told), told
    assert "stopped; 0 of 3 points are done; continue with: python" in told and "Traceback" not in told, told
    point = next(tmp_path.glob("s/*/checkpoints")).parent
    saved = max(int(path.name) for path in (point / "checkpoints").glob("[0-9]*"))
    assert saved == lines(point / "metrics.jsonl"), "the point was saved when the cluster died"


@pytest.mark.slow
def test_a_sweep_loses_its_raylet(tmp_path: Path) -> None:
    process = start(tmp_path / "s", *SWEEP)
    until(lambda: bool(list(tmp_path.glob("s/*/checkpoints/[0-9]*"))), process)
    os.kill(children(process.pid)["raylet"], signal.SIGKILL)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 1, told
    assert re.search(r"error: Ray's node manager, raylet \(process \d+\), has died; ", told), told
    assert "stopped; 0 of 3 points are done; continue with: python" in told and "Traceback" not in told, told


# What is looked at ----------------------------------------------------------------------------------------------------


def test_a_watch_sees_a_program_die() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = process_stat(process.pid)
    assert stat is not None
    watch = Watch(Vitals((Program("raylet", process.pid, stat[1]),)), 1.0)
    assert watch.died() == ""
    process.kill()
    process.wait()
    assert watch.died() == f"Ray's node manager, raylet (process {process.pid}), has died"


def test_a_watch_waits_for_a_control_store_that_is_restarted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        watch = Watch(Vitals(store=address), 0.2)
        assert watch.died() == ""
    assert watch.died() == ""
    time.sleep(0.3)
    assert watch.died() == f"Ray's control store at {address} has been out of reach for 0 seconds"


def test_deaths_are_errors_of_a_run() -> None:
    from stellaris_jax.base.errors import RunError

    assert issubclass(ClusterDied, RunError)


# What Ray leaves behind -----------------------------------------------------------------------------------------------


def test_only_folders_of_our_own_dead_runs_are_cleared(tmp_path: Path) -> None:
    for name in ("session_dead", "session_runs", "session_foreign", "session_elsewhere", "session_damaged", "other"):
        (tmp_path / name / "logs").mkdir(parents=True)
    claim(tmp_path / "session_runs")
    here = (tmp_path / "session_runs" / OWNER).read_text().split()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / "session_dead" / OWNER).write_text(" ".join([*here[:-2], str(dead.pid), "1"]))
    (tmp_path / "session_elsewhere" / OWNER).write_text(f"another-machine {here[1]} {dead.pid} 1")
    (tmp_path / "session_damaged" / OWNER).write_text("?")
    (tmp_path / "other" / OWNER).write_text(" ".join([*here[:-2], str(dead.pid), "1"]))
    (tmp_path / "session_link").symlink_to(tmp_path / "session_dead")
    (tmp_path / "session_latest").symlink_to(tmp_path / "session_dead")
    assert clear(tmp_path) == [tmp_path / "session_dead"]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"session_runs", "session_foreign", "session_elsewhere", "session_damaged", "other", "session_link"}


def test_a_folder_that_a_program_was_started_with_stays(tmp_path: Path) -> None:
    session = tmp_path / "session_used"
    session.mkdir()
    claim(session)
    *place, _, _ = (session / OWNER).read_text().split()
    (session / OWNER).write_text(" ".join([*place, "1", "0"]))
    with subprocess.Popen([sys.executable, "-c", "input()", str(session)], stdin=subprocess.PIPE) as process:
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():  # its arguments are not there at once
            time.sleep(0.01)
        assert clear(tmp_path) == []
        process.kill()
    assert clear(tmp_path) == [session]


@pytest.mark.slow
def test_workers_do_not_import_from_the_current_folder(tmp_path: Path) -> None:
    """A run may be resumed where somebody else's modules lie: Ray's workers would take them for the package."""
    (tmp_path / "stellaris_jax").mkdir()
    mark = tmp_path / "executed"
    (tmp_path / "stellaris_jax" / "__init__.py").write_text(f"open({str(mark)!r}, 'w').close()\nraise SystemExit\n")
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "train.py"), "env=gymnax/cartpole", "executor=live", "system.learners=2",
         "env.num_envs=4", "algorithm.rollout_length=8", "network.hidden=[4]", "total_steps=64", "run.dir=run",
         "evaluation.points=0", "run.progress=false", "platform.actors=2"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not mark.exists()
