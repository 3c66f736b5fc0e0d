"""Choices that meet damaged or hostile files, full disks, other processes, and strange but legal questions."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from choices import ARGUMENTS, FEW, ONE, SMALL, alike, choose, refused
from commands import ended_by, start
from strangers import CODE

from stellaris_jax.base.errors import RunError
from stellaris_jax.config import trust
from stellaris_jax.many.choose import files
from stellaris_jax.many.choose.decisions import Decisions
from stellaris_jax.runs.run_dir import locked


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    Path("space.yaml").write_text(yaml.safe_dump(ONE))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A choice that has come to its end."""
    place = tmp_path_factory.mktemp("finished")
    (place / "space.yaml").write_text(yaml.safe_dump(ONE))
    arguments = [*SMALL, "--space", place / "space.yaml", "--target", "15", *FEW]
    choose(*arguments, "--dir", place / "c")
    return place / "c"


@pytest.fixture
def own(finished: Path) -> Path:
    """A copy of it."""
    shutil.copytree(finished, "c")
    return Path("c")


def edited(path: Path, edit: Callable[[Any], object]) -> None:
    """Edit the JSON or YAML document in a file."""
    read, write = (json.loads, json.dumps) if path.suffix == ".json" else (yaml.safe_load, yaml.safe_dump)
    document = read(path.read_text())
    edit(document)
    path.write_text(write(document))


def decide(name: str, value: Any) -> Callable[[Any], object]:
    return lambda document: document["decisions"].update({name: value})


DECISIONS = {
    "texts": decide("rung 1", ["0", "1"]),
    "out of range": decide("rung 1", [0, 99]),
    "negative": decide("rung 2", [-1]),
    "twice": decide("rung 3", [0, 0]),
    "flags": decide("rung 1", [True]),
    "none": decide("rung 1", []),
    "no list": decide("rung 1", 3),
    "NaN": decide("target", float("nan")),
    "huge": decide("target", 10**400),
    "no judgement": decide("judgement", {"numbers": [0]}),
    "no seeds": decide("judgement", {"numbers": [0], "seeds": 0}),
    "strangers": decide("judgement", {"numbers": [7], "seeds": 2}),
    "judged": decide("judged", [True]),
    "judged texts": decide("judged", ["yes", "yes", "yes"]),
    "scaled": decide("scaled", [True]),
    "learners": decide("learners", "no"),
    "timings": decide("timings", {"async": [1.0]}),
    "other systems": decide("timings", {"x": [1.0] * 6}),
    "dominated": decide("dominated", {"async": "async"}),
    "unhashable": decide("dominated", {"async": [1]}),
    "slower": decide("slower", {"learners": {}, "actors": {}}),
    "unknown": decide("\x1b[2Jrung", 1),
    "seconds": lambda document: document.update(seconds=-1),
    "endless": lambda document: document.update(seconds=float("inf")),
    "no seconds": lambda document: document.pop("seconds"),
    "pace": lambda document: document.update(pace="fast"),
    "no decisions": lambda document: document.update(decisions=[]),
}


@pytest.mark.parametrize("damage", DECISIONS)
def test_decisions_of_a_stranger(own: Path, damage: str) -> None:
    edited(own / "decisions.json", DECISIONS[damage])
    assert "decisions.json" in refused("--resume", own)


@pytest.mark.parametrize(
    "text", ["", "[", "[1]", "null", "[" * 100_000, '{"seconds": 1, "decisions": {}', "\0", "7" * 5000]
)
def test_decisions_that_are_none(own: Path, text: str) -> None:
    (own / "decisions.json").write_text(text)
    assert "decisions.json" in refused("--resume", own, code=2)


def option(name: str, value: Any) -> Callable[[Any], object]:
    return lambda document: document["options"].update({name: value})


