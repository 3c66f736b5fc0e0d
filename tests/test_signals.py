"""Signals while the main thread is where Python hears nothing: reported at once, and obeyed in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from commands import REPOSITORY

from stellaris_jax.runs.signals import Abandoned, Signals

DEAF = """
import hashlib, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and so it would be here
from stellaris_jax.runs import signals
signals.PATIENCE_SECONDS = signals.FUSE_SECONDS = 0.5
tell = lambda text: print(text, flush=True)
with signals.Signals(tell, lambda: tell("farewell")) as caught:
    transient = {"needed": False, "transient": True, "writing": lambda: False, "over": lambda: True}[sys.argv[1]]
    with caught.during("the hash", transient=transient):
        print("ready", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # half an hour, in C
"""


@contextmanager
def deaf(work: str) -> Iterator[subprocess.Popen[str]]:
    """A process that hashes for half an hour."""
    process = subprocess.Popen(
        [sys.executable, "-c", DEAF, work],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("work", ["needed", "writing"])
def test_a_first_signal_is_told_of_and_a_second_one_ends_the_process(work: str, signum: signal.Signals) -> None:
    with deaf(work) as process:
        process.send_signal(signum)
        assert line(process) == f"{signum.name}: waiting for the hash; a second signal ends the run at once\n"
        process.send_signal(signum)
        assert line(process) == "farewell\n"
        assert process.wait(60) == 128 + signum


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("work", ["transient", "over"])
def test_sigterm_and_sighup_do_not_wait_for_what_nobody_needs(work: str, signum: signal.Signals) -> None:
    with deaf(work) as process:
        process.send_signal(signum)
        assert line(process).startswith(f"{signum.name}: waiting for at most ")
        assert line(process) == "farewell\n"
        assert process.wait(60) == 128 + signum


def test_a_main_thread_that_listens_is_interrupted_by_the_second_signal() -> None:
    messages: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Abandoned) as stop, Signals(messages.append, lambda: None) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.stopping.wait(60) and signals.caught == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second signal was not heard")
    assert stop.value.signum == signal.SIGINT and len(messages) == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    inside = []

    def look() -> None:
        with Signals(print, lambda: None):
            inside.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert inside == [before]
