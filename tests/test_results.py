"""Columns of a sweep's table: IQM, area, the way to a threshold, the best row and its ties."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from commands import call
from run_dirs import make_run, rewrite

from stellaris_jax.report.results import Measure, at_the_edge, compare_settings, seed_results, verdict
from stellaris_jax.report.runs import group_replicates, read_run
from stellaris_jax.report.sweep import report, row_cells, sweep_row

SHARE = 1 - math.exp(-5)
"""Share of its level that a made-up run has learned at its end."""


def config_of(rate: float, seed: int = 0, env: str = "gymnax/CartPole-v1") -> dict[str, Any]:
    return {"env": {"name": env}, "algorithm": {"learning_rate": rate}, "seed": seed}


def rows_of(root: Path, *settings: tuple[dict[str, Any], list[float]]) -> list[Any]:
    runs = [read_run(make_run(root / str(i), config, returns)) for i, (config, returns) in enumerate(settings)]
    return compare_settings(group_replicates(runs))


def test_area_is_the_mean_height_of_the_curve(tmp_path: Path) -> None:
    """By hand: 0 to 10 over 100 steps, 10 to 40 over 300: (500 + 7500) / 400."""
    place = make_run(tmp_path / "run", config_of(1e-3), [1.0, 1.0])
    rewrite(place, {100: [0.0, 7.0], 200: [10.0, None], 500: [40.0, 7.0]})
    first, second = seed_results(read_run(place))
    assert (first.final, first.area) == (40.0, 20.0)
    assert (second.final, second.area) == (7.0, 7.0)
    rewrite(place, {100: [3.0, None]})
    (only,) = seed_results(read_run(place))
    assert (only.seed, only.area) == (0, 3.0), "of one evaluation it is that evaluation"


def test_runs_of_other_numbers_of_seeds_become_one_row(tmp_path: Path) -> None:
    """As the page on sweeps has it: two seeds, and three more in another directory."""
    first, more = config_of(1e-3) | {"num_seeds": 2}, config_of(1e-3, seed=2) | {"num_seeds": 3}
    (row,) = rows_of(tmp_path, (first, [1.0, 2.0]), (more, [3.0, 4.0, 5.0]))
    assert row.label and [*row.seeds] == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(row.finals, np.arange(1, 6) * SHARE)


def test_way_to_a_threshold_is_the_median_over_seeds(tmp_path: Path) -> None:
    place = make_run(tmp_path / "run", config_of(1e-3, seed=3), [1.0] * 3)
    rewrite(place, {1000: [1, 5, 1], 2000: [9, 1, 1], 3000: [0, 9, 4]})
    (row,) = compare_settings(group_replicates([read_run(place)]))
    assert list(row.seeds) == [3, 4, 5]
    values = sweep_row(row, threshold=5.0)
    reached = {key.removeprefix("threshold_"): value for key, value in values.items() if key.startswith("threshold")}
    assert reached == {"seeds": 2, "env_steps": 2000.0, "simulated_seconds": 20.0, "cost_usd": 0.2}
    late = sweep_row(row, threshold=9.0)
    assert (late["threshold_seeds"], late["threshold_env_steps"]) == (2, 3000.0)
    never = sweep_row(row, threshold=10.0)
    assert (never["threshold_seeds"], never["threshold_env_steps"], never["threshold_cost_usd"]) == (0, None, None)
    assert not any(key.startswith("threshold") for key in sweep_row(row))


def test_seconds_and_costs_of_a_setting_have_an_interval_over_five_seeds(tmp_path: Path) -> None:
    """Costs of seed s are 1 + s cents for every hundred steps, their last evaluation is after 3,000."""
    texts = []
    for seeds in (5, 4):
        place = make_run(tmp_path / str(seeds), config_of(1e-3), [1.0] * seeds)
        rewrite(place, {1000: [1] * seeds, 3000: [2] * seeds})
        (row,) = compare_settings(group_replicates([read_run(place)]))
        values = sweep_row(row)
        costs = 0.3 * np.arange(1, seeds + 1)
        assert values["cost_usd"] == pytest.approx(costs.mean())
        half = scipy.stats.sem(costs) * scipy.stats.t.ppf(0.975, seeds - 1)
        assert values["cost_usd_ci95"] == (pytest.approx(half) if seeds == 5 else None)
        texts.append({cell.heading: cell.text for cell in row_cells(values, row, None)})
    assert [text["cost"] for text in texts] == ["$0.90 ± 0.59", "$0.75"]
    assert [text["simulated s"] for text in texts] == ["30.0 ± 0", "30.0"]


def test_a_seed_that_was_run_twice_counts_once(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, (config_of(1e-3, seed=0), [1.0, 2.0, 3.0]), (config_of(1e-3, seed=2), [3.0, 4.0]))
    assert list(row.seeds) == [0, 1, 2, 3]
    assert sweep_row(row)["seeds"] == 4


def test_the_best_row_and_what_is_within_noise_of_it(tmp_path: Path) -> None:
    common = [100.0, 300.0, 200.0, 500.0, 400.0, 250.0]
    above = [9.0, 11.0, 10.0, 12.0, 8.0, 10.0]
    rows = rows_of(
        tmp_path,
        (config_of(1e-4), common),
        (config_of(2e-4), [a + b for a, b in zip(common, above, strict=True)]),
        (config_of(3e-4), [a + b for a, b in zip(common, [40.0, -30, 5, 35, -10, 8], strict=True)]),
        (config_of(4e-4), [90.0]),
        (config_of(5e-4), [115.0, 305.0, 195.0]),
    )
    assert [row.mark for row in rows] == ["", "tied", "tied", "few", "few"]
    paired = scipy.stats.ttest_rel([SHARE * b for b in above], [0.0] * 6)
    worst = rows[0].comparison
    assert worst is not None
    assert (worst.pairs, worst.p, worst.mean) == (6, pytest.approx(paired.pvalue), pytest.approx(SHARE * 10))
    assert rows[0].p_holm == pytest.approx(2 * paired.pvalue), "of the two that can be tested it is the smaller"
    assert [verdict(row) for row in rows] == ["the setting", "", "tied", "too few seeds", "too few seeds"]


def test_environments_are_not_compared(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        (config_of(1e-4, env="a"), [1.0] * 5),
        (config_of(2e-4, env="a"), [2.0] * 5),
        (config_of(1e-4, env="b"), [900.0] * 5),
    )
    assert [row.mark for row in rows] == ["", "best", ""], "the third has nothing to be compared with"
    assert rows[0].comparison is not None and rows[0].comparison.mean == pytest.approx(SHARE)
    assert rows[2].comparison is None


def test_seeds_that_are_not_shared_are_compared_by_welch(tmp_path: Path) -> None:
    a, b = [10.0, 12, 11, 13, 9], [1.0, 2, 3, 2, 1]
    low, _ = rows_of(tmp_path, (config_of(1e-4, seed=50), b), (config_of(2e-4, seed=0), a))
    expected = scipy.stats.ttest_ind([SHARE * x for x in a], [SHARE * x for x in b], equal_var=False)
    assert low.comparison is not None
    assert (low.comparison.pairs, low.comparison.p) == (0, pytest.approx(expected.pvalue))


def test_table_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index, returns in enumerate(
        ([100.0, 102, 104, 160, 98], [300.0, 302, 304, 360, 298], [260.0, 330, 294, 340, 320])
    ):
        make_run(tmp_path / str(index), config_of(10.0 ** (index - 4)), returns)
    report(tmp_path, threshold=200.0)
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["mark"] for row in rows] == ["", "tied", "tied"]
    assert [row["threshold_seeds"] for row in rows] == ["0", "5", "5"]
    assert [bool(row["threshold_env_steps"]) for row in rows] == [False, True, True]
    middle = SHARE * (100 + 102 + 104) / 3
    assert float(rows[0]["return_iqm"]) == pytest.approx(middle)
    assert float(rows[0]["return_iqm_low"]) <= middle <= float(rows[0]["return_iqm_high"])
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert [(" ★ " in line, " tied " in line) for line in lines if line.startswith("| ")][2:] == [
        (False, False), (False, True), (False, True),
    ]  # fmt: skip
    assert "not significantly different" in " ".join(capsys.readouterr().out.split())


def test_threshold_of_the_plot_command(tmp_path: Path) -> None:
    make_run(tmp_path / "0", config_of(1e-3))
    assert call("plot.py", "--sweep", tmp_path, "--threshold", 100).returncode == 0
    assert "threshold_cost_usd" in (tmp_path / "table.csv").read_text()
    for wrong in (("--threshold", "many"), ("--threshold", "nan")):
        refused = call("plot.py", "--sweep", tmp_path, *wrong)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    alone = call("plot.py", tmp_path / "0", "--threshold", 5)
    assert alone.returncode == 2 and "--sweep" in alone.stderr


def test_a_best_learning_rate_on_the_edge_is_told(tmp_path: Path) -> None:
    """Sentence on async, whose best rate is the smallest; none on central, whose best one is in the middle."""
    returns = {"async": (9.0, 5.0, 1.0), "central": (3.0, 8.0, 2.0)}
    settings = [
        (config_of(rate) | {"system": {"name": name}}, [level] * 5)
        for name, levels in returns.items()
        for rate, level in zip((1e-4, 1e-3, 1e-2), levels, strict=True)
    ]
    rows = rows_of(tmp_path, *settings)
    (sentence,) = at_the_edge(rows)
    assert sentence == "async: best at the smallest learning rate that was tried, 0.0001; smaller ones may be better"
    (sentence,) = at_the_edge(rows[3:5])
    assert sentence == "central: best at the largest learning rate that was tried, 0.001; larger ones may be better"
    assert at_the_edge(rows[:1]) == []


def test_a_rate_that_never_reaches_the_threshold_was_tried_too(tmp_path: Path) -> None:
    settings = [(config_of(rate), [level] * 5) for rate, level in ((1e-4, 2.0), (1e-3, 9.0), (1e-2, 8.0))]
    rows = rows_of(tmp_path, *settings)
    time = Measure("env_steps", 5.0)
    assert [bool(row.measured(time)) for row in rows].count(False) == 1 and at_the_edge(rows, time) == []
