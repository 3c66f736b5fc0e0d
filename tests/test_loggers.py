"""Loggers, against the packages that they are for: what arrives, in which run, and what becomes of those that fail."""

from __future__ import annotations

import csv
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import REPOSITORY, call, start, wait_for_checkpoints
from telemetry import evaluation_record, open_telemetry, read_events, round_record

from stellaris_jax import Logger, register
from stellaris_jax.config.compose import compose_config
from stellaris_jax.config.options import complete
from stellaris_jax.telemetry.logger import RunInfo
from stellaris_jax.telemetry.names import METRICS, OTHER, SEED, named
from stellaris_jax.telemetry.trackers import Tracker

Point = tuple[int, float]
SMALL = ["env.num_envs=8", "algorithm.rollout_length=8", "algorithm.epochs=1", "algorithm.minibatches=4",
         "network.hidden=[4]", "system.learners=4", "total_steps=512", "evaluation.episodes=2", "evaluation.points=2",
         "engine.chunk_rounds=1", "run.progress=false", "algorithm.anneal=false"]  # fmt: skip


def config_of(*loggers: str, **options: Any) -> Any:
    return complete(compose_config([f"run.loggers=[{','.join(loggers)}]"])).replace(
        {"run.logger_options": dict.fromkeys(loggers, options)}
    )


# Names


def test_names_are_told_apart() -> None:
    names = [metric.name for metric in METRICS.values()]
    assert len(names) == len(set(names)) and all(name.count("/") == 1 for name in names)
    record = round_record(3, train_return=None, extra=2.0, kind_of="text", flag=True)
    assert dict(named(record))["charts/extra"] == 2.0 and OTHER == "charts/{}"
    assert not {"charts/episodic_return", "charts/kind_of", "charts/flag", "charts/round"} & {
        n for n, _ in named(record)
    }
    evaluated = dict(named(evaluation_record(3)))
    assert evaluated == {
        "eval/episodic_return": 312.4, "eval/episodic_return_ci95": 20.1, SEED.format(0): 300.0, SEED.format(1): 324.8,
    }  # fmt: skip


def test_documentation_has_every_name() -> None:
    lines = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    assert rows == [[metric.name, key, metric.about] for key, metric in METRICS.items()]


# CSV


def sheet(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_csv_is_what_the_metrics_are(tmp_path: Path) -> None:
    """Also where columns come later, after a kill in the middle of a line, and where a run goes on."""
    telemetry, _ = open_telemetry(tmp_path, config=config_of("csv"))
    telemetry.rounds([round_record(1, train_return=None), round_record(2)])
    telemetry.evaluation(evaluation_record(2))
    telemetry.rounds([round_record(3), round_record(4)])
    rows = sheet(tmp_path / "rounds.csv")
    assert [row["charts/episodic_return"] for row in rows] == ["", "112.0", "112.0", "112.0"]
    assert [row["env_steps"] for row in rows] == ["2048", "4096", "6144", "8192"]
    with open(tmp_path / "rounds.csv", "a") as file:
        file.write("5,10240,")
    telemetry, _ = open_telemetry(tmp_path, config=config_of("csv"), resume_round=2)
    telemetry.rounds([round_record(3)])
    telemetry.close()
    assert sheet(tmp_path / "rounds.csv") == rows[:3]
    (row,) = sheet(tmp_path / "evaluations.csv")
    assert (row["eval/episodic_return"], row["eval/episodic_return_seed_1"]) == ("312.4", "324.8")


# TensorBoard


def test_hyper_parameters_in_tensorboard(tmp_path: Path) -> None:
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    telemetry, _ = open_telemetry(tmp_path, config=config_of("tensorboard"))
    telemetry.rounds([round_record(1)])
    picture = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", 12, 7)
    (tmp_path / "curve.png").write_bytes(picture)
    telemetry.finish({"env_steps": 2048})
    (file,) = tmp_path.glob("events.out.tfevents.*")
    values = [value for event in read_events(file) for value in event.summary.value]
    plugins = [value.metadata.plugin_data for value in values if value.metadata.plugin_data.plugin_name == "hparams"]
    parts = [HParamsPluginData.FromString(plugin.content) for plugin in plugins]
    (begun,) = [part.session_start_info for part in parts if part.HasField("session_start_info")]
    assert begun.hparams["algorithm.learning_rate"].number_value == pytest.approx(1e-3)
    assert begun.hparams["system.rule"].string_value == "stellaris"
    (about,) = [part.experiment for part in parts if part.HasField("experiment")]
    shown = {info.name.tag for info in about.metric_infos}
    assert "eval/episodic_return" in shown
    (image,) = [value.image for value in values if value.tag == "curve"]
    assert (image.width, image.height, image.encoded_image_string) == (12, 7, picture)
    assert sum(part.HasField("session_end_info") for part in parts) == 1


# Trackers


def wandb_records(run_dir: Path) -> Iterator[Any]:
    """Records that W&B has written offline: its transaction log is LevelDB's, blocks of 32 KiB with records in them."""
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime):
        data, place, part = path.read_bytes(), 7, b""
        while place + 7 <= len(data):
            if (left := 32768 - place % 32768) < 7:
                place += left
                continue
            _, length, kind = struct.unpack_from("<IHB", data, place)
            part += data[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):  # whole, or its last part
                yield pb.Record.FromString(part)
                part = b""


