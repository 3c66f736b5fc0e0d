"""Study of asynchronous actors: its cells, what is stored of them, and the answers that are made of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from commands import REPOSITORY
from study_helpers import empty_study

from stellaris_jax import ConfigError, Trainer, load_config
from stellaris_jax.base.statistics import paired
from stellaris_jax.execute.loading import check_and_start_jax
from stellaris_jax.timeline import Timeline
from studies import choices
from studies import outcomes as store
from studies.actors import answers, figures, laws
from studies.actors import cells as cells_module
from studies.actors.cells import (
    ADMISSIONS,
    BARRIER,
    BOUNDS,
    COARSE_RATES,
    DROP,
    FINE_RATES,
    JUDGING,
    LADDER,
    LAGS,
    PPO,
    SYNC,
    TASKS,
    TUNING,
    WAIT,
    Cell,
    bounds_places,
    correction_places,
    rate_places,
    sync_places,
)
from studies.claims import read_claims
from studies.files import read_table
from studies.outcomes import DATA, DROPPED, POINTS, Key, Outcome
from studies.study import Study, reproduce

RESULTS = REPOSITORY / "results" / "actors"
TABLE = RESULTS / "figure_bounds.csv"
TINY = ("env.num_envs=8", "algorithm.rollout_length=16", "algorithm.minibatches=4", "algorithm.epochs=1")


def outcome(cell: Cell, seed: int, share: float, seconds: float = 100.0, gap: float = math.nan) -> Outcome:
    """A run whose curve rises from the worst return to a share of the way to solved, and stays there."""
    task = TASKS[cell.task]
    curve = np.minimum(np.arange(POINTS + 1) / 4.0, 1.0) * share
    returns = task.worst + curve * (task.solved - task.worst)
    ends = np.linspace(0.0, seconds, POINTS + 1)
    data = (*(1.0,) * len(DATA), 1.0 + 0.1 * abs(gap), gap)
    rounds = tuple(store.parts_of(cells_module.BATCHES[cell.question]))
    return Outcome(cell, seed, rounds, tuple(returns), tuple(ends), 1e5, 0.2, data, "digest")


def invented(cell: Cell, seed: int) -> Outcome:
    """Waiting learns more than dropping; fetches help; TIS helps at lag 8; the best rate falls as 1 / (1 + lag)."""
    noise = 0.01 * math.sin(17.0 * seed + len(cell.method) + cell.level)
    lag = cell.level if cell.question == LAGS else 0
    best = 1.6e-2 / (1.0 + lag) if cell.method == PPO else 4e-3
    share = 0.9 - 0.1 * math.log2(float(cell.rate) / best) ** 2 / 4.0 + noise
    if cell.question == BOUNDS:
        gap = (20.0 if cell.task == "cartpole" else -20.0) + seed
        return outcome(cell, seed, share - 0.3 * (cell.method == DROP), gap=gap if cell.method == DROP else math.nan)
    if cell.question == SYNC:
        return outcome(cell, seed, share - 0.2 * (cell.level == 0))
    return outcome(cell, seed, share + 0.3 * (cell.method == "TIS" and lag == 8))


def stored_at_best(places: Iterable[Cell]) -> dict[Cell, list[Outcome]]:
    """Published outcomes of places on the judging seeds, at the rates in the table of `bounds`."""
    rates = {(row["env"], row["method"], int(row["bound"])): row["rate"] for row in read_table(TABLE)}
    found = {}
    for place in places:
        known = store.read(RESULTS / f"{place.task}.csv.gz", Cell)
        cell = place._replace(rate=rates[place.task, place.method, place.level])
        found[place] = [known[cell, seed] for seed in cells_module.JUDGING]
    return found


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[Key]:
    """Cells and seeds of the runs that a stand-in for training has trained."""
    done: list[Key] = []

    def trained(keys: Iterable[Key]) -> list[Outcome]:
        keys = list(keys)
        done.extend(keys)
        return [invented(*key) for key in keys]

    monkeypatch.setattr(store, "trained", trained)
    monkeypatch.setattr(store, "digest", lambda cell: "digest")
    return done


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return empty_study(tmp_path)


def test_the_page_has_the_answers_of_its_data() -> None:
    """A placeholder is refused once there are claims: the block of each figure is what its files say."""
    text = (RESULTS / "README.md").read_text()
    for figure in figures.FIGURES:
        begin, end = answers.markers(figure)
        shown = text.partition(begin)[2].partition(end)[0].strip()
        assert shown == answers.block(figure, RESULTS), "stellaris-jax reproduce index"


def test_the_page_tells_of_its_horizon() -> None:
    """Sentences that no figure writes: which run ends equal seconds, and verdicts with the horizon of each pair."""
    text = " ".join((RESULTS / "README.md").read_text().split())
    tied: dict[str, int] = {}
    for task in ("cartpole", "acrobot"):
        judged = stored_at_best(bounds_places(task))
        at = {(cell.method, cell.level): runs for cell, runs in judged.items()}
        for bound in (0, 1, 2):
            sides = at.get((WAIT, bound), at[BARRIER, 0]), at[DROP, bound]
            seconds = min(run.seconds[-1] for runs in sides for run in runs)
            areas = [np.array([run.area_until(seconds) for run in runs]) for runs in sides]
            tied[f"{task}, {bound}"] = paired(*areas)[2] >= 0.05
        end, last = choices.equal_seconds(judged), at[WAIT, 2]
        if task == "cartpole":
            (run,) = [run for run in last if run.seconds[-1] == end]
            assert (
                f"waits with bound 2 (seed {run.seed}), and ends with a final return of {run.final:.2f} of the way"
                in text
            )
        else:
            low = sorted(run.area_until(end) for run in at[BARRIER, 0])
            assert f"learn late (areas {low[0]:.2f} and {low[1]:.2f})" in text and low[2] > 0.7
    assert len(tied) == 6 and all(tied.values())
    assert "none of the six between waiting and dropping is shown, either" in text


def test_every_place_is_a_configuration_of_its_own() -> None:
    """Each can run, no two are the same, and runs are cut into equal parts for their evaluations."""
    places = [
        place
        for task in TASKS
        for make in (bounds_places, sync_places, correction_places, rate_places)
        if make is not bounds_places or TASKS[task].bounded
        for place in make(task)
    ]
    cells = [place._replace(rate="1e-3") for place in dict.fromkeys(places)]
    for cell in cells:
        config = load_config([*cell.variant.overrides])
        check_and_start_jax(config)
        assert config.rounds == cells_module.BATCHES[cell.question] and config.rounds % POINTS == 0
    assert len({store.digest(cell) for cell in cells}) == len(cells)


def test_waiting_with_bound_0_is_the_barrier() -> None:
    """So it is no place of its own. Durations by episodes need data, so they are drawn here."""

    def begins(cell: Cell) -> list[tuple[object, ...]]:
        config = load_config([*cell.variant.overrides, "delays.by=steps"])
        timeline = Timeline.of(config, 0)
        return [(round_.sequence, round_.usage.seconds) for round_ in (timeline.next_round() for _ in range(6))]

    barrier, waiting, dropping = (
        begins(Cell(BOUNDS, "cartpole", method, 0, "1e-3")) for method in (BARRIER, WAIT, DROP)
    )
    assert barrier == waiting != dropping


def test_learning_rates_are_twice_the_one_before() -> None:
    ladder = np.array([float(rate) for rate in LADDER])
    np.testing.assert_allclose(ladder[1:] / ladder[:-1], 2.0)
    assert FINE_RATES == ("1e-3", "2e-3", "4e-3", "8e-3", "1.6e-2", "3.2e-2")


def test_areas_by_hand() -> None:
    run = outcome(Cell(LAGS, "cartpole", PPO, 0, "1e-3"), 0, 0.8)
    assert run.final == pytest.approx(0.8)
    assert run.area == pytest.approx(0.8 * (2.0 + 16.0) / 20.0), "a fifth of the run rises evenly"
    assert run.area_until(20.0) == pytest.approx(0.4)
    assert run.area_until(200.0) == pytest.approx(0.8 * 0.95, abs=1e-3), "it stays where it was"


def test_best_rate_is_the_summit_of_a_parabola() -> None:
    rates = np.log([1e-3, 2e-3, 4e-3, 8e-3])
    areas = -((rates - np.log(3e-3)) ** 2)
    np.testing.assert_allclose(laws.peak(areas[None], rates), np.log([3e-3]))
    assert laws.peak(np.array([[4.0, 3.0, 2.0, 1.0]]), rates) == rates[:1], "at an end it is that rate"


@pytest.mark.parametrize("edge", [0.0, 2.0, 16.0])
def test_the_law_is_found(edge: float) -> None:
    """Best rates constant up to a crossover, and 1 / (1 + lag) beyond; the crossover is found again."""
    lags, rates = (0, 1, 2, 4, 8, 16), 1e-4 * 2.0 ** np.arange(10)
    best = 1e-2 * np.minimum(1.0, (1.0 + edge) / (1.0 + np.array(lags)))
    areas = 1.0 - 0.05 * (np.log(rates)[None, :, None] - np.log(best)[:, None, None]) ** 2
    areas = areas + 1e-4 * np.random.default_rng(1).normal(size=(6, 10, 16))
    fitted = laws.law(areas, lags, list(rates), 200)
    slope = np.polyfit(np.log1p(lags), np.log(best), 1)[0]
    assert fitted.slope.value == pytest.approx(slope, abs=0.02)
    assert fitted.crossover.value == pytest.approx(edge, abs=0.15)
    assert fitted.slope.low <= fitted.slope.value <= fitted.slope.high
    np.testing.assert_allclose([one.value for one in fitted.best], best, rtol=0.05)
    falls = laws.below("falls", "–", fitted.slope, 0.0, 16)
    assert (falls.verdict == "holds") == (edge < 16.0) and (falls.p or 0.0) >= 1 / 200


def test_figures_answer_their_questions(study: Study, made_up: list[Key]) -> None:
    reproduce(study, figures.FIGURES, list(figures.FIGURES), figures.finish)
    assert len(made_up) == len(set(made_up)), "nothing is trained twice"
    page = (study.results / "README.md").read_text()
    text = " ".join(page.split())
    assert answers.OPEN_ANSWER not in text
    assert "Block: in equal time" in text and "Fetch within the fragment" in text
    assert "TIS on cartpole (lags 1, 2, 4, 8)" in text
    assert "shown to fall with data lag on 3 of 3 tasks" in text
    for task, slower, gap in (("cartpole", "315 ± 20", "32"), ("acrobot", "85 ± 20", "−8.5")):
        assert f"| {task}, bound 0 | 20 ± 0 % | 1.2 | {slower} % | {gap} ± 2.0 |" in text
    assert "waiting with bound 1 or 2 is shown to learn more in 0 of 4 comparisons of equal seconds" in text
    assert "after 100 s on cartpole and after 100 s on acrobot" in text and "21 on cartpole" in text
    assert "have half-widths of" in text and "by learning-curve area over batches, also" in text
    assert "time or money" not in text and "paper's side" not in text
    verdicts = {claim.claim: claim for claim in read_claims(study.results / "claims_bounds.csv")}
    gap = verdicts["acrobot, bound 1: dropped fragments have lower returns than used ones"]
    assert gap.verdict == "holds" and gap.p_holm is not None
    for figure in figures.FIGURES:
        assert (study.results / f"figure_{figure}.png").stat().st_size > 10_000
        assert (study.results / f"figure_{figure}.csv").is_file()
    done = len(made_up)
    reproduce(study, figures.FIGURES, list(figures.FIGURES), figures.finish)
    assert len(made_up) == done and (study.results / "README.md").read_text() == page


def test_rates_are_followed_beyond_the_grid(study: Study, made_up: list[Key]) -> None:
    best = choices.Chosen(study, COARSE_RATES, LADDER, TUNING, JUDGING).best(Cell(LAGS, "cartpole", PPO, 16, ""))
    assert best.rate == "1e-3" and {cell.rate for cell, _ in made_up} == {"2.5e-4", "1e-3", "4e-3", "1.6e-2"}


def test_other_settings_are_not_mixed(study: Study, made_up: list[Key], monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(LAGS, "cartpole", PPO, 1, "1e-3")
    store.outcomes([cell], range(2), study)
    monkeypatch.setattr(store, "digest", lambda cell: "other")
    with pytest.raises(ConfigError, match=r"cartpole.csv.gz has lags/cartpole/PPO/1/1e-3 with other settings"):
        store.outcomes([cell], range(2), study)


def test_outcomes_survive_their_file(tmp_path: Path) -> None:
    rows = [invented(Cell(BOUNDS, "cartpole", *place, "4e-3"), seed) for place in ADMISSIONS for seed in (0, 1)]
    store.write(rows, tmp_path / "a.csv.gz")
    before = (tmp_path / "a.csv.gz").read_bytes()
    again = store.read(tmp_path / "a.csv.gz", Cell)
    assert len(again) == len(rows)
    store.write(again.values(), tmp_path / "a.csv.gz")
    assert (tmp_path / "a.csv.gz").read_bytes() == before
    assert math.isnan(again[rows[0].cell, 0].datum(DROPPED[1]))


def test_an_interrupted_study_goes_on(study: Study, made_up: list[Key], monkeypatch: pytest.MonkeyPatch) -> None:
    """Places that are stored are not trained again, and a place that another process trains is left to it."""
    cells = [place._replace(rate="1e-3") for place in rate_places("breakout")]
    stand_in, calls = store.trained, []

    def trained(keys: list[Key]) -> list[Outcome]:
        calls.append(keys)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return stand_in(keys)

    monkeypatch.setattr(store, "trained", trained)
    with pytest.raises(KeyboardInterrupt):
        store.outcomes(cells, range(2), study)
    known = store.outcomes(cells, range(2), study)
    assert [keys[0][0].level for keys in calls] == [0, 2, 2, 8, 16]
    assert [len(runs) for runs in known.values()] == [2] * 4 and len(made_up) == 8


def test_a_place_is_trained(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates and seeds of a place share a program, and a run is what the same run alone is."""
    monkeypatch.setitem(cells_module._SHAPES, LAGS, (*TINY, "network.hidden=[4]"))
    monkeypatch.setitem(cells_module.BATCH, LAGS, 8 * 16)
    monkeypatch.setitem(cells_module.BATCHES, LAGS, POINTS)
    monkeypatch.setattr(store.Cell, "episodes", 2)
    store.digest.cache_clear()
    place = Cell(LAGS, "cartpole", PPO, 1, "")
    known = store.outcomes([place._replace(rate=rate) for rate in ("1e-3", "4e-3")], range(3, 5), study)
    store.digest.cache_clear()
    cell = place._replace(rate="4e-3")
    run = known[cell][1]
    alone = Trainer(load_config([*cell.variant.overrides, "seed=4"]))
    assert run.rounds == tuple(range(POINTS + 1)) and 5 % alone.spec.chunk_rounds, "it is evaluated within a chunk, too"
    records = alone.run(5)
    assert run.returns[5] == pytest.approx(alone.evaluate(2).per_seed[0], rel=1e-3)
    records += alone.run()
    np.testing.assert_allclose(run.seconds[1:], [row["simulated_seconds"] for row in records], rtol=1e-4)
    assert run.returns[-1] == pytest.approx(alone.evaluate(2).per_seed[0], rel=1e-3)
    assert run.datum("data_lag_batches") == pytest.approx(1.0, abs=0.1)
    assert run.dropped == 0.0 and math.isnan(run.datum("fragments_dropped_return"))
