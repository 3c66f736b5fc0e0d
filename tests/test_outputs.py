"""Files that are written: in one step, and never through a link that somebody has put in their place."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call
from hostile_files import pipe
from matplotlib.figure import Figure
from run_dirs import make_run
from scenarios import scheduler
from telemetry import evaluation_record, open_telemetry, round_record

from stellaris_jax import ConfigError
from stellaris_jax.base.errors import RunError
from stellaris_jax.base.outputs import (
    appending,
    check_output,
    open_for_update,
    replacing,
    rewriting_text,
    write_atomically,
)
from stellaris_jax.config.tree import Config
from stellaris_jax.execute import calibrate
from stellaris_jax.many.sweep import laid_out
from stellaris_jax.report import sweep
from stellaris_jax.report.curves import plot_run, save
from stellaris_jax.runs.checkpoint import Checkpoints
from stellaris_jax.runs.run_dir import LOCK, run_directory
from stellaris_jax.runs.run_store import TRAINING, find
from stellaris_jax.sources.actionlog import ActionLog
from stellaris_jax.telemetry.csvfiles import Csv
from stellaris_jax.telemetry.logger import RunInfo
from stellaris_jax.telemetry.trackers import Tracker
from stellaris_jax.timeline import trace
from stellaris_jax.timeline.trace import Header
from studies.files import locked, write_table

WRITERS: dict[str, Callable[[Path], Any]] = {
    "text.txt": lambda path: write_atomically(path, "words"),
    "figure.png": lambda path: save(Figure(), path),
    "trace.jsonl.gz": lambda path: trace.write(path, Header(0, 1), []),
    "scheduler.npz": scheduler().save,
    "table.csv": lambda path: write_table(path, ["a"], [[1]]),
    "delays.yaml": lambda path: calibrate.write({"learner": [1.0]}, path, "about"),
    "metrics.jsonl": lambda path: open_telemetry(path.parent)[0].close(),
}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user's, outside of what is written."""
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.mark.parametrize("name", list(WRITERS))
def test_a_link_is_replaced_and_not_written_through(name: str, victim: Path, tmp_path: Path) -> None:
    path = tmp_path / "place" / name
    path.parent.mkdir()
    path.symlink_to(victim)
    WRITERS[name](path)
    assert victim.read_text() == "precious" and path.is_file() and not path.is_symlink()
    assert sorted(os.listdir(path.parent))[0] != f".{name}" and not list(path.parent.glob(".*.tmp*"))


@pytest.mark.parametrize("name", ["table.md", "table.csv", "curves.png", "0/curve.png", "0/report.html"])
def test_reports_follow_no_links(name: str, victim: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "sweep" / "0", rounds=8, evaluations=2)
    path = tmp_path / "sweep" / name
    path.symlink_to(victim)
    if name == "0/report.html":
        assert call("report.py", tmp_path / "sweep" / "0").returncode == 0
    elif name == "0/curve.png":
        plot_run(tmp_path / "sweep" / "0")
    else:
        sweep.report(tmp_path / "sweep")
    assert victim.read_text() == "precious" and path.is_file() and not path.is_symlink()


