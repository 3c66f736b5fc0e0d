"""Statistics, figures and sweep tables on run directories that are made up."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from commands import REPOSITORY, SCRIPTS
from drawn import assert_picture
from matplotlib.patches import Rectangle
from run_dirs import STEPS, make_run

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.statistics import FEWEST, band, mean_ci95, on_common_grid
from stellaris_jax.report import verdicts
from stellaris_jax.report.curves import comparison_figure, plot_run, plot_runs, run_figure
from stellaris_jax.report.results import compare_settings
from stellaris_jax.report.runs import differing_keys, flatten, group_replicates, read_run, seed_curves
from stellaris_jax.report.sweep import COLUMNS, headings, report, row_cells, sweep_rows


def sweep_config(place: Path, rule: str, seed: int, decay: float) -> dict[str, Any]:
    return {
        "system": {"name": rule, "rule": rule, "decay": decay},
        "algorithm": {"learning_rate": {"stellaris": 1e-3, "async": 5e-4}[rule]},
        "env": {"name": "gymnax/CartPole-v1", "kwargs": {}},
        "run": {"dir": str(place), "name": place.name},
        "seed": seed,
    }


# Statistics


def test_interval_is_students_t() -> None:
    values = np.random.default_rng(1).normal(size=5)
    mean, half_width = mean_ci95(values)
    low, high = scipy.stats.t.interval(0.95, 4, loc=values.mean(), scale=scipy.stats.sem(values))
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high))
    # Two values: the table's quantile 12.706 times |a - b| / 2.
    assert mean_ci95([1.0, 3.0]) == pytest.approx((2.0, 12.706), rel=1e-4)


def test_interval_of_few_values() -> None:
    assert mean_ci95([4.0])[0] == 4.0
    assert math.isnan(mean_ci95([4.0])[1])
    assert all(map(math.isnan, mean_ci95([])))


def test_common_grid_is_the_shared_range() -> None:
    straight = (np.array([0.0, 10.0]), np.array([0.0, 10.0]))
    bent = (np.array([2.0, 4.0, 8.0]), np.array([0.0, 4.0, 4.0]))
    grid, values = on_common_grid([straight, bent], points=7)
    np.testing.assert_allclose(grid, [2, 3, 4, 5, 6, 7, 8])
    np.testing.assert_allclose(values, [[2, 3, 4, 5, 6, 7, 8], [0, 2, 4, 4, 4, 4, 4]])
    grid, mean, low, high = band([straight, bent])
    assert (mean[0], mean[-1]) == (1.0, 6.0)
    assert np.isnan([low, high]).all(), "of two seeds there is no interval to show"


def test_bands_are_intervals_within_the_range_of_the_seeds() -> None:
    x = np.array([0.0, 1.0])
    values = np.array([[9.0, 500], [10, 500], [11, 500], [12, 500], [13, 300]])
    _, mean, low, high = band([(x, row) for row in values])
    expected = scipy.stats.t.interval(0.95, 4, loc=11, scale=scipy.stats.sem(values[:, 0]))
    assert (low[0], mean[0], high[0]) == pytest.approx((max(9, expected[0]), 11, min(13, expected[1])))
    assert expected[0] > 9 and expected[1] < 13
    assert (mean[-1], high[-1]) == (460, 500), "the interval itself would end at 571"
    assert low[-1] == pytest.approx(scipy.stats.t.interval(0.95, 4, loc=460, scale=scipy.stats.sem(values[:, 1]))[0])


@pytest.mark.parametrize(("start", "points"), [(1.0, 1), (2.0, 0)])
def test_common_grid_of_touching_and_of_disjoint_curves(start: float, points: int) -> None:
    first, second = (np.array([0.0, 1.0]), np.zeros(2)), (np.array([start, 3.0]), np.ones(2))
    assert [len(part) for part in band([first, second])] == [points] * 4


# Reading and grouping


def test_differing_keys_leave_out_what_names_imply() -> None:
    configs = [
        flatten(sweep_config(Path("a"), "stellaris", 0, 0.96)),
        flatten(sweep_config(Path("b"), "stellaris", 1, 0.9)),
        flatten(sweep_config(Path("c"), "async", 0, 0.96)),
    ]
    assert configs[0]["env.kwargs"] == {}
    assert differing_keys(configs) == ["system.name", "system.decay"]
    assert differing_keys(configs[:2]) == ["system.decay"]
    assert differing_keys(configs[:1]) == []


def test_replicates_share_a_group(tmp_path: Path) -> None:
    places = [("stellaris", 0), ("stellaris", 1), ("async", 0)]
    runs = [
        read_run(make_run(tmp_path / str(index), sweep_config(tmp_path / str(index), rule, seed, 0.96)))
        for index, (rule, seed) in enumerate(places)
    ]
    groups = group_replicates(runs)
    assert [(group.label, [run.path.name for run in group.runs]) for group in groups] == [
        ("stellaris", ["0", "1"]),
        ("async", ["2"]),
    ]
    assert group_replicates(runs[:2])[0].label == "stellaris"


def test_seed_curves_use_each_seeds_own_axis(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", returns=[100.0, 200.0], rounds=10, evaluations=2))
    (x, y), (slower, _) = seed_curves(run, "simulated_seconds")
    np.testing.assert_allclose(x, [35, 70])
    np.testing.assert_allclose(slower, [42, 84])
    assert y[-1] == pytest.approx(100 * (1 - math.exp(-5)))
    np.testing.assert_allclose(seed_curves(run, "env_steps")[0][0], [5 * STEPS, 10 * STEPS])


def test_seed_curves_fall_back_on_training_returns(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", rounds=10, evaluations=0))
    steps, returns = seed_curves(run, "env_steps")[2]
    assert steps[0] == 2 * STEPS, "the first round, in which no episode ended, is left out"
    assert len(returns) == 9


# Figures


def axes_labels(figure: Any) -> list[str]:
    return [axes.get_xlabel() for axes in figure.axes]


def test_figure_of_one_run(tmp_path: Path) -> None:
    place = make_run(tmp_path / "run")
    figure = run_figure(read_run(place))
    assert axes_labels(figure) == ["env steps", "simulated seconds", "dollars", "staleness (versions)", "round"]
    assert figure.axes[0].get_ylabel() == "return"
    shares = [bar.get_bbox().height for bar in figure.axes[3].patches if isinstance(bar, Rectangle)]
    assert sum(shares) == pytest.approx(100)
    assert plot_run(place) == place / "curve.png"
    assert_picture(place / "curve.png", width=1200)


@pytest.mark.parametrize("shape", [{"evaluations": 0}, {"returns": [480.0]}, {"rounds": 1, "evaluations": 1}])
def test_figures_of_meagre_runs(tmp_path: Path, shape: dict[str, Any]) -> None:
    place = make_run(tmp_path / "run", **shape)
    assert_picture(plot_run(place, tmp_path / "one.png"), width=1200)
    assert_picture(plot_runs({"a": [place]}, tmp_path / "many.png", "One"), width=1200)


def test_figure_of_several_runs(tmp_path: Path) -> None:
    slow = [read_run(make_run(tmp_path / str(index), returns=[100.0 + index, 120.0])) for index in range(2)]
    fast = [read_run(make_run(tmp_path / "fast"))]
    figure = comparison_figure({"slow": slow, "fast": fast}, "Comparison")
    assert axes_labels(figure) == ["env steps", "simulated seconds", "dollars"]
    assert [item.get_text() for item in figure.legends[0].get_texts()] == ["slow (4 seeds)", "fast (3 seeds)"]
    mean = np.asarray(figure.axes[0].lines[0].get_ydata())
    assert mean[-1] == pytest.approx((100 + 120 + 101 + 120) / 4 * (1 - math.exp(-5)))


def test_directories_without_metrics_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no metrics"):
        plot_run(tmp_path)


def test_plot_script(tmp_path: Path) -> None:
    places = [
        make_run(tmp_path / rule, sweep_config(tmp_path / rule, rule, 0, 0.96)) for rule in ("stellaris", "async")
    ]

    def plot(*arguments: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, str(SCRIPTS / "plot.py"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)

    assert plot(places[0]).stdout.strip() == str(places[0] / "curve.png")
    assert_picture(places[0] / "curve.png", width=1200)
    assert plot(*places, "--out", tmp_path / "both.png").returncode == 0
    assert_picture(tmp_path / "both.png", width=1200)
    refused = plot(tmp_path / "nothing")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1


# Sweeps


def make_sweep(path: Path) -> Path:
    points = [("stellaris", 0, 0.96), ("stellaris", 10, 0.96), ("stellaris", 0, 0.9), ("async", 0, 0.96)]
    for index, point in enumerate(points):
        place = path / str(index)
        returns = [100.0 * (index + 1), 110.0 * (index + 1)]
        make_run(place, sweep_config(place, *point), returns, finished=index != 2)
    (path / "4").mkdir()  # a point that failed before it wrote anything
    return path


def test_sweep_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    report(sweep)
    with open(sweep / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["system.name"], row["system.decay"]) for row in rows] == [
        ("stellaris", "0.96"),
        ("stellaris", "0.9"),
        ("async", "0.96"),
    ]
    expected = np.array([100.0, 110, 200, 220]) * (1 - math.exp(-5))
    low, high = scipy.stats.t.interval(0.95, 3, loc=expected.mean(), scale=scipy.stats.sem(expected))
    assert float(rows[0]["return_mean"]) == pytest.approx(expected.mean())
    assert float(rows[0]["return_ci95"]) == pytest.approx((high - low) / 2)
    smallest_largest = [float(rows[0][key]) for key in ("return_min", "return_max")]
    assert smallest_largest == pytest.approx([expected.min(), expected.max()])
    assert [(row["seeds"], row["failed"]) for row in rows] == [("4", "0"), ("0", "1"), ("2", "0")]
    assert (rows[0]["staleness_max"], rows[0]["updates"]) == ("7", "640.0")
    assert rows[1]["return_mean"] == rows[1]["cost_usd"] == ""

    table = (sweep / "table.md").read_text()
    assert "| stellaris | 0.9 | no result | 0 |" in table
    interval = f"{expected.mean():.0f} ({expected.min():.1f} to {expected.max():.0f})"
    assert f"| stellaris | 0.96 | {interval} few seeds | 4 |" in table
    assert f"few seeds: fewer than {FEWEST}" in table
    assert "Points without a result: 2, 4." in table
    assert_picture(sweep / "curves.png", width=1200)
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("table.md", "table.csv", "curves.png", "Points without a result: 2, 4"))


@pytest.mark.parametrize(
    ("other", "marks"),
    [
        ([480.0, 450, 495, 470, 485, 490], ["tied", "tied"]),  # equal in everything
        ([80.0, 50, 95, 70, 85, 90], ["★", ""]),
        ([470.0, 460, 490, 480, 475, 485], ["tied", "tied"]),
    ],
)
def test_a_winner_is_significantly_better(other: list[float], marks: list[str], tmp_path: Path) -> None:
    """Equals are tied, whichever comes first, and have no star between them."""
    first = [480.0, 450, 495, 470, 485, 490]
    for index, (system, returns) in enumerate([("stellaris", first), ("async", other)]):
        make_run(tmp_path / str(index), sweep_config(tmp_path / str(index), system, 0, 0.96), returns)
    report(tmp_path)
    with open(tmp_path / "table.csv", newline="") as file:
        shown = {"tied": "tied", "best": "★", "": ""}
        assert [shown[row["mark"]] for row in csv.DictReader(file)] == marks


def test_of_equal_returns_the_faster_learner_comes_first(tmp_path: Path) -> None:
    """The row that others are compared with: of the larger area, then of the fewer seconds."""
    from stellaris_jax.report.results import compare_settings, load_run
    from stellaris_jax.report.runs import group_replicates

    for index, system in enumerate(["stellaris", "async"]):
        place = make_run(tmp_path / str(index), sweep_config(tmp_path / str(index), system, 0, 0.96), [480.0] * 5)
        summary = json.loads((place / "summary.json").read_text())
        seconds = {"stellaris": 300.0, "async": 200.0}[system]
        (place / "summary.json").write_text(json.dumps({**summary, "simulated_seconds": seconds}))
    rows = compare_settings(group_replicates([load_run(tmp_path / name) for name in ("0", "1")]))
    assert [(row.label.split(",")[0], row.is_top) for row in rows] == [("stellaris", False), ("async", True)]


def test_a_setting_keeps_its_column_beside_a_column_of_that_name(tmp_path: Path) -> None:
    """`warm_start.updates` is no count of updates, `env.kwargs.runs` no list of runs, and so on for all headings."""
    sweep, columns = tmp_path / "sweep", sorted(COLUMNS)
    for index in range(2):
        place = sweep / str(index)
        config = sweep_config(place, "async", 0, 0.9)
        config["env"]["kwargs"] = {name: f"{name} {index}" for name in columns}
        make_run(place, config, [1.0, 2.0])
    report(sweep)
    rows = compare_settings(group_replicates([read_run(sweep / str(index)) for index in range(2)]))
    cells = [verdicts._cells(row, verdicts.Question(threshold=1.0, margin=0.1), False, True) for row in rows]
    table = (sweep / "table.md").read_text()
    for name in columns:
        assert f"| {name} 0 |" in table and f"| {name} 1 |" in table
        assert {row[f"env.kwargs.{name}"] for row in cells} == {f"{name} 0", f"{name} 1"}
    (values, _), (row, _) = sweep_rows(rows, 1.0), rows
    own = {cell.heading for cell in row_cells(values, row, 1.0)} | cells[0].keys() - headings(row.group).keys()
    assert {name for name in own if name.isidentifier()} == COLUMNS, "other headings can be no part of a key"


def test_sweep_in_which_everything_failed(tmp_path: Path) -> None:
    make_run(tmp_path / "0", finished=False)
    report(tmp_path)
    assert "| stellaris | no result |" in (tmp_path / "table.md").read_text()
    assert not (tmp_path / "curves.png").exists()


def test_sweep_over_seeds_alone_is_one_row(tmp_path: Path) -> None:
    for index, seed in enumerate((0, 10)):
        make_run(tmp_path / str(index), sweep_config(tmp_path / str(index), "async", seed, 0.96))
    report(tmp_path)
    with open(tmp_path / "table.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["seeds"] == "6"
    mean, half_width = float(row["return_mean"]), float(row["return_ci95"])
    assert f" {mean:.0f} ± {half_width:.0f} | 6 |" in (tmp_path / "table.md").read_text(), "enough for an interval"


def test_directory_without_points_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no sweep points"):
        report(tmp_path)


def test_timeline_figure_shows_every_gradient_and_update(tmp_path: Path) -> None:
    from stellaris_jax.execute.loading import load_config
    from stellaris_jax.report.gantt import plot_timeline, timeline_figure

    work = ["algorithm.epochs=2", "algorithm.minibatches=4"]
    config = load_config(["system=async", "system.learners=3", "delays=constant", *work])
    axes = timeline_figure(config, rounds=2).axes[0]
    assert axes.get_title() == "async: 16 gradients, 16 updates"
    assert len(axes.collections) == 19  # a bar each, two fragments, the ticks of the updates
    *_, updates = axes.collections
    assert len(updates.get_segments()) == 16
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "parameter function", "learner 0", "learner 1", "learner 2", "actors",
    ]  # fmt: skip
    assert_picture(plot_timeline(config, 1, tmp_path / "t.png"), width=1200)


def test_actors_do_not_collect_while_learners_start_up() -> None:
    from stellaris_jax.execute.loading import load_config
    from stellaris_jax.report.gantt import timeline_figure

    cold = ["platform.prewarm=false", "platform.cold_start=8", "platform.actor_cold_start=0"]
    axes = timeline_figure(load_config(["system=async", "delays=constant", *cold]), rounds=1).axes[0]
    fragment, *gradients, _ = (bar.get_paths()[0].get_extents() for bar in axes.collections)
    assert min(gradient.x0 for gradient in gradients) >= 8 + fragment.x1 - 0.01 and 3 < fragment.x1 < 8
