"""SeedStates: every seed of a run is what it is alone, to the bit where it is executed by itself."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest
from training import clockwork, leaves, scalable

from stellaris_jax import Config, ConfigError, Population, Trainer, load_config
from stellaris_jax.engine import mesh, seed_states

SMALL = ("env=gymnax/cartpole", "env.num_envs=8", "algorithm.rollout_length=8", "algorithm.epochs=2",
         "algorithm.minibatches=4", "network.hidden=[8]", "system.learners=4", "total_steps=384",
         "evaluation.episodes=3", "engine.chunk_rounds=2")  # fmt: skip
SEEDS = 3


def small(*overrides: str) -> Config:
    return load_config([*SMALL, *overrides])


def trained(config: Config) -> tuple[Any, Any, list[Any]]:
    """The whole state, returns of an evaluation, and the records, by seed."""
    trainer = Trainer(config)
    records = trainer.run()
    evaluation = trainer.evaluate()
    trainer.close()
    return leaves(trainer), evaluation.returns, [record["per_seed"] for record in records]


@pytest.mark.parametrize(
    "overrides",
    [
        ("system=stellaris", "delays=pareto", "delays.failure=0.1"),
        ("system=async", "algorithm=impala"),
        ("system=ssp", "algorithm=impact", "algorithm.options.target_interval=2", "system.actors=pipelined"),
        ("system=allreduce", "algorithm.kl_coefficient=0.2", "env.normalize_observation=true"),
    ],
    ids=lambda overrides: overrides[0],
)
def test_a_member_is_what_it_is_alone(overrides: tuple[str, ...]) -> None:
    states, returns, records = trained(small(*overrides, f"num_seeds={SEEDS}"))
    for i in range(SEEDS):
        alone, mine, told = trained(small(*overrides, f"seed={i}"))
        for all_, one in zip(states, alone, strict=True):
            np.testing.assert_array_equal(all_[i], one[0])
        np.testing.assert_array_equal(returns[i], mine[0])
        for row, own in zip(records, told, strict=True):
            np.testing.assert_equal({key: values[i] for key, values in row.items()}, {k: v[0] for k, v in own.items()})


def test_rounds_of_different_widths() -> None:
    """Seeds to which scaling gives their own numbers of actors run programs of their own widths."""
    settings = ("scaling=adapt", "scaling.target=40", "scaling.ends=false", "scaling.minimum=1")
    trainer = Trainer(scalable(*settings, "num_seeds=3"))
    widths = set()
    while not trainer.finished:
        trainer.compile()
        widths.add(tuple(trainer.executor.planner.next().widths))
        trainer.step()
    assert any(len(set(row)) > 1 for row in widths)
    for i in range(3):
        alone = Trainer(scalable(*settings, f"seed={i}"))
        alone.run()
        for all_, one in zip(leaves(trainer), leaves(alone), strict=True):
            np.testing.assert_array_equal(all_[i], one[0])


def test_members_on_host_environments() -> None:
    both = Trainer(clockwork("num_seeds=2"))
    both.run()
    for i in range(2):
        alone = Trainer(clockwork(f"seed={i}"))
        alone.run()
        np.testing.assert_array_equal(both.state.params[i], alone.state.params[0])
        alone.close()
    both.close()


def test_together_is_apart_up_to_rounding() -> None:
    apart, together = (Trainer(small(f"num_seeds={SEEDS}", f"engine.members={way}")) for way in ("apart", "together"))
    assert [len(x.seed_states.states) for x in (apart, together)] == [SEEDS, 1]
    for _ in range(2):
        first, second = apart.step(), together.step()
        assert [record["per_seed"]["cost_usd"] for record in first] == [r["per_seed"]["cost_usd"] for r in second]
        np.testing.assert_allclose(apart.state.params, together.state.params, atol=1e-5)
    assert apart.counters.computed <= together.counters.computed  # nobody waits for the longest round


def test_all_trainers_share_as_many_threads_as_there_are_cores() -> None:
    trainers = [Trainer(small(f"num_seeds={SEEDS}")) for _ in range(2)]
    for trainer in trainers:
        trainer.step()
        trainer.close()
    assert trainers[0].seed_states._threads is trainers[1].seed_states._threads
    mine = [thread for thread in threading.enumerate() if thread.name.startswith("members")]
    assert 1 <= len(mine) <= seed_states.cores()
    assert Trainer(small()).seed_states._threads is None
    spread = Trainer(small("num_seeds=2", "engine.devices=2"))
    assert spread.seed_states._threads is None  # they would wait for each other


def test_states_are_put_back_together_and_taken_apart() -> None:
    trainer = Trainer(small(f"num_seeds={SEEDS}"))
    trainer.step()
    state = trainer.state
    other = Trainer(small(f"num_seeds={SEEDS}"))
    other.seed_states.state = jax.tree.map(lambda x: x, state)
    for mine, theirs in zip(trainer.seed_states.states, other.seed_states.states, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(data(a), data(b)), mine, theirs)


def data(x: Any) -> Any:
    return jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def test_a_member_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(small(f"num_seeds={SEEDS}"))
    trainer.step()
    placed, calls = trainer.engine.placed, []

    def failing(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError("no more")
        return placed(*arguments)

    monkeypatch.setattr(trainer.engine, "placed", failing)
    with pytest.raises(MemoryError, match="no more"):
        trainer.step()


# Populations


def test_runs_of_a_population_are_what_they_are_alone() -> None:
    """Configurations that differ in rules, rates, delays and seeds, and one of another program."""
    configs = [
        small("algorithm.learning_rate=0.01", "num_seeds=2"),
        small("algorithm.learning_rate=0.001", "system=softsync", "system.truncation=weight", "delays=pareto"),
        small("system=async", "system.truncation=weight", "seed=7", "total_steps=256"),
        small("network.hidden=[4]"),
    ]
    population = Population(configs)
    records = population.run()
    assert population.engines == 2
    assert [len(rows) for rows in records] == [6, 6, 4, 6]
    for config, trainer, evaluation in zip(configs, population.trainers, population.evaluate(), strict=True):
        alone, returns, _ = trained(config)
        for mine, theirs in zip(leaves(trainer), alone, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(evaluation.returns, returns)
    population.close()


def test_populations_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="at least one configuration"):
        Population([])
    monkeypatch.setattr("stellaris_jax.many.population.Trainer", None)  # nothing is made
    with pytest.raises(ConfigError, match=r"algorithm\.gamma must be in \[0, 1\], not 2\.0"):
        Population([small(), small().replace({"algorithm.gamma": 2.0})])


def test_no_number_of_one_run_reaches_another() -> None:
    """Hyper-parameters also shape the start of a run, as its KL coefficient does."""
    first = small("algorithm.kl_coefficient=0.2")
    values = {"algorithm.kl_coefficient": 0.0, "algorithm.gamma": 0.9, "system.rho": 0.5}
    values |= {"algorithm.options.clip": 0.01}
    configs = [first, *(first.replace({key: value}) for key, value in values.items())]
    population = Population(configs)
    population.run()
    assert population.engines == 1
    for config, trainer in zip(configs, population.trainers, strict=True):
        for mine, theirs in zip(leaves(trainer), trained(config)[0], strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_grid_of_rates_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_ = mesh._compile
    monkeypatch.setattr(mesh, "_compile", lambda lowered: compiled.append(1) or compile_(lowered))
    population = Population([small().replace({"algorithm.learning_rate": rate}) for rate in (0.1, 0.01, 0.001)])
    population.run(2)
    assert compiled == [1] and population.engines == 1
    assert len({np.asarray(trainer.state.params).tobytes() for trainer in population.trainers}) == 3


def test_programs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used entry is evicted; its users keep it."""
    from stellaris_jax.engine import program_cache as module

    monkeypatch.setattr(module, "MOST", 2)
    programs = module.ProgramCache()
    first, second = (programs._once(key, object) for key in "ab")
    assert programs._once("a", object) is first
    programs._once("c", object)
    assert programs._once("a", object) is first and programs._once("b", object) is not second


def test_shapes_are_known_before_there_is_a_state() -> None:
    """A checkpoint is read into them."""
    trainer = Trainer(small("num_seeds=2"))
    known = trainer.engine.layout.abstract(2)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), known) == jax.tree.map(
        lambda x: (x.shape, x.dtype), trainer.state
    )