ABOUT = {
    "measure": option("measure", "fun"),
    "target": option("target", "high"),
    "flag": option("target", True),
    "huge": option("target", 10**400),
    "budget": option("budget", 0),
    "seeds": option("seeds", 1.5),
    "many": option("fresh_seeds", 10**12),
    "parallel": option("parallel", "all"),
    "none parallel": option("parallel", 0),
    "unknown": option("\x1b]0;x\x07", 1),
    "list": lambda document: document.update(options=[1]),
    "no log": lambda document: document.pop("log"),
    "log": lambda document: document.update(log=["x"]),
    "overrides": lambda document: document.update(overrides="seed=1"),
    "escapes": lambda document: document.update(overrides=["seed=\x1b[2J"]),
    "negative arm": lambda document: document.update(candidates=[[-1, 0.001]] * 3),
    "far arm": lambda document: document.update(candidates=[[9, 0.001]] * 3),
    "NaN rate": lambda document: document.update(candidates=[[0, float("nan")]] * 3),
    "other rate": lambda document: document["candidates"][0].__setitem__(1, 0.5),
    "no candidates": lambda document: document.update(candidates=[]),
    "fewer": lambda document: document["candidates"].pop(),
    "names": lambda document: document["arms"][0].update(name=["x"]),
    "escaped name": lambda document: document["arms"][0].update(name="\x1b[31mx"),
    "same name": lambda document: document["arms"][0].update(name=document["arms"][1]["name"]),
    "one learner": lambda document: document["arms"][0].update(one_learner="yes"),
    "no arm": lambda document: document["arms"].__setitem__(0, "x"),
    "refused": lambda document: document.update(refused=["x"]),
    "refusal": lambda document: document.update(refused={"x": 1}),
}


@pytest.mark.parametrize("damage", ABOUT)
def test_options_of_a_stranger(own: Path, damage: str) -> None:
    edited(own / "choose.yaml", ABOUT[damage])
    assert "choose.yaml" in refused("--resume", own, code=2) or damage == "fewer"


@pytest.mark.parametrize(
    "text", ["", "- 1", "a: &a [1]\nb: *a\n", "[" * 5000, "a: !!python/object/apply:os.system [ls]", "\t"]
)
def test_options_that_are_none(own: Path, text: str) -> None:
    (own / "choose.yaml").write_text(text)
    assert "choose.yaml" in refused("--resume", own, code=2)


def test_a_plugin_of_a_stranger_is_not_imported(own: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text(CODE)
    for path in own.glob("candidates/*/config.yaml"):
        path.write_text(path.read_text().replace("plugins: []", f"plugins: [{evil}]"))
    message = refused("--resume", own, code=2)
    assert "which you have not allowed" in message and "--plugin" in message
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("points: 9", "points: 0"),
        ("num_seeds: 1", "num_seeds: 3"),
        ("learning_rate: 0.001", "learning_rate: 0.1"),
        ("num_envs: 4", "num_envs: -4"),
    ],
)
def test_candidates_of_another_choice(own: Path, before: str, after: str) -> None:
    path = own / "candidates" / "0" / "config.yaml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    assert str(path) in refused("--resume", own, code=2)


@pytest.mark.parametrize("name", ["judged", "learners"])
def test_runs_of_another_choice(own: Path, name: str) -> None:
    path = own / name / "0" / "config.yaml"
    first = {"judged": 1000, "learners": 1002}[name]
    path.write_text(path.read_text().replace(f"seed: {first}", "seed: 7"))
    assert f"{path} is of another run than this choice's" in refused("--resume", own, code=2)


@pytest.mark.parametrize("name", ["candidates/0", "judged/0", "learners/1"])
def test_damaged_records_are_told_of(own: Path, name: str) -> None:
    path = own / name / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"1", b"2")
    path.write_bytes(b"".join(lines))
    if name.startswith("candidates"):
        (own / "decisions.json").unlink()
    message = refused("--resume", own)
    assert name in message and "remove all but config.yaml" in message


def test_lost_runs_train_again(own: Path) -> None:
    before = alike("c")
    for name in ("candidates/1", "judged/0", "learners/0"):
        for path in (own / name).iterdir():
            if path.name != "config.yaml":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    choose("--resume", own)
    assert alike("c") == before


@pytest.mark.parametrize("name", ["candidates", "judged", "learners", "judged/0"])
def test_links_are_not_written_through(own: Path, name: str) -> None:
    kept = Path("elsewhere")
    (own / name).rename(kept)
    (own / name).symlink_to(kept.absolute())
    before = sorted(kept.rglob("*"))
    assert "is a link" in refused("--resume", own)
    assert sorted(kept.rglob("*")) == before


