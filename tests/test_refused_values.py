"""Values that cannot work are refused in one sentence, before anything is compiled."""

from __future__ import annotations

import math
import re
from operator import attrgetter

import numpy as np
import pytest
from settings import complaint, with_value

from stellaris_jax import Config, ConfigError, Trainer, load_config
from stellaris_jax.config.continuation import RESUMABLE
from stellaris_jax.config.schema import shown
from stellaris_jax.config.tree import knobs
from stellaris_jax.config.validation import check_values
from stellaris_jax.envs.registry import make
from stellaris_jax.execute.loading import check_and_start_jax
from stellaris_jax.timeline import Timeline

NUMBERS = [key for key, entry in knobs().items() if entry.kind in (float, list[float])]


@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_are_finite(key: str) -> None:
    for value in (math.nan, math.inf, -math.inf, 1e39, 10**400):
        with pytest.raises(ConfigError, match=f"^{key} must "):
            check_and_start_jax(with_value(key, [value] if isinstance(attrgetter(key)(Config()), tuple) else value))


@pytest.mark.parametrize("key", [key for key, entry in knobs().items() if entry.kind is int])
def test_integers_have_64_bits(key: str) -> None:
    for value in (2**63, 10**5000):
        with pytest.raises(ConfigError, match=f"^{key} must fit into 64 bits"):
            check_and_start_jax(with_value(key, value))


@pytest.mark.parametrize("text", ["a\nb", "\0", "\udcff", "${oc.env:HOME}", "${", "???"])
@pytest.mark.parametrize("key", ["run.name", "run.dir", "resume"])
def test_texts_are_plain(key: str, text: str) -> None:
    """Other texts could not be written to config.yaml, or would be read back as other values."""
    with pytest.raises(ConfigError, match=f"^{key} must be ") as caught:
        check_and_start_jax(with_value(key, text))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "kwargs",
    [{1: 2}, {"a": object()}, {"a": [{"b": math.nan}]}, {"a": b"x"}, {"a\n": 1}, {"a" * 999: 1}, {"a": {2, 3}}],
)
def test_mappings_are_data(kwargs: dict) -> None:
    nested: list = []
    nested.append(nested)
    for value in (kwargs, {"a": nested}):
        with pytest.raises(ConfigError, match=r"^env\.kwargs"):
            check_and_start_jax(with_value("env.kwargs", value))
    check_and_start_jax(with_value("env.kwargs", {"a": [1, 2.5, None, True, "x", {"b": (0, 1)}]}))


def test_long_values_are_shown_in_part() -> None:
    assert len(shown("x" * 10_000)) <= 120
    assert "\n" not in shown(np.eye(9))


@pytest.mark.parametrize(
    "changed",
    [{"engine.devices": 2}, {"engine.distributed": True, "delays.by": "episodes"},
     {"executor": "live", "live.actors": 3}],
)  # fmt: skip
def test_a_resumed_run_is_advised_of_keys_that_it_may_change(changed: dict[str, object]) -> None:
    stored = Config().replace({"system.actors": "independent", "env.num_envs": 8, **changed})
    with pytest.raises(ConfigError) as caught:
        check_values(stored.replace({"resume": "runs/any"}))
    advice = re.split("; ", str(caught.value))[-1]
    named = [key for key in (*knobs(), "set it to 0") if key in advice]
    assert named and all(key.startswith((*RESUMABLE, "set")) for key in named), caught.value


