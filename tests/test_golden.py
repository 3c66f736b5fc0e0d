"""Golden runs: the table covers everything that has a name, and a comparison says what differs."""

from __future__ import annotations

from copy import deepcopy
from operator import attrgetter

import golden_runs
import pytest
import yaml
from golden_runs import TABLE, differences

from stellaris_jax.base.registry import register
from stellaris_jax.config.tree import Config, knobs

CONFIGS = golden_runs.ROOT / "configs"
LEFT_OUT = {"job", "playground"}
"""Suites without a golden run, because their programs take minutes to compile."""


KINDS = {
    "system.rule": "rule", "system.weights": "weight", "system.admission": "admission",
    "system.corrections": "correction", "system.data_admission": "data_admission", "algorithm": "algorithm",
    "algorithm.masks": "mask", "scaling": "scaling", "network.memory": "memory",
    "algorithm.advantage": "advantage", "algorithm.optimizer": "optimizer", "network.policy": "policy",
}  # fmt: skip
"""Keys whose values are names of a kind in the registry."""


def given() -> dict[str, set[str]]:
    """Values of every key in the table: those of overrides, of the presets of systems, and of defaults."""
    presets = [(path, yaml.safe_load(path.read_text())) for path in (CONFIGS / "system").glob("*.yaml")]
    pairs = [tuple(override.split("=", 1)) for case in TABLE.values() for override in case.overrides]
    pairs += [(f"system.{key}", str(value)) for path, preset in presets for key, value in preset.items()]
    values: dict[str, set[str]] = {"algorithm": {Config().algorithm.name}, "scaling": {Config().scaling.rule}}
    for key, value in (*pairs, *((f"system.{key}", str(value)) for key, value in vars(Config().system).items())):
        values.setdefault(key, set()).update(part.strip(" '\"") for part in value.strip("[]").split(","))
    for key in ("network.memory", "network.policy", "algorithm.advantage", "algorithm.optimizer"):
        values.setdefault(key, set()).add(attrgetter(key)(Config()))
    return values


def test_the_table_covers_every_name() -> None:
    values = given()
    assert values["system"] >= {path.stem for path in (CONFIGS / "system").glob("*.yaml")}
    assert {name.partition("/")[0] for name in values["env"]} >= {*register.suite} - LEFT_OUT
    for key, kind in KINDS.items():
        assert values[key] >= {*register.kinds()[kind]}, key
    for key in ("system.aggregation", "system.truncation", "system.actors", "system.overflow"):
        assert values[key] >= {*knobs()[key].choices}, key


RUN = {"parameters": "a", "optimizer": "b", "numbers": {"kl": "0", "entropy": "1"}, "final": [1.0, -2.0, 0.0]}


def test_equal_runs_have_no_differences() -> None:
    assert differences({"system=async": RUN}, {"system=async": deepcopy(RUN)}) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"parameters": "c", "final": [1.0, -2.5, 0.0]}, "final parameters differ by a factor of up to 0.2"),
        ({"parameters": "c", "final": [1.0]}, "3 parameters / 1"),
        ({"optimizer": "c"}, "another optimizer state"),
        ({"numbers": {"kl": "2", "entropy": "1", "new": "3"}}, "other values of kl, new"),
    ],
    ids=["parameters", "size", "optimizer", "numbers"],
)
def test_differences_are_named(changed: dict[str, object], said: str) -> None:
    assert differences({"one": RUN}, {"one": {**RUN, **changed}}) == [f"one: {said}"]


def test_refusals_and_missing_runs_are_named() -> None:
    refused = {"refused": "there is no such rule."}
    assert differences({"one": RUN, "two": refused}, {"one": refused, "two": refused, "three": RUN}) == [
        "one: trained / there is no such rule.",
        "three: only one of them has it",
    ]


def test_a_run_is_golden_twice() -> None:
    """Two trainings agree, with their clocks left out; another seed is another run."""
    case = TABLE["system=async"]
    first, again = golden_runs.computed(case), golden_runs.computed(case)
    assert differences({"run": first}, {"run": again}) == []
    assert "entropy" in first["numbers"] and "steps_per_second" not in first["numbers"]
    other = golden_runs.computed(case._replace(overrides=(*case.overrides, "seed=5")))
    assert differences({"run": first}, {"run": other})[0].startswith("run: final parameters differ")