def test_a_planted_temporary_file_is_not_written_through(
    victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of temporary files cannot be known before; were one known, its link would be refused."""
    path = tmp_path / "place" / "a.txt"
    path.parent.mkdir()
    path.write_text("old")
    with replacing(path) as first, replacing(path) as second:
        assert first != second and first.suffix == ".txt"
        first.write_text("one")
        second.write_text("two")
    monkeypatch.setattr(secrets, "token_hex", lambda number: "known")
    (path.parent / ".a.known.tmp.txt").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_atomically(path, "new")
    assert victim.read_text() == "precious" and path.read_text() == "one"


def test_what_fails_leaves_all_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ValueError), rewriting_text(path) as file:
        file.write("half")
        raise ValueError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(tmp_path / "nowhere" / "b.txt", "")
    assert caught.value.filename == str(tmp_path / "nowhere" / "b.txt")


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a.txt", "")
        appending(tmp_path / "b.txt").close()
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("a.txt", "b.txt")} == {0o640}


def test_long_names(tmp_path: Path) -> None:
    write_atomically(tmp_path / f"{'x' * 251}.txt", "words")
    assert (tmp_path / f"{'x' * 251}.txt").read_text() == "words"


@pytest.mark.parametrize("kind", ["device", "pipe", "pipe behind a link"])
def test_devices_and_pipes_are_not_replaced(kind: str, tmp_path: Path) -> None:
    path = Path("/dev/null") if kind == "device" else tmp_path / "pipe"
    if kind != "device":
        pipe(path)
    if kind.endswith("link"):
        path = tmp_path / "link"
        path.symlink_to("pipe")
    with pytest.raises(OSError, match=r"not a regular file|no place for files"):
        write_atomically(path, "words")
    with pytest.raises(ConfigError, match="cannot be written"):
        check_output("--out", path)
    assert not path.is_file() and path.exists()


# Files that grow ------------------------------------------------------------------------------------------------------

GROWING: dict[str, Callable[[Path], Any]] = {
    "any.log": appending,
    "lock": open_for_update,
    "trace.jsonl.gz": lambda path: trace.append(path, []),
    "actions.bin": lambda path: ActionLog(path).append([np.zeros(3)]),
}


@pytest.mark.parametrize("name", list(GROWING))
def test_what_grows_is_no_link(name: str, victim: Path, tmp_path: Path) -> None:
    path = tmp_path / "place" / name
    path.parent.mkdir()
    path.symlink_to(victim)
    with pytest.raises(OSError, match=f"{name} is a link, through which nothing is written"):
        GROWING[name](path)
    path.unlink()
    pipe(path)
    with pytest.raises(OSError, match="it is a pipe, not a regular file"):
        GROWING[name](path)
    assert victim.read_text() == "precious"


def test_sheets_are_no_links(victim: Path, tmp_path: Path) -> None:
    for name in ("rounds.csv", "evaluations.csv"):
        (tmp_path / name).symlink_to(victim)
    logger = Csv(RunInfo(tmp_path, {}))
    logger.rounds([round_record(1)])
    logger.evaluation(evaluation_record(1))
    logger.close()
    assert victim.read_text() == "precious" and "round" in (tmp_path / "rounds.csv").read_text()


def test_damaged_metrics_are_set_aside_through_no_link(victim: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text("damaged\n")
    (run / "damaged-metrics-1.jsonl").symlink_to(victim)
    open_telemetry(run, resume_round=1)[0].close()
    assert victim.read_text() == "precious" and (run / "damaged-metrics-1-2.jsonl").read_text() == "damaged\n"


def test_locks_are_no_links(victim: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=8)
    (run / LOCK).symlink_to(victim)
    with pytest.raises(ConfigError, match=r"\.lock is a link"), run_directory(Config().replace({"resume": str(run)})):
        pass
    (tmp_path / ".runs.lock").symlink_to(victim)
    with pytest.raises(OSError, match="is a link"), locked(tmp_path / "runs"):
        pass
    assert victim.read_text() == "precious"


# Directories ----------------------------------------------------------------------------------------------------------


def test_directories_may_be_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's runs/ may lie on another disk, and so may the directory of a run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "disk" / "one").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("disk")
    (tmp_path / "link").symlink_to("disk/one")
    for name in ("link", "runs/one"):
        with run_directory(Config().replace({"run.dir": name})) as place:
            write_atomically(place / "summary.json", "{}")
        assert (tmp_path / "disk" / "one" / "summary.json").read_text() == "{}"
        (tmp_path / "disk" / "one" / "summary.json").unlink()


def test_checkpoints_are_written_below_no_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    place = tmp_path / "run" / "checkpoints"
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="checkpoints is a link"):
        Checkpoints(place, keep=1)
    Checkpoints(place, keep=1, read_only=True).close()


def test_points_of_a_sweep_are_no_links(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "0").symlink_to(tmp_path / "mine")
    (tmp_path / "sweep" / "sweep.yaml").write_text("points: 1\n")
    with pytest.raises(RunError, match="0 is a link, through which nothing is written"):
        laid_out(tmp_path / "sweep")


def test_a_lock_that_is_a_link_is_taken_for_held(victim: Path, tmp_path: Path) -> None:
    from stellaris_jax.config.compose import compose_config
    from stellaris_jax.config.options import complete
    from stellaris_jax.config.stored import to_yaml

    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(to_yaml(complete(compose_config([]))))
    (run / LOCK).symlink_to(victim)
    assert [kept.state for kept in find([tmp_path / "runs"])] == [TRAINING]


def test_trackers_keep_no_files_behind_links(victim: Path, tmp_path: Path) -> None:
    kept: list[str] = []

    class Told(Tracker):
        package = name = "told"

        def open(self, known: str | None) -> str:
            return "id"

        def keep(self, numbers: dict[str, float], files: list[Path]) -> None:
            kept.extend(path.name for path in files)

        def end(self, finished: bool) -> None: ...

    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("")
    (run / "secret.mp4").symlink_to(victim)
    Told(RunInfo(run, {})).summary({})
    assert kept == ["config.yaml"]
    (run / "mlflow.db").symlink_to(victim)
    with pytest.raises(OSError, match=r"mlflow\.db is a link"):
        Told(RunInfo(run, {}))
