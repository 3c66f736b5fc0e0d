"""Damage to the files of a sweep: every number in its table equals the undamaged one, or is absent with a warning."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from commands import call
from damages import Damage, a_directory, binary, cut, deleted, emptied, flipped
from sweeps import SMALL

from stellaris_jax.cli import train as cli
from stellaris_jax.report.sweep import report

FILES = ("config.yaml", "metrics.jsonl", "summary.json")
POINTS = range(4)
"""Two learning rates, each with two seeds in runs of their own."""
THRESHOLD = 5.0


def cut_between_lines(path: Path, draw: np.random.Generator) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: int(draw.integers(1, len(lines)))]))


def without_a_line(path: Path, draw: np.random.Generator) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[int(draw.integers(len(lines)))]
    path.write_bytes(b"".join(lines))


def another_digit(path: Path, draw: np.random.Generator) -> None:
    data = bytearray(path.read_bytes())
    digits = [place for place, byte in enumerate(data) if chr(byte).isdigit()]
    place = digits[int(draw.integers(len(digits)))]
    data[place] = ord("0") + (data[place] - ord("0") + 1) % 10
    path.write_bytes(data)


def swapped(path: Path, draw: np.random.Generator) -> None:
    other = path.parent.parent / str((int(path.parent.name) + int(draw.integers(1, len(POINTS)))) % 4) / path.name
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def other_types(path: Path, draw: np.random.Generator) -> None:
    """Values of another kind, in a file that can be read."""
    if path.name == "config.yaml":
        path.write_text("env: 3\nseed: !!binary AAAA\nsystem: [1]\n")
    elif path.name == "summary.json":
        path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_text()), "much")))
    else:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**line, "env_steps": {}, "per_seed": [None]}) + "\n" for line in lines))


DAMAGES: tuple[Damage, ...] = (
    deleted, emptied, cut, cut_between_lines, without_a_line, flipped, another_digit, swapped, a_directory, binary,
    other_types,
)  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undamaged sweep with its table."""
    place = tmp_path_factory.mktemp("sound") / "sweep"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place.parent)
        cli.main(["-m", *SMALL, "seed=0,1", "algorithm.learning_rate=1e-3,3e-2", "hydra.sweep.dir=sweep"])
    report(place, THRESHOLD)
    return place


def table(place: Path) -> list[dict[str, str]]:
    with open(place / "table.csv", newline="") as file:
        return list(csv.DictReader(file))


RATE = "algorithm.learning_rate"
COUNTS = ("seeds", "failed", "incomplete", "mark")


def wrong(place: Path, sound: Path) -> list[str]:
    """Values of the table that are neither those of the undamaged one nor absent."""
    whole = {row[RATE]: row for row in table(sound)}
    return [one for row in table(place) for one in _wrong(row, [whole[row[RATE]]] if RATE in row else whole.values())]


def _wrong(row: dict[str, str], candidates: Iterable[dict[str, str]]) -> list[str]:
    """Wrong values of a row; one without a name is compared with the undamaged row that is most like it."""
    wrong_by_row = []
    for expected in candidates:
        values = [f"{key}={row[key]}" for key in row if key not in COUNTS and row[key] not in ("", expected[key])]
        best = ["another setting is the best"] if row["mark"] == "best" and expected["mark"] != "best" else []
        wrong_by_row.append(values + best)
    return min(wrong_by_row, key=len)


def check(place: Path, sound: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Errors in the report of a damaged sweep."""
    capsys.readouterr()
    damaged = report(place, THRESHOLD)
    output = capsys.readouterr()
    errors = wrong(place, sound)
    less = table(place) != table(sound)
    if less and not (damaged and (output.err or "missing" in output.out)):
        errors.append("something is absent without a warning")
    if less and not list(place.glob("table-before*.csv")):
        errors.append("the former table is gone")
    return errors


def check_damages(
    damage: Damage, file: str, sound: Path, tmp_path: Path, seeds: Iterable[int], capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in seeds:
        draw, place = np.random.default_rng(seed), tmp_path / str(seed)
        shutil.copytree(sound, place)
        damage(place / str(draw.integers(len(POINTS))) / file, draw)
        assert check(place, sound, capsys) == [], f"seed {seed}"
        shutil.rmtree(place)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_never_becomes_a_number(
    damage: Damage, file: str, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_damages(damage, file, sound, tmp_path, range(2), capsys)


def resumed(place: Path, *overrides: str) -> tuple[int, str]:
    """Exit code and errors of resuming a sweep."""
    done = call("train.py", "-m", f"resume={place}", *overrides)
    return done.returncode, done.stderr


@pytest.mark.parametrize("damage", [deleted, cut, flipped, swapped])
def test_resuming_a_damaged_sweep_mends_its_returns(
    damage: Damage, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Summaries are made again from checkpoints; of metrics that are lost, no number is made."""
    place = tmp_path / "sweep"
    shutil.copytree(sound, place)
    damage(place / "0" / "summary.json", np.random.default_rng(3))
    damage(place / "3" / "metrics.jsonl", np.random.default_rng(3))
    code, errors = resumed(place)
    assert code == 0, errors
    assert wrong(place, sound) == []
    rows = {row[RATE]: row for row in table(place)}
    assert [(row["seeds"], row["incomplete"]) for row in rows.values()] == [("2", "0"), ("2", "0")]
    for row in table(sound):
        assert rows[row[RATE]]["return_mean"] == row["return_mean"] and rows[row[RATE]]["mark"] == row["mark"]
    times = [(place / str(point) / "summary.json").stat().st_mtime_ns for point in POINTS]
    assert resumed(place)[0] == 0
    assert times == [(place / str(point) / "summary.json").stat().st_mtime_ns for point in POINTS], "all are done"
    assert wrong(place, sound) == []


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [cut, flipped, another_digit, swapped])
def test_damage_never_becomes_a_number_wherever_it_is(
    damage: Damage, file: str, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_damages(damage, file, sound, tmp_path, range(100, 140), capsys)
