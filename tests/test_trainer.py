"""The trainer end to end: bit-exact resumption after a kill, damaged checkpoints, signals, guards, the Python API."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import REPOSITORY, start, wait_for_checkpoints
from training import TINY, assert_identical, leaves, steps, tiny

from stellaris_jax import ConfigError, Trainer, load_config, load_policy
from stellaris_jax.execute.run import open_run, train
from stellaris_jax.runs.checkpoint import CheckpointError, Checkpoints

pytestmark = pytest.mark.usefixtures("shared_programs")


ROUNDS = 400


@pytest.fixture(scope="module")
def uninterrupted() -> Trainer:
    trainer = Trainer(tiny(steps(ROUNDS)))
    trainer.run()
    return trainer


@pytest.mark.parametrize("signum", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_stopped_run_says_how_to_go_on_and_does(signum: int, uninterrupted: Trainer, tmp_path: Path) -> None:
    """test_kill.py has the signal that cannot be caught."""
    run_dir = tmp_path / "run"
    process = start(run_dir, *TINY, steps(ROUNDS), f"run.dir={run_dir}", "checkpoint.interval=4")
    wait_for_checkpoints(process, run_dir, 2)
    process.send_signal(signum)
    output, _ = process.communicate(timeout=60)
    assert not (run_dir / "summary.json").exists(), "the run ended before it could be stopped"
    assert process.returncode == 128 + signum
    assert re.search(rf"resume={re.escape(str(run_dir))}", output.replace("\n", ""))

    summary = train(load_config([f"resume={run_dir}", "checkpoint.interval=50"]))
    assert summary["rounds"] == ROUNDS
    assert_identical(open_run(run_dir), uninterrupted)
    rounds = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [r["round"] for r in rounds if r["kind"] == "round"] == list(range(1, ROUNDS + 1))


def test_damaged_checkpoint_falls_back(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(tiny(steps(6), f"run.dir={run_dir}", "checkpoint.interval=2"))
    newest = run_dir / "checkpoints" / "6"
    data = max((p for p in (newest / "state").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    raw = bytearray(data.read_bytes())
    for i in range(0, len(raw), 97):
        raw[i] ^= 0x55
    data.write_bytes(raw)

    trainer, notes = Trainer(tiny(steps(6))), []
    checkpoints = Checkpoints(run_dir / "checkpoints", keep=3)
    assert trainer.restore(checkpoints, notes.append) == 4
    assert len(notes) == 1
    assert "round 6" in notes[0]
    assert "damaged" in notes[0]

    reference = Trainer(tiny(steps(6)))
    reference.run()
    trainer.run()
    assert_identical(trainer, reference)
    checkpoints.close()

    for path in (run_dir / "checkpoints").glob("*/state/manifest.ocdbt"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no intact checkpoint"):
        open_run(run_dir)


@pytest.mark.parametrize("algorithm", ["ppo", "impact"])
def test_resume_towards_more_steps(algorithm: str, tmp_path: Path) -> None:
    """IMPACT's target network, version 7, 14, ..., is saved in the ring, which is longer for it."""
    run_dir, loss = tmp_path / "run", [f"algorithm={algorithm}"]
    loss += ["algorithm.options.target_interval=7"] if algorithm == "impact" else []
    train(tiny(steps(4), *loss, f"run.dir={run_dir}"))
    train(load_config([f"resume={run_dir}", steps(8)]))
    reference = Trainer(tiny(steps(8), *loss))
    reference.run()
    kept = reference.config.system.versions
    assert reference.state.ring.shape[1] == (kept if algorithm == "ppo" else kept + 6)
    assert_identical(open_run(run_dir), reference)


def test_run_directory_is_never_overwritten(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "precious").write_text("data")
    with pytest.raises(ConfigError, match=r"run\.dir=.* is not empty"):
        train(tiny(steps(2), f"run.dir={run_dir}"))
    assert (run_dir / "precious").read_text() == "data"


