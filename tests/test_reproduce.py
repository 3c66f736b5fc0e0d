"""Reproductions: runs trained once and shared, histories billed by either system's rule, claims, pictures, README."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from stellaris_jax.billing import bill
from stellaris_jax.compose import load_config
from stellaris_jax.report.statistics import welch_ci95
from stellaris_jax.reproduce import minionsrl, nitro, stellaris, stellaris_figures, stellaris_systems, training
from stellaris_jax.reproduce.claims import HOLDS, OPEN, REVERSED, less, more, read_claims, write_claims
from stellaris_jax.reproduce.history import History, Series, final, read_csv, within, write_csv
from stellaris_jax.reproduce.pictures import widths
from stellaris_jax.reproduce.stellaris_figures import FIGURES
from stellaris_jax.reproduce.store import Learned, learned
from stellaris_jax.reproduce.study import BEGIN, END, Study, reproduce
from stellaris_jax.reproduce.training import Variant, jobs, runs
from stellaris_jax.scaling import width_of
from stellaris_jax.schema import ConfigError
from stellaris_jax.timeline import Round, Timeline, Usage

TASK = (
    "env=gymnax/cartpole",
    "env.num_envs=4",
    "algorithm.rollout_length=8",
    "network.hidden=[8]",
    "total_steps=320",
    "evaluation.points=5",
    "evaluation.episodes=4",
)
SEEDS = range(3, 5)
CENTRAL = Variant("toy/central", (*TASK, "system=central"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of a toy study: seeds 3 and 4 of the central learner."""
    path = tmp_path_factory.mktemp("runs")
    runs(jobs(CENTRAL, SEEDS), path)
    return path


def test_time_and_money_are_those_of_the_run(root: Path, tmp_path: Path) -> None:
    """What a history computes from the timeline alone equals what the run has recorded."""
    found = learned([CENTRAL], SEEDS, root, tmp_path / "learned.csv")[CENTRAL]
    histories = Series("central", "toy", CENTRAL).histories(found)
    assert [history.seed for history in histories] == [3, 4]
    (run,) = runs(jobs(CENTRAL, SEEDS), root)
    records = run.evaluations
    for i, history in enumerate(histories):
        recorded = {key: [record["per_seed"][key][i] for record in records] for key in records[0]["per_seed"]}
        np.testing.assert_allclose(history.seconds, recorded["simulated_seconds"])
        np.testing.assert_allclose(history.cost_usd, recorded["cost_usd"])
        np.testing.assert_allclose(history.common_usd, recorded["cost_common_usd"])
        np.testing.assert_allclose(history.returns, recorded["eval_return_mean"], rtol=1e-5)
        assert list(history.env_steps) == [record["env_steps"] for record in records]
        assert np.all(history.learner_usd < history.cost_usd)
    assert histories[0].final_return == histories[0].returns[-1]  # a fifth of five evaluations is the last
    assert [one.final_return for one in found] == [history.final_return for history in histories]
    np.testing.assert_allclose(found[0].kl, [record["kl"] for record in run.rounds[1::2]], rtol=1e-5)


def test_scaled_runs_are_accounted_for_by_their_actors(tmp_path: Path) -> None:
    """Env steps, time and money of a run whose rounds differ in width, also when read back from the file."""
    scaled = Variant("toy/nitro", (*TASK, "system=minionsrl", "scaling=nitro", "scaling.maximum=4"))
    store = tmp_path / "learned.csv"
    (run,) = runs(jobs(scaled, SEEDS), tmp_path)
    for _ in range(2):
        found = learned([scaled], SEEDS, tmp_path, store)[scaled]
        histories = Series("Nitro", "toy", scaled).histories(found)
        actors = np.array([one.actors for one in found])
        assert actors.shape == (2, 10) and len(np.unique(actors)) > 1
        for i, history in enumerate(histories):
            recorded = {key: [record["per_seed"][key][i] for record in run.evaluations] for key in ("cost_usd",)}
            np.testing.assert_allclose(history.cost_usd, recorded["cost_usd"])
            np.testing.assert_allclose(history.env_steps, 8 * np.cumsum(actors[i])[1::2])
        assert history.seconds[-1] == pytest.approx(run.evaluations[-1]["per_seed"]["simulated_seconds"][1])
        assert list(np.mean([h.env_steps for h in histories], axis=0)) == [r["env_steps"] for r in run.evaluations]


