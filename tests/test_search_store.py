"""Files of a search that were lost, changed or could not be written. Runs are made up, so no test trains."""

from __future__ import annotations

import csv
import errno
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import call, said

from stellaris_jax.base.errors import RunError
from stellaris_jax.config.schema import flatten
from stellaris_jax.config.stored import from_yaml, read_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.runs.run_dir import writing
from stellaris_jax.telemetry.integrity import run_identity, with_digests
from stellaris_jax.telemetry.jsonl import MetricsLog

pytest.importorskip("optuna")
from stellaris_jax.many import tune

RATE = "algorithm.learning_rate"
SMALL = [
    "env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=16", "network.hidden=[8]", "total_steps=192",
    "num_seeds=1", "evaluation.points=3", "run.progress=false", "run.loggers=[]",
]  # fmt: skip
AGAIN = "tune.py --resume s"


@pytest.fixture(autouse=True)
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the trials that were trained, in order. A return is the learning rate times the round."""
    monkeypatch.chdir(tmp_path)
    names: list[str] = []

    def train(run_dir: Path, config: Config, *rest: Any, watch: Callable[[Any], bool]) -> dict[str, Any]:
        names.append(run_dir.name)
        flat = flatten(read_yaml(run_dir / "config.yaml"))
        log = MetricsLog(run_dir / "metrics.jsonl", owner=run_identity(flat))
        for number in range(1, config.rounds + 1):
            value, steps = config.algorithm.learning_rate * number, {"round": number, "env_steps": 64 * number}
            log.write([{"kind": "round", **steps, "train_return": value, "per_seed": {"train_return": [value]}}])
            each = {"eval_return_mean": value, "per_seed": {"eval_return_mean": [value]}}
            log.write([{"kind": "evaluation", **steps, **each}])
            if watch({**steps, **each}):
                break
        summary = {"rounds": number, "ended_early": number < config.rounds, "eval_return_mean": value, "failure": None}
        (run_dir / "summary.json").write_text(json.dumps(with_digests(summary, log.digest, flat)))
        return summary

    monkeypatch.setattr(tune, "train_within", train)
    monkeypatch.setattr(tune, "max_concurrent_runs", lambda configs: 1)
    monkeypatch.setattr("stellaris_jax.report.curves.save", lambda figure, path: path)
    return names


def search(*further: str, trials: int = 3, reduction: int = 0) -> str:
    path = Path("space.yaml")
    path.write_text(yaml.safe_dump({RATE: {"low": 1e-4, "high": 1e-1, "log": True}}))
    options = ["--space", path, "--trials", trials, "--reduction", reduction, "--dir", "s"]
    ended = call("tune.py", *SMALL, *further, *options, "--fresh-seeds", "0")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def rows(directory: str) -> list[dict[str, str]]:
    with open(Path(directory) / "trials.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def sql(line: str) -> None:
    with sqlite3.connect("s/study.db") as base:
        base.execute(line)
    base.close()


def best_number(table: list[dict[str, str]]) -> str:
    return max(table, key=lambda row: float(row["return"]))["trial"]


def test_trials_at_a_time_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    in_threads = tune.in_threads

    def noted(count: int, name: str, work: Callable[[], None]) -> None:
        counts.append(count)
        in_threads(1, name, work)

    monkeypatch.setattr(tune, "in_threads", noted)
    monkeypatch.setattr(tune, "max_concurrent_runs", lambda configs: 8)
    search(trials=1)
    for limit in (1, 3, 30):
        assert call("tune.py", "--resume", "s", "--parallel", limit).returncode == 0
    assert counts == [8, 1, 3, 8]


# Files that are lost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gone", "empty", "older", "other"])
def test_a_lost_study_is_refused(kind: str, trained: list[str]) -> None:
    search(trials=1)
    shutil.copy("s/study.db", "older.db")
    assert call("tune.py", "--resume", "s", "--trials", "2").returncode == 0
    if kind == "gone":
        Path("s/study.db").unlink()
    elif kind == "empty":
        Path("s/study.db").write_bytes(b"")
    elif kind == "older":
        shutil.copy("older.db", "s/study.db")
    else:  # the study of another search, which has as many trials
        sql("update trial_params set param_value = 0.05 where trial_id = 2")
    before = {path: path.read_bytes() for path in Path("s").rglob("*") if path.is_file()}
    trained.clear()
    ended = call("tune.py", "--resume", "s", "--trials", "4")
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1 and not trained, ended.stderr
    told = "s/1/config.yaml has algorithm.learning_rate=" if kind == "other" else "s/study.db does not know trial "
    assert told in ended.stderr and "Put it back, or begin a new search" in ended.stderr
    assert {path: path.read_bytes() for path in Path("s").rglob("*") if path.is_file()} == before


def results(stdout: str) -> str:
    """Lines printed after the training."""
    return "".join(line for line in stdout.splitlines(keepends=True) if " trials  " not in line)


@pytest.mark.parametrize("lost", ["directory", "summary.json", "damaged"])
def test_a_lost_run_is_made_again(lost: str, trained: list[str]) -> None:
    out = search(trials=4)
    table = rows("s")
    best = best_number(table)
    if lost == "directory":
        shutil.rmtree(f"s/{best}")
    elif lost == "summary.json":
        Path(f"s/{best}/summary.json").unlink()
    else:
        path = Path(f"s/{best}/summary.json")
        path.write_text(path.read_text().replace('"rounds": 3', '"rounds": 4'))
    trained.clear()
    ended = call("tune.py", "--resume", "s")
    assert ended.returncode == 0 and trained == [best], ended.stderr
    (told,) = said(ended.stderr)
    assert f"trial {best} has no result any more (s/{best}" in told
    assert rows("s") == table and results(ended.stdout) == results(out)


def test_a_run_that_cannot_be_made_again_is_not_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    from stellaris_jax.runs.checkpoint import CheckpointError

    search(trials=4)
    table = rows("s")
    best = best_number(table)
    Path(f"s/{best}/summary.json").unlink()

    def train(run_dir: Path, *rest: Any, **options: Any) -> None:
        raise CheckpointError(f"there is no intact checkpoint in {run_dir}.")

    with monkeypatch.context() as patch:
        patch.setattr(tune, "train_within", train)
        ended = call("tune.py", "--resume", "s")
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"error: 1 of 4 trials have damaged runs, and are not ranked: {best}. ") and AGAIN in last
    rest = [row for row in table if row["trial"] != best]
    assert f"trial {best_number(rest)}: return" in ended.stdout
    assert [row["state"] for row in rows("s") if row["trial"] == best] == ["incomplete"]
    shutil.rmtree(f"s/{best}")
    ended = call("tune.py", "--resume", "s")
    assert ended.returncode == 0 and f"trial {best}: return" in ended.stdout and rows("s") == table


# A database that was changed ------------------------------------------------------------------------------------------


def test_returns_are_those_of_the_runs(trained: list[str]) -> None:
    out = search(trials=4)
    table = rows("s")
    worst = min(table, key=lambda row: float(row["return"]))["trial"]
    identifier = int(worst) + 1
    sql(f"update trial_values set value = 999 where trial_id = {identifier}")
    sql(f"update trial_intermediate_values set intermediate_value = 999 where trial_id = {identifier} and step = 3")
    trained.clear()
    ended = call("tune.py", "--resume", "s")
    assert ended.returncode == 0 and not trained
    assert f"trial {worst}: s/study.db says return 999" in ended.stderr and "has other evaluations" in ended.stderr
    assert ended.stdout == results(out) and rows("s") == table
    ended = call("tune.py", "--resume", "s")
    assert said(ended.stderr) == [] and ended.stdout == results(out), "mended"


@pytest.mark.parametrize("state", ["FAIL", "PRUNED"])
def test_a_result_is_not_lost_by_its_state(state: str) -> None:
    out = search(trials=3)
    best = best_number(rows("s"))
    sql(f"update trials set state = '{state}' where number = {best}")
    ended = call("tune.py", "--resume", "s")
    assert ended.returncode == 0 and results(ended.stdout) == results(out)
    assert f"trial {best}: s/study.db calls it {state.lower()}, and its run has a result" in ended.stderr


def test_trials_of_other_numbers() -> None:
    search(trials=1)
    sql("update trials set number = 5")
    ended = call("tune.py", "--resume", "s")
    assert ended.returncode == 1 and "its trials are not numbered from 0 on. Make room" in ended.stderr


def test_a_pruned_trial_has_the_returns_of_its_run() -> None:
    search(trials=6, reduction=3)
    table = rows("s")
    pruned = next(row["trial"] for row in table if row["state"] == "pruned")
    sql(f"update trial_intermediate_values set intermediate_value = 7 where trial_id = {int(pruned) + 1}")
    ended = call("tune.py", "--resume", "s")
    assert ended.returncode == 0 and f"trial {pruned}: s/study.db has other evaluations" in ended.stderr
    assert rows("s") == table


@pytest.mark.parametrize("size", [100, 5000, 40000])
def test_a_truncated_study_is_one_sentence(size: int) -> None:
    search(trials=1)
    data = Path("s/study.db").read_bytes()
    assert size < len(data)
    Path("s/study.db").write_bytes(data[:size])
    ended = call("tune.py", "--resume", "s", "--trials", "2")
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.startswith("error: s/study.db cannot be read or written: ") and AGAIN in ended.stderr
    Path("s/study.db").write_bytes(data)
    assert call("tune.py", "--resume", "s", "--trials", "2").returncode == 0


# A full disk ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call_name", ["_create_new_trial", "set_trial_intermediate_value", "set_trial_state_values"])
def test_a_study_that_cannot_be_written(call_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import OperationalError

    search(trials=2)
    before = rows("s")

    def full(*arguments: Any, **options: Any) -> None:
        try:
            raise OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))
        except OperationalError as error:
            raise StorageInternalError("An exception is raised during the commit.") from error

    with monkeypatch.context() as patch:
        patch.setattr(RDBStorage, call_name, full)
        ended = call("tune.py", "--resume", "s", "--trials", "4")
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1, ended.stderr
    assert "s/study.db cannot be read or written: database or disk is full. " in ended.stderr
    assert AGAIN in ended.stderr
    ended = call("tune.py", "--resume", "s", "--trials", "4")
    assert ended.returncode == 0, ended.stderr
    assert [row["state"] for row in rows("s")] == ["complete"] * 4 and rows("s")[:2] == before


def test_a_run_that_cannot_be_written_stops_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its setting is not at fault, so the trial has not failed; nor is the next one tried."""
    search(trials=1)

    def train(run_dir: Path, *rest: Any, **options: Any) -> None:
        with writing(run_dir):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tune, "train_within", train)
        ended = call("tune.py", "--resume", "s", "--trials", "4")
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert "trial 1: s/1 could not be written: No space left on device. Make room" in ended.stderr
    assert AGAIN in ended.stderr
    assert call("tune.py", "--resume", "s", "--trials", "4").returncode == 0
    assert [row["state"] for row in rows("s")] == ["complete"] * 4