def test_run_directory_holds_what_was_promised(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    summary = train(tiny(steps(4), f"run.dir={run_dir}", "num_seeds=2"))
    present = {p.name for p in run_dir.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "summary.json", "checkpoints", "curve.png"} <= present
    assert any(name.startswith("events.out.tfevents") for name in present)
    promised = {
        "env",
        "system",
        "algorithm",
        "seed",
        "num_seeds",
        "env_steps",
        "updates",
        "eval_return_mean",
        "eval_return_ci95",
        "eval_episodes",
        "wall_seconds",
        "compile_seconds",
        "steps_per_second",
        "staleness_mean",
        "staleness_max",
        "gate_escapes",
        "occupancy",
        "simulated_seconds",
        "cost_usd",
        "nonfinite_gradients",
        "versions",
        "device",
    }
    saved = json.loads((run_dir / "summary.json").read_text())
    assert promised <= set(saved)
    assert saved["eval_episodes"] == 8
    assert saved["env_steps"] == 4 * 128
    assert saved["eval_return_mean"] == pytest.approx(summary["eval_return_mean"])


def test_seeds_have_their_own_delays_and_data() -> None:
    trainer = Trainer(tiny(steps(4), "num_seeds=2", "seed=5"))
    records = trainer.run()
    params = np.asarray(trainer.state.params)
    assert not np.array_equal(params[0], params[1])
    seconds = records[-1]["per_seed"]["simulated_seconds"]
    assert seconds[0] != seconds[1]
    alone = Trainer(tiny(steps(4), "seed=6"))
    alone.run()
    assert alone.schedule.timelines[0].state() == trainer.schedule.timelines[1].state()
    np.testing.assert_allclose(np.asarray(alone.state.params)[0], params[1], rtol=1e-4, atol=1e-5)


def test_nothing_compiles_after_the_first_chunk() -> None:
    trainer = Trainer(tiny(steps(40), "engine.chunk_rounds=3"))
    trainer.step()
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    )
    trainer.run()
    assert trainer.round == 40
    assert compiled == []
    jax.jit(lambda x: x + 41.5)(np.ones(3))
    assert compiled, "and the listener hears"


@pytest.mark.parametrize("options", [(), ("system.actors=independent", "system.actor_shards=2")], ids=["", "shards"])
def test_a_run_pauses_after_so_many_rounds(options: tuple[str, ...]) -> None:
    """It pauses within a chunk, too, and goes on as if it had not."""
    overrides = (steps(20), "engine.chunk_rounds=8", *options)
    paused, whole = Trainer(tiny(*overrides)), Trainer(tiny(*overrides))
    records = []
    for rounds in (5, 1, 8, 3, 100):
        records.append(paused.run(rounds))
    assert [len(part) for part in records] == [5, 1, 8, 3, 3]
    ends = [part[-1]["env_steps"] for part in records]
    assert ends == [record["env_steps"] for record in whole.run() if record["round"] in (5, 6, 14, 17, 20)]
    assert_identical(paused, whole)


def test_what_was_planned_before_a_pause_is_planned_anew() -> None:
    overrides = (steps(20), "engine.chunk_rounds=8")
    paused, whole = Trainer(tiny(*overrides)), Trainer(tiny(*overrides))
    assert len(paused.step()) == 8  # plans the next eight rounds meanwhile
    assert len(paused.run(3)) == 3 and len(paused.step()) == 8
    paused.run()
    whole.run()
    assert_identical(paused, whole)


def test_nonfinite_gradients_are_rejected_and_counted() -> None:
    trainer = Trainer(tiny(steps(12), "env=diagnostic/nonfinite", "env.kwargs={}", "env.normalize_reward=false"))
    before = np.asarray(trainer.state.params)
    records = trainer.run()
    rejected, all_ = records[-1]["nonfinite_gradients"], trainer.schedule.timelines[0].usage.gradients
    assert 0 < rejected < 0.7 * all_
    assert records[-1]["train_return"] is not None
    after = np.asarray(trainer.state.params)
    assert np.isfinite(after).all()
    assert not np.array_equal(before, after), "finite minibatches must still be learned from"


def test_devices_change_nothing() -> None:
    one, four = Trainer(tiny(steps(3))), Trainer(tiny(steps(3), "engine.devices=4"))
    one.run()
    four.run()
    for a, b in zip(leaves(one), leaves(four), strict=True):
        assert a.shape == b.shape
        if a.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(leaves(one)[0], leaves(four)[0], rtol=1e-4, atol=1e-5)


def test_too_many_devices_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"engine\.devices=64"):
        train(load_config(["engine.devices=64", "env.num_envs=64", "system.learners=8"]))


def test_trained_policy_loads_from_python(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(tiny(steps(4), f"run.dir={run_dir}", "num_seeds=2"))
    policy = load_policy(run_dir, seed=1)
    single, batch = policy(np.zeros(4)), policy(np.zeros((3, 4)))
    assert single.shape == ()
    assert batch.shape == (3,)
    sampled = policy(np.zeros((500, 4)), key=jax.random.key(0))
    assert set(np.unique(np.asarray(sampled))) == {0, 1}
    with pytest.raises(ConfigError, match="accepted: 0, 1"):
        load_policy(run_dir, seed=7)


def test_several_seeds_start_at_the_default_network() -> None:
    """Batched orthogonal initialisation once hung for ever on two cores; a process of its own can be given up."""
    code = "from stellaris_jax import Trainer, load_config; Trainer(load_config(['num_seeds=4'])); print('started')"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=180)
    assert done.stdout.strip().endswith("started"), done.stderr