def test_the_evaluation_of_nitro_is_of_valid_configurations(tmp_path: Path) -> None:
    """One scale of actors for all, batches of one size, and a Stellaris that fits the testbed."""
    work = set()
    for env in nitro.ENVS:
        for name in nitro.RULES:
            for settings in ((), nitro.STELLARIS):
                config = load_config([*nitro.variant(env, name, *settings).overrides])
                samples = config.env.num_envs * config.algorithm.rollout_length
                work.add(
                    (samples // config.algorithm.minibatches, samples, config.total_steps, width_of(config).maximum)
                )
                assert config.system.rule == ("stellaris" if settings else "central")
    assert len(work) == 1 and work == {(1024, 64 * 256, 50 * 64 * 256, 64)}
    widths({"": {"a": [[1, 2, 3], [2, 2, 2]], "b": [[8, 4]]}}, tmp_path / "widths.png", "actors")
    assert (tmp_path / "widths.png").stat().st_size > 1000


def test_the_evaluation_of_minionsrl_is_of_valid_configurations() -> None:
    """One job per environment: its rounds, samples, minibatches, target and budget are the same under all rules."""
    for env in minionsrl.ENVS:
        jobs_ = set()
        for rule in minionsrl.RULES:
            if (env, rule) == ("cartpole", "IMPACT"):
                continue
            config = load_config([*minionsrl.variant(env, rule).overrides])
            scaling, algorithm = config.scaling, config.algorithm
            cut = (algorithm.rollout_length, algorithm.epochs, algorithm.minibatches, config.env.num_envs)
            jobs_.add((cut, config.total_steps, scaling.target, scaling.budget, width_of(config).maximum))
            assert scaling.rule == {"IMPACT": "max"}.get(rule, rule.lower())
        assert len(jobs_) == 1
    (cut, steps, *_, actors) = min(jobs_)
    assert (cut, steps, actors) == ((128, 30, 16, 32), 50 * 32 * 128, 32)
    # A round is as long as the paper's: 240 gradients of 0.54 ms for each actor.
    assert config.delays.learner.seconds * 30 * 16 == pytest.approx(32 * 240 * 0.000538)


def test_schedulers_are_trained_and_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = [*TASK, "scaling.target=1000", "scaling.budget=1", "delays=constant", "algorithm.minibatches=4"]
    for name, value in {"_job": lambda _: job, "EPISODES": 2, "FINE_TUNING": 1, "COMPARED": 2}.items():
        monkeypatch.setattr(minionsrl, name, value)
    study = Study(tmp_path / "runs", tmp_path / "results", seeds=1)
    study.results.mkdir()
    claims = minionsrl.schedulers(study)
    monkeypatch.setattr(minionsrl, "train_scheduler", None)
    monkeypatch.setattr(minionsrl, "run_jobs", None)
    assert minionsrl.schedulers(study) == claims and len(claims) == 13
    rows = list(csv.DictReader((tmp_path / "results" / "figure_schedulers.csv").open()))
    kinds = {(row["of"], row["what"]) for row in rows}
    assert len(kinds) == len(rows) == 3 + 4 + 3 + 3
    assert all(float(row["value"]) > 0 for row in rows if row["of"] == "seconds")


def test_runs_cut_off_at_a_time_or_a_bill() -> None:
    x = np.arange(1.0, 11.0)
    history = History("toy", "a", "toy/a", 0, x, 10 * x, 0.1 * x, x, x, 100 * x)
    assert within([history], "seconds", 1e9) == final([history]) == [950.0]  # the last fifth of ten is two
    assert within([history], "seconds", 55.0) == [500.0]  # of five it is one
    assert within([history], "cost_usd", 0.65) == [600.0]
    assert within([history], "seconds", 0.0) == [100.0]  # nothing was evaluated yet


def test_systems_that_differ_in_their_bill_alone_share_training(root: Path, tmp_path: Path) -> None:
    """MinionsRL as the central learner's runs, billed anew, is what training it itself gives."""
    own = Variant("toy/minionsrl", (*TASK, "system=minionsrl"))
    found = learned([CENTRAL, own], SEEDS, root, tmp_path / "learned.csv")
    shared = Series("MinionsRL", "toy", CENTRAL, ("system=minionsrl",)).histories(found[CENTRAL])
    trained = Series("MinionsRL", "toy", own).histories(found[own])
    for a, b in zip(shared, trained, strict=True):
        for curve in ("seconds", "cost_usd", "common_usd", "returns"):
            np.testing.assert_array_equal(getattr(a, curve), getattr(b, curve))
    plain = Series("central", "toy", CENTRAL).histories(found[CENTRAL])
    assert shared[0].cost_usd[-1] < plain[0].cost_usd[-1]


def test_finished_runs_are_kept_and_interrupted_ones_go_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []

    def train(config: Any) -> dict[str, Any]:
        trained.append(config.resume)
        (Path(config.resume) / "summary.json").write_text("{}")
        return {}

    monkeypatch.setattr(training, "train", train)
    (job,) = jobs(CENTRAL, SEEDS)
    runs([job], root)
    assert trained == []
    summary = job.path(root) / "summary.json"
    text = summary.read_text()
    summary.unlink()
    try:
        runs([job], root)
    finally:
        summary.write_text(text)
    assert trained == [str(job.path(root))]


def test_what_was_learned_is_not_trained_again(root: Path, tmp_path: Path) -> None:
    """Without the runs the file alone will do; seeds it lacks are asked for."""
    store = tmp_path / "learned.csv"
    first = learned([CENTRAL], SEEDS, root, store)
    assert learned([CENTRAL], SEEDS, tmp_path / "nothing", store) == first
    assert learned([CENTRAL], range(4, 5), tmp_path / "nothing", store)[CENTRAL] == first[CENTRAL][1:]
    assert not (tmp_path / "nothing").exists()
    broken = Variant("toy/nonsense", ("env=gymnax/cartpole", "system=nonsense"))
    with pytest.raises(ConfigError, match="system=nonsense"):
        learned([broken], range(3, 6), tmp_path / "nothing", store)
    # What computes the same is the same; what was trained with other settings is not taken for what is asked for.
    differs = Variant(CENTRAL.name, (*CENTRAL.overrides, "engine.lanes=2", "system=minionsrl"))
    assert Variant(CENTRAL.name, (*CENTRAL.overrides, "engine.lanes=2")).digest == CENTRAL.digest != differs.digest
    other = Variant(CENTRAL.name, (*CENTRAL.overrides, "algorithm.clip=0.1"))
    with pytest.raises(ConfigError, match="has toy/central with other settings: remove its lines to train it anew"):
        learned([other], SEEDS, tmp_path / "nothing", store)


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "toy" / "seeds-0-4"
    with training._claimed(path, patient=False) as first, training._claimed(path, patient=False) as second:
        assert first and not second
    with training._claimed(path, patient=False) as third:
        assert third


def test_more_seeds_are_more_runs() -> None:
    assert [(job.first, job.count) for job in jobs(CENTRAL, range(5))] == [(0, 5)]
    assert [(job.first, job.count) for job in jobs(CENTRAL, range(12))] == [(0, 5), (5, 5), (10, 2)]
    assert jobs(CENTRAL, range(12))[1].overrides[-2:] == ["seed=5", "num_seeds=5"]


def test_welch_against_scipy() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(3.0, 1.0, 5), random.normal(1.0, 4.0, 10)
    difference, half_width = welch_ci95(a, b)
    interval = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose([difference - half_width, difference + half_width], interval)
    assert welch_ci95([2.0, 2.0], [1.0, 1.0]) == (1.0, 0.0)
    assert np.isnan(welch_ci95([2.0], [1.0, 3.0])[1])


def test_verdicts() -> None:
    high, low, wide = [10.0, 11.0, 12.0], [1.0, 2.0, 3.0], [-50.0, 0.0, 60.0]
    assert more("", "", high, low).verdict == HOLDS
    assert more("", "", low, high).verdict == REVERSED
    assert more("", "", high, wide).verdict == OPEN
    assert less("", "", low, high).verdict == HOLDS
    assert less("", "", high, low).verdict == REVERSED
    assert less("", "", wide, low).verdict == OPEN
    assert more("", "", [2.0], [1.0]).verdict == OPEN, "one seed shows nothing"
    assert more("", "", high, low).ours == "11 ± 2.5 against 2 ± 2.5: +9 ± 2.3"


def test_claims_survive_their_file(tmp_path: Path) -> None:
    claims = [
        more("a, with a comma", "2 against 1", [2.0, 2.1], [1.0, 1.1]),
        less("b", "", [1.0, 2.0], [3.0, 4.0], "$"),
    ]
    write_claims(claims, tmp_path / "claims.csv")
    assert read_claims(tmp_path / "claims.csv") == claims


def made_up(env: str, series: str, seed: int, level: float = 100.0) -> History:
    """A curve that rises to `level`."""
    share = np.arange(1, 11) / 10
    noise = np.random.default_rng(seed).normal(0.0, 1.0, 10)
    money = (300 * share, 0.9 * share, 0.4 * share, 1.0 * share)
    return History(env, series, f"{env}/variant", seed, 2000 * 10 * share, *money, level * share + noise)


def test_histories_survive_their_file(tmp_path: Path) -> None:
    histories = [made_up("hopper", name, seed) for name in ("a", "b, tuned") for seed in (0, 1)]
    write_csv(histories, tmp_path / "figure.csv")
    restored = read_csv(tmp_path / "figure.csv")
    assert [(h.env, h.series, h.variant, h.seed) for h in restored] == [
        (h.env, h.series, h.variant, h.seed) for h in histories
    ]
    np.testing.assert_allclose(restored[3].returns, histories[3].returns, rtol=1e-4)
    assert read_csv(tmp_path / "none.csv") == []


def test_other_environments_stay_in_a_figures_file(root: Path, tmp_path: Path) -> None:
    write_csv([made_up("old", "a", 0), made_up("toy", "outdated", 0)], tmp_path / "figure_6.csv")
    (tmp_path / "learned.csv").write_text(
        "variant,seed,rounds,returns,kl\n" + "".join(f"toy/central,{seed},2 4,10 20,0.1 0.2\n" for seed in (0, 1))
    )
    study, series = Study(root, tmp_path), [Series("central", "toy", CENTRAL)]
    with pytest.raises(ConfigError, match="has toy/central with other settings"):
        study.histories("6", series, seeds=2)
    (tmp_path / "learned.csv").write_text(
        "variant,seed,config,rounds,returns,kl,actors\n"
        + "".join(f"toy/central,{seed},{CENTRAL.digest},2 4,10 20,0.1 0.2,\n" for seed in (0, 1))
    )
    histories = study.histories("6", series, seeds=2)
    assert [(h.env, h.series, h.seed) for h in histories] == [
        ("old", "a", 0),
        ("toy", "central", 0),
        ("toy", "central", 1),
    ]
    assert [h.env for h in read_csv(tmp_path / "figure_6.csv")] == ["old", "toy", "toy"]


@dataclass(frozen=True)
class Imagined(Study):
    """A study whose runs are made up: Stellaris ends at 200, everything else at 100; the policy moves by seed + 1."""

    def learned(self, variants: Iterable[Variant], seeds: range) -> dict[Variant, list[Learned]]:
        return {
            one: [Learned(one.name, seed, (1, 2), (1.0, 2.0), (seed, seed + 1.0), (8, 9)) for seed in seeds]
            for one in variants
        }

    def histories(self, figure: str, series: Iterable[Series], seeds: int) -> list[History]:
        series = list(series)
        if figure == "12":
            assert {load_config([*one.variant.overrides]).rounds for one in series} == {50}
        made = [
            made_up(one.env, one.name, seed, 200.0 if "Stellaris" in one.name else 100.0)
            for one in series
            for seed in range(seeds)
        ]
        write_csv(made, self.results / f"figure_{figure}.csv")
        return made


@pytest.fixture
def imagined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Imagined:
    monkeypatch.setattr(stellaris_figures, "swept", lambda study, env, rule: stellaris.SWEPT[rule][0])
    monkeypatch.setattr(stellaris_figures, "tuned", lambda study, *which: stellaris.variant(*which, rate="1.5e-4"))
    return Imagined(runs=tmp_path / "runs", results=tmp_path, envs=("hopper", "qbert"))


@pytest.mark.parametrize("figure", ["6", "8", "11a"])
def test_figures_without_tuning(figure: str, imagined: Imagined, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = FIGURES[figure](imagined)
    monkeypatch.delattr(stellaris_figures, "tuned")
    claims = FIGURES[figure](replace(imagined, tuning=False))
    assert claims == [claim for claim in everything if "tuned" not in claim.claim]
    assert "tuned" not in (imagined.results / f"figure_{figure}.csv").read_text()


@pytest.mark.parametrize("figure", list(FIGURES))
def test_figures_have_pictures_claims_and_a_file(
    figure: str, imagined: Imagined, monkeypatch: pytest.MonkeyPatch
) -> None:
    if figure == "3":
        imagined = replace(imagined, seeds=2)
    if figure == "14":  # measures this machine
        monkeypatch.setattr(stellaris_systems, "variant", lambda env, system: CENTRAL)
        imagined = replace(imagined, envs=("hopper",))
    claims = FIGURES[figure](imagined)
    assert (imagined.results / f"figure_{figure}.png").stat().st_size > 10_000
    assert (imagined.results / f"figure_{figure}.csv").is_file()
    assert claims
    if figure == "3":
        verdicts = {claim.claim: claim.verdict for claim in claims}
        assert set(list(verdicts.values())[:-1]) == {HOLDS}, "more learners: faster, less busy, more stale"
        assert verdicts.popitem()[1] == REVERSED, "here nobody moves the policy further"
    if figure == "14":
        assert (imagined.results / "figure_14.csv").read_text().count("hopper,") == 4 * 20
    if figure in ("6", "11a"):
        verdicts = {claim.verdict for claim in claims if "ends higher" in claim.claim}
        assert verdicts == {HOLDS}


OTHERS = [(nitro, figure) for figure in nitro.FIGURES if figure != "20"] + [(minionsrl, "4")]


@pytest.mark.parametrize(("paper", "figure"), OTHERS)
def test_figures_of_the_siblings(paper: Any, figure: str, imagined: Imagined) -> None:
    """What has Stellaris in its name ends at 200, everything else at 100."""
    envs = ("cartpole", "hopper") if paper is minionsrl else ("hopper",)
    claims = paper.FIGURES[figure](replace(imagined, envs=envs))
    for picture in imagined.results.glob("*.png"):
        assert picture.stat().st_size > 10_000
    assert {f"figure_{figure}.png", f"figure_{figure}.csv"} <= {path.name for path in imagined.results.iterdir()}
    higher = {claim.claim: claim.verdict for claim in claims if "ends higher" in claim.claim}
    expected = {name: HOLDS if name.endswith("Nitro") and figure == "together" else OPEN for name in higher}
    assert claims and higher == expected


def test_readme_keeps_what_people_wrote(imagined: Imagined) -> None:
    readme = imagined.results / "README.md"
    readme.write_text(f"# Mine\n\n{BEGIN}\noutdated\n{END}\n\nWhat to read out of it.\n")
    reproduce(imagined, FIGURES, ["2", "13"])
    text = readme.read_text()
    assert text.startswith("# Mine\n") and text.endswith("What to read out of it.\n") and "outdated" not in text
    assert "| 2 | asynchronous learners end higher, tuned rates | 351 against 223 |" in text
    assert "![Figure 2](figure_2.png)" in text and "[figure_13.csv](figure_13.csv)" in text
    reproduce(imagined, FIGURES, ["11"])
    assert "![Figure 11a](figure_11a.png)" in readme.read_text() and "| 11b | truncation" in readme.read_text()
    with pytest.raises(ConfigError, match="--figure 4 is not one of 2, 3, 6"):
        reproduce(imagined, FIGURES, ["4"])


@pytest.mark.parametrize("system", ["central", "rllib"])
def test_a_whole_gpu_changes_time_alone(system: str) -> None:
    """Baselines re-timed with a GPU to themselves compute the same gradients on the same versions."""
    base = stellaris.variant("hopper", system)
    configs = [load_config([*base.overrides, *more_]) for more_ in ((), stellaris_figures._whole_gpu(base))]
    shared, whole = ([timeline.next_round() for _ in range(5)] for timeline in (Timeline.of(c, 0) for c in configs))

    def work(rounds: list[Round]) -> list[Any]:
        return [
            (record.behaviour_version, [sorted((g.minibatch, g.version) for g in group.gradients)])
            for record in rounds
            for group in record.groups
        ]

    assert work(shared) == work(whole)
    assert bill(configs[1].system, configs[1].prices, Usage(learner_busy=3600.0), 1).learner_busy == 3.06
    assert whole[-1].usage.seconds < 0.8 * shared[-1].usage.seconds


@pytest.mark.parametrize("env", ["hopper", "qbert"])
@pytest.mark.parametrize("algorithm", ["ppo", "impact"])
def test_variants_can_run(env: str, algorithm: str) -> None:
    """Every system is a configuration with the paper's hyper-parameters; its gradients are those of all others."""
    systems = stellaris.SYSTEMS if algorithm == "ppo" else ("stellaris", "impact")
    work = set()
    for system in systems:
        config = load_config([*stellaris.variant(env, system, algorithm, stellaris.RATES[algorithm][1]).overrides])
        assert config.algorithm.learning_rate == float(stellaris.RATES[algorithm][1])
        work.add((config.algorithm.epochs, config.algorithm.minibatches, config.env.num_envs, config.total_steps))
    assert len(work) == 1
    paper = load_config([*stellaris.variant(env, "stellaris", algorithm, stellaris.RATES[algorithm][0]).overrides])
    assert paper.algorithm.learning_rate == float(stellaris.RATES[algorithm][0])
    assert (
        stellaris.variant(env, "stellaris", algorithm, stellaris.RATES[algorithm][0]).name
        == f"{env}/{algorithm}-stellaris"
    )
