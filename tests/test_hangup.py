"""SIGHUP, the end of a terminal: runs, sweeps and searches are saved as by SIGTERM, unless nohup has it ignored."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import REPOSITORY, SCRIPTS, begin, ended_by, start, wait_for_checkpoints
from sweeps import SMALL

from stellaris_jax.runs.signals import Signals

LONG = [*SMALL, "total_steps=64000000", "checkpoint.interval=1", "engine.chunk_rounds=1", "evaluation.points=0"]


@pytest.fixture(autouse=True)
def hangups_arrive() -> Iterator[None]:
    """Under nohup the tests, and what they start, would ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_hangup_is_noted() -> None:
    messages: list[str] = []
    before = signal.getsignal(signal.SIGHUP)
    with Signals(messages.append, lambda: None) as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.stopping.wait(60) and signals.caught == [signal.SIGHUP]
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_hangup_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals(print, lambda: None) as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.1)
            assert not signals.stopping.is_set() and signals.caught == []
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_gone_stops_no_note() -> None:
    def tell(text: str) -> None:
        raise OSError(5, "Input/output error")

    with Signals(tell, lambda: None) as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.stopping.wait(60)
        time.sleep(0.1)
        assert signals._thread.is_alive()


def test_a_run_is_saved(tmp_path: Path) -> None:
    process = start(tmp_path / "run", *LONG, "run.dir=run")
    wait_for_checkpoints(process, tmp_path / "run", 2)
    process.send_signal(signal.SIGHUP)
    assert "is saved; continue with: python" in ended_by(signal.SIGHUP, process)


@pytest.mark.slow
def test_a_run_of_nohup_goes_on(tmp_path: Path) -> None:
    process = begin(tmp_path, "nohup", sys.executable, SCRIPTS / "train.py", *LONG, "run.dir=run")
    wait_for_checkpoints(process, tmp_path / "run", 2)
    process.send_signal(signal.SIGHUP)
    time.sleep(1.0)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    ended_by(signal.SIGTERM, process)


@pytest.mark.parametrize("progress", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_a_terminal_is_closed(progress: str, tmp_path: Path) -> None:
    """The run's output is gone with its terminal."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.environ["PYTHONPATH"] = str(REPOSITORY)
        command = [sys.executable, str(SCRIPTS / "train.py"), *LONG, "run.dir=run", f"run.progress={progress}"]
        os.execv(command[0], command)
    deadline = time.monotonic() + 120
    os.set_blocking(terminal, False)
    while len([path for path in (tmp_path / "run" / "checkpoints").glob("*") if path.name.isdigit()]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        try:
            os.read(terminal, 2**16)
        except BlockingIOError:
            continue
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    rounds = {int(path.name) for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*") if path.name.isdigit()}
    assert max(rounds) >= 2


@pytest.mark.slow
def test_a_sweep_is_saved(tmp_path: Path) -> None:
    process = start(tmp_path / "s", "-m", *LONG, "algorithm.learning_rate=1e-3,1e-2", "hydra.sweep.dir=s")
    wait_for_checkpoints(process, tmp_path / "s" / "0", 2)
    process.send_signal(signal.SIGHUP)
    assert "continue with: python" in ended_by(signal.SIGHUP, process)


@pytest.mark.slow
def test_a_search_is_saved(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "space.yaml").write_text("algorithm.learning_rate: {low: 1.e-4, high: 1.e-2, log: true}\n")
    overrides = [*LONG, "evaluation.points=2", "num_seeds=1", "--space=space.yaml", "--trials=1", "--dir=t"]
    process = start(tmp_path / "t", *overrides, script="tune.py")
    wait_for_checkpoints(process, tmp_path / "t" / "0", 2)
    process.send_signal(signal.SIGHUP)
    assert "continue with: python" in ended_by(signal.SIGHUP, process)


def test_twice_ends_at_once(tmp_path: Path) -> None:
    process = start(tmp_path / "run", *LONG, "run.dir=run", "evaluation.points=1", "evaluation.episodes=4096")
    wait_for_checkpoints(process, tmp_path / "run", 1)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    # Once the run is over, and only the process's end is waited for, a signal has its usual effect.
    assert process.returncode in (128 + signal.SIGHUP, -signal.SIGHUP)
