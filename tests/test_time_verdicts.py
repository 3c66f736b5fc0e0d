"""Verdicts on the time to a return, and against the setting that differs in one key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import yaml
from commands import call
from run_dirs import make_run, rewrite

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.report.results import AREA, Measure, compare_settings, verdict
from stellaris_jax.report.runs import group_replicates, read_run
from stellaris_jax.report.sweep import sweep_row
from stellaris_jax.report.verdicts import Question, Setting, is_value

SECONDS = Measure("simulated_seconds", 5.0)
"""Seconds to a return of 5; they are hundredths of the env steps."""


def place(root: Path, name: str, firsts: list[int], lag: int = 0, rate: float = 1e-3) -> Path:
    """Run whose seeds reach a return of 5 at these thousands of steps."""
    config = {
        "system": {"name": "async", "lag": lag}, "env": {"name": "x"}, "algorithm": {"learning_rate": rate},
        "seed": 0, "num_seeds": len(firsts),
    }  # fmt: skip
    run = make_run(root / name, config, [1.0] * len(firsts))
    rewrite(run, {1000 * step: [float(step >= first) * 9 for first in firsts] for step in range(1, 11)})
    return run


def test_ratios_of_seconds_are_geometric_means_with_students_p(tmp_path: Path) -> None:
    slow, fast = [8, 6, 9, 7, 10], [2, 3, 3, 2, 4]
    runs = [place(tmp_path, "a", slow, 0), place(tmp_path, "b", fast, 1), place(tmp_path, "c", [1, 1, 1, 1, 11], 2)]
    rows = compare_settings(group_replicates(list(map(read_run, runs))))
    question = Question(SECONDS, threshold=5.0)
    first, second, third = question.judged(rows)
    assert second.is_top and not (first.is_top or third.is_top), (
        "a setting that does not always get there is no best one"
    )
    assert second.comparison is None and third.comparison is None
    assert first.comparison is not None
    ratios = np.log(np.array(slow) / np.array(fast))
    shown = question.shown(first.comparison)
    assert shown.mean == pytest.approx(np.exp(ratios.mean()))
    assert 1 < shown.low < shown.mean < shown.high < max(np.array(slow) / np.array(fast))
    assert first.comparison.p == pytest.approx(scipy.stats.ttest_1samp(ratios, 0).pvalue)
    assert verdict(first) == "the setting"


def test_each_setting_against_the_one_that_differs_in_one_key(tmp_path: Path) -> None:
    """Two learning rates, each fresh and late: the reference of each is that of its own learning rate."""
    firsts = {(1e-3, 0): [2] * 5, (1e-3, 8): [4] * 5, (1e-4, 0): [5, 6, 5, 6, 5], (1e-4, 8): [5, 7, 5, 7, 5]}
    runs = [place(tmp_path, str(n), way, lag, rate) for n, ((rate, lag), way) in enumerate(firsts.items())]
    rows = compare_settings(group_replicates(list(map(read_run, runs))))
    for key in ("lag", "system.lag"):
        judged = Question(AREA, Setting(key, "0")).judged(rows)
        assert [row.is_top for row in judged] == [True, False, True, False]
        areas = [row.measured(AREA) for row in judged]
        for late, fresh in ((1, 0), (3, 2)):
            comparison = judged[late].comparison
            assert comparison is not None
            assert comparison.mean == pytest.approx(np.mean(areas[fresh]) - np.mean(areas[late]))
    for setting in (Setting("lag", "3"), Setting("eta", "0")):
        with pytest.raises(ConfigError, match="accepted: the directory of a run, or a value of a column, such as"):
            Question(AREA, setting).judged(rows)


def test_report_of_times_to_a_return(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    place(sweep, "0", [8, 6, 9, 7, 10], 0)
    place(sweep, "1", [2, 3, 3, 2, 4], 1)
    place(sweep, "2", [2, 3, 3, 2, 40], 2)
    done = call("report.py", sweep, "--measure", "seconds", "--threshold", 5)
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()[1:5]
    columns = [" ".join(head.split())] + [line.split() for line in lines]
    assert "5.00 reached after steps after s after $ it is this / best 95 % interval" in columns[0]
    assert [line[5:8] for line in columns[1:]] == [["5", "of", "5"]] * 2 + [["4", "of", "5"]]
    assert "least" in lines[1] and "the setting" in lines[0] and "least" not in lines[0] + lines[2]
    assert "simulated seconds to 5.00, geometric mean of the ratios" in done.stdout
    assert "All 15 seeds that have a result reach a return of 0." in done.stdout
    page = (sweep / "report.html").read_text()
    assert "this / best" in page and "one is within the interval" in page
    for asked, told in (
        (["--measure", "seconds"], "--threshold=X must name"),
        (["--measure", "dollars", "--threshold", 5, "--margin", 1], "--margin is about"),
        (["--against", "lag=9"], "such as lag=0, lag=1, lag=2"),
    ):
        refused = call("report.py", sweep, *asked)
        assert refused.returncode == 2 and told in refused.stderr, refused.stderr


def test_runs_of_several_directories_are_named_with_theirs(tmp_path: Path) -> None:
    for name, lag in (("one", 0), ("two", 1)):
        place(tmp_path / name, "0", [2, 3, 3, 2, 4], lag)
    done = call("report.py", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "page.html")
    assert "one/0" in done.stdout and "two/0" in done.stdout


def test_reachable_returns_are_of_each_environment_and_of_results_alone(tmp_path: Path) -> None:
    for number, (env, firsts) in enumerate({"x": [2, 3], "y": [20, 2]}.items()):
        run = place(tmp_path, str(number), firsts, number)
        config = yaml.safe_load((run / "config.yaml").read_text())
        (run / "config.yaml").write_text(yaml.safe_dump({**config, "env": {"name": env}}))
    (tmp_path / "2").mkdir()
    shutil.copy(tmp_path / "0" / "config.yaml", tmp_path / "2" / "config.yaml")
    done = call("report.py", tmp_path, "--threshold", 7)
    assert "All 2 seeds that have a result reach a return of 9.00 on x." in done.stdout, done.stderr
    assert "All 2 seeds that have a result reach a return of 0 on y." in done.stdout
    refused = call("report.py", tmp_path, "--against", "env=x")
    assert refused.returncode == 2 and "is of none of the compared settings" in refused.stderr
    assert "env=" not in refused.stderr.partition("accepted")[2]


@pytest.mark.parametrize(
    ("value", "text", "same"),
    [(1e-3, "0.001", True), (1e-3, "1e-3", True), (1e-3, "1e-4", False), (True, "True", True), (True, "1", False),
     (None, "null", True), (None, "none", True), (8, "8.0", True), ("gae", "gae", True), ("gae", "8", False),
     ([64, 64], "[64, 64]", True)],
)  # fmt: skip
def test_a_reference_is_named_in_any_form_of_its_value(value: Any, text: str, same: bool) -> None:
    assert is_value(value, text) == same


def test_an_ambiguous_short_key_names_no_setting(tmp_path: Path) -> None:
    """Columns of such keys have their whole keys for headings."""
    runs = []
    for number, (first, second) in enumerate([(1, 1), (1, 2), (2, 1), (2, 2)]):
        run = place(tmp_path, str(number), [2] * 5, 0)
        config = yaml.safe_load((run / "config.yaml").read_text())
        (run / "config.yaml").write_text(yaml.safe_dump({**config, "a": {"x": first}, "b": {"x": second}}))
        runs.append(read_run(run))
    rows = compare_settings(group_replicates(runs))
    with pytest.raises(ConfigError, match=r"--against=x=1 .* such as a\.x=1, b\.x=1"):
        Question(against=Setting("x", "1")).judged(rows)
    assert [row.is_top for row in Question(against=Setting("a.x", "1")).judged(rows)] == [True, True, False, False]


def test_what_differs_along_with_the_key_is_named(tmp_path: Path) -> None:
    """A learning rate that follows from the system is no column of its own."""
    for number, (system, rate) in enumerate({"sync": 1e-3, "async": 1e-4}.items()):
        run = place(tmp_path, str(number), [2] * 5, 0, rate)
        config = yaml.safe_load((run / "config.yaml").read_text())
        (run / "config.yaml").write_text(yaml.safe_dump({**config, "system": {"name": system}}))
    done = call("report.py", tmp_path, "--against", "system=sync")
    assert "With system these differ, too: algorithm.learning_rate." in done.stdout, done.stderr
    for arguments in ((), ("--against", "system=sync")):
        said = " ".join(call("report.py", tmp_path, *arguments).stdout.split())
        assert "These have learning rates of their own: sync has 0.001, async has 0.0001." in said
    never = call("report.py", tmp_path, "--measure", "seconds", "--threshold", "100")
    assert "counts a seed that does not as twice the longest run" in " ".join(never.stdout.split())


@pytest.mark.parametrize("billing", [("serverless", "serverful"), ("serverful", "serverful")])
def test_bills_that_differ_are_told(billing: tuple[str, str], tmp_path: Path) -> None:
    for number, rule in enumerate(billing):
        run = place(tmp_path, str(number), [3 + number] * 5, number)
        config = yaml.safe_load((run / "config.yaml").read_text())
        config["system"]["learner_billing"] = rule
        (run / "config.yaml").write_text(yaml.safe_dump(config))
    said = call("report.py", str(tmp_path), "--measure", "dollars", "--threshold", "5").stdout
    told = "system.learner_billing is serverful or serverless" in " ".join(said.split())
    assert told == (billing[0] != billing[1])


def test_clocks_that_are_means_over_seeds_have_no_interval(tmp_path: Path) -> None:
    """As in records of early versions: all seeds of a run would have the same seconds."""
    runs = [place(tmp_path, str(lag), firsts, lag) for lag, firsts in enumerate([[2, 3, 3, 2, 4], [6, 7, 7, 6, 8]])]
    for run in runs:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line["per_seed"] = {"eval_return_mean": line["per_seed"]["eval_return_mean"]}
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = compare_settings(group_replicates(list(map(read_run, runs))))
    assert not any(row.comparison for row in Question(SECONDS).judged(rows))
    assert any(row.comparison for row in Question(Measure("env_steps", 5.0)).judged(rows))
    assert sweep_row(rows[0])["cost_usd_ci95"] is None


@pytest.mark.parametrize(
    "arguments",
    [["a" * 300], ["sweep", "--against", "b" * 300], ["sweep", "--out", "c" * 300], ["sweep", "--against", ""]],
)
def test_paths_that_no_file_can_have(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(tmp_path / "sweep", "0", [2] * 5)
    monkeypatch.chdir(tmp_path)
    refused = call("report.py", *arguments)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "must be a path" in refused.stderr


def test_settings_without_a_twin_are_not_compared_in_silence(tmp_path: Path) -> None:
    """Each system at a learning rate of its own."""
    for number, (lag, rate) in enumerate([(0, 1e-3), (8, 1e-4)]):
        place(tmp_path, str(number), [2] * 5, lag, rate)
    told = call("report.py", tmp_path / "0", tmp_path / "1", "--against", "lag=0", "--out", tmp_path / "page.html")
    assert told.returncode == 0 and "no two settings differ in lag alone" in told.stdout, told.stderr
