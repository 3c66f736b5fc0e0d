"""Pictures as people see them: spread of few and of many seeds, legends and labels that fit, formats."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import SCRIPTS, said
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from run_dirs import make_run
from study_helpers import made_up

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.execute.loading import load_config
from stellaris_jax.report.curves import comparison_figure, plot_run, run_figure
from stellaris_jax.report.gantt import timeline_figure
from stellaris_jax.report.runs import read_run
from stellaris_jax.timeline import Timeline
from studies import pictures
from studies.pictures import Bar, Point

AT_500 = [500.0, 500.0, 500.0, 500.0, 300.0]


def laid_out(figure: Figure) -> Any:
    """The renderer of a figure in which everything has its place."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    return renderer


def bands(figure: Figure) -> np.ndarray:
    """Heights [points] of all that is shaded in the first panel."""
    shaded = [one for one in figure.axes[0].collections if isinstance(one, PolyCollection)]
    corners = [path.vertices[:, 1] for one in shaded for path in one.get_paths()]
    heights = np.concatenate(corners) if corners else np.empty(0)
    return heights[np.isfinite(heights)]


@pytest.mark.parametrize("draw", ["comparison", "run"])
def test_two_seeds_are_shown_themselves(draw: str, tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", returns=[480.0, 400.0]))
    figure = comparison_figure({"two": [run]}, "") if draw == "comparison" else run_figure(run)
    assert not len(bands(figure))
    low, high = figure.axes[0].get_ylim()
    assert low >= 0 and high < 520, "Student's interval of two seeds would reach from -170 to 1000"
    ends = {round(float(line.get_ydata()[-1])) for line in figure.axes[0].lines}
    assert {477, 437, 397} <= ends, "either seed and their mean"


@pytest.mark.parametrize("draw", ["comparison", "run"])
def test_bands_of_five_seeds_stay_within_the_data(draw: str, tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", returns=AT_500))
    figure = comparison_figure({"five": [run]}, "") if draw == "comparison" else run_figure(run)
    best = max(max(record["per_seed"]["eval_return_mean"]) for record in run.evaluations)
    assert bands(figure).max() == pytest.approx(best) and bands(figure).min() > 100


def test_seeds_that_share_no_range_are_shown_at_least(tmp_path: Path) -> None:
    """A single evaluation, after other seconds in every seed."""
    run = read_run(make_run(tmp_path / "run", returns=AT_500, evaluations=1))
    seconds = comparison_figure({"five": [run]}, "").axes[1]
    assert sorted(float(line.get_ydata()[0]) for line in seconds.lines) == pytest.approx(
        sorted(run.evaluations[0]["per_seed"]["eval_return_mean"])
    )


def test_a_run_without_stale_gradients_shows_returns_alone(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    shown = len(run_figure(run).axes)
    for record in run.rounds:
        record |= {"staleness_max": 0, "staleness_mean": 0.0}
    assert len(run_figure(run).axes) == shown - 2


def test_a_run_shows_how_many_groups_of_each_round_escaped(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", rounds=4, evaluations=2))
    assert len(run_figure(run).axes) == 5, "runs of earlier versions have not counted groups"
    for record, escapes, groups in zip(run.rounds, (0, 0, 5, 14), (20, 30, 40, 50), strict=True):
        record |= {"gate_escapes": escapes, "gate_groups": groups}
    share = run_figure(run).axes[-1].lines[0]
    assert share.get_ydata().tolist() == [0, 0, 50, 90]


LABELS = {
    "forty": [f"system_number_{i}_with_a_name_of_forty_chars" for i in range(8)],
    "sentences": [f"decay=0.9{i}, " + "learning_rate=0.001, num_envs=64, " * 6 for i in range(8)],
    "a word": [f"{i}" + "x" * 300 for i in range(2)],
}


@pytest.mark.parametrize("labels", list(LABELS))
def test_legends_and_titles_are_not_cut_off(labels: str, tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    figure = comparison_figure({label: [run] for label in LABELS[labels]}, "a sweep of " * 20)
    renderer = laid_out(figure)
    panels = [axes.get_tightbbox(renderer) for axes in figure.axes]
    for part in (figure.legends[0], figure._suptitle):
        box = part.get_window_extent(renderer)
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(panel) for panel in panels)
    assert len(figure.legends[0].get_texts()) == len(LABELS[labels])
    assert min(axes.get_window_extent(renderer).height for axes in figure.axes) > 200, "figures grow with legends"


@pytest.mark.parametrize("rounds", [1, 4, 30])
def test_labels_of_a_timeline_stay_in_their_boxes(rounds: int) -> None:
    config = load_config(["system=stellaris", "system.learners=3", f"system.name={'a long name ' * 12}"])
    figure = timeline_figure(config, rounds)
    renderer, axes = laid_out(figure), figure.axes[0]
    boxes = [axes.transData.transform(one.get_paths()[0].vertices)[:, 0] for one in axes.collections[:rounds]]
    names = [text for text in axes.texts if text.get_position()[1] > 3]
    assert len(names) == rounds or rounds > 4
    for text in names:
        extent, place = text.get_window_extent(renderer), axes.transData.transform(text.get_position())[0]
        (box,) = [box for box in boxes if box.min() <= place <= box.max()]
        assert box.min() <= extent.x0 + 1 and extent.x1 <= box.max() + 1
    title = axes.title.get_window_extent(renderer)
    assert title.x0 >= 0 and title.x1 <= figure.bbox.x1 and title.y1 <= figure.bbox.y1


def test_numbers_of_a_timeline_say_which_gradients_a_version_took() -> None:
    config = load_config(["system=softsync", "system.learners=3", "system.rule_options.c=2"])
    figure = timeline_figure(config, 1)
    renderer, axes = laid_out(figure), figure.axes[0]
    groups = Timeline.of(config, config.seed).next_round().groups
    numbers = [text for text in axes.texts if text.get_position()[1] in (0, 1, 2)]
    assert len(numbers) > 10
    for text in numbers:
        second, learner = text.get_position()
        makes, gradient = next(
            (group.clock + 1, g) for group in groups for g in group.gradients
            if g.learner == learner and g.start < second < g.end
        )  # fmt: skip
        assert text.get_text() == str(makes)
        left, right = axes.transData.transform([(gradient.start, 0), (gradient.end, 0)])[:, 0]
        extent = text.get_window_extent(renderer)
        assert left <= extent.x0 + 1 and extent.x1 <= right + 1
    updates = {text.get_text().strip(): text.get_position()[0] for text in axes.texts if text.get_position()[1] == -1}
    assert updates and all(groups[int(number) - 1].second == second for number, second in updates.items())


@pytest.mark.parametrize(("name", "head"), [("a.PNG", b"\x89PNG"), ("deep/a.pdf", b"%PDF"), ("a.svg", b"<?xml")])
def test_the_ending_chooses_the_format(name: str, head: bytes, tmp_path: Path) -> None:
    path = plot_run(make_run(tmp_path / "run"), tmp_path / name)
    assert path.read_bytes().startswith(head)


@pytest.mark.parametrize("name", ["comparison", "curve.jpeg", "curve.pgn"])
def test_unknown_endings_are_refused(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"accepted endings: \.png, \.pdf, \.svg"):
        plot_run(run, tmp_path / name)
    command = [sys.executable, str(SCRIPTS / "plot.py"), str(run), "--out", name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    (sentence,) = said(done.stderr)
    assert done.returncode != 0 and name in sentence
    assert not (tmp_path / name).exists()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that would be saved."""
    figures: list[Figure] = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: figures.append(figure))
    return figures


@pytest.mark.parametrize("seeds", [3, 5])
def test_figures_of_studies_show_few_seeds_themselves(seeds: int, drawn: list[Figure]) -> None:
    histories = [made_up("hopper", f"{name}{'x' * 30}", seed) for name in "abcdefgh" for seed in range(seeds)]
    pictures.curves({"panel": histories}, {}, Path(), "Curves")
    values = np.random.default_rng(0).uniform(100, 110, seeds)
    pictures.bars({"panel": [Bar("label", 90.0, values)]}, Path(), "Bars", "dollars")
    pictures.sensitivity({"d": [Point("0.9", (90.0, 1.0), values, values)]}, Path(), "Sensitivity")
    few = seeds < 5
    assert (len(bands(drawn[0])) == 0) == few
    assert len(drawn[0].axes[0].lines) == 8 * (1 + seeds * few)
    for figure in drawn[1:]:
        assert (len(figure.axes[0].containers) > 2 - ("Sensitivity" in figure._suptitle.get_text()) * 2) == (not few)
        shown = {float(v) for line in figure.axes[0].lines for v in np.ravel([line.get_xdata(), line.get_ydata()])}
        assert (set(values) <= shown) == few
    renderer = laid_out(drawn[0])
    box = drawn[0].legends[0].get_window_extent(renderer)
    assert box.x0 >= 0 and box.x1 <= drawn[0].bbox.x1


def test_pictures_of_many_panels_are_split_by_task(tmp_path: Path) -> None:
    """A picture for each task, and none that an earlier version left with all of them."""
    panels = {
        f"{task}, {rate}": [made_up(task, "PPO", seed) for seed in range(5)]
        for task in ("hopper", "walker2d", "humanoid")
        for rate in ("the paper's rate", "tuned rates")
    }
    path = tmp_path / "figure_6.png"
    pictures.curves(dict(list(panels.items())[:5]), {}, path, "Five rows")
    assert {file.name for file in tmp_path.iterdir()} == {"figure_6.png"}
    pictures.curves(panels, {}, path, "Six rows")
    assert {file.name for file in tmp_path.iterdir()} == {
        f"figure_6_{task}.png" for task in ("hopper", "walker2d", "humanoid")
    }


def test_a_system_has_its_colour_in_every_picture() -> None:
    alone = pictures.looks(["softsync", "Stellaris", "SSP"])
    beside = pictures.looks(["PPO", "PPO, whole GPU", "PPO + Stellaris"])
    assert alone["Stellaris"]["color"] == beside["PPO + Stellaris"]["color"] == pictures.GREEN
    assert len({style["color"] for style in alone.values()}) == len({style["color"] for style in beside.values()}) == 3
    assert len({style["linestyle"] for style in beside.values()}) == 3
