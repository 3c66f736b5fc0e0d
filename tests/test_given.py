"""Keys that a command line sets itself, beside those of its presets."""

from __future__ import annotations

from pathlib import Path

import pytest
from settings import complaint

from stellaris_jax.config.compose import choices, compose_config
from stellaris_jax.config.schema import plain
from stellaris_jax.execute.loading import load_config
from stellaris_jax.report.runs import differing_keys, flatten
from studies.training import Variant


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["system.rule=softsync", "system.rule_options.decay=0.9"],
            "system.rule_options.decay belongs to system.rule=stellaris",
        ),
        (
            ["system=central", "system.rule_options={c: 4}"],
            "system.rule_options.c belongs to system.rule=softsync, not to",
        ),
        (["system=softsync", "++system.rule_options.s=4"], "system.rule_options.s belongs to system.rule=ssp, not to"),
        (
            ["delays=constant", "delays.actor.options.sigma=0.1"],
            "delays.actor.options.sigma belongs to delays.actor.kind=lognormal, not to delays.actor.kind=constant.",
        ),
        (["scaling.options.window=3"], "belongs to scaling.rule=adapt and scaling.rule=nitro, not to"),
        (["system.rule=sofsync", "system.rule_options.c=3"], "did you mean softsync"),
    ],
)
def test_an_option_of_something_else_is_refused(overrides: list[str], told: str) -> None:
    assert told in complaint(*overrides)


def test_an_option_that_a_preset_brings_along_is_left_out() -> None:
    assert "c" in load_config(["system=softsync"]).system.rule_options
    assert "c" not in load_config(["system=softsync", "system.rule=async"]).system.rule_options


def test_a_system_with_another_rule_than_its_preset_is_not_called_like_one() -> None:
    """Nor as the preset of that rule is, which may differ in more than the rule."""
    names = {rule: compose_config([f"system.rule={rule}"]).system.name for rule in ("async", "ssp", "stellaris")}
    assert names.pop("stellaris") == "stellaris"
    assert not set(names.values()) & set(choices("system")) and all(rule in name for rule, name in names.items())
    assert compose_config(["system.rule=async", "system.name=mine"]).system.name == "mine"
    assert compose_config(["system=async", "system.rule=stellaris"]).system.name not in choices("system")

    assert compose_config(["scaling.rule=adapt"]).scaling.name not in choices("scaling")


def test_a_preset_of_ones_own_is_called_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "mine.yaml").write_text("name: mine\nrule: softsync\n")
    assert compose_config(["system=mine", "system.rule=softsync"], tmp_path).system.name == "mine"


def test_the_digest_of_what_is_learned_does_not_know_names() -> None:
    assert Variant("a", ("system.rule=async",)).digest == Variant("a", ("system.rule=async", "system.name=mine")).digest


def test_points_of_a_sweep_over_rules_are_told_apart_by_their_names() -> None:
    configs = [flatten(plain(compose_config([f"system.rule={rule}"]))) for rule in ("stellaris", "async", "ssp")]
    assert differing_keys(configs) == ["system.name"]
