"""The benchmark `limit` counts as a pencil does, loops included; its parts and rates are all there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training import TINY

from benchmarks import limit, main, rates
from benchmarks.arithmetic import Work, work_of
from benchmarks.limit import gradient_work, products_alone, spent_of, works_of
from benchmarks.own import THROUGHPUT
from benchmarks.parts import waves
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer

OBSERVATION, ACTIONS, HIDDEN = 4, 2, 8
ENVS, STEPS, EPOCHS, MINIBATCHES, ROUNDS = 8, 16, 2, 4, 3
BATCH = ENVS * STEPS // MINIBATCHES
SMALL = [*TINY, f"engine.chunk_rounds={ROUNDS}", "system.actors=barrier", "evaluation.points=0", "total_steps=1e9"]
POLICY = OBSERVATION * HIDDEN + HIDDEN * ACTIONS
CRITIC = OBSERVATION * HIDDEN + HIDDEN * 1
"""Multiplications of a forward pass of one observation; each goes with an addition."""
BACKWARD = POLICY + CRITIC + HIDDEN * ACTIONS + HIDDEN * 1
"""Multiplications for the gradients of all weights, and of all inputs of layers but the first."""


def trainer_of(system: str) -> Trainer:
    return Trainer(load_config([*SMALL, f"system={system}", f"system.learners={1 if system == 'central' else 3}"]))


def test_a_gradient_takes_what_a_pencil_says() -> None:
    central = trainer_of("central")
    assert gradient_work(central).product_flops == 2 * BATCH * (POLICY + CRITIC + BACKWARD)


def test_versions_in_flight_take_a_forward_pass_of_the_policy_each() -> None:
    stellaris = trainer_of("stellaris")
    plan = stellaris.executor.planner.next().plans[0]
    peers = plan.invocations.peers.number[plan.weights > 0].mean()
    assert peers > 0
    more = gradient_work(stellaris).product_flops - 2 * BATCH * (POLICY + CRITIC + BACKWARD)
    assert more == pytest.approx(2 * BATCH * POLICY * peers)


def test_a_chunk_takes_all_its_steps_and_gradients() -> None:
    works = works_of(central := trainer_of("central"))
    assert central.steps_per_round == ENVS * STEPS
    assert works["policy"].product_flops == ROUNDS * STEPS * ENVS * 2 * POLICY
    assert works["preparing"].product_flops == ROUNDS * (STEPS + 1) * ENVS * 2 * CRITIC
    gradients = ROUNDS * EPOCHS * MINIBATCHES
    assert works["gradients"].product_flops == gradients * 2 * BATCH * (POLICY + CRITIC + BACKWARD)
    assert waves(central) == gradients
    # the least that Adam does: two means, a root, a quotient and a step for every number
    assert works["aggregation"].elementwise > 8 * gradients * central.network.size
    assert works["environment"].product_flops == 0 and works["environment"].elementwise > 0
    assert all(work.moved > 0 for work in works.values())


def test_learners_from_a_replay_buffer_are_counted() -> None:
    small = ["env.num_envs=4", "algorithm.rollout_length=4", "network.hidden=[8]", "system=central", "total_steps=1e6"]
    stored = ["algorithm.options.buffer_size=256", "algorithm.options.learning_starts=64", "evaluation.points=0"]
    trainer = Trainer(load_config(["env=gymnax/pendulum", "algorithm=sac", *small, *stored]))
    trainer.run(1)
    works = works_of(trainer)
    assert works["gradients"].product_flops > 0 and all(work.moved > 0 for work in works.values())


def test_loops_count_as_often_as_they_go_round() -> None:
    weights, x = jnp.ones((8, 8)), jnp.ones((2, 8))

    def scanned(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (x @ weights, x), x, length=5)[0]

    def fixed(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 5, lambda _, x: x @ weights, x)

    def open_(x: jax.Array, end: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, end, lambda _, x: x @ weights, x)

    once = 2 * 2 * 8 * 8
    assert work_of(scanned, x).product_flops == work_of(fixed, x).product_flops == 5 * once
    assert work_of(open_, x, jnp.int32(5), trips=7).product_flops == 7 * once
    assert work_of(scanned, x).moved == 5 * 4 * (64 + 16 + 16) + 5 * 4 * 2 * 16


def test_one_branch_counts() -> None:
    def either(x: jax.Array) -> jax.Array:
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x @ x, lambda x: x @ x, x)

    x = jnp.ones((4, 4))
    assert work_of(either, x, pick=min).product_flops == 2 * 4**3
    assert work_of(either, x, pick=max).product_flops == 2 * 2 * 4**3


def test_convolutions_count_their_kernel_for_every_output() -> None:
    x, kernel = jnp.ones((2, 10, 10, 3)), jnp.ones((4, 4, 3, 5))

    def convolved(x: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    assert work_of(convolved, x).flops == 2 * (2 * 4 * 4 * 5) * (4 * 4 * 3)


def test_xla_counts_the_same_where_there_are_no_loops() -> None:
    def network(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(jnp.maximum(x @ first, 0.0) @ second))

    shapes = [(64, 16), (16, 32), (32, 4)]
    arguments = [jnp.ones(shape) for shape in shapes]
    gradient = jax.grad(network, argnums=(1, 2))
    by_xla: Any = jax.jit(gradient).lower(*arguments).cost_analysis()
    assert work_of(gradient, *arguments).flops == pytest.approx(by_xla["flops"], rel=0.05)


def test_work_adds_up() -> None:
    one = work_of(lambda x: x @ x + x, jnp.ones((4, 4)))
    assert (one + one).flops == (one * 2).flops == 2 * one.flops
    assert (one + Work()) == one == one * 1
    assert len((one + one).products) == 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of small arrays, measured for as long as a blink."""
    monkeypatch.setattr(rates, "SQUARES", (32,))
    monkeypatch.setattr(rates, "ARRAYS", (2**10, 2**16))
    monkeypatch.setattr(rates, "LEAST", 1e-4)
    monkeypatch.setattr(limit, "MOST", 2)


