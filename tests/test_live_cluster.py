"""Live runs on Ray: processes that really are killed, clusters that lose a node, and nothing that stays behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from commands import start

from stellaris_jax import load_config
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.execute.run import train
from stellaris_jax.timeline import trace

ray = pytest.importorskip("ray")

from stellaris_jax.execute.trainer import Trainer  # noqa: E402
from stellaris_jax.live.join import LOCAL, join, leave  # noqa: E402
from stellaris_jax.live.keeper import alive, cluster, processes  # noqa: E402

SMALL = (
    "env=gymnax/cartpole",
    "env.num_envs=4",
    "algorithm.rollout_length=16",
    "network.hidden=[8]",
    "algorithm.epochs=2",
    "executor=live",
    "live.actors=2",
    "system=stellaris",
    "system.learners=2",
    "system.actors=pipelined",
    "evaluation.points=0",
    "algorithm.learning_rate=1e-5",  # rounding grows slowly: a replay stays close for a long time
    "run.loggers=[]",
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    leave()


def is_broker(number: int) -> bool:
    """Whether a process drives Ray for a live run."""
    return b"live.broker" in Path(f"/proc/{number}/cmdline").read_bytes()


def workers() -> list[int]:
    """Processes of this test that are functions: they work where it does, and those of others elsewhere."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, where = (entry / "cmdline").read_bytes(), (entry / "cwd").readlink()
            except OSError:
                continue
            if name.startswith(b"ray::FunctionProcess") and where == Path.cwd():
                found.append(int(entry.name))
    return found


def all_gone(seconds: float = 10.0) -> bool:
    """Whether no function is left, soon: what is killed takes a moment to end on a busy machine."""
    deadline = time.monotonic() + seconds
    while workers() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not workers()


def killed(trainer: Trainer, deaths: int, seconds: float) -> int:
    """Train to the end while functions are killed, and say how many were."""
    trainer.compile()
    done, over = 0, threading.Event()
    chance = random.Random(0)

    def kill() -> None:
        nonlocal done
        while done < deaths and not over.wait(seconds * chance.random()):
            if victims := workers():
                os.kill(chance.choice(victims), signal.SIGKILL)
                done += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        while not trainer.finished and (done < deaths or trainer.round < 5):
            trainer.step()
        trainer.step()
    finally:
        over.set()
        thread.join()
    return done


def check(trainer: Trainer, directory: Path) -> list[trace.Failure]:
    """Every minibatch was learned from once, and the engine repeats all of it; what has died."""
    directory.mkdir(exist_ok=True)
    trainer.write(directory)
    rounds = list(trace.read(directory / trace.NAME).rounds)
    used = [(g.fragment, g.minibatch) for one in rounds for group in one.record.groups for g in group.gradients]
    assert len(set(used)) == len(used) == trainer.usages[0].gradients
    wanted = {(fragment, minibatch) for fragment in range(len(rounds) - 1) for minibatch in range(16)}
    assert wanted <= set(used)
    from stellaris_jax.config.stored import to_yaml

    (directory / "config.yaml").write_text(to_yaml(trainer.config))
    again = Trainer(
        trainer.config.replace({"executor": "replay", "trace": str(directory), "total_steps": 64 * len(rounds)})
    )
    again.run()
    assert max(one.deviation for one in again.executor.deviations) < 1e-4
    return [failure for one in rounds for failure in one.failures]


@pytest.mark.parametrize(
    ("env", "deaths"),
    [
        ("gymnax/cartpole", 5),
        ("gymnasium/CartPole-v1", 2),
        pytest.param("gymnax/cartpole", 50, marks=pytest.mark.slow),
        pytest.param("gymnasium/CartPole-v1", 50, marks=pytest.mark.slow),
        pytest.param("envpool/Hopper-v4", 10, marks=pytest.mark.slow),
    ],
)
def test_functions_are_killed(env: str, deaths: int, tmp_path: Path) -> None:
    pytest.importorskip(env.partition("/")[0])
    with closing(Trainer(load_config([*SMALL, f"env={env}", "env.num_envs=4", "total_steps=1_000_000"]))) as trainer:
        assert killed(trainer, deaths, 4.0 if deaths > 5 else 2.0) == deaths
        failures = check(trainer, tmp_path)
    # Who was idle when it was killed is found to be dead when it is next invoked.
    assert 1 <= len(failures) <= deaths
    kinds = {failure.kind for failure in failures}
    assert kinds == {"learner", "actor"} if deaths > 5 else kinds <= {"learner", "actor"}
    assert trainer.usages[0].failures == len(failures)
    assert all_gone()


FREE = ("system.actors=independent", "system.actor_shards=2", "system.sync_steps=8")