def test_a_full_disk_while_a_study_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    search(trials=2)
    table = rows("s")
    shutil.rmtree("s/0")

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("stellaris_jax.many.search_store.replacing", full)
        ended = call("tune.py", "--resume", "s")
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1].startswith("error: s/study.db cannot be read or wri")
    assert call("tune.py", "--resume", "s").returncode == 0 and rows("s") == table
    assert not list(Path("s").glob(".*tmp*"))


def test_a_failed_run_is_a_failed_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(run_dir: Path, *rest: Any, **options: Any) -> None:
        raise RunError(f"{run_dir}: no gradient was finite.")

    search(trials=1)
    with monkeypatch.context() as patch:
        patch.setattr(tune, "train_within", train)
        ended = call("tune.py", "--resume", "s", "--trials", "2")
    assert ended.returncode == 0 and [row["state"] for row in rows("s")] == ["complete", "fail"]


# Messages, and tune.yaml ------------------------------------------------------------------------------------------


def test_the_same_again_is_told_whole() -> None:
    out = search("seed=7")
    line = next(line for line in out.splitlines() if line.startswith("the same again: "))
    assert all(f"'{word}'" in line or f" {word} " in line for word in [*SMALL, "seed=7"]) and RATE in line
    assert "(gymnax/CartPole-v1, 192 env steps, " in out
    ended = call("tune.py", "--resume", "s")
    assert ended.stdout == results(out), "nothing was left to train"
    best = out.partition("trial ")[2].partition(":")[0]
    from shlex import split

    from stellaris_jax import load_config

    words = split(line)[split(line).index(SMALL[0]) :]
    known = from_yaml(Path(f"s/{best}/config.yaml"))
    assert load_config(words).replace({"run.dir": "", "resume": ""}) == known