def test_files_of_the_user_are_kept(own: Path) -> None:
    shutil.rmtree(own / "judged")
    notes = own / "judged" / "notes" / "config.yaml"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    edited(own / "decisions.json", lambda document: [document["decisions"].pop(k) for k in ("judged", "slower")])
    assert "belongs to no choice" in refused("--resume", own)
    assert notes.read_text() == "mine"
    assert "is not empty" in refused(*ARGUMENTS, "--dir", own, code=2)


def test_a_choice_is_written_by_one_process(own: Path) -> None:
    with locked(own):
        assert "is being written by process" in refused("--resume", own, code=2)


def test_a_beginning_is_begun_again(own: Path) -> None:
    for path in [*own.iterdir()]:
        if path.name != "candidates":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in own.glob("candidates/*/*"):
        if path.name != "config.yaml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (own / "candidates" / "0" / ".config.0123.tmp.yaml").touch()
    assert "it was stopped before it began; begin it again" in refused("--resume", own, code=2)
    choose(*ARGUMENTS, "--dir", own)
    assert (own / "choice.json").is_file()


def test_a_full_disk_drops_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    from stellaris_jax.many import points

    train = points.train_within

    def failing(run_dir: Path, *rest: Any, **options: Any) -> Any:
        if run_dir.name == "1":
            try:
                raise OSError(28, "No space left on device")
            except OSError as error:
                raise RunError(f"{run_dir} could not be written: No space left on device.") from error
        return train(run_dir, *rest, **options)

    choose(*ARGUMENTS, "--dir", "whole")
    with monkeypatch.context() as patch:
        patch.setattr(points, "train_within", failing)
        message = refused(*ARGUMENTS, "--dir", "c", code=1)
    assert "Make room, then continue with" in message and "--resume c" in message
    choose("--resume", "c")
    assert alike("c") == alike("whole")


def test_all_candidates_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from stellaris_jax.many import points

    def failing(*rest: Any, **options: Any) -> Any:
        raise RunError("nothing was learned.")

    monkeypatch.setattr(points, "train_within", failing)
    assert "no candidate has a result." in refused(*ARGUMENTS, "--dir", "c", code=1)


# Time --------------------------------------------------------------------------------------------------------------


def test_a_budget_that_is_too_small() -> None:
    message = refused(*SMALL, "--space", "space.yaml", "--budget", "0.01s", "--dir", "c", code=1)
    assert "no candidate has a result, because the budget" in message and "--resume c --budget 1m" in message


def test_the_pace_is_stored(finished: Path) -> None:
    choice = files.read(finished)
    decisions = Decisions(finished, choice.candidates)
    assert decisions.pace > 0


def test_a_spent_budget_says_how_much_is_needed(own: Path) -> None:
    def back(document: Any) -> None:
        document["decisions"] = {k: v for k, v in document["decisions"].items() if k[:4] in ("timi", "domi", "rung")}
        document.update(pace=0, seconds=900)

    edited(own / "decisions.json", back)
    shutil.rmtree(own / "judged")
    assert "leaves no time to judge" in refused("--resume", own, code=1)
    choose("--resume", own, "--budget", "1h")


@pytest.mark.thorough
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("sign", ["timelines of", "compiling", "the best one on"])
def test_signals(signum: int, sign: str) -> None:
    process = start(Path.cwd() / "c", *ARGUMENTS, "--dir", "c", script="choose.py")
    assert process.stdout is not None
    for line in process.stdout:
        if sign in line:
            break
    os.kill(process.pid, signum)
    output = ended_by(signum, process)
    assert "continue with: " in output and "--resume c" in output
    choose(*ARGUMENTS, "--dir", "whole")
    choose("--resume", "c")
    assert alike("c") == alike("whole")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sign", ["composing", "timelines", "rung 1", "candidate .:", "finalists on", "finalist .:", "run .:"]
)
def test_kills(sign: str) -> None:
    process = start(Path.cwd() / "c", *ARGUMENTS, "--dir", "c", script="choose.py")
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(sign, line):  # whichever run is the first to say that it compiles
            break
    else:
        raise AssertionError(f"it said nothing of that: {lines}")
    time.sleep(0.3)
    process.kill()
    process.communicate()
    choose(*ARGUMENTS, "--dir", "whole", "--parallel", "1")
    if Path("c/choose.yaml").is_file():
        choose("--resume", "c", "--parallel", "2")
    else:
        choose(*ARGUMENTS, "--dir", "c")
    assert alike("c") == alike("whole")
