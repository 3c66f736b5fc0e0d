"""Live runs without a cluster: functions in this process, which end in any order and die at any time."""

from __future__ import annotations

import json
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import live_runs
import numpy as np
import pytest
import yaml
from live_runs import CASES, MORE, SMALL, Chaos, config_of, live, params, replayed

from stellaris_jax import Population, load_config
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.cli import sweep as cli_sweep
from stellaris_jax.cli import train as cli_train
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.live import conductor
from stellaris_jax.timeline import trace


@pytest.fixture
def left(tmp_path: Path) -> Any:
    """Writes down what a live run leaves, and gives its directory."""
    return partial(live_runs.left, directory=tmp_path)


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE)])
def test_the_engine_repeats_a_live_run(case: str, left: Any) -> None:
    config = config_of(*(CASES | MORE)[case])
    trainer = live(config)
    records = trainer.run()
    directory = left(trainer, config)
    again = replayed(config, directory)
    assert [one.version for one in again.executor.deviations] == list(range(len(again.executor.deviations)))
    assert int(records[-1]["updates"]) == len(again.executor.deviations) - 1 > 5
    assert max(one.deviation for one in again.executor.deviations) < 1e-5
    np.testing.assert_allclose(params(again), params(trainer), atol=1e-5)
    assert again.usages == trainer.usages  # seconds and dollars are those that were measured
    once_more = replayed(config, directory)
    np.testing.assert_array_equal(params(once_more), params(again))


def test_a_replay_may_differ_and_says_where(left: Any, tmp_path: Path) -> None:
    config = config_of()
    trainer = live(config)
    trainer.run()
    directory = left(trainer, config)
    other = replayed(config, directory, **{"algorithm.learning_rate": 0.1})
    other.write(tmp_path)
    report = json.loads((tmp_path / "replay.json").read_text())
    assert report["first_apart"]["version"] == 1
    assert report["identical"] == 1  # the one that nothing was learned from
    assert report["versions"] == len(other.executor.deviations)
    # A weight of gradients that is configured otherwise is worked out anew.
    fresh = replayed(config, directory, **{"system.weights": "constant"})
    (recorded,) = fresh.schedule.timelines
    recorded.restore({"done": 0})
    rows = [recorded.next_round() for _ in fresh.executor.trace.rounds]
    weights = {weight for row in rows for group in row.groups for weight in group.weights}
    assert weights == {1.0}


def test_who_waits_for_real_is_the_synchronous_trainer() -> None:
    config = config_of("system=allreduce")
    trainer = live(config)
    trainer.run()
    compiled = Trainer(config.replace({"executor": "simulated"}))
    compiled.run()
    np.testing.assert_allclose(params(trainer), params(compiled), atol=1e-5)
    assert trainer.usages[0].staleness_max == 0


@pytest.mark.parametrize("seed", range(4))
def test_what_dies_is_done_again_and_counted_once(seed: int, left: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor, "MOST_DEATHS", 1000)
    config = config_of("system.actors=pipelined")
    trainer = live(config, deaths=0.5, seed=seed)
    trainer.compile()
    pool = trainer.executor.conductor.pool
    assert isinstance(pool, Chaos)
    before = pool.died
    trainer.run()
    died = pool.died - before
    directory = left(trainer, config)
    rounds = list(trace.read(directory / trace.NAME).rounds)
    failures = [failure for one in rounds for failure in one.failures]
    usage = trainer.usages[0]
    assert len(failures) == usage.failures == died > 20
    assert usage.learner_failed > 0.0
    used = [(g.fragment, g.minibatch) for one in rounds for group in one.record.groups for g in group.gradients]
    assert len(set(used)) == len(used) == usage.gradients
    # The last fragment of a pipeline is still to be learned from; of all others every minibatch was.
    assert {fragment: 16 for fragment in range(len(rounds) - 1)}.items() <= _counts(used).items()
    assert max(one.deviation for one in replayed(config, directory).executor.deviations) < 1e-5


def _counts(used: list[tuple[int, int]]) -> dict[int, int]:
    return {fragment: sum(one == fragment for one, _ in used) for fragment, _ in used}


def test_what_always_dies_ends_the_run() -> None:
    trainer = live(config_of(), deaths=1.0)
    with pytest.raises(RunError, match=r"(actor|learner) \d has died 11 times in a row, .*: killed"):
        trainer.run()


def test_who_is_restored_goes_on_with_what_was_under_way(left: Any, tmp_path: Path) -> None:
    config = config_of("system.actors=pipelined", "system=async", "system.learners=6", "total_steps=1280")
    first = live(config)
    first.step()
    while len(first.metadata()["timelines"][0]["learning"]) < 3:
        first.step()
        assert first.round < config.rounds - 1, "something is under way, sooner or later"
    directory = left(first, config)
    saved, engine = json.loads(json.dumps(first.metadata())), jax.device_get(first.state.params)
    state = jax.tree.map(lambda x: x.copy(), first.state)
    first.step()
    first.write(directory)  # a round that the checkpoint does not know

    second = live(config, seed=1)
    second.seed_states.state = state
    second.schedule.restore(saved)
    second.executor.restart()
    np.testing.assert_array_equal(second.state.params, engine)
    second.run()
    second.write(directory)
    rounds = list(trace.read(directory / trace.NAME).rounds)
    assert [one.record.index for one in rounds] == list(range(config.rounds))
    used = [(g.fragment, g.minibatch) for one in rounds for group in one.record.groups for g in group.gradients]
    assert len(set(used)) == len(used) == second.usages[0].gradients
    assert max(one.deviation for one in replayed(config, directory).executor.deviations) < 1e-5


