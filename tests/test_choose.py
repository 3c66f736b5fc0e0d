"""Choices as a whole: from the command to the answer, the page and the command that it recommends."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest
import yaml
from choices import FEW, SMALL, answer, choose, same
from commands import call, refusal, start

from stellaris_jax.config.stored import from_yaml

SPACE = {
    "systems": {"async": ["system=async"], "the same": ["system=async"], "broken": ["system.rho=-1"]},
    "learning_rates": [1, 4],
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("space.yaml").write_text(yaml.safe_dump(SPACE))


def test_a_choice_from_the_command_to_the_page() -> None:
    output = choose(*SMALL, "--space", "space.yaml", "--target", "15", *FEW, "--dir", "c")
    found = answer("c")
    names = {own["name"] for own in found["results"]}
    assert {"all-reduce", "one learner"} <= names and names & {"async", "the same"}
    assert list(found["refused"]) == ["broken"]
    assert len(found["answer"]) == 6 and all(
        " ".join(line.split()) in " ".join(output.split()) for line in found["answer"]
    )
    assert found["command"] in output and found["target"] == 15.0
    for own in found["results"]:
        assert len(own["values"]) == 2 and own["reached"] == 2
    place = Path("c/judged/0")
    config = from_yaml(place / "config.yaml")
    assert config.num_seeds == 2 and config.seed == 1000, "fresh seeds"
    page = (Path("c") / "choice.html").read_text()
    assert "http://" not in re.sub(r'xmlns="[^"]*"', "", page) and "<script src" not in page and "async" in page
    before = same("c")
    choose("--resume", "c")
    assert same("c") == before, "nothing is trained or decided again"


def test_the_recommended_command_trains() -> None:
    choose(*SMALL, "--space", "space.yaml", "--target", "15", *FEW, "--dir", "c")
    best = answer("c")["results"][0]
    words = shlex.split(best["command"])
    settings = [word for word in words if "=" in word]
    assert call("train.py", *settings, "run.dir=again", "run.progress=false", "total_steps=128").returncode == 0
    again, judged = from_yaml("again/config.yaml"), from_yaml("c/judged/0/config.yaml")
    assert again.algorithm.learning_rate == best["learning_rate"]
    assert again.system.learners == judged.system.learners


def test_equal_systems_are_a_tie() -> None:
    choose(*SMALL, "--space", "space.yaml", "--target", "15", *FEW, "--dir", "c", "--finalists", "4")
    results = {own["name"]: own for own in answer("c")["results"]}
    assert results["async"]["learning_rate"] == results["the same"]["learning_rate"]
    assert results["async"]["values"] == results["the same"]["values"]
    first = answer("c")["results"][0]["name"]
    other = results[{"async": "the same", "the same": "async"}[first]]
    assert not other["compared"]["separated"] and "Not separated from it" in answer("c")["answer"][2]


@pytest.mark.parametrize("measure", ["return", "dollars"])
def test_other_measures(measure: str) -> None:
    target = ["--target", "15"] if measure == "dollars" else []
    choose(*SMALL, "--space", "space.yaml", "--for", measure, *target, *FEW, "--dir", "c", "--systems", "async")
    found = answer("c")
    assert found["measure"] == measure
    means = [own["middle"] for own in found["results"]]
    assert means == sorted(means, reverse=measure == "return")


def test_a_target_is_found() -> None:
    choose(*SMALL, "--space", "space.yaml", *FEW, "--dir", "c", "--systems", "async")
    assert answer("c")["target"] > 5.0


@pytest.mark.thorough
def test_a_killed_choice_ends_as_a_whole_one() -> None:
    arguments = [*SMALL, "--space", "space.yaml", "--target", "15", *FEW]
    choose(*arguments, "--dir", "whole")
    killed = 0
    for seconds in (6.0, 9.0, 14.0):
        name = f"killed{seconds:g}"
        process = start(Path.cwd() / name, *arguments, "--dir", name, script="choose.py")
        try:
            process.wait(seconds)
        except Exception:
            process.kill()
            killed += process.wait() == -signal.SIGKILL
        if not (Path(name) / "choose.yaml").is_file():
            continue  # killed before it began
        choose("--resume", name)
        assert same(name) | {"command": ""} == same("whole") | {"command": ""}
    assert killed


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["system=async"], "system=async is not possible: the system is what choose chooses"),
        (["--systems", "asink"], "--systems: asink is none of"),
        (["--budget", "soon"], "argument --budget: soon is no duration; accepted: 90s, 20m, 1.5h"),
        (["--budget", "0m"], "argument --budget: 0m is no duration"),
        (["--for", "fun"], "argument --for"),
        (["--for", "return", "--target", "3"], "--target is for seconds and dollars"),
        (["--space", "no.yaml"], "--space=no.yaml does not exist."),
        (["--space", "no"], "--space=no is neither a .yaml file nor one of default."),
        (["--resume", "nowhere"], "--resume=nowhere holds no choice: there is no nowhere/choose.yaml."),
        (["--resume", "x", "--target", "3"], "--target cannot change when a choice is resumed"),
        (["env=gymnax/cartpole", "--resume", "x"], "env=gymnax/cartpole cannot change"),
        (["--log", "a.csv", "--live", "b"], "--log and --live both name durations"),
        (["--log", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_mistakes(arguments: list[str], told: str) -> None:
    assert told in refusal("choose.py", *arguments)
