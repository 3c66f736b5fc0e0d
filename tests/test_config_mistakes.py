"""Mistakes in configurations: one clear sentence for each."""

from __future__ import annotations

import math
import re
from operator import attrgetter
from typing import get_args

import pytest
from settings import complaint, with_value

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.compose import choices
from stellaris_jax.config.options import PLACES
from stellaris_jax.config.tree import knobs
from stellaris_jax.execute.loading import check_and_start_jax, load_config


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("algoritm.lr=1", "algorithm.learning_rate"),
        ("lr=1", "algorithm.learning_rate"),
        ("algorithm.ent_coef=1", "algorithm.entropy_coefficient"),
        ("sytem=async", "system"),
        ("system.learner=2", "system.learners"),
        ("learners=2", "system.learners"),
        ("timesteps=5", "total_steps"),
        ("delays.learner.second=5", "delays.learner.seconds"),
        ("engine={lane: 8}", "engine.lanes"),
        ("+checkpoints.keep=1", "checkpoint.keep"),
        ("system=stelaris", "stellaris"),
        ("delays=lognorm", "lognormal"),
        ("env=gymnax/acrobt", "Acrobot-v1"),
        ("system.truncation=wieght", "weight"),
        ("network.activation=Tanh", "tanh"),
    ],
)
def test_near_misses(override: str, meant: str) -> None:
    assert complaint(override).endswith(f"did you mean {meant}?")


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("xyz=1", ["xyz", "not a config key"]),
        ("system=foo", ["system=foo", *choices("system")]),
        ("env=cartpole", ["env=cartpole", "suite/name"]),
        ("env=gymnax", ["env=gymnax", "suite/name"]),
        ("env=atari3000/pong", ["atari3000"]),
        ("system@x=async", ["system@x"]),
        ("~seed", ["seed", "removed"]),
        ("network=cnn", ["network=cnn", *choices("network")]),
        ("engine=fast", ["engine.lanes", "engine.devices"]),
        ("seed", ["'seed'", "key=value"]),
        ("run.name=a(b", ["run.name=a(b", "quote"]),
        ("seed=1,2", ["seed=1,2", "-m"]),
        ("hydra.foo=1", ["hydra.foo"]),
        ("run.name=${missing}", ["missing"]),
        ("algorithm.learning_rate=fast", ["algorithm.learning_rate", "a number", "'fast'"]),
        ("seed=1.5", ["seed", "an integer", "1.5"]),
        ("seed=null", ["seed", "an integer", "None"]),
        ("env.num_envs=true", ["env.num_envs", "an integer", "True"]),
        ("system.weights=maybe", ["system.weights", "power", "'maybe'"]),
        ("network.hidden=[a]", ["network.hidden", "a list of integers", "'a'"]),
        ("network.hidden=64", ["network.hidden", "a list of integers", "64"]),
        ("env.kwargs=spring", ["env.kwargs", "a mapping", "spring"]),
        ("network.hidden=[64,0]", ["network.hidden", "at least 1", "0"]),
        ("system.corrections=kl_gate", ["system.corrections", "a list of texts", "'kl_gate'"]),
        ("system.corrections={a:1}", ["system.corrections", "a list of texts", "{'a': 1}"]),
        ("system.corrections=[ess,kl_gate,ess]", ["system.corrections", "twice", "['ess', 'kl_gate', 'ess']"]),
        ("algorithm.masks=[m2po,m2po]", ["algorithm.masks", "twice", "['m2po', 'm2po']"]),
        ("algorithm.gamma=-1e-60", ["algorithm.gamma", "[0, 1]", "-1e-60"]),
        ("algorithm.learning_rate=1e-60", ["algorithm.learning_rate", "greater than 0", "1e-60", "0 in 32 bits"]),
        ("algorithm.adam_b1=0.9999999999", ["algorithm.adam_b1", "[0, 1)", "0.9999999999", "1 in 32 bits"]),
        ("system.rule=synchronous", ["system.rule", "async, central, allreduce", "'synchronous'"]),
    ],
)
def test_mistakes_name_key_value_and_what_is_accepted(override: str, parts: list[str]) -> None:
    message = complaint(override)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("key", "accepted", "refused"),
    [
        ("env.num_envs", [1], [0, -1]),
        ("algorithm.epochs", [1], [0]),
        ("algorithm.learning_rate", [1e-9, 3], [0.0, -1.0, math.inf, math.nan]),
        ("algorithm.gamma", [0.0, 1, 1.0], [-0.01, 1.01, math.nan]),
        ("algorithm.gae_lambda", [0.0, 1.0], [1.5]),
        ("algorithm.max_grad_norm", [0.0], [-0.5]),
        ("system.rho", [0.1], [0.0]),
        ("system.versions", [2], [1]),
        ("delays.failure", [0.0, 0.99], [1.0, -0.1]),
        ("prices.learner_vm", [0.0], [-1.0]),
        ("evaluation.points", [0], [-1]),
        ("checkpoint.keep", [1], [0]),
        ("seed", [0], [-1]),
        ("total_steps", [1], [0]),
    ],
)
def test_ranges(key: str, accepted: list[object], refused: list[object]) -> None:
    for value in accepted:
        knobs()[key].check(attrgetter(key)(with_value(key, value)))
    for value in refused:
        with pytest.raises(ConfigError, match=key):
            check_and_start_jax(with_value(key, value))


