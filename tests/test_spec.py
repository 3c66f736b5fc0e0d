"""What shapes a program: computed once, and nothing else decides what may run together."""

from __future__ import annotations

from typing import Any

import pytest

from stellaris_jax import load_config
from stellaris_jax.engine.spec import ProgramSpec, in_program
from stellaris_jax.envs.registry import from_config
from stellaris_jax.timeline.ring import Ring

JOB = (
    "env=gymnax/cartpole", "env.num_envs=8", "algorithm.rollout_length=16", "algorithm.epochs=2",
    "algorithm.minibatches=4", "system.learners=5", "system.versions=12", "engine.lanes=3", "total_steps=12800",
)  # fmt: skip


def spec(*overrides: str, host_fragments: bool = False) -> ProgramSpec:
    return ProgramSpec.of(load_config([*JOB, *overrides]), host_fragments)


@pytest.mark.parametrize(
    "override",
    ["seed=7", "system.rule=async", "algorithm.learning_rate=0.1", "delays=pareto", "platform.actors=4"],
)
def test_data_shapes_nothing(override: str) -> None:
    assert spec(override) == spec() and hash(spec(override)) == hash(spec())


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), {"wave_size": 3, "peers": 4, "gradients": 8, "batch": 32, "buffers": 1, "ring": Ring(12)}),
        (("system.truncation=none",), {"peers": 0}),
        (("system.versions=3",), {"peers": 2, "ring": Ring(3)}),
        (("system.actors=pipelined",), {"buffers": 2}),
        (("algorithm=impact", "algorithm.options.target_interval=3"), {"target_interval": 3, "ring": Ring(14)}),
        (
            ("algorithm=impala", "env.num_envs=4"),
            {"target_interval": 1, "ring": Ring(12)},
        ),  # no target network
        (("num_seeds=2", "engine.chunk_rounds=7"), {"seeds": 1, "rounds": 7}),  # one after the other
        (("num_seeds=2", "engine.members=together"), {"seeds": 2}),
        (("scaling=nitro", "engine.chunk_rounds=7"), {"rounds": 1}),  # the next round's actors are known after it
    ],
)
def test_plans_have_the_sizes_of_the_configuration(overrides: tuple[str, ...], expected: dict[str, Any]) -> None:
    shape = spec(*overrides).shape
    assert {name: getattr(shape, name) for name in expected} == expected


def test_fragments_from_the_host_come_one_at_a_time_and_with_a_mask() -> None:
    inside, host_fragments = spec("engine.chunk_rounds=7"), spec("engine.chunk_rounds=7", host_fragments=True)
    assert (inside.shape.rounds, inside.has_invalid) == (7, False)
    assert (host_fragments.shape.rounds, host_fragments.has_invalid) == (1, True)


def test_only_the_environment_knows_where_it_is_stepped() -> None:
    env = from_config(load_config([*JOB]).env)
    assert in_program(env) is env
    pytest.importorskip("envpool")
    assert in_program(from_config(load_config(["env.name=envpool/CartPole-v1"]).env)) is None