REFUSED: dict[str, tuple[list[str], list[str]]] = {
    # Beyond 32 bits, JAX would take another seed's random numbers, and NumPy mix up seed and round.
    "seed of 33 bits": (["seed=4294967296"], ["seed", "4294967296"]),
    "seed of 77 bits": (["seed=99999999999999999999999"], ["seed", "64 bits"]),
    "last of the seeds": (["seed=4294967290", "num_seeds=7"], ["seed", "4294967296"]),
    "failures": (["delays.failure=0.999999"], ["delays.failure"]),
    "infinite gradients": (["delays.learner.seconds=inf"], ["delays.learner.seconds"]),
    "infinite sigma": (["delays.learner.options.sigma=1e6"], ["delays.learner.options.sigma"]),
    "infinite contention": (["platform.contention=inf"], ["platform.contention"]),
    "no target": (["scaling.target=nan"], ["scaling.target"]),
    "rounds too many to plan": (
        ["system.learners=20000", "algorithm.epochs=2000", "algorithm.minibatches=16", "platform.slots_per_gpu=10000",
         "prices.learner_vm_slots=10000"],
        ["system.learners=20000", "algorithm.epochs=2000"],
    ),
    "network too deep to build": ([f"network.hidden={[4] * 65}"], ["network.hidden has 65 layers"]),
    "integer without end": (["seed=" + "9" * 5000], ["seed"]),
    "price without end": (["prices.gb_second=1" + "0" * 400], ["prices.gb_second"]),
    "nested lists": (["env.kwargs=" + "[" * 5000], ["env.kwargs"]),
    "line too long to parse": ([f"delays.learner.options.table={[1.0] * 50_000}"], ["too long"]),
}  # fmt: skip
"""Overrides and parts of their one sentence."""


@pytest.mark.parametrize("case", REFUSED)
def test_overrides_are_refused_in_one_sentence(case: str) -> None:
    overrides, parts = REFUSED[case]
    message = complaint(*overrides)
    assert all(part in message for part in parts), message


def test_the_last_seed_trains() -> None:
    small = ["env=diagnostic/truncation", "env.num_envs=4", "algorithm.rollout_length=4", "network.hidden=[4]"]
    overrides = [*small, "algorithm.epochs=2", "algorithm.minibatches=4", "total_steps=16", "num_seeds=2"]
    records = Trainer(load_config([*overrides, "seed=4294967294"])).run()
    assert len(records) == 1 and np.isfinite(records[0]["policy_loss"])


@pytest.mark.parametrize(
    "changes",
    [
        {"delays.failure": 0.99},
        {"delays.learner.kind": "lognormal", "delays.learner.options": {"sigma": 20.0}, "delays.learner.seconds": 3e38},
        {"delays.learner.kind": "pareto", "delays.learner.options": {"alpha": 0.1}, "delays.learner.seconds": 3e38},
    ],
)
def test_the_worst_delays_accepted_end(changes: dict) -> None:
    config = Config().replace(changes)
    check_and_start_jax(config)
    usage = [Timeline.of(config, seed).next_round().usage for seed in range(20)]
    assert all(math.isfinite(seen.seconds) and seen.gradients == 16 for seen in usage)


@pytest.mark.parametrize("overrides", ["env=gymnax/acrobot", [1], [["seed=3"]]])
def test_overrides_are_a_list_of_texts(overrides: object) -> None:
    with pytest.raises(ConfigError, match="list of texts"):
        load_config(overrides)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kwargs", "part"),
    [
        ("gymnax/acrobot", {"max_steps_in_episode": 2**31}, "max_steps_in_episode=2147483648"),
        ("gymnax/acrobot", {"name": "x"}, "cannot be used with gymnax/Acrobot-v1"),
        ("job/training", {"job": "env=gymnax/cartpole"}, "must be a list of overrides"),
        ("job/training", {"job": ["env=gymnax/cartpole"], "beta": "x"}, "beta='x' must be a number"),
        ("brax/hopper", {"ctrl_cost_weight": "x"}, "ctrl_cost_weight='x' must be a number"),
        ("brax/hopper", {"healthy_z_range": 1}, "two numbers"),
        ("mjx/hopper", {"forward_reward_weight": 2**40}, "less than 32 bits"),
        ("playground/CartpoleBalance", {"ctrl_dt": 0.001, "sim_dt": 0.01}, "ctrl_dt=0.001 must be at least sim_dt"),
        ("playground/CartpoleBalance", {"sim_dt": 0}, "sim_dt"),
    ],
)
def test_arguments_of_environments(name: str, kwargs: dict, part: str) -> None:
    suite = name.partition("/")[0]
    if suite not in ("gymnax", "job"):
        pytest.importorskip({"playground": "mujoco_playground"}.get(suite, suite if suite == "brax" else "mujoco.mjx"))
    with pytest.raises(ConfigError) as caught:
        make(name, kwargs)
    assert part in str(caught.value)
