"""Environment of live processes: who has no GPU leaves them alone, and the others take their share of its memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stellaris_jax import load_config
from stellaris_jax.live.accelerators import FRACTION, OLD_FRACTION, PREALLOCATE, process_environment
from stellaris_jax.live.pool import ACTOR, LEARNER, Call
from stellaris_jax.live.sessions import remove

ray = pytest.importorskip("ray")

from stellaris_jax.live import cluster as live_cluster  # noqa: E402
from stellaris_jax.live.join import PASSED  # noqa: E402
from stellaris_jax.many import cluster as sweep_cluster  # noqa: E402
from stellaris_jax.many.cluster import Resources  # noqa: E402

NAMES = ("JAX_PLATFORMS", FRACTION, OLD_FRACTION, PREALLOCATE, "CUDA_VISIBLE_DEVICES")


class Told:
    """A process that says which environment it has."""

    def __init__(self, *arguments: Any) -> None: ...

    def ready(self) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in NAMES}

    def invoke(self, kind: str) -> tuple[dict[str, str | None], float]:
        return self.ready(), 0.0


ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know this file


@pytest.fixture(scope="module")
def gpus() -> Iterator[None]:
    """A cluster that says it has a GPU, and a driver whose JAX would take it."""
    variables = {"JAX_PLATFORMS": "cuda", OLD_FRACTION: "0.9", PREALLOCATE: "false"}
    context = ray.init(
        num_cpus=4, num_gpus=1, include_dashboard=False, object_store_memory=2**27, log_to_driver=False,
        runtime_env={"env_vars": variables},
    )  # fmt: skip
    yield
    ray.shutdown()
    remove(Path(context.address_info["session_dir"]))


@pytest.mark.parametrize(
    ("gpus", "given", "expected"),
    [
        (0.0, {}, {"JAX_PLATFORMS": "cpu"}),
        (0.0, {FRACTION: "0.5"}, {"JAX_PLATFORMS": "cpu"}),
        (0.25, {}, {FRACTION: "0.2", OLD_FRACTION: ""}),
        (1.0, {}, {FRACTION: "0.8", OLD_FRACTION: ""}),
        (2.0, {}, {FRACTION: "0.8", OLD_FRACTION: ""}),
        (0.25, {FRACTION: "0.1"}, {}),
        (0.25, {OLD_FRACTION: "0.1"}, {}),
    ],
)
def test_environment(gpus: float, given: dict[str, str], expected: dict[str, str]) -> None:
    assert process_environment(gpus, given) == expected


def test_what_a_user_says_reaches_all_processes() -> None:
    assert {FRACTION, OLD_FRACTION, PREALLOCATE} < {*PASSED}


def test_a_live_driver_takes_memory_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PREALLOCATE, raising=False)
    load_config(["executor=live", "env=gymnax/cartpole"])
    assert os.environ[PREALLOCATE] == "false"
    monkeypatch.setenv(PREALLOCATE, "true")
    load_config(["executor=live", "env=gymnax/cartpole"])
    assert os.environ[PREALLOCATE] == "true"


def test_processes_of_a_live_run(gpus: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(live_cluster, "FunctionProcess", Told)
    config = load_config(["executor=live", "env=gymnax/cartpole", "live.learner_gpus=0.25", "system.learners=2"])
    pool = live_cluster.Processes(config, 1)
    try:
        pool.submit(Call(LEARNER, 0, 1))
        pool.submit(Call(ACTOR, 0, 2))
        found: dict[str, Any] = {}
        while len(found) < 2:
            found |= {done.call.kind: done.value for done in pool.wait()}
    finally:
        pool.close()
    assert found[LEARNER]["JAX_PLATFORMS"] == "cuda" and found[LEARNER][FRACTION] == "0.2"
    assert not found[LEARNER][OLD_FRACTION] and found[LEARNER][PREALLOCATE] == "false"
    assert found[LEARNER]["CUDA_VISIBLE_DEVICES"] == "0"
    assert found[ACTOR]["JAX_PLATFORMS"] == "cpu"


@pytest.mark.parametrize(("share", "platform", "fraction"), [(1.0, "cuda", "0.8"), (0.0, "cpu", None)])
def test_workers_of_a_sweep(
    share: float, platform: str, fraction: str | None, gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_cluster, "Worker", Told)
    cluster = sweep_cluster.Cluster(None)
    with cluster.worker(Resources(1.0, share, 10**8), 1) as worker:
        found = ray.get(worker.actor.ready.remote())
    cluster.close()
    assert (found["JAX_PLATFORMS"], found[FRACTION]) == (platform, fraction)
