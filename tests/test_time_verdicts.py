"""Verdicts on the time to a return, and against the setting that differs in one key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from commands import call
from run_dirs import make_run, rewrite

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.report.results import AREA, Measure, compare_settings, verdict
from stellaris_jax.report.runs import group_replicates, read_run
from stellaris_jax.report.verdicts import Question, Setting

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
    assert "All seeds of all settings reach a return of 0" in done.stdout
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
