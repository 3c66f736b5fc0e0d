"""Files that a stranger may have made: no regular file, or larger than the limit, is one sentence."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call
from hostile_files import MIB, SPECIAL, bomb, linked_pipe, little_memory, pipe, png, sparse
from run_dirs import make_run
from scenarios import scheduler
from telemetry import round_record

from stellaris_jax import ConfigError, load_config
from stellaris_jax.base import inputs
from stellaris_jax.base.arrays import read_archive, read_array
from stellaris_jax.config.stored import from_yaml, read_yaml
from stellaris_jax.report.page import study
from stellaris_jax.report.page.sources import gather
from stellaris_jax.report.runs import read_run
from stellaris_jax.sources.actionlog import ActionLog, ActionLogError
from stellaris_jax.telemetry.jsonl import read_rows
from stellaris_jax.telemetry.trackers import _read as remembered
from stellaris_jax.timeline import trace
from stellaris_jax.timeline.joblog import durations
from stellaris_jax.timeline.scaling import Scheduler
from studies.files import read_table

READERS: dict[str, Callable[[Path], Any]] = {
    "config.yaml": from_yaml,
    "sweep.yaml": read_yaml,
    "metrics.jsonl": read_rows,
    "trace.jsonl.gz": trace.read,
    "jobs.jsonl": lambda path: durations(path, "learner"),
    "scheduler.npz": Scheduler.load,
    "README.md": lambda path: study.content(path.parent, path.with_name("report.html")),
    "claims.csv": read_table,
    "cartpole.csv.gz": read_table,
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", list(SPECIAL))
@pytest.mark.parametrize("name", list(READERS))
def test_what_is_no_regular_file_is_one_sentence(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / name
    SPECIAL[kind](path)
    with pytest.raises(ConfigError) as caught, little_memory():
        READERS[name](path)
    message = str(caught.value)
    assert name in message and "\n" not in message and message.endswith(".")
    # A socket cannot be opened at all, and the directory of a live run stands for its trace.
    words = {"a socket": ("a socket", os.strerror(errno.ENXIO)), "a directory": (kind, "No such file")}.get(
        kind, (kind,)
    )
    assert any(word in message for word in words), message


@pytest.mark.parametrize("name", [*READERS, "summary.json"])
def test_what_is_too_large_is_not_read(name: str, tmp_path: Path) -> None:
    sparse(tmp_path / name, 3 * 1024 * MIB)
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(bomb(40))
    if name == "summary.json":
        notes: list[str] = []
        assert read_run(tmp_path, notes.append).summary is None
        message = notes[0]
    else:
        with pytest.raises(ConfigError) as caught, little_memory():
            READERS[name](tmp_path / name)
        message = str(caught.value)
    assert name in message and "MiB, the most that is read" in message, message


def test_a_link_to_a_file_is_the_file(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("words")
    (tmp_path / "link").symlink_to("there")
    assert inputs.read_text(tmp_path / "link") == "words"


def test_files_of_no_size_are_bounded() -> None:
    with pytest.raises(OSError, match="holds more than"), little_memory():
        inputs.read_bytes("/proc/self/smaps", limit=100)


# One run among many ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "config.yaml"])
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_one_run_does_not_keep_the_others_from_being_read(name: str, kind: str, tmp_path: Path) -> None:
    for run in ("a", "b"):
        make_run(tmp_path / "runs" / run, rounds=8)
    (tmp_path / "runs" / "a" / name).unlink()
    SPECIAL[kind](tmp_path / "runs" / "a" / name)
    notes: list[str] = []
    with little_memory():
        read_run(tmp_path / "runs" / "a", notes.append)
    path = tmp_path / "runs" / "a" / name
    assert notes == [f"{path} cannot be read: it is {kind}, not a regular file, and is left out"]
    found = gather([tmp_path / "runs"])
    assert notes[0] in found.notes and any(run.path.name == "b" and run.rounds for run in found.runs)


def test_a_list_of_runs_holds_the_last_record_only(tmp_path: Path) -> None:
    make_run(tmp_path / "run", rounds=40, evaluations=8)
    run = read_run(tmp_path / "run", last=1)
    assert [one["round"] for one in (*run.rounds, *run.evaluations)] == [40, 40]


def test_metrics_are_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps(round_record(1)) + "\n"
    (tmp_path / "metrics.jsonl").write_text(line * 5000)
    with little_memory(4 * MIB):
        assert len(read_run(tmp_path, last=1).rounds) == 1
    (tmp_path / "metrics.jsonl").write_bytes(b" " * (17 * MIB))
    with pytest.raises(ConfigError, match=r"line \d+ holds more than 16 MiB"), little_memory():
        read_rows(tmp_path / "metrics.jsonl")


def test_a_log_of_jobs_in_the_place_of_which_is_a_device() -> None:
    with pytest.raises(ConfigError, match="/dev/zero is no log of jobs: it is a device, not a regular file"):
        load_config(["delays=trace", "delays.log=/dev/zero"])


# Arrays ---------------------------------------------------------------------------------------------------------------


def header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": descr})
    return file.getvalue()


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members.items():
            packed.writestr(f"{name}.npy", data)
    return path


def test_a_small_file_does_not_unpack_to_much(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed, packed.open("k0.npy", "w") as file:
        file.write(header((64 * MIB,)))
        for _ in range(32):
            file.write(bytes(MIB))
    assert path.stat().st_size < MIB
    with pytest.raises(ConfigError, match=r"is not a scheduler .it unpacks to more than 16 MiB"), little_memory():
        Scheduler.load(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (header((10**12,)), "takes 4,000,000,000,000 bytes"),
        (header((2**62, 4)), "takes"),
        (header((-1,)), "takes"),
        (header((4,)) + bytes(15), "ends within an array"),
        (header((4,), "|O") + bytes(32), "Python objects"),
        (b"\x93NUMPY\x09\x00", "version"),
        (b"words", "magic"),
    ],
)
def test_arrays_that_are_not_there(data: bytes, words: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "arrays.npz", k0=data)
    with pytest.raises(ConfigError, match=words) as caught, little_memory():
        Scheduler.load(path)
    assert str(path) in str(caught.value)


def test_arrays_are_what_they_were(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "f": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "none": np.zeros((0, 3)),
        "one": np.array(True),
    }
    np.savez_compressed(tmp_path / "arrays.npz", **arrays)
    found = read_archive(tmp_path / "arrays.npz")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    scheduler().save(tmp_path / "scheduler.npz")
    assert Scheduler.load(tmp_path / "scheduler.npz").digest == scheduler().digest


def test_actions_take_no_more_than_their_file_has(tmp_path: Path) -> None:
    log = ActionLog(tmp_path / "actions.bin")
    mark = log.append([np.arange(4), np.zeros((2, 3), np.float32)])
    assert [array.tolist() for array in ActionLog(log.path).read(mark)] == [[0, 1, 2, 3], [[0.0] * 3] * 2]
    data = header((10**12,))
    log.path.write_bytes(data)
    mark = {"arrays": 1, "bytes": len(data), "digest": hashlib.sha256(data).hexdigest()}
    with pytest.raises(ValueError, match="takes 4,000,000,000,000 bytes"), little_memory():
        list(log.read(mark))
    log.path.unlink()
    pipe(log.path)
    with pytest.raises(ActionLogError, match="it is a pipe"):
        list(log.read(mark))


def test_array_beyond_a_limit() -> None:
    file = io.BytesIO()
    np.save(file, np.zeros(100))
    file.seek(0)
    with pytest.raises(ValueError, match="takes 800 bytes, more than the 799"):
        read_array(file, 799)


# Compressed lines -----------------------------------------------------------------------------------------------------


def test_lines_of_many_members(tmp_path: Path) -> None:
    path = tmp_path / "lines.gz"
    path.write_bytes(bomb(1, b"one\ntwo") + bomb(1, b" and three\n\nfour\n") + bomb(1, b"five"))
    assert list(inputs.unpacked_lines(path)) == [b"one", b"two and three", b"", b"four", b"five"]


def test_lines_of_a_file_that_is_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "lines.gz"
    whole = bomb(1, b"one\n") + bomb(1, b"two\n")
    first = len(bomb(1, b"one\n"))
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        found, lines = [], inputs.unpacked_lines(path)
        if end in (0, first):
            assert list(lines) == [b"one"] * (end > 0)
            continue
        with pytest.raises(EOFError):
            found += [found.append(line) for line in lines]
        assert [line for line in found if line] == [b"one", b"two"][: len(found)]
        assert len(found) >= (end > first)


def test_lines_unpack_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "lines.gz"
    path.write_bytes(bomb(40, b"\n" * 1000))
    assert len(list(inputs.unpacked_lines(path, limit=40_000))) == 40_000
    with pytest.raises(OSError, match="it unpacks to more than"):
        list(inputs.unpacked_lines(path, limit=39_999))
    path.write_bytes(bomb(1, b"\0" * 20 * MIB))
    with pytest.raises(OSError, match="a line of it holds more than 16 MiB"), little_memory(60 * MIB):
        list(inputs.unpacked_lines(path))


def test_a_table_that_is_cut_off_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "table.csv.gz"
    path.write_bytes(bomb(1, b"a,b\n1,2\n3,4\n"))
    assert read_table(path) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ConfigError, match=r"cannot be read: it is (cut off|damaged)"):
        read_table(path)


# Pages and trackers ---------------------------------------------------------------------------------------------------


def test_pictures_that_are_too_large_are_left_out(tmp_path: Path) -> None:
    place = tmp_path / "study"
    place.mkdir()
    names = ("good.png", "wide.png", "pipe.png", "long.png", "broken.png", "other.jpg")
    (place / "README.md").write_text("\n\n".join(f"![{name}]({name})" for name in names))
    (place / "good.png").write_bytes(png(30, 20))
    (place / "wide.png").write_bytes(png(20_000, 20_000, rows=1))
    linked_pipe(place / "pipe.png")
    sparse(place / "long.png", 17 * MIB)
    (place / "broken.png").write_bytes(png(30, 20)[:40])
    (place / "other.jpg").write_bytes(b"\xff\xd8 no PNG")
    with little_memory():
        done = call("report.py", place)
    assert done.returncode == 0, done.stderr
    page = (place / "report.html").read_text()
    assert page.count("<img") == 1 and "wide.png is left out: it has 20000 × 20000 pixels" in page
    assert "pipe.png is left out: it is a pipe" in page and "long.png is left out: it holds more than 16 MiB" in page
    assert "broken.png is left out: it is damaged" in page and "other.jpg is left out: it is no PNG picture" in page


def test_marks_that_are_begun_and_not_ended_take_no_time(tmp_path: Path) -> None:
    """At a cost that is quadratic in these, the test would not end."""
    begun = ("<!-- ", "![", "[", "**", "*a", "`")
    (tmp_path / "README.md").write_text("\n\n".join(mark * 10_000 for mark in begun) + "\n\nwords <!-- no --> here")
    page, notes = study.content(tmp_path, tmp_path / "report.html")
    assert "words  here" in page and not notes


def test_what_a_tracker_remembers(tmp_path: Path) -> None:
    path = tmp_path / ".wandb.json"
    for make in (pipe, lambda path: sparse(path, 3 * 1024 * MIB)):
        make(path)
        assert remembered(path) == {}
        path.unlink()