@pytest.mark.parametrize(
    ("key", "name", "option", "accepted", "refused"),
    [
        ("system.rule", "stellaris", "decay", [1e-6, 1, 1.0], [0.0, 1.01, "fast", math.nan]),
        ("system.weights", "power", "root", [1, 2.0], [0, 1.5]),
        ("system.rule", "ssp", "s", [0], [-1]),
        ("delays.learner.kind", "lognormal", "sigma", [0.0], [-0.1]),
        ("delays.learner.kind", "pareto", "alpha", [0.1], [0.0]),
        ("delays.learner.kind", "measured", "table", [[0.1]], [[0.1, 0.0], [-1.0], [1.0, math.inf], []]),
        ("scaling.rule", "nitro", "mode", ["paper"], ["print"]),
    ],
)
def test_options_are_checked(key: str, name: str, option: str, accepted: list, refused: list) -> None:
    place = next(place for place in PLACES if place.key == key)
    for value in (*accepted, *refused):
        config = with_value(key, name).replace({f"{place.options}.{option}": value})
        if value in accepted:
            check_and_start_jax(config)
        else:
            with pytest.raises(ConfigError, match=rf"{re.escape(place.options)}\.{option}"):
                check_and_start_jax(config)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("system.softsync_c=2", "system.rule_options.c"),
        ("system.ssp_s=2", "system.rule_options.s"),
        ("system.decay=0.9", "system.rule_options.decay"),
        ("system.root=2", "system.weight_options.root"),
        ("scaling.window=3", "scaling.options.window"),
        ("delays.learner.sigma=0.1", "delays.learner.options.sigma"),
        ("system.rule_options.deccay=0.9", "decay"),
    ],
)
def test_where_an_option_is_now(override: str, meant: str) -> None:
    assert f"did you mean {meant}?" in complaint(override)


@pytest.mark.parametrize("key", list(knobs()))
def test_every_key_refuses_another_type(key: str) -> None:
    """From Python, where nothing but `check_and_start_jax` stands between a wrong type and the engine."""
    for value in (object(), ("a", 1)) if type(None) in get_args(knobs()[key].kind) else (None, object(), ("a", 1)):
        with pytest.raises(ConfigError, match=f"^{key} must be "):
            check_and_start_jax(with_value(key, value))


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["algorithm.minibatches=7"], ["algorithm.minibatches=7", "2048 samples"]),
        (["algorithm=impact", "algorithm.minibatches=32"], ["minibatches=32", "env.num_envs=16", "impact", "whole"]),
        (["engine.devices=3"], ["env.num_envs=16", "engine.devices=3"]),
        (["system.learners=9"], ["system.learners=9", "8 slots"]),
        (["algorithm.epochs=1", "algorithm.minibatches=4"], ["system.learners=8", "4 minibatches"]),
        (["system=central", "system.learners=2"], ["central", "system.learners", "2"]),
        (["system=softsync", "system.rule_options.c=9"], ["system.rule_options.c=9", "system.learners=8"]),
        (["platform=hpc"], ["platform=hpc", "64 learner slots", "prices=us_east_2 pays for 8"]),
        (["platform.actors=129"], ["129 actors", "pays for 128"]),
        (["delays.actor.kind=measured"], ["delays.actor.options.table"]),
        (["delays.learner.seconds=0"], ["delays.learner.seconds", "lognormal", "greater than 0"]),
        (["delays=pareto", "delays.learner.seconds=0"], ["delays.learner.seconds", "pareto", "greater than 0"]),
    ],
)
def test_impossible_combinations(overrides: list[str], parts: list[str]) -> None:
    message = complaint(*overrides)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    "overrides",
    [
        ["system=softsync", "system.rule=async"],  # c belongs to softsync alone
        ["system.actors=pipelined", "algorithm.epochs=1", "algorithm.minibatches=4"],  # two fragments at a time
        ["delays=constant", "delays.aggregate.seconds=0"],
        ["platform.actors=128", "env.num_envs=8"],
    ],
)
def test_combinations_that_are_possible(overrides: list[str]) -> None:
    load_config(overrides)
