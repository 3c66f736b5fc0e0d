"""SQLite databases of somebody else: no file beside them makes SQLite delete, upload or write another one."""

from __future__ import annotations

import os
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_files import pipe
from telemetry import open_telemetry, round_record

from stellaris_jax.base.sqlite import MAGIC, check_database
from stellaris_jax.config.compose import compose_config
from stellaris_jax.config.options import complete

KILLED = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size=2")
database.execute("BEGIN")
database.execute("UPDATE t SET x = zeroblob(2000)")
os.kill(os.getpid(), signal.SIGKILL)
"""


def names_a_file(database: Path, victim: Path) -> Path:
    """Adds a journal with a super-journal record, which has SQLite delete `victim`."""
    with sqlite3.connect(database) as opened:
        size, pages = (opened.execute(f"PRAGMA {key}").fetchone()[0] for key in ("page_size", "page_count"))
    opened.close()
    name = os.fsencode(victim)
    head = (MAGIC + struct.pack(">IIIII", 0, 0x1234, pages, 512, size)).ljust(512, b"\0")
    record = struct.pack(">I", 0x40000000 // size + 1) + name + struct.pack(">II", len(name), sum(name)) + MAGIC
    journal = database.with_name(database.name + "-journal")
    journal.write_bytes(head + record)
    return journal


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "study.db"
    with sqlite3.connect(path) as opened:
        opened.execute("CREATE TABLE t (x)")
        opened.executemany("INSERT INTO t VALUES (?)", [(bytes([number]) * 2000,) for number in range(50)])
    opened.close()
    return path


def test_a_journal_that_names_another_file_is_refused(database: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    names_a_file(database, victim)
    with pytest.raises(OSError, match="names another file, which SQLite would delete"):
        check_database(database)
    sqlite3.connect(database).execute("SELECT * FROM t").fetchall()
    assert not victim.exists(), "the file is what SQLite deletes: else this test shows nothing"


def test_the_journal_of_a_killed_process_is_rolled_back(database: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, database], check=False)
    assert database.with_name("study.db-journal").stat().st_size > 512
    check_database(database)
    rows = sqlite3.connect(database).execute("SELECT x FROM t ORDER BY x").fetchall()
    assert rows == [(bytes([number]) * 2000,) for number in range(50)]


@pytest.mark.parametrize("ending", ["", "-journal", "-wal", "-shm"])
def test_what_sqlite_opens_is_a_regular_file(ending: str, tmp_path: Path) -> None:
    path, victim = tmp_path / f"study.db{ending}", tmp_path / "victim"
    check_database(tmp_path / "study.db")
    for make in (pipe, lambda path: path.symlink_to(victim), lambda path: path.mkdir()):
        make(path)
        with pytest.raises(OSError, match=r"it is a|is a link"):
            check_database(tmp_path / "study.db")
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(OSError, match="reads as another path"):
        check_database(tmp_path / "a%2Fb" / "study.db")


def test_a_search_of_somebody_else_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    from stellaris_jax.base.errors import ConfigError
    from stellaris_jax.many.search_store import Search, study_of

    study_of(tmp_path, Search(trials=1))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    names_a_file(tmp_path / "study.db", victim)
    with pytest.raises(ConfigError, match=r"study\.db cannot be used: its study\.db-journal names another file"):
        study_of(tmp_path, Search(trials=1))
    assert victim.read_text() == "precious"


# MLflow


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's client for the database of a run."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return lambda run: mlflow.MlflowClient(f"sqlite:///{run / 'mlflow.db'}")


def logged(run: Path, resume_round: int | None = None, finish: bool = True) -> str:
    """Warnings while a run is logged to MLflow."""
    config = complete(compose_config(["run.loggers=[mlflow]"]))
    config = config.replace({"run.logger_options.mlflow": {"project": "mine"}})
    telemetry, console = open_telemetry(run, config=config, resume_round=resume_round)
    telemetry.rounds([round_record((resume_round or 0) + 1)])
    if finish:
        (run / "summary.json").write_text("{}")
        telemetry.finish({"env_steps": 2048})
    telemetry.close()
    return str(console.export_text())


def test_an_mlflow_database_of_somebody_else_is_uploaded_nowhere(local: Any, tmp_path: Path) -> None:
    """Neither the run nor the experiment of the database says where artefacts go; a link there is refused."""
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    logged(run, finish=False)
    for place in (f"file://{elsewhere}", "http://127.0.0.1:9/x", (run / "mlflow").as_uri() + "/../../elsewhere"):
        with sqlite3.connect(run / "mlflow.db") as opened:
            opened.execute("UPDATE experiments SET artifact_location = ?", (place,))
            opened.execute("UPDATE runs SET artifact_uri = ?", (place,))
        opened.close()
        shown = logged(run, resume_round=1)
        assert "failed" not in shown and "it goes on in mlflow as a new run" in " ".join(shown.split()), shown
    assert not elsewhere.exists()
    client = local(run)
    kept = [client.get_run(one.parent.name) for one in (run / "mlflow").glob("*/artifacts")]
    assert len(kept) == 3 and all(one.info.artifact_uri.startswith((run / "mlflow").as_uri()) for one in kept)
    assert len(client.get_metric_history(kept[0].info.run_id, "charts/episodic_return")) == 2, "told of from the start"
    (run / "mlflow" / "linked").symlink_to(tmp_path)
    assert "it is a link, not a regular file" in " ".join(logged(run, resume_round=1).split())


def test_a_trigger_of_an_mlflow_database_changes_nothing(local: Any, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    logged(run, finish=False)
    with sqlite3.connect(run / "mlflow.db") as opened:
        opened.execute(
            "CREATE TRIGGER evil AFTER INSERT ON latest_metrics "
            f"BEGIN UPDATE runs SET artifact_uri = 'file://{elsewhere}'; END"
        )
    opened.close()
    assert "artefacts would go to file://" in " ".join(logged(run, resume_round=1).split())
    assert not elsewhere.exists()


def test_a_run_that_was_moved_goes_on_in_mlflow(local: Any, tmp_path: Path) -> None:
    logged(tmp_path / "run", finish=False)
    logged(tmp_path / "run", resume_round=1, finish=False)
    assert len(local(tmp_path / "run").search_runs(["1"])) == 1
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    for resume_round in (1, 2):
        shown = logged(moved, resume_round=resume_round)
        assert "failed" not in shown and ("as a new run" in " ".join(shown.split())) == (resume_round == 1), shown
    assert not (tmp_path / "run").exists() and len(list((moved / "mlflow").glob("*/artifacts/summary.json"))) == 1


def test_an_mlflow_journal_of_somebody_else_deletes_nothing(local: Any, database: Path, tmp_path: Path) -> None:
    run, victim = tmp_path / "run", tmp_path / "victim"
    run.mkdir()
    database.rename(run / "mlflow.db")
    victim.write_text("precious")
    names_a_file(run / "mlflow.db", victim)
    assert "names another file, which SQLite would delete" in " ".join(logged(run).split())
    assert victim.read_text() == "precious"
