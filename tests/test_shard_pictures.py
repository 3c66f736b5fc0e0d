"""Pictures of independent actors: fragments, versions, the data queue, and steps learned from beside those rolled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call
from drawn import saved_figures
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from run_dirs import STEPS, make_run

from stellaris_jax.execute.loading import load_config
from stellaris_jax.report.curves import comparison_figure, run_figure
from stellaris_jax.report.gantt import plot_timeline, timeline_figure
from stellaris_jax.report.results import CLOCKS, seed_results
from stellaris_jax.report.runs import read_run
from stellaris_jax.report.shards import (
    DIED,
    DROPPED,
    OPEN,
    USED,
    ShardBar,
    fragments_under_way,
    queue_length,
    shard_bars,
)
from stellaris_jax.timeline import Timeline

CASES = {
    "segments": ("system=areal", "system.sync_steps=32"),
    "drops": ("system=async", "system.actors=independent", "system.data_admission=newest", "system.learners=2"),
    "deaths": ("system=areal", "system.data_admission=bounded", "delays.actor_failure=0.2", "system.sync_steps=64"),
    "cold starts": ("system=sample_factory", "platform.actor_cold_start=2", "platform.keep_alive=1"),
    "coming and going": ("system=async", "system.actors=independent", "system.data_admission=evict_stalest"),
}
ROUNDS = 6


def simulated(*overrides: str) -> tuple[Any, Timeline, list[Any], list[ShardBar]]:
    config = load_config([*overrides, "delays=pareto", "system.actor_shards=4"])
    timeline = Timeline.of(config, 0)
    rounds = [timeline.next_round() for _ in range(ROUNDS)]
    return config, timeline, rounds, shard_bars(config, rounds, fragments_under_way(timeline))


@pytest.mark.parametrize("case", CASES)
def test_bars_are_what_the_simulation_has_done(case: str) -> None:
    _, timeline, rounds, bars = simulated(*CASES[case])
    assert timeline.free is not None
    outcomes = {kind: [bar for bar in bars if bar.outcome == kind] for kind in (USED, DROPPED, DIED, OPEN)}
    usage = rounds[-1].usage
    assert len(outcomes[DROPPED]) == usage.fragments_dropped and len(outcomes[DIED]) == usage.actor_failures
    assert len(outcomes[USED]) == 4 * sum(len(round_.batches) for round_ in rounds)
    assert sorted(bar.fragment.order for bar in bars) == list(range(timeline.free.queue.order)), "each begin, once"
    if case in ("drops", "deaths"):
        assert outcomes[DROPPED]
    if case == "deaths":
        assert outcomes[DIED]
    for shard in range(4):
        own = sorted((bar for bar in bars if bar.fragment.shard == shard), key=lambda bar: bar.fragment.begin)
        for bar, following in zip(own, [*own[1:], None], strict=True):
            assert following is None or bar.end <= following.fragment.begin + 1e-9, "one after the other"
            starts = [start for start, *_ in bar.segments]
            assert starts[0] == bar.fragment.begin and starts == sorted(starts)
            assert [version for *_, version in bar.segments] == bar.fragment.versions
            assert bar.outcome == OPEN or bar.segments[-1][1] == pytest.approx(bar.end)


@pytest.mark.parametrize("case", ["segments", "cold starts"])
def test_segments_begin_when_their_policy_is_fetched(case: str) -> None:
    """A segment has the newest version that was published at its begin."""
    _, _, rounds, bars = simulated(*CASES[case])
    published = [(group.published, group.clock + 1) for round_ in rounds for group in round_.groups]
    for bar in bars:
        for start, _, version in bar.segments:
            before = [clock for second, clock in published if second <= start + 2e-9]
            surely = [clock for second, clock in published if second < start - 2e-9]
            assert max(surely, default=0) <= version <= max(before, default=0)


@pytest.mark.parametrize("case", CASES)
def test_the_queue_has_the_length_of_the_records(case: str) -> None:
    _, timeline, rounds, bars = simulated(*CASES[case])
    seconds, waiting = queue_length(bars, timeline.now)
    assert waiting.min() >= 0 and (np.diff(seconds) >= 0).all() and seconds[-1] == timeline.now
    for round_ in rounds:
        at_end = waiting[np.searchsorted(seconds, round_.usage.seconds, side="right") - 1]
        assert at_end == round_.waiting


def drawn(*overrides: str, rounds: int = ROUNDS) -> Figure:
    figure = timeline_figure(load_config([*overrides, "delays=pareto"]), rounds)
    figure.draw_without_rendering()
    return figure


def test_the_picture_has_shards_queue_and_learners() -> None:
    figure = drawn("system=areal", "system.sync_steps=32", "system.data_admission=bounded", "delays.actor_failure=0.1")
    shards, queue, learners = figure.axes[:3]
    labels = [text.get_text() for text in shards.get_yticklabels()]
    assert labels[::-1] == [f"shard {i}" for i in range(8)]
    assert queue.get_ylabel().startswith("data queue") and learners.get_xlabel() == "simulated seconds"
    assert "bounded" in shards.get_title() and "fragments dropped" in shards.get_title()
    assert shards.get_xlim() == queue.get_xlim() == learners.get_xlim()
    assert queue.texts
    assert [text.get_text() for text in queue.texts] == [str(batch) for batch in range(len(queue.texts))]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"fragment that was dropped", "attempt that died"} <= set(named)
    renderer, (left, right) = FigureCanvasAgg(figure).get_renderer(), shards.bbox.intervalx
    boxes = [text.get_window_extent(renderer) for text in shards.texts]
    assert len(boxes) > 40 and all(left <= box.x0 and box.x1 <= right for box in boxes)


@pytest.mark.parametrize("shards", [1, 16])
def test_few_and_many_shards(shards: int, tmp_path: Path) -> None:
    config = load_config(["system=async", "system.actors=independent", f"system.actor_shards={shards}"])
    assert plot_timeline(config, 2, tmp_path / "picture.png").stat().st_size > 10_000


# Steps rolled and steps learned from ---------------------------------------------------------------------------------


def with_learned_steps(path: Path, share: float = 0.5) -> Path:
    """A run of independent actors that learn from a share of what they roll."""
    make_run(path, rounds=4, evaluations=2)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row["learned_steps"] = share * row["env_steps"]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ends(figure: Figure) -> dict[str, float]:
    """Largest x of the curves of each panel, by the name of its axis."""
    named = {axes.get_xlabel(): axes for axes in figure.axes if axes.lines}
    return {name: max(float(line.get_xdata()[-1]) for line in axes.lines) for name, axes in named.items()}


def test_both_counts_of_steps_are_drawn(tmp_path: Path) -> None:
    run = read_run(with_learned_steps(tmp_path / "run"))
    for figure in (run_figure(run), comparison_figure({"one": [run]}, "")):
        drawn_to = ends(figure)
        assert drawn_to["env steps rolled"] == 2 * drawn_to["env steps learned from"] == 4 * STEPS
        assert {"simulated seconds", "dollars"} <= drawn_to.keys()
    assert {"learned_steps"} == {axis for axis in CLOCKS if axis.startswith("learned")}
    (result, *_) = seed_results(run)
    assert result.curves["learned_steps"][0].tolist() == [STEPS, 2 * STEPS]


def test_steps_of_actors_that_wait_are_all_learned_from(tmp_path: Path) -> None:
    waits, free = read_run(make_run(tmp_path / "waits", rounds=4, evaluations=2)), tmp_path / "free"
    assert "env steps learned from" not in ends(run_figure(waits))
    runs = {"waits": [waits], "free": [read_run(with_learned_steps(free))]}
    drawn_to = ends(comparison_figure(runs, ""))
    assert drawn_to["env steps rolled"] == drawn_to["env steps learned from"] == 4 * STEPS
    assert ends(run_figure(waits, ["learned_steps", "cost_usd"])).keys() >= {"env steps learned from", "dollars"}


def test_axes_can_be_chosen(tmp_path: Path) -> None:
    place = with_learned_steps(tmp_path / "run")
    with saved_figures() as figures:
        done = call("plot.py", place, "--x", "learned_steps,wall_seconds")
    assert done.returncode == 0, done.stderr
    drawn_to = ends(figures["curve.png"])
    assert drawn_to.keys() >= {"env steps learned from", "real seconds"} and "dollars" not in drawn_to
    for mistake, word in (("learned", "did you mean learned_steps"), ("", "must be of")):
        done = call("plot.py", place, "--x", mistake)
        assert done.returncode == 2 and word in done.stderr
    done = call("plot.py", "--timeline", "1", "--x", "cost_usd")
    assert done.returncode == 2 and "a timeline has none" in done.stderr
