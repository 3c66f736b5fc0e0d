"""ChunkCache shared by runs: planned once, and every run what it is alone."""

from __future__ import annotations

import gc
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from training import assert_identical

from stellaris_jax import ConfigError, Population, Trainer, load_config
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk_cache import ChunkCache, shared_by, size_of
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.timeline import Timeline

JOB = (
    "env=gymnax/cartpole", "env.num_envs=8", "algorithm.rollout_length=8", "algorithm.epochs=2",
    "algorithm.minibatches=2", "network.hidden=[8]", "system=ssp", "system.learners=2", "delays.failure=0.1",
    "total_steps=512", "engine.chunk_rounds=2", "evaluation.points=1",
)  # fmt: skip
CHUNKS = 4

pytestmark = pytest.mark.usefixtures("shared_programs")


def job(*overrides: str) -> Config:
    return load_config([*JOB, *overrides])


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rounds that are simulated."""
    rounds: list[int] = []
    next_round = Timeline.next_round

    def noted(self: Timeline, *arguments: Any) -> Any:
        rounds.append(self.fragment)
        return next_round(self, *arguments)

    monkeypatch.setattr(Timeline, "next_round", noted)
    return rounds


def test_runs_that_plan_alike_plan_once(simulated: list[int]) -> None:
    rates = [1e-4, 1e-3, 1e-2]
    population = Population([job(f"algorithm.learning_rate={rate}") for rate in rates])
    together = population.run()
    assert sorted(simulated) == list(range(2 * CHUNKS))
    for rate, trainer, records in zip(rates, population.trainers, together, strict=True):
        alone = Trainer(job(f"algorithm.learning_rate={rate}"))
        assert [record["simulated_seconds"] for record in alone.run()] == [r["simulated_seconds"] for r in records]
        assert_identical(alone, trainer)


def test_a_run_goes_on_by_itself_where_the_others_had_ended(simulated: list[int]) -> None:
    """Its timelines stand at the beginning then: all that it executed so far had been planned by another run."""
    plans = ChunkCache(2**20)
    first, second = (Trainer(job(f"algorithm.gamma={gamma}"), programs=ProgramCache(plans)) for gamma in (0.9, 0.99))
    first.run(4)
    second.run()
    assert sorted(simulated) == list(range(2 * CHUNKS))
    alone = Trainer(job("algorithm.gamma=0.99"))
    alone.run()
    assert_identical(alone, second)


def test_a_resumed_run_takes_what_the_others_planned() -> None:
    plans = ChunkCache(2**20)
    begun, other, again = (Trainer(job(), programs=ProgramCache(plans)) for _ in range(3))
    other.run()
    begun.run(4)
    again.schedule.restore(json.loads(json.dumps(begun.metadata())))
    again.executor.restart()
    again.state = begun.state
    again.run()
    assert_identical(other, again)


@pytest.mark.parametrize(
    "differs", ["seed=1", "num_seeds=2", "system.rule_options.s=1", "delays.failure=0.2", "algorithm.anneal=false"]
)
def test_what_is_planned_otherwise_is_not_shared(differs: str) -> None:
    one, other = Trainer(job()), Trainer(job(differs))
    assert shared_by(one.config, one.spec) != shared_by(other.config, other.spec)


def test_what_is_learned_may_differ() -> None:
    one, other = Trainer(job()), Trainer(job("algorithm.learning_rate=1e-2", "algorithm.gamma=0.9"))
    assert shared_by(one.config, one.spec) == shared_by(other.config, other.spec)


def test_plans_that_hang_on_what_is_learned_are_not_shared() -> None:
    one = Trainer(job("scaling.rule=adapt", "scaling.target=100", "scaling.maximum=4"))
    assert shared_by(one.config, one.spec) is None
    assert len(one.run()) == one.round


def test_two_that_ask_at_once_wait_for_one_plan() -> None:
    planner, plans, planned = Trainer(job()).executor.planner, ChunkCache(2**30), []
    chunk, both = planner.next(), threading.Barrier(2)

    def plan() -> Any:
        planned.append(1)
        return chunk

    def ask() -> Any:
        both.wait()
        return plans.chunk("a run", 0, 2, plan)

    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(ask) for _ in range(2)]
        assert all(one.result() is chunk for one in asked)
    assert len(planned) == 1


def test_memory_is_bounded() -> None:
    """The plans of whoever asked longest ago go first; of those at hand no more are kept than there is room for."""
    chunk = Trainer(job()).executor.planner.next()
    plans = ChunkCache(3 * size_of(chunk))
    for run in ("old", "new"):
        for begin in (0, 2):
            plans.chunk(run, begin, 2, lambda: chunk)
    assert plans.size == 2 * size_of(chunk)  # those of the old run went together
    for begin in (4, 6, 8):
        plans.chunk("new", begin, 2, lambda: chunk)
    assert plans.size == 3 * size_of(chunk)

    def again() -> Any:
        raise AssertionError("planned twice")

    assert plans.chunk("new", 0, 2, again) is chunk
    with pytest.raises(AssertionError):
        plans.chunk("new", 8, 2, again)
    with pytest.raises(AssertionError):
        plans.chunk("old", 0, 2, again)


def test_a_run_may_be_evicted_while_it_plans() -> None:
    """Another run fills the cache meanwhile: the plan is kept nonetheless, and nothing fails."""
    chunk = Trainer(job()).executor.planner.next()
    plans = ChunkCache(size_of(chunk))

    def plan() -> Any:
        for begin in (0, 2):
            plans.chunk("another run", begin, 2, lambda: chunk)
        return chunk

    assert plans.chunk("a run", 0, 2, plan) is chunk
    assert plans.size == size_of(chunk)


def test_a_plan_that_failed_is_planned_by_the_next_who_asks() -> None:
    plans, chunk = ChunkCache(2**30), Trainer(job()).executor.planner.next()

    def fails() -> Any:
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        plans.chunk("a run", 0, 2, fails)
    assert plans.chunk("a run", 0, 2, lambda: chunk) is chunk


def test_python_collects_its_garbage_again_after_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Trainer(job()).executor.planner
    seen: list[bool] = []
    next_round = Timeline.next_round

    def noted(self: Timeline, *arguments: Any) -> Any:
        seen.append(gc.isenabled())
        if len(seen) > 2:
            raise RuntimeError("no more")
        return next_round(self, *arguments)

    monkeypatch.setattr(Timeline, "next_round", noted)
    planner.plan(0, 2)
    assert seen == [False, False] and gc.isenabled()
    with pytest.raises(RuntimeError):
        planner.plan(2, 2)
    assert gc.isenabled()
