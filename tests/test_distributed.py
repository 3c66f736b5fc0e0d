"""`engine.distributed=true`: several processes that are one run, and what becomes of it when one of them dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import REPOSITORY, SCRIPTS, python, wait_for_checkpoints
from training import assert_identical

from stellaris_jax import load_config
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.engine import processes
from stellaris_jax.execute.run import open_run
from stellaris_jax.telemetry.jsonl import read_rows

JOB = (
    "env.num_envs=8", "env.normalize_observation=true", "network.hidden=[8]", "algorithm.rollout_length=16",
    "algorithm.epochs=2", "system.learners=3", "system.versions=8", "delays=pareto", "engine.devices=2",
    "evaluation.episodes=2", "evaluation.points=2", "run.loggers=[]",
)  # fmt: skip
TIMES = {"wall_seconds", "steps_per_second"}


def launched(directory: Path, count: int, *arguments: str, different: str = "") -> list[subprocess.Popen[str]]:
    """`train` in so many processes, the last of them with another setting; one is a process as any other."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    started = []
    for number in range(count):
        own = [different] if different and number == count - 1 else []
        variables = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": str(count)}
        environment = {**os.environ, **variables, "JAX_PROCESS_ID": str(number), "PYTHONPATH": str(REPOSITORY)}
        environment.pop("XLA_FLAGS", None)
        started.append(
            subprocess.Popen(
                [sys.executable, str(SCRIPTS / "train.py"), f"engine.distributed={count > 1}", *arguments, *own],
                cwd=directory,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return started


def ended(started: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Outputs of processes that must succeed."""
    said = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), said
    return said


def assert_same_run(directory: Path, reference: Path) -> None:
    """All records but for how long they took, and the state in the last checkpoint, are the same to the bit."""
    runs = [
        [{key: value for key, value in record.items() if key not in TIMES} for record in read_rows(one)]
        for one in (directory / "metrics.jsonl", reference / "metrics.jsonl")
    ]
    assert runs[0] == runs[1]
    assert_identical(open_run(directory), open_run(reference))


def killed(directory: Path, victim: int, rounds: int = 40) -> None:
    """A run of two processes of which one is killed, and which then goes on."""
    arguments = (*JOB, f"total_steps={128 * rounds}", "checkpoint.interval=4", "engine.chunk_rounds=4")
    started = launched(directory, 2, *arguments, "run.dir=run")
    wait_for_checkpoints(started[0], directory / "run", 2)
    os.kill(started[victim].pid, signal.SIGKILL)
    survivor = started[1 - victim]
    said = survivor.communicate(timeout=60)[0]
    assert survivor.returncode != 0
    assert "another process of this run is gone" in said or "another task died" in said
    started[victim].communicate()
    ended([*launched(directory, 2, "resume=run"), *launched(directory, 1, *arguments, "run.dir=alone")])
    assert_same_run(directory / "run", directory / "alone")


def test_two_processes_equal_one_with_two_devices_also_when_one_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    killed(tmp_path, victim=1)


@pytest.mark.slow
def test_the_first_process_may_die_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    killed(tmp_path, victim=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("num_seeds=2", "system=softsync", "system.rule_options.c=2"),
        ("num_seeds=2", "engine.members=together", "engine.lanes=2"),
        ("algorithm=impala", "system.corrections=[kl_gate]"),
        ("scaling=nitro", "platform.actors=8"),
        ("system.actors=independent", "system.actor_shards=4", "system.sync_steps=4", "num_seeds=2"),
    ],
    ids=" ".join,
)
def test_other_settings_are_the_same_in_two_processes(
    settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = (*JOB, "total_steps=1024", *settings)
    alone = launched(tmp_path, 1, *arguments, "run.dir=alone")
    first, second, _ = ended([*launched(tmp_path, 2, *arguments, "run.dir=run"), *alone])
    assert "eval return" in first and "process 2 of 2" in second
    assert_same_run(tmp_path / "run", tmp_path / "alone")


@pytest.mark.slow
def test_processes_of_different_configurations_are_refused(tmp_path: Path) -> None:
    started = launched(tmp_path, 2, *JOB, "total_steps=1024", different="algorithm.learning_rate=0.5")
    for process in started:
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 2 and "different configurations" in said, said


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"JAX_PROCESS_ID": "0"}, "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES must be set"),
        (
            {"JAX_PROCESS_ID": "2", "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "127.0.0.1:1"},
            "JAX_PROCESS_ID=2 must be an integer from 0 to 1",
        ),
        (
            {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "two", "JAX_COORDINATOR_ADDRESS": "127.0.0.1:1"},
            "JAX_NUM_PROCESSES=two must be an integer",
        ),
        (
            {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "3", "JAX_COORDINATOR_ADDRESS": "127.0.0.1:1"},
            "engine.devices=2 must be a multiple of the 3 processes",
        ),
    ],
)
def test_variables_that_name_no_processes(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (processes.ADDRESS, processes.NUMBER, processes.INDEX):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        processes.join(2)


def test_live_runs_have_processes_of_their_own() -> None:
    with pytest.raises(ConfigError, match=r"engine.distributed=true is not possible with executor=live"):
        load_config(["executor=live", "engine.distributed=true"])


@pytest.mark.slow
def test_ray_starts_the_processes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    script = REPOSITORY / "examples" / "cluster" / "distributed.py"
    done = python(script, "--", *JOB, "total_steps=1024", "run.dir=run", cwd=tmp_path, XLA_FLAGS="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "summary.json").is_file()