def test_seconds_are_measured_and_billed() -> None:
    trainer = live(config_of())
    begin = time.monotonic()
    trainer.compile()
    compiled = time.monotonic()
    records = trainer.run()
    took = time.monotonic() - compiled
    usage = trainer.usages[0]
    assert 0.5 * took < usage.seconds <= took < compiled - begin  # compiling is no part of it
    assert records[-1]["simulated_seconds"] == usage.seconds
    assert 0.0 < usage.learner_busy < 3 * usage.seconds
    assert usage.actor_invocations == 2 * len(records)
    assert records[-1]["cost_usd"] > 0.0


def test_processes_are_cold_at_first_where_they_are_not_to_be_warm() -> None:
    for prewarm, cooled in (("true", 0), ("false", 1)):
        trainer = live(config_of(f"platform.prewarm={prewarm}"))
        trainer.compile()
        assert isinstance(trainer.executor.conductor.pool, Chaos)
        assert trainer.executor.conductor.pool.cooled == cooled


def test_a_trace_that_is_cut_off_is_read_as_far_as_it_goes(left: Any) -> None:
    config = config_of()
    trainer = live(config)
    trainer.run()
    directory = left(trainer, config)
    path = directory / trace.NAME
    whole = path.read_bytes()
    rounds = list(trace.read(path).rounds)
    assert len(rounds) == config.rounds
    for share in (0.9, 0.5, 0.2):
        path.write_bytes(whole[: int(share * len(whole))])
        part = list(trace.read(path).rounds)
        assert len(part) < len(rounds)
        assert [one.record for one in part] == [one.record for one in rounds[: len(part)]]
    with pytest.raises(ConfigError, match=r"total_steps=320 is more than the \d+ that trace="):
        replayed(config, directory)
    for damage in (b"", b"no gzip", whole[:10]):
        path.write_bytes(damage)
        with pytest.raises(ConfigError, match="is no trace of a live run"):
            trace.read(path)


def test_the_sketch_tells_how_far_versions_are_apart() -> None:
    random = np.random.default_rng(0)
    base = random.normal(size=5000).astype(np.float32)
    published = trace.Published.of(3, 1.0, base)
    assert published.deviation(base) == 0.0
    ratios = []
    for _ in range(50):
        other = base + 1e-3 * random.normal(size=base.shape).astype(np.float32)
        true = np.linalg.norm(other - base) / np.linalg.norm(base)
        ratios.append(published.deviation(other) / true)
    assert 0.9 < np.mean(ratios) < 1.1
    assert 0.2 < min(ratios) <= max(ratios) < 2.2


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["num_seeds=2"], "num_seeds=2 is not possible with executor=live"),
        (["trace=runs/x"], "trace=runs/x is for executor=replay"),
        (["executor=replay"], "executor=replay needs trace=RUN_DIR"),
        (["executor=replay", "trace=nowhere"], "trace=nowhere is of no run"),
        (["live.timeout=0"], "live.timeout must be"),
        (["live.timeout=1e-9"], r"live.timeout=1e-09 is too short: .*; 1 s or more are possible"),
        (["live.pool=threads", "live.address=h:1"], r"^live.address=h:1 is not possible with live.pool=t"),
        (["live.timeout=inf"], "live.timeout must be"),
        (["executor=simulated", "engine.devices=1", "executor=cluster"], "executor must be"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config_of(*overrides)


def test_a_population_refuses_live_runs() -> None:
    with pytest.raises(ConfigError, match="executor=live is not possible in a Population"):
        Population([config_of()])


def test_points_of_a_live_sweep_are_trained_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    trained: list[int] = []
    monkeypatch.setattr(cli_sweep, "_train", lambda config: trained.append(config.seed))
    cli_sweep.sweep(None, [*SMALL, "num_seeds=1", "seed=0,1"], None)
    assert trained == [0, 1]


def test_the_example_for_a_cluster_is_a_job_that_can_run() -> None:
    path = Path(__file__).parent.parent / "examples" / "cluster" / "rayjob.yaml"
    job = yaml.safe_load(path.read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    program, command, *overrides = shlex.split(job["spec"]["entrypoint"])
    assert (program, command) == ("stellaris-jax", "train")
    config = load_config(overrides)
    assert config.executor == "live"
    groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    cores = sum(
        group["replicas"] * int(container["resources"]["limits"]["cpu"])
        for group in groups
        for container in group["template"]["spec"]["containers"]
    )
    asked = config.system.learners * config.live.learner_cpus + config.live.actors * config.live.actor_cpus
    assert 0 < asked <= cores


@pytest.mark.parametrize("arguments", [[], ["-m", "seed=0,1"]])
def test_ray_is_asked_for_before_anything_is_made(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit) as stop:
        cli_train.main([*arguments, *SMALL, "num_seeds=1"])
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert told == (
        "error: live.pool=ray needs Ray; install it by: pip install 'stellaris-jax[ray]'; or set live.pool=threads.\n"
    )
    assert not any(tmp_path.iterdir())