@pytest.mark.parametrize("deaths", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_functions_of_independent_actors_are_killed(deaths: int, tmp_path: Path) -> None:
    """Each segment is rolled once more at most, and counts once; the engine repeats all of it."""
    with closing(Trainer(load_config([*SMALL, *FREE, "total_steps=1_000_000"]))) as trainer:
        assert killed(trainer, deaths, 4.0 if deaths > 5 else 2.0) == deaths
        failures = check(trainer, tmp_path)
    assert 1 <= len(failures) <= deaths
    usage = trainer.usages[0]
    assert usage.failures + usage.actor_failures == len(failures)
    assert all_gone()


@pytest.mark.slow
def test_who_hangs_is_replaced(tmp_path: Path) -> None:
    config = load_config([*SMALL, "total_steps=1_000_000", "live.timeout=2"])
    with closing(Trainer(config)) as trainer:
        trainer.compile()
        os.kill(workers()[0], signal.SIGSTOP)
        while not trainer.usages[0].failures:
            trainer.step()
        failures = check(trainer, tmp_path)
    assert failures[0].reason == "nothing was heard for 2 seconds"
    assert 2.0 <= failures[0].end - failures[0].start < 10.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "overrides"), [("gymnax/cartpole", ()), ("gymnasium/CartPole-v1", ()), ("gymnax/cartpole", FREE)]
)
def test_the_driver_is_killed_and_goes_on(
    env: str, overrides: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    small = (*SMALL, f"env={env}", "env.num_envs=4", *overrides)
    process = start(run, *small, "total_steps=12800", "checkpoint.interval=3", f"run.dir={run}")
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 20):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    (broker,) = (number for number, (parent, _) in processes().items() if parent == process.pid and is_broker(number))
    known = cluster(broker)
    assert len(known) > 5
    process.kill()
    process.wait()
    deadline = time.monotonic() + 15.0
    while alive(known) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not alive(known)
    summary = train(load_config([f"resume={tmp_path / 'run'}"]))
    assert summary["rounds"] == 200
    rounds = list(trace.read(tmp_path / "run" / trace.NAME).rounds)
    assert [one.record.index for one in rounds] == list(range(200))
    used = [(g.fragment, g.minibatch) for one in rounds for group in one.record.groups for g in group.gradients]
    assert len(set(used)) == len(used) == summary["gradients"] >= 199 * 16
    assert not any(one.opened for one in rounds)
    assert ("actors bring environments to where they stood" in capfd.readouterr().out) == env.startswith("gymnasium")
    assert not any(parent == os.getpid() and is_broker(number) for number, (parent, _) in processes().items())


def test_what_a_function_raises_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(
        textwrap.dedent(
            """
            from stellaris_jax.base.registry import register
            from stellaris_jax.agent.losses.masks import Mask

            @register.mask("faulty")
            class Faulty(Mask):
                def weight(self, seen):
                    raise ArithmeticError("never")
            """
        )
    )
    with (
        closing(Trainer(load_config([*SMALL, "plugins=[faulty.py]", "algorithm.masks=[faulty]"]))) as trainer,
        pytest.raises(RunError, match=r"learner \d cannot go on: "),
    ):
        trainer.run()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["live.address=127.0.0.1:1"], "live.address='127.0.0.1:1' is no Ray cluster that can be joined"),
        (["live.learner_cpus=1000"], r"live.learner_cpus=1000 for 2 learners .* are 2000 CPUs, while the cluster has"),
        (["live.learner_gpus=0.25"], r"live.learner_gpus=0.25 for 2 learners .* are 0.5 GPUs, while the cluster has 0"),
    ],
)
def test_clusters_that_cannot_do_it(overrides: list[str], sentence: str) -> None:
    with closing(Trainer(load_config([*SMALL, *overrides]))) as trainer, pytest.raises(ConfigError, match=sentence):
        trainer.compile()


@pytest.mark.slow
def test_a_cluster_of_ones_own_answers_nobody_else() -> None:
    vitals = join("live.address", LOCAL, 2**27)
    assert vitals is not None and [one.name for one in vitals.programs] == ["raylet", "gcs_server"]
    address = ray.get_runtime_context().gcs_address
    script = f"import ray; ray.init({address!r}, log_to_driver=False); print(ray.cluster_resources())"
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "uthentica" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_node_is_lost(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import json, sys, threading, time
        from contextlib import closing
        from pathlib import Path
        import ray
        from ray.cluster_utils import Cluster
        from stellaris_jax import load_config
        from stellaris_jax.execute.trainer import Trainer
        cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 2, "include_dashboard": False}})
        second = cluster.add_node(num_cpus=2)
        config = load_config([*{SMALL!r}, "total_steps=6400", "live.address=" + cluster.address])
        with closing(Trainer(config)) as trainer:
            trainer.compile()
            ray.init(cluster.address, log_to_driver=False)
            used = {{node["NodeID"] for node in ray.nodes() if node["Alive"]}}
            while trainer.round < 10:
                trainer.step()
            cluster.remove_node(second, allow_graceful=False)
            records = trainer.run()
            trainer.write(Path("."))
            print(json.dumps([len(used), trainer.round, trainer.usages[0].gradients, trainer.usages[0].failures]))
        ray.shutdown()
        cluster.shutdown()
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    nodes, rounds, gradients, failures = json.loads(done.stdout.splitlines()[-1])
    assert (nodes, rounds) == (2, 100) and gradients >= 99 * 16
    assert failures >= 1
