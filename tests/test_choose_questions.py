"""Choices with strange but legal questions, and with spaces of strangers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from choices import ARGUMENTS, FEW, ONE, SMALL, choose, refused
from commands import REPOSITORY

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config import trust
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.many.choose import files
from stellaris_jax.many.choose.arms import Space
from stellaris_jax.many.choose.building import candidates
from stellaris_jax.many.choose.files import Options


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    Path("space.yaml").write_text(yaml.safe_dump(ONE))


def test_an_unreachable_target() -> None:
    output = choose(*SMALL, "--space", "space.yaml", "--target", "1e9", *FEW, "--dir", "c")
    assert "No finalist reached a return of 1e+09" in output and "no seed reached the target" in output
    document = json.loads(Path("c/choice.json").read_text())
    assert len({value for own in document["results"] for value in own["values"]}) == 1
    assert len({value for own in document["learners"] for value in own["values"]}) == 1, "one penalty for all"


@pytest.mark.parametrize("measure", ["seconds", "return"])
def test_no_target_is_needed(measure: str) -> None:
    choose(*SMALL, "--space", "space.yaml", "--for", measure, *FEW, "--dir", "c")
    assert json.loads(Path("c/choice.json").read_text())["measure"] == measure


@pytest.mark.parametrize("points", [1, 2])
def test_few_evaluations(points: int) -> None:
    choose(*SMALL, f"evaluation.points={points}", "--space", "space.yaml", *FEW, "--dir", "c")


def test_names_of_all_kinds() -> None:
    names = ["a, b", "<script>alert(1)</script>", "größe & 大", "$x^$", "[red]r[/]", "y" * 80]
    Path("space.yaml").write_text(yaml.safe_dump({"systems": {name: ["system=async"] for name in names}}))
    output = choose(*ARGUMENTS, "--dir", "c", "--finalists", "6")
    page = Path("c/choice.html").read_text()
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    assert "[red]r[/]" in output
    choose("--resume", "c")


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ({"system": {}}, "system is unknown; did you mean systems?"),
        ({"systems": {}}, "systems is empty"),
        ({"systems": [1]}, "systems must map names to lists of overrides, not [1]."),
        ({"systems": {"a": "system=async"}}, "systems.a must be a list of overrides, such as [system=async]"),
        ({"systems": {"a": ["async"]}}, "systems.a must be a list of overrides"),
        ({"systems": {"a": ["system=async"]}, "learning_rates": [0]}, "learning_rates must be factors"),
        ({"systems": {"a": ["system=async"]}, "learning_rates": [1e-323]}, "from 1e-9 to 1e9"),
        ({"systems": {"a": ["system=async"]}, "one_learner": ["b"]}, "one_learner has 'b', which is none of a."),
    ],
)
def test_spaces_that_are_none(tree: Any, told: str) -> None:
    Path("space.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError) as error:
        Space.read(Path("space.yaml"))
    assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"systems": {"a\x1b[2J": ["system=async"]}}, "is no name"),
        ({"systems": {"": ["system=async"]}}, "a name is empty"),
        ({"systems": {"x" * 81: ["system=async"]}}, "is no name"),
        ({"systems": {1: ["system=async"]}}, "is no name"),
        ({"systems": {"a": ["system=\x1basync"]}}, "must be a list of overrides"),
        ({"systems": {"a": ["system=async"]}, "presets": {"a": ["system=ssp"]}}, "two candidates are called 'a'"),
        (
            {"systems": {"a": ["system=async"]}, "actors": {"": ["seed=1"], "b": ["seed=1"]}, "presets": {"a, b": []}},
            "two candidates are called 'a, b'",
        ),
        ({"systems": {"a": []}, "one_learner": "a"}, "one_learner must be a list"),
        ({"systems": {"a": []}, "one_learner": [["a"]]}, "which is none of"),
        ({"systems": {"a": []}, "learning_rates": [10**400]}, "must be factors"),
    ],
)
def test_spaces_of_a_stranger(space: dict[str, Any], told: str) -> None:
    Path("space.yaml").write_text(yaml.safe_dump(space))
    with pytest.raises(ConfigError, match=told) as caught:
        Space.read(Path("space.yaml"))
    assert str(caught.value).isprintable()


def test_a_system_that_runs_only_with_a_correction() -> None:
    space = {"systems": {"x": ["system=async"]}, "corrections": {"y": ["algorithm.gamma=0.9"]}}
    Path("space.yaml").write_text(yaml.safe_dump(space))
    tried, _ = candidates(SMALL, Space.read(Path("space.yaml")), Options())
    choice = files.Choice(Path("c"), Options(), (), "", tuple(own for own in tried if own.arm.name != "x"), {})
    from stellaris_jax.many.choose.choose import _Work

    Path("c").mkdir()
    timings, _ = _Work(choice, print)._screen()
    assert "x" in timings


def test_a_budget_that_hardly_lets_candidates_be_judged_is_said_after_the_first_rung() -> None:
    """Two finalists of 5 seeds take 2 * (10 + 5 * rounds) seconds here, and judging has 0.4 of the budget."""
    from stellaris_jax.many.choose.choose import _Work

    Path("space.yaml").write_text(yaml.safe_dump({"systems": {"x": ["system=async"]}}))
    tried, _ = candidates(SMALL, Space.read(Path("space.yaml")), Options())
    needed = 2 * (10 + 5 * tried[0].config.rounds)
    Path("c").mkdir()
    for share, warned in ((0.39, False), (0.41, True)):
        said: list[str] = []
        choice = files.Choice(Path("c"), Options(budget=needed / share), (), "", tuple(tried), {})
        work = _Work(choice, said.append)
        work.decisions.pace, work.decisions.setup = 1.0, 10.0
        work._warn([0])
        assert bool(said) == warned
    assert "--budget" in said[0] and "hardly leave time to judge" in said[0]


@pytest.mark.parametrize("arguments", [["seed=4294967290"], ["--seeds", "1001"]])
def test_seeds_do_not_overlap(arguments: list[str]) -> None:
    assert "seeds that search and seeds that judge differ" in refused(*ARGUMENTS, *arguments, code=2)
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", ["--dir", "--resume", "--log", "--live"])
def test_empty_paths(name: str) -> None:
    assert "must be a path" in refused(name, "", code=2)


def test_a_directory_that_runs_cannot_have() -> None:
    assert "has a backslash" in refused(*ARGUMENTS, "--dir", "a\\b", code=2)
    assert not Path("a\\b").exists()


def test_a_log_and_delays_are_not_mixed() -> None:
    log = REPOSITORY / "examples" / "cluster" / "jobs.csv"
    assert "delays=constant and --log both name durations" in refused(*ARGUMENTS, "--log", log, code=2)


def test_a_log_is_found_from_elsewhere() -> None:
    shutil.copy(REPOSITORY / "examples" / "cluster" / "jobs.csv", "jobs.csv")
    arguments = [line for line in ARGUMENTS if line != "delays=constant"]
    refused(*arguments, "--log", "jobs.csv", "--budget", "0.01s", "--dir", "c", code=1)
    assert Path(from_yaml("c/candidates/0/config.yaml").delays.log).is_absolute()


def test_a_rule_is_named_in_a_space() -> None:
    assert "a file of --space names rules" in refused(*SMALL, "system.rule=mine", code=2)
