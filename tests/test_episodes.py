"""Runs whose fragments end with their episodes (`delays.by=episodes`): they resume, and seeds and devices agree."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from training import OPTION, again, assert_close, assert_identical, check_population, clockwork, leaves, steps, tiny
from uneven import Uneven

from stellaris_jax import ConfigError, Trainer, load_config
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.execute.run import open_run, train
from stellaris_jax.report.gantt import timeline_figure
from stellaris_jax.report.perfetto import rounds_of
from stellaris_jax.runs.checkpoint import Checkpoints
from stellaris_jax.timeline.plan import MinibatchLayout

pytestmark = pytest.mark.usefixtures("shared_programs")

UNEVEN = (
    "system.actors=independent", "delays.by=episodes", "delays=pareto", "system.sync_steps=4", "env.kwargs={}",
    f"env.name={Uneven.name}", "system.actor_shards=4",
)  # fmt: skip
"""Actors of different speeds, whose episodes have 1 to 12 steps of a fragment's 16."""
STALE = {
    "fifo": ("delays.actor_failure=0.2",),
    "newest": ("system.data_admission=newest", f"{OPTION}.bound=1", "num_seeds=2"),
    "capacity": ("system.data_admission=capacity", f"{OPTION}.eta=3", "network.memory=gru", "network.memory_size=4"),
}


def uneven(*overrides: str, rounds: int = 6) -> Trainer:
    return Trainer(tiny(steps(rounds), *UNEVEN, *overrides))


# Interruptions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STALE)
def test_a_run_may_stop_after_any_round(name: str, tmp_path: Path) -> None:
    whole = uneven(*STALE[name])
    whole.run()
    for stop in (1, 2, 4):
        first, second = again(whole), again(whole)
        checkpoints = Checkpoints(tmp_path / str(stop), keep=1)
        first.run(stop)
        first.save(checkpoints)
        checkpoints.wait()
        assert second.restore(checkpoints) == stop
        second.run()
        assert_identical(whole, second)
        checkpoints.close()


def test_a_trainer_goes_back_to_its_checkpoint(tmp_path: Path) -> None:
    """Rounds after the checkpoint leave nothing behind in the executor."""
    whole, other = uneven(*STALE["fifo"]), uneven(*STALE["fifo"])
    whole.run()
    checkpoints = Checkpoints(tmp_path, keep=1)
    other.run(2)
    other.save(checkpoints)
    checkpoints.wait()
    other.run(2)
    other.restore(checkpoints)
    other.run()
    assert_identical(whole, other)
    checkpoints.close()


def test_a_run_directory_resumes_to_the_bit(tmp_path: Path) -> None:
    """Evaluations in the middle of a run change nothing."""
    settings = (*UNEVEN, *STALE["newest"], "checkpoint.interval=2", "evaluation.points=3")
    train(tiny(steps(3), *settings, f"run.dir={tmp_path / 'run'}"))
    train(load_config([f"resume={tmp_path / 'run'}", steps(6)]))
    whole = uneven(*STALE["newest"])
    whole.run()
    assert_identical(open_run(tmp_path / "run"), whole)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum("eval_return_mean" in row for row in rows) >= 2


# Seeds and devices ----------------------------------------------------------------------------------------------------


def test_seeds_are_what_they_are_alone() -> None:
    several, alone = uneven("num_seeds=3"), uneven("seed=1")
    several.run()
    alone.run()
    for mine, own in zip(leaves(several), leaves(alone), strict=True):
        np.testing.assert_array_equal(mine[1], own[0])
    assert several.usages[1] == alone.usages[0]
    assert len({usage.seconds for usage in several.usages}) == 3


@pytest.mark.parametrize("name", ["fifo", "capacity"])
def test_devices_change_nothing_but_rounding(name: str) -> None:
    one, several = (uneven(*STALE[name], f"engine.devices={n}", rounds=3) for n in (1, 2))
    one.run()
    several.run()
    assert_close(several, one)


def test_seeds_are_apart_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """There `engine.members=auto` executes other seeds together."""
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    assert ProgramSpec.of(tiny(*UNEVEN, "num_seeds=3")).seeds == 1
    assert ProgramSpec.of(tiny(*UNEVEN, "num_seeds=3", "delays.by=steps")).seeds == 3


def test_seeds_that_reach_the_target_stop() -> None:
    """The others go on, as they do alone."""
    settings = ("scaling.target=6", "scaling.ends=true")
    trainer, finished = uneven(*settings, "num_seeds=2", rounds=8), set()
    while not trainer.finished:
        trainer.step()
        finished.add(tuple(scaling.finished for scaling in trainer.schedule.scalings))
    assert any(any(row) for row in finished)
    assert trainer.round < 8 or any(len(set(row)) > 1 for row in finished)
    for seed in range(2):
        alone = uneven(*settings, f"seed={seed}", rounds=8)
        alone.run()
        np.testing.assert_array_equal(trainer.state.params[seed], alone.state.params[0])
        assert trainer.usages[seed] == alone.usages[0]


def test_runs_of_a_population_are_what_they_are_alone() -> None:
    configs = [
        tiny(steps(3), *UNEVEN),
        tiny(steps(3), *UNEVEN, "algorithm.learning_rate=0.001"),
        tiny(steps(3), "system.actors=barrier"),
    ]
    check_population(configs)


# Records --------------------------------------------------------------------------------------------------------------


def test_short_episodes_take_less_time() -> None:
    """Episodes of at most 12 of 16 steps: rounds are shorter than if every fragment were whole."""
    by_episodes, by_steps = uneven("delays=constant"), uneven("delays=constant", "delays.by=steps")
    short, whole = ([row["simulated_seconds"] for row in trainer.run()] for trainer in (by_episodes, by_steps))
    assert short[-1] < whole[-1]
    assert by_episodes.usages[0].actor_busy < by_steps.usages[0].actor_busy


def test_pictures_of_timelines_are_refused(tmp_path: Path) -> None:
    """Simulated again, without an engine, rollouts would take as long as whole fragments."""
    config = tiny(steps(3), *UNEVEN)
    with pytest.raises(ConfigError, match=r"delays\.by=episodes is known only once it has been trained"):
        timeline_figure(config, 2)
    with pytest.raises(ConfigError, match=r"has delays\.by=episodes: durations follow its episodes"):
        next(iter(rounds_of(tmp_path, config, MinibatchLayout.of(config))))


def test_durations_that_follow_episodes_need_environments_in_jax() -> None:
    sentence = "delays.by=episodes is not possible with env=test/clockwork, a host environment; delays.by=steps is."
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        Trainer(clockwork("system=async", "system.actors=independent", "system.actor_shards=3", "delays.by=episodes"))
