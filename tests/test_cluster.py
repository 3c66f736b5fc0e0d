"""Sweeps on a Ray cluster: the points are what they are in one process, whatever becomes of the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import start
from sweeps import SMALL, SWEPT, records, table

from stellaris_jax.base.registry import register
from stellaris_jax.cli import train as cli
from stellaris_jax.config.compose import compose_configs, load_sweep
from stellaris_jax.execute.loading import checked, load_config
from stellaris_jax.execute.run import train
from stellaris_jax.many.sweep import is_done, lay_out

ray = pytest.importorskip("ray")

from stellaris_jax.many.cluster import Ended, Progress, Resources, Worker, places  # noqa: E402


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Without a cluster ----------------------------------------------------------------------------------------------------


def test_a_worker_trains_point_after_point() -> None:
    configs = [checked(config) for config in compose_configs(load_sweep(SWEPT).points)]
    laid = lay_out(Path("sweep"), configs, SWEPT)
    worker = Worker(os.getcwd(), 1, [])
    for config in laid:
        assert worker.train(0, config, never) == Ended()
    news = worker.progress()
    assert news.steps == 512 and len(news.returns) == 6
    assert worker.progress() == Progress(512, [], []), "progress is reported once"
    assert all(is_done(config) for config in laid)
    for number, point in enumerate(load_sweep(SWEPT).points):
        train(load_config([*point, f"run.dir=alone/{number}"]))
        assert records(Path(f"sweep/{number}")) == records(Path(f"alone/{number}"))


@register.callback("fail-point")
def fail(number: int, record: dict[str, object], trainer: object) -> None:
    raise FloatingPointError("diverged")


def never(record: object) -> bool:
    """Watch that ends no run."""
    return False


def test_how_a_worker_ends() -> None:
    (config,) = lay_out(Path("sweep"), [load_config(SMALL)], [])
    worker = Worker(os.getcwd(), 1, [])
    Path("file").write_text("")
    refused = worker.train(0, config.replace({"run.dir": "file/run", "resume": ""}), never)
    assert refused.foreseen and "file/run" in refused.error
    unforeseen = worker.train(0, config.replace({"run.callbacks": ("fail-point",)}), never)
    assert not unforeseen.foreseen and "FloatingPointError: diverged\nTraceback" in unforeseen.error
    worker.stop()
    assert worker.train(0, config, never) == Ended(stopped=True)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([{"CPU": 4.0, "memory": 1e10}], (Resources(1.0, 0.0, 10**9), 4)),
        ([{"CPU": 4.0, "memory": 2.5e9}, {"CPU": 1.0, "memory": 1e10}], (Resources(1.0, 0.0, 10**9), 3)),
        ([{"CPU": 8.0, "GPU": 2.0, "memory": 1e10}, {"CPU": 8.0, "memory": 1e10}], (Resources(1.0, 1.0, 10**9), 2)),
        ([{"memory": 1e10}], (Resources(1.0, 0.0, 10**9), 0)),
        ([], (Resources(1.0, 0.0, 10**9), 0)),
    ],
)
def test_places(nodes: list[dict[str, float]], expected: tuple[Resources, int]) -> None:
    assert places(nodes, 10**9) == expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["-m", "sweep.ray=local", "sweep.together=false", *SWEPT], "sweep.ray is not possible with"),
        (["sweep.ray=local", *SMALL], "sweep.ray is for sweeps; add -m."),
        (["-m", "sweep.rya=local", *SWEPT], "sweep.rya is not a config key"),
    ],
)
def test_refused(overrides: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(overrides)
    assert message in capsys.readouterr().err


def test_without_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit):
        cli.main(["-m", "sweep.ray=local", *SWEPT])
    assert capsys.readouterr().err == "error: sweep.ray needs Ray: pip install 'stellaris-jax[ray]'.\n"


# On a cluster of two nodes --------------------------------------------------------------------------------------------

NODES = """
    import sys
    from ray.cluster_utils import Cluster
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 2**27})
    other = cluster.add_node(num_cpus=1, object_store_memory=2**27)
    print(cluster.address, flush=True)
    for line in sys.stdin:  # the second node dies next
        cluster.remove_node(other, allow_graceful=False)
        print("removed", flush=True)
"""


@pytest.fixture
def cluster() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a cluster of two nodes, and the process that keeps it: a line to it kills the second node."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(NODES)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    yield process.stdout.readline().strip(), process
    process.stdin.close()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()


def workers() -> list[int]:
    """Processes that train points."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::Worker" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_two_nodes(tmp_path: Path, cluster: tuple[str, subprocess.Popen[str]]) -> None:
    """The same points and the same table as in one process, though a worker is killed and then a node is lost."""
    address, nodes = cluster
    steps = ["total_steps=65536", "evaluation.points=16"]
    process = start(tmp_path / "far", "-m", *SWEPT, *steps, f"sweep.ray={address}", "hydra.sweep.dir=far")
    deadline = time.monotonic() + 120
    while len(workers()) < 2 or not list(tmp_path.glob("far/*/metrics.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)
    os.kill(workers()[0], signal.SIGKILL)
    while not any((tmp_path / f"far/{number}/summary.json").is_file() for number in range(3)):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)
    assert nodes.stdin is not None and nodes.stdout is not None
    print("kill", file=nodes.stdin, flush=True)
    assert nodes.stdout.readline() == "removed\n"
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert "the worker of point " in out and out.count("★") == 2
    cli.main(["-m", *SWEPT, *steps, "hydra.sweep.dir=near"])
    for number in range(3):
        assert records(Path(f"far/{number}")) == records(Path(f"near/{number}"))
    assert table("far") == table("near")


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_elsewhere(tmp_path: Path) -> None:
    """SIGINT saves what is under way on the cluster of this machine, which ends with the command."""
    process = start(tmp_path / "half", "-m", *SWEPT, "total_steps=262144", "sweep.ray=local", "hydra.sweep.dir=half")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("half/*/metrics.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT and "continue with: python " in out, out
    assert not workers()
    cli.main(["-m", "resume=half"])
    cli.main(["-m", *SWEPT, "total_steps=262144", "hydra.sweep.dir=whole"])
    for number in range(3):
        assert records(Path(f"half/{number}")) == records(Path(f"whole/{number}"))


@pytest.mark.slow
def test_an_address_where_nobody_is(tmp_path: Path) -> None:
    process = start(tmp_path / "s", "-m", *SWEPT, "sweep.ray=127.0.0.1:9", "hydra.sweep.dir=s")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 2 and "error: sweep.ray='127.0.0.1:9' is no Ray cluster that can be joined" in out
    assert not (tmp_path / "s").exists()
