"""Options belong to one owner: two owners of one name stand side by side."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from settings import complaint

from stellaris_jax import Config, Mask, Rule, knob, load_config
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import Kind, register
from stellaris_jax.cli.train_help import help_text
from stellaris_jax.config.compose import compose_config
from stellaris_jax.config.optioned import options_of
from stellaris_jax.config.options import PLACES, complete, option_keys, value_of
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.telemetry.logger import Logger
from studies import published
from studies.map import cells
from studies.minionsrl import study as minionsrl
from studies.nitro import study as nitro
from studies.sensitivity import Parameter
from studies.stellaris import figures as stellaris_figures
from studies.stellaris import study as stellaris
from studies.training import Variant


@pytest.fixture
def namesakes() -> Iterator[None]:
    """A rule, a mask and a logger whose options have names that others have, too."""
    before = {kind: dict(kind._entries) for kind in (register.rule, register.mask, register.logger) if list(kind)}

    @register.rule("test_bound")
    class Bound(Rule):
        bound: int = knob(3, "another bound")

    @register.mask("test_icepop")
    class Other(Mask):
        ratio_low: float = knob(0.25, "another ratio")

    for name in ("test_one", "test_two"):

        @register.logger(name)
        class Told(Logger):
            project: str = knob("none", "another project")

    yield
    for kind, entries in before.items():
        _restore(kind, entries)


def _restore(kind: Kind, entries: dict[str, Any]) -> None:
    for name in set(kind._entries) - set(entries):
        del kind._entries[name]


def test_two_owners_of_one_name_have_their_own_values(namesakes: None) -> None:
    config = load_config([
        "system.rule=test_bound", "system.rule_options.bound=2", "system.admission=bounded",
        "system.admission_options.bound=5", "algorithm.masks=[icepop,test_icepop]",
        "algorithm.mask_options.test_icepop.ratio_low=0.125", "run.loggers=[test_one,test_two]",
        "run.logger_options.test_two.project=mine",
    ])  # fmt: skip
    assert (config.system.rule_options, config.system.admission_options) == ({"bound": 2}, {"bound": 5})
    masks = config.algorithm.mask_options
    assert (masks["icepop"]["ratio_low"], masks["test_icepop"]["ratio_low"]) == (0.5, 0.125)
    assert config.run.logger_options == {"test_one": {"project": "none"}, "test_two": {"project": "mine"}}
    assert [options["ratio_low"] for options in Hyper.of(config).masks] == [np.float32(0.5), np.float32(0.125)]
    other = config.replace({"algorithm.mask_options.icepop.ratio_low": 0.75})
    assert ProgramSpec.of(other) == ProgramSpec.of(config)


def test_an_option_of_a_plugin_changes_no_other_line_of_the_help(request: pytest.FixtureRequest) -> None:
    before = help_text(Config()).splitlines()
    request.getfixturevalue("namesakes")
    lines = help_text(Config()).splitlines()
    new = [line for line in lines if "bound" in line or "project" in line]
    own = {"  system.rule=test_bound:", "  algorithm.masks=[test_icepop]:"}
    assert own <= {*lines} and any(line.split()[:2] == ["system.rule_options.bound", "3"] for line in new)
    unchanged = [line for line in before if "_options." in line or ".options." in line]
    assert unchanged and {*unchanged} <= {*lines}


def own_lines(lines: list[str], begin: str) -> list[str]:
    """First lines of a help text that begin so, and those that continue them."""
    return [*takewhile(lambda line: line.startswith((begin, "      ")), lines)]


def test_the_help_has_every_option_below_its_owner() -> None:
    lines = help_text(Config()).splitlines()
    for place in PLACES:
        for name, thing in place.kind.items():
            keys = [key for key, owners in option_keys().items() if key.startswith(f"{place.options_key(name)}.")
                    and name in owners]  # fmt: skip
            if keys:
                owner = lines.index(f"  {place.key}={f'[{name}]' if place.listed else name}:")
                below = own_lines(lines[owner + 1 :], f"  {place.options}.")
                assert {line.split()[0] for line in below if line[2] != " "} == {*keys}, thing


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["system.rule_options.root=3"], "system.rule_options.root is not an option of system.rule=stellaris"),
        (
            ["system.correction_options.kl_gate.trust_kl=0.1"],
            "belongs to system.corrections=[kl_gate], not to system.corrections=[]",
        ),
        (
            ["system.corrections=[kl_gate]", "system.correction_options.trust_kl=0.1"],
            "did you mean system.correction_options.kl_gate.trust_kl?",
        ),
        (
            ["system.corrections=[kl_gate]", "system.correction_options.kl_gate.trust=0.1"],
            "is not an option of system.corrections=[kl_gate]; did you mean trust_kl?",
        ),
        (
            ["system.corrections=[kl_gate]", "system.correction_options.kl_gate=0.1"],
            "system.correction_options.kl_gate must be a mapping of the options of kl_gate, not 0.1.",
        ),
        (
            ["algorithm.masks=[dppo]", "algorithm.mask_options.dppo.tv_bound=2"],
            "algorithm.mask_options.dppo.tv_bound must be",
        ),
        (["delays.loader.kind=lognormal", "delays.loader.options.sigma=-1"], "delays.loader.options.sigma must be"),
    ],
)
def test_what_is_refused_names_the_new_keys(overrides: list[str], told: str) -> None:
    assert told in complaint(*overrides)


def owned_by_others() -> Iterator[tuple[str, str, str, str]]:
    """An option of each place that belongs to no named object: its key, its name, and where it does not belong."""
    config = load_config([])
    for place in PLACES:
        names = place.names(config)
        own = {f"{place.options_key(name)}.{option}" for name in names for option in options_of(place.kind[name])}
        for key, (owner, *_) in option_keys().items():
            if key.startswith(f"{place.options}.") and key not in own and owner not in names:
                yield place.options, key, key.removeprefix(f"{place.options}."), place.in_words(config)
                break


@pytest.mark.parametrize("value", ["1", "{}", "{a:1}", "{a:{b:1}}", "[]"])
def test_an_option_of_others_is_refused_whatever_its_value(value: str) -> None:
    places = list(owned_by_others())
    assert len(places) > len(PLACES) // 2
    for options, key, name, place in places:
        nested = value
        for part in reversed(name.split(".")):
            nested = f"{{{part}:{nested}}}"
        for override in (f"{key}={value}", f"{options}={nested}"):
            message = complaint(override)
            assert message.startswith(f"{key} belongs to ") and message.endswith(f", not to {place}."), override


@pytest.mark.parametrize("value", ["1", "{a:1}"])
def test_so_it_is_where_a_stored_run_is_continued(value: str, tmp_path: Path) -> None:
    admission = "system.data_admission_options.eta"
    (tmp_path / "config.yaml").write_text(to_yaml(load_config(["executor=live"])))
    key = next(key for key in option_keys() if key.startswith("run.logger_options."))
    for continued, option in ((["executor=replay", f"trace={tmp_path}"], admission), ([f"resume={tmp_path}"], key)):
        with pytest.raises(ConfigError, match=re.escape(f"{option} belongs to ")):
            compose_config([*continued, f"{option}={value}"])


def test_options_that_a_preset_brings_for_a_correction_are_left_out() -> None:
    config = load_config(["system=parallax", "system.corrections=[]"])
    assert config.system.correction_options == {}
    gated = load_config(["system=parallax"])
    assert value_of(gated, "system.correction_options.kl_gate.trust_kl") == 0.01
    assert complete(gated) == gated


# Digests of stored results -------------------------------------------------------------------------------------------


def few() -> Iterator[Variant]:
    for system in stellaris.SYSTEMS:
        yield stellaris.variant("hopper", system)
    yield from (Variant(name, tuple(name.split())) for name in OTHERS)


def every() -> Iterator[Variant]:
    """Variants of all studies: each system, rule and method, and each varied parameter."""
    for env in stellaris_figures.ENVS:
        for system in stellaris.SYSTEMS:
            yield stellaris.variant(env, system)
        for system in ("impact", "stellaris"):
            yield stellaris.variant(env, system, "impact")
    for env in nitro.ENVS:
        yield from (nitro.variant(env, rule) for rule in nitro.RULES)
    for env in minionsrl.ENVS:
        yield from (minionsrl.variant(env, rule) for rule in minionsrl.RULES)
    methods, task = {**cells.METHODS, **cells.COMBINED, **cells.FRACTIONAL}, next(iter(cells.TASKS))
    for learners in (4, 16):
        yield from (cells.Cell(task, method, learners, "0.001").variant for method in methods)
    yield from (cell.variant for cell in cells.lag_cells(task)[::7])
    for key, base, values in (
        ("system.rule_options.decay", stellaris.variant("hopper", "stellaris"), published.SENSITIVITY["decay"]),
        ("system.weight_options.root", stellaris.variant("hopper", "stellaris"), published.SENSITIVITY["root"]),
        ("scaling.options.window", nitro.variant("hopper", "Nitro"), published.NITRO_SENSITIVITY["window"]),
    ):
        yield from (Parameter(key, "", "", [], {}).changed(base, value) for value in values)


OTHERS = (
    "system=artifact", "system=parallax", "system=dc_asgd", "system=areal_gradients", "system=fedbuff",
    "system=fedasync", "system=async system.corrections=[kl_gate]", "algorithm.masks=[dppo,m2po]",
    "delays.loader.kind=lognormal delays.loader.seconds=1 delays.loader.options.sigma=0.1",
)  # fmt: skip


@pytest.mark.parametrize(
    ("variants", "pinned"), [(few, "e6c09f060a7a9a92"), (every, "6827d3becec7f159")], ids=["few", "every"]
)
def test_digests_of_stored_results_stay(variants: Any, pinned: str) -> None:
    """They are those of the layout in which the first results were stored."""
    text = "\n".join(variant.digest for variant in variants())
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == pinned


def test_digests_tell_options_apart_that_once_were_one() -> None:
    def digest(*overrides: str) -> str:
        return Variant("a", ("system=artifact", *overrides)).digest

    both = digest("system.rule_options.decay=0.8", "system.weight_options.decay=0.8")
    assert len({both, digest("system.rule_options.decay=0.8"), digest("system.weight_options.decay=0.8")}) == 3