def test_rates_are_positive(quick: None) -> None:
    machine = rates.machine()
    found = [machine["product_flops_per_second"], *machine["bytes_per_second"].values()]
    assert len(found) == 3 and all(math.isfinite(rate) and rate > 0 for rate in found)
    assert rates.bytes_per_second(machine, 2**9) == machine["bytes_per_second"][str(2**10)]
    assert rates.bytes_per_second(machine, 2**40) == machine["bytes_per_second"][str(2**16)]
    alone = products_alone(work_of(lambda x, y: x @ y @ y, jnp.ones((3, 4)), jnp.ones((4, 4))))
    assert [product.label for product in alone] == ["[3,4] x [4,4]"] and min(alone.values()) > 0


def test_the_limit_is_what_takes_longer() -> None:
    machine = {"product_flops_per_second": 10.0, "bytes_per_second": {str(size): 5.0 for size in rates.ARRAYS}}
    assert rates.limit_seconds(machine, Work(elementwise=30.0, moved=5.0), held=1) == 3.0
    assert rates.limit_seconds(machine, Work(elementwise=30.0, moved=50.0), held=1) == 10.0


@pytest.mark.parametrize("hosted", [False, True])
def test_the_parts_add_up_to_a_step(hosted: bool) -> None:
    names = ("step", "executing", "planning", "environment", "acting", "collecting", "gradients", "aggregation")
    seconds = dict(zip(names, np.random.default_rng(0).uniform(size=len(names)).tolist(), strict=True))
    spent = spent_of(seconds, hosted)
    beside = {"planning", *(["environment", "policy"] if hosted else [])}
    assert sum(taken for name, taken in spent.items() if name not in beside) == pytest.approx(seconds["step"])


HOSTED = [f"env.num_envs={ENVS}", "env.name=test/clockwork", f"algorithm.rollout_length={STEPS}", "total_steps=1e9"]


@pytest.mark.parametrize(
    ("overrides", "rounds", "beside"),
    [
        (SMALL, ROUNDS, ["planning"]),
        pytest.param(HOSTED, 1, ["environment", "policy", "planning"], marks=pytest.mark.slow),
    ],
    ids=["compiled", "hosted"],
)
def test_the_benchmark_writes_what_it_finds(
    overrides: list[str],
    rounds: int,
    beside: list[str],
    quick: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(THROUGHPUT, "small", [*overrides, "network.hidden=[8]"])
    file = tmp_path / "limit.json"
    main.main(["limit", "--jobs", "small", "--systems", "stellaris", "--repeats", "1", "--json", str(file)])
    result = json.loads(file.read_text())["result"]
    (row,) = result["jobs"]
    assert (row["job"], row["system"], row["env_steps_per_chunk"]) == ("small", "stellaris", rounds * STEPS * ENVS)
    assert row["share"] == pytest.approx(row["steps_per_second"] / row["limit_steps_per_second"])
    parts = row["parts"]
    assert [name for name, part in parts.items() if part["beside"]] == beside
    assert sum(part["share_of_time"] for part in parts.values() if not part["beside"]) == pytest.approx(1.0)
    shown = capsys.readouterr().out
    assert f"{row['steps_per_second']:,.0f}" in shown and "(planning)" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["limit", "--jobs", "pong"], "invalid choice: 'pong'"),
        (["limit", "--json", "/dev/null/limit.json"], "--json=/dev/null/limit.json cannot be written"),
    ],
)
def test_mistakes_end_in_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main(arguments)
    shown = capsys.readouterr().err
    assert stop.value.code == 2 and shown.startswith("error: ") and shown.count("\n") == 1 and message in shown