def test_a_search_of_an_earlier_version() -> None:
    search(trials=1)
    about = yaml.safe_load(Path("s/tune.yaml").read_text())
    del about["overrides"]
    Path("s/tune.yaml").write_text(yaml.safe_dump(about))
    ended = call("tune.py", "--resume", "s")
    assert ended.returncode == 0 and "its settings: s/0/config.yaml" in ended.stdout and "again" not in ended.stdout


def test_overrides_are_quoted_and_never_composed() -> None:
    search(trials=1)
    about = yaml.safe_load(Path("s/tune.yaml").read_text())
    about["overrides"] = ["env=gymnax/cartpole; touch evil", "+plugins=[evil.py]"]
    Path("s/tune.yaml").write_text(yaml.safe_dump(about))
    ended = call("tune.py", "--resume", "s")
    assert ended.returncode == 0 and " 'env=gymnax/cartpole; touch evil' '+plugins=[evil.py]' " in ended.stdout


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"trials": "many"}, "trials must be an integer from 1 to 1000000, not 'many'."),
        ({"trials": -1}, "trials must be an integer from 1 to 1000000, not -1."),
        ({"trials": 1e300}, "trials must be an integer from 1 to 1000000, not 1e+300."),
        ({"trials": True}, "trials must be an integer from 1 to 1000000, not True."),
        ({"trials": 10**400}, "trials must be an integer from 1 to 1000000, not "),
        ({"reduction": 1}, "reduction=1 stops no trial"),
        ({"reduction": None}, "reduction must be an integer from 0 to 1000000, not None."),
        ({"seed": 2**32}, "seed must be an integer from 0 to 4294967295, not 4294967296."),
        ({"seed": [1]}, "seed must be an integer from 0 to 4294967295, not [1]."),
        ({"overrides": "seed=1"}, "overrides must be a list of texts on one line each, not 'seed=1'."),
        ({"overrides": ["seed=1", 3]}, "overrides must be a list of texts on one line each, not ['seed=1', 3]."),
        ({"overrides": ["seed=1\x1b[2J"]}, "overrides must be a list of texts on one line each, not "),
        ({"trails": 3}, "has other keys than the options of a search."),
    ],
)
def test_a_tune_yaml_of_other_values(values: dict[str, Any], told: str) -> None:
    Path("s").mkdir()
    Path("s/tune.yaml").write_text(yaml.safe_dump({"trials": 3, "reduction": 0, "seed": 0, **values}))
    ended = call("tune.py", "--resume", "s")
    assert ended.returncode == 2 and ended.stderr.startswith("error: s/tune.yaml") and told in ended.stderr
    assert ended.stderr.count("\n") == 1 and "\x1b" not in ended.stderr