def wandb_points(run_dir: Path) -> tuple[set[str], dict[str, list[Point]]]:
    runs, points = set(), dict[str, list[Point]]()
    for record in wandb_records(run_dir):
        if record.run.run_id:
            runs.add(record.run.run_id)
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name, value in row.items():
            if not name.startswith("_") and name != "env_steps":
                points.setdefault(name, []).append((row["env_steps"], float(value)))
    return runs, points


def mlflow_points(run_dir: Path) -> tuple[set[str], dict[str, list[Point]]]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run_dir / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("stellaris_jax")
    found = client.search_runs([experiment.experiment_id])
    points = {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        for run in found
        for name in run.data.metrics
        if not name.startswith("summary/")
    }
    return {run.info.run_id for run in found}, points


def trackio_points(run_dir: Path) -> tuple[set[str], dict[str, list[Point]]]:
    """Read by a process of its own, as Trackio's directory is fixed when it is imported."""
    code = (
        "import json, trackio\nfrom trackio import SQLiteStorage\n"
        "names = [run.name for run in trackio.Api().runs('stellaris_jax')]\n"
        "rows = [[name, SQLiteStorage.get_logs('stellaris_jax', name)] for name in names]\n"
        "print('\\n' + json.dumps(rows, default=str))"
    )
    environment = {**os.environ, "TRACKIO_DIR": str(run_dir / "trackio")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    points = dict[str, list[Point]]()
    runs = json.loads(done.stdout.splitlines()[-1])
    for _, rows in runs:
        for row in rows:
            for name, value in row.items():
                if "/" in name and not name.startswith("summary/"):
                    points.setdefault(name, []).append((row["step"], float(value)))
    return {name for name, _ in runs}, points


TRACKERS: dict[str, Callable[[Path], tuple[set[str], dict[str, list[Point]]]]] = {
    "wandb": wandb_points,
    "mlflow": mlflow_points,
    "trackio": trackio_points,
}


def offline(run_dir: Path) -> dict[str, str]:
    return {"WANDB_MODE": "offline", "TRACKIO_DIR": str(run_dir / "trackio")}


def told(run_dir: Path) -> dict[str, list[Point]]:
    """Values that trackers should have, by the run's own metrics."""
    points = dict[str, list[Point]]()
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name, value in named(record):
            points.setdefault(name, []).append((int(record["env_steps"]), float(value)))
    return points


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_run_that_goes_on_is_one_run(tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every point once, though what came after its checkpoint is computed again."""
    for name, value in offline(tmp_path).items():
        monkeypatch.setenv(name, value)
    pytest.importorskip(tracker)
    for last, resumed in ((3, None), (5, 2)):
        telemetry, console = open_telemetry(tmp_path, config=config_of(tracker), resume_round=resumed)
        for number in range((resumed or 0) + 1, last + 1):
            telemetry.rounds([round_record(number)])
            telemetry.evaluation(evaluation_record(number))
        telemetry.close()
        assert "failed" not in console.export_text()
    runs, points = TRACKERS[tracker](tmp_path)
    assert len(runs) == 1 and points == {name: [tuple(point) for point in row] for name, row in told(tmp_path).items()}


def test_a_tracker_that_comes_later_is_told_of_what_was(tmp_path: Path) -> None:
    """And one that may have lost something to a kill, of all since it was opened."""
    heard = list[tuple[str, int]]()

    class Heard(Tracker):
        package, name, queues = "json", "heard", True

        def open(self, known: str | None) -> str:
            return known or "new"

        def log(self, points: list[tuple[int, dict[str, float]]]) -> None:
            heard.extend((self.id, step) for step, _ in points)

        def end(self, finished: bool) -> None: ...

    register.logger.replace("test_heard", Heard)
    for loggers, last, resumed in ((), 3, None), (("test_heard",), 4, 2), (("test_heard",), 5, 3):
        telemetry, console = open_telemetry(tmp_path, config=config_of(*loggers), resume_round=resumed)
        for number in range((resumed or 0) + 1, last + 1):
            telemetry.rounds([round_record(number)])
        assert "failed" not in console.export_text()
    assert heard == [("new", 2048 * number) for number in (1, 2, 3, 4, 1, 2, 3, 4, 5)]
    telemetry.close()
    open_telemetry(tmp_path, config=config_of("test_heard"), resume_round=3)[0].rounds([round_record(4)])
    assert len(heard) == 9, "told of already, and in good order"


@pytest.mark.slow
@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_killed_run_goes_on_in_its_tracker(tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, resumed: one run there, with every point of the metrics, and none that they do not have."""
    pytest.importorskip(tracker)
    run_dir = tmp_path / "run"
    for name, value in offline(run_dir).items():
        monkeypatch.setenv(name, value)
    settings = [*SMALL, "total_steps=4096", "evaluation.points=16", f"run.loggers=[{tracker}]", f"run.dir={run_dir}"]
    process = start(run_dir, *settings)
    wait_for_checkpoints(process, run_dir, 2)
    process.kill()
    process.wait()
    done = start(run_dir, f"resume={run_dir}")
    out, _ = done.communicate(timeout=300)
    assert done.returncode == 0 and "failed" not in out, out
    runs, points = TRACKERS[tracker](run_dir)
    assert len(runs) == 1
    assert {name: set(row) for name, row in points.items()} == {name: set(row) for name, row in told(run_dir).items()}
    if tracker == "mlflow":
        assert all(len(row) == len(set(row)) for row in points.values()), "its store is written at once"


def test_files_are_kept_as_artefacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_dir = tmp_path / "sweep" / "3"
    run_dir.mkdir(parents=True)
    (tmp_path / "sweep" / "sweep.yaml").write_text("points: 4\n")
    for name in ("config.yaml", "summary.json", "curve.png", "policy.mp4"):
        (run_dir / name).write_bytes(b"x")
    telemetry, console = open_telemetry(run_dir, config=config_of("mlflow", "wandb", project="mine"))
    telemetry.rounds([round_record(1)])
    telemetry.finish({"env_steps": 2048, "eval_return_mean": 312.5, "system": "stellaris", "failure": None})
    assert "failed" not in console.export_text()
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run_dir / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    kept = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert kept == {"config.yaml", "summary.json", "curve.png", "policy.mp4"}
    assert (run.info.run_name, run.data.tags["group"], run.info.status) == ("sweep/3", "sweep", "FINISHED")
    assert run.data.params["algorithm.learning_rate"] == "0.001"
    assert run.data.metrics["summary/eval_return_mean"] == 312.5
    records = list(wandb_records(run_dir))
    (begun,) = {
        (record.run.run_group, record.run.project, record.run.display_name) for record in records if record.run.run_id
    }
    assert begun == ("sweep", "mine", "sweep/3")
    manifests = [record.request.log_artifact.artifact.manifest for record in records] + [
        record.artifact.manifest for record in records
    ]
    assert {entry.path for manifest in manifests for entry in manifest.contents} >= kept
    settings = {item.key: item.value_json for record in records for item in record.run.config.update}
    assert json.loads(settings["algorithm.learning_rate"]) == 0.001


# Failures


def test_a_logger_that_fails_is_said_once_and_left_out(tmp_path: Path) -> None:
    calls = list[str]()

    @register.logger("test_fails")
    class Fails(Logger):
        def rounds(self, records: list[dict[str, Any]]) -> None:
            calls.append("rounds")
            raise OSError(28, "No space left on device\n" + "and what was to be written\n" * 9)

    @register.logger("test_never")
    class Never(Logger):
        def __init__(self, run: RunInfo, options: Any = None):
            raise SystemExit("no network")

    telemetry, console = open_telemetry(tmp_path, config=config_of("test_fails", "test_never", "csv"))
    for number in (1, 2):
        telemetry.rounds([round_record(number)])
    telemetry.finish({"env_steps": 2048})
    shown = console.export_text()
    assert (
        shown.count("the logger test_fails failed, and the run goes on without it: OSError: [Errno 28] No space") == 1
    )
    assert shown.count("the logger test_never failed, and the run goes on without it: SystemExit: no network") == 1
    assert "what was to be written" not in shown
    assert calls == ["rounds"] and len(sheet(tmp_path / "rounds.csv")) == 2


def test_a_full_disk_is_one_line_of_mlflow(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlflow")
    telemetry, console = open_telemetry(tmp_path, config=config_of("mlflow"))
    telemetry.rounds([round_record(1)])
    (tmp_path / "mlflow.db").write_bytes(b"no database")
    for number in (2, 3):
        telemetry.rounds([round_record(number)])
    shown = [line for line in console.export_text().splitlines() if "mlflow" in line]
    assert len(shown) == 1 and "[SQL" not in shown[0]
    assert "Traceback" not in "".join(capfd.readouterr())


def test_what_is_missing_is_said_before_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stellaris_jax.telemetry.trackers.find_spec", lambda name: None)
    ended = call("train.py", *SMALL, "run.loggers=[tensorboard,wandb]", "run.dir=run")
    sentence = "error: run.loggers=[wandb] needs wandb: pip install 'stellaris-jax[wandb]'.\n"
    assert (ended.returncode, ended.stderr) == (2, sentence) and not (tmp_path / "run").exists()
    ended = call("train.py", *SMALL, "run.logger_options.wandb.project=x", "run.dir=run")
    assert ended.returncode == 2 and "run.logger_options.wandb.project belongs to" in ended.stderr
