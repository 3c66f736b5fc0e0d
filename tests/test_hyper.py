"""Hyper-parameters are data: other numbers are no other program, and what is off changes nothing."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from stellaris_jax import Config, Trainer, load_config
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import numbers_of
from stellaris_jax.config.options import PLACES, value_of
from stellaris_jax.engine.state import EngineInputs

SMALL = ("env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=8", "algorithm.epochs=1",
         "algorithm.minibatches=2", "network.hidden=[4]", "system.learners=2", "total_steps=64",
         "evaluation.episodes=0", "engine.chunk_rounds=1")  # fmt: skip


def small(*overrides: str) -> Config:
    return load_config([*SMALL, *overrides])


def another(value: float) -> float:
    """Another value that a number may have."""
    return value / 2 if value else 0.25


MAPPINGS = ("options", "advantage", "optimizer", "rate_factors", "part_optimizers", "masks", "corrections")
"""Fields of `Hyper` that hold numbers by name."""


def keys() -> list[str]:
    """Fields of `Hyper`, and the options of all algorithms that are numbers."""
    names = [name for name in Hyper._fields if name not in MAPPINGS]
    own = ["system.rho" if name == "rho" else f"algorithm.{name}" for name in names]
    return own + [f"algorithm.options.{name}" for name in OWNERS]


OWNERS = {
    name: algorithm for algorithm in ("ppo", "impala", "impact") for name in numbers_of(register.algorithm[algorithm])
}
"""An algorithm that has the option."""


def lowered(config: Config) -> str:
    trainer = Trainer(config)
    chunk = trainer.executor.planner.next()
    return trainer.engine.lower(EngineInputs(trainer.state, trainer.seed_states.hyper, chunk.plans[0])).as_text()


@pytest.mark.parametrize("algorithm", ["ppo", "impala", "impact"])
def test_other_numbers_are_the_same_program(algorithm: str) -> None:
    """So the compiler's cache has it, and nothing is compiled again; nor where something is turned on or off."""
    config = small(f"algorithm={algorithm}")
    values = {"algorithm.learning_rate": 0.1}
    for key in keys():
        if ".options." not in key or key.rpartition(".")[2] in config.algorithm.options:
            values[key] = another(value_of(config, key))
    first = lowered(config)
    assert lowered(config.replace(values)) == first
    off = dict.fromkeys(["algorithm.max_grad_norm", "algorithm.entropy_coefficient"], 0.0)
    off |= {"algorithm.options.value_clip": 0.0} if algorithm == "ppo" else {}
    assert lowered(config.replace({**off, "algorithm.anneal": True, "seed": 7})) == first
    assert lowered(config.replace({"algorithm.epochs": 2})) != first


def test_numbers_of_masks_and_corrections_are_the_same_program() -> None:
    masks, corrections = list(register.mask), list(register.correction)
    config = small(f"algorithm.masks=[{','.join(masks)}]", f"system.corrections=[{','.join(corrections)}]")
    values = {
        f"{place.options_key(one)}.{name}": another(value)
        for place in PLACES
        if place.kind in (register.mask, register.correction)
        for one in place.kind
        for name, value in numbers_of(place.kind[one]).items()
    }
    assert len(values) == 13
    assert lowered(config.replace(values)) == lowered(config)


@pytest.mark.parametrize(
    ("overrides", "values"),
    [
        (["algorithm.advantage=vtrace"], {"algorithm.advantage_options.rho_bar": 0.5}),
        (["algorithm.optimizer=sgd"], {"algorithm.optimizer_options.momentum": 0.5}),
        (["algorithm.optimizer=rmsprop"], {"algorithm.optimizer_options.eps": 0.5}),
        (["algorithm.learning_rates.critic=0.1"], {"algorithm.learning_rates": {"critic": 0.2}}),
        (
            ["algorithm.optimizers={critic: sgd}"],
            {"algorithm.optimizers": {"critic": {"name": "sgd", "momentum": 0.5}}},
        ),
    ],
    ids=["advantage", "sgd", "rmsprop", "rates", "parts"],
)
def test_numbers_of_parts_of_an_agent_are_the_same_program(overrides: list[str], values: dict[str, Any]) -> None:
    config = small(*overrides)
    assert lowered(config.replace(values)) == lowered(config)
    assert not np.array_equal(params(config), params(config.replace(values)))


def params(config: Config) -> Any:
    trainer = Trainer(config)
    trainer.run()
    return np.asarray(trainer.state.params)


@pytest.mark.parametrize("key", keys())
def test_every_number_has_an_effect(key: str) -> None:
    """On what is learned, where the algorithm has it."""
    name = key.rpartition(".")[2]
    settings = {
        "rho": ["system.rho=0.3"], "impact_ratio": ["algorithm=impact", "algorithm.options.target_interval=1"],
        "kl_target": ["algorithm.kl_coefficient=0.2"], "max_grad_norm": ["algorithm.max_grad_norm=0.01"],
    }.get(name, [f"algorithm={OWNERS[name]}"] if name in OWNERS else [])  # fmt: skip
    config = small("algorithm.learning_rate=0.05", "algorithm.epochs=4", *settings)
    value = value_of(config, key)
    smaller = {"clip": 0.01, "value_clip": 0.01, "impact_ratio": 0.5, "c_bar": 0.5, "rho_bar": 0.5, "rho": 1.0,
               "kl_target": 1e-6, "kl_coefficient": 0.5}  # fmt: skip
    changed = config.replace({key: smaller.get(name, value / 2)})
    assert not np.array_equal(params(config), params(changed))


def test_off_is_what_changes_nothing() -> None:
    first = params(small("algorithm.max_grad_norm=0", "algorithm.options.value_clip=0"))
    assert np.array_equal(first, params(small("algorithm.max_grad_norm=1e30", "algorithm.options.value_clip=0")))
    wide = params(small("algorithm.max_grad_norm=0", "algorithm.options.value_clip=1e30"))
    assert np.allclose(first, wide, rtol=1e-4)


def test_numbers_are_of_every_seed() -> None:
    trainer = Trainer(small("num_seeds=3", "algorithm.gamma=0.5", "engine.members=together"))
    assert {value.shape for value in jax.tree.leaves(trainer.seed_states.hyper)} == {(3,)}
    np.testing.assert_array_equal(trainer.seed_states.hyper.gamma, np.float32([0.5] * 3))
