"""Reproductions: runs trained once and shared, histories billed by either system's rule, claims, pictures, README."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from study_helpers import CENTRAL, TASK, made_up

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.statistics import holm, paired, welch
from stellaris_jax.config.optioned import options_of
from stellaris_jax.config.options import PLACES
from stellaris_jax.config.tree import Config
from stellaris_jax.execute.loading import load_config
from stellaris_jax.timeline.scaling.scheduler import SHIPPED, Scheduler
from studies import training
from studies.claims import (
    HOLDS,
    OPEN,
    REVERSED,
    corrected,
    fact,
    less,
    more,
    read_claims,
    undecided,
    write_claims,
)
from studies.files import locked
from studies.history import History, Series, alike, final, read_csv, until, within, write_csv
from studies.store import Learned, learned
from studies.study import Study
from studies.training import Variant, jobs, runs

pytestmark = pytest.mark.usefixtures("shared_programs")
SEEDS = range(3, 5)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of a toy study: seeds 3 and 4 of the central learner."""
    path = tmp_path_factory.mktemp("runs")
    runs(jobs(CENTRAL, SEEDS), path)
    return path


def test_time_and_money_are_those_of_the_run(root: Path, tmp_path: Path) -> None:
    """A history computed from the timeline alone equals the run's own metrics."""
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


def test_what_is_evaluated_before_the_first_round_has_cost_nothing() -> None:
    found = [Learned(CENTRAL.name, 0, rounds, (1.0,) * len(rounds), (0.0,) * len(rounds)) for rounds in ((0, 5), (5,))]
    with_start, without = Series("central", "toy", CENTRAL).histories(found)
    for axis in ("env_steps", "seconds", "cost_usd", "learner_usd", "common_usd"):
        assert getattr(with_start, axis).tolist() == [0.0, *getattr(without, axis)]
    assert within([with_start], "seconds", 0.0) == [1.0]


def test_scaled_runs_are_accounted_for_by_their_actors(tmp_path: Path) -> None:
    """Env steps, time and money of a run whose rounds differ in width, also when read back from the file."""
    nitro = ("system=minionsrl", "scaling=nitro", "scaling.maximum=4", "scaling.minimum=2", "scaling.options.lanczos=4")
    scaled = Variant("toy/nitro", (*TASK, *nitro))
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


def test_runs_cut_off_at_a_time_or_a_bill() -> None:
    x = np.arange(1.0, 11.0)
    history = History("toy", "a", "toy/a", 0, x, 10 * x, 0.1 * x, x, x, 100 * x)
    assert within([history], "seconds", 1e9) == final([history]) == [950.0]  # the last fifth of ten is two
    assert within([history], "seconds", 55.0) == [500.0]  # of five it is one
    assert within([history], "cost_usd", 0.65) == [600.0]
    assert np.isnan(within([history], "seconds", 9.0)), "nothing was evaluated yet, and what comes later is not counted"
    assert np.isnan(alike([history], [replace(history, seconds=x)], "seconds")).tolist() == [[False], [False]]
    early = replace(history, seconds=0.5 * x, returns=50 * x)
    assert np.isnan(alike([history], [early], "seconds")[0]) and alike([history], [early], "seconds")[1] == [475.0]


def test_the_target_is_reached_by_evaluations_in_a_row() -> None:
    x = np.arange(1.0, 6.0)
    history = History("toy", "a", "toy/a", 0, x, 10 * x, 0.1 * x, x, x, np.array([0.0, 90, 0, 60, 60]))
    assert until([history], "seconds", 50.0) == [40.0]
    assert until([history], "seconds", 61.0) == [np.inf]
    short = replace(history, seconds=10 * x[:2], returns=np.array([90.0, 90.0]))
    assert until([short], "seconds", 50.0) == [np.inf], "of three in a row there are two"


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
    trained, text = list[str](), ""

    def train(config: Any) -> dict[str, Any]:
        trained.append(config.resume)
        (Path(config.resume) / "summary.json").write_text(text)
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
    learned([CENTRAL], range(SEEDS[0], SEEDS[-1] + 2), tmp_path / "more", store)
    (trained,) = (path for path in (tmp_path / "more" / CENTRAL.name).iterdir() if path.is_dir())
    assert trained.name.endswith(f"seeds-{SEEDS[-1] + 1}-{SEEDS[-1] + 1}"), "no seed is trained twice"
    broken = Variant("toy/nonsense", ("env=gymnax/cartpole", "system=nonsense"))
    with pytest.raises(ConfigError, match="system=nonsense"):
        learned([broken], range(3, 6), tmp_path / "nothing", store)
    # Settings that compute the same have one digest; runs of other settings are not taken for the requested ones.
    differs = Variant(CENTRAL.name, (*CENTRAL.overrides, "engine.lanes=2", "system=minionsrl"))
    assert Variant(CENTRAL.name, (*CENTRAL.overrides, "engine.lanes=2")).digest == CENTRAL.digest != differs.digest
    alike = ("checkpoint.interval=3", "env.timeout=9")
    assert Variant(CENTRAL.name, (*CENTRAL.overrides, *alike)).digest == CENTRAL.digest
    other = Variant(CENTRAL.name, (*CENTRAL.overrides, "algorithm.options.clip=0.1"))
    with pytest.raises(
        ConfigError, match="has toy/central with other settings: keep them apart with --results DIR, or remove"
    ):
        learned([other], SEEDS, tmp_path / "nothing", store)


def test_a_digest_knows_the_files_that_are_read(tmp_path: Path) -> None:
    """Another scheduler in the same file is another variant."""
    path = tmp_path / "scheduler.npz"
    shipped = Scheduler.load(SHIPPED)
    settings = ("scaling=minionsrl", "scaling.target=9", "scaling.budget=1", f"scaling.options.scheduler={path}")
    shipped.save(path)
    before = Variant("toy/minionsrl", (*TASK, *settings)).digest
    Scheduler(shipped.kernels, [bias + 1 for bias in shipped.biases]).save(path)
    assert Variant("toy/minionsrl", (*TASK, *settings)).digest != before


def test_what_the_package_changed_is_in_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Variant("toy/shared", (*TASK, "network.shared=true"))
    before, plain = shared.digest, CENTRAL.digest
    monkeypatch.setattr(training, "revisions", lambda config: [])
    assert Variant("toy/shared", shared.overrides).digest != before
    assert Variant(CENTRAL.name, CENTRAL.overrides).digest == plain


@pytest.mark.parametrize(
    ("change", "overrides", "concerned"),
    [
        ("nanosecond", ["system=async", "delays=constant"], True),
        ("nanosecond", ["system=stellaris", "delays=measured"], True),
        ("nanosecond", ["system=async", "delays=pareto"], False),  # no two durations are equal
        ("nanosecond", ["system=async", "delays=constant", "system.learners=1"], False),
        ("nanosecond", ["system=allreduce", "delays=constant"], False),
        ("start up", ["platform.contention=1"], True),
        ("start up", ["platform.interference=0.5"], True),
        ("start up", ["platform=regular"], False),
        ("start up", ["platform.contention=1", "platform.rpc=0"], False),  # learners do nothing but compute
        ("start up", ["platform.contention=1", "platform.rpc=0", "platform.prewarm=false"], True),
        ("start up", ["platform.contention=1", "platform.rpc=0", "platform.keep_alive=5"], True),
        ("beta_1", ["system=async", "system.corrections=[kl_gate,less_momentum]"], True),
        ("beta_1", ["system=async", "system.corrections=[kl_gate]"], False),
    ],
)
def test_changes_concern_what_they_touch(change: str, overrides: list[str], concerned: bool) -> None:
    assert any(change in one for one in training.revisions(load_config(overrides))) == concerned


def test_defaults_are_those_that_results_were_trained_with() -> None:
    """Digests leave defaults out, so a changed one would pass old results for new: see `training.revisions`.

    Settings that are new do not concern what has been learned without them.
    """
    path = Path(__file__).parent / "defaults.json"
    kept, now = json.loads(path.read_text()), training.relevant(Config())
    for place in (place for place in PLACES if place.section != training.LOADER):
        for _, thing in place.kind.items():
            for name, option in options_of(thing).items():
                now[training.first_key(place.section, name)] = option.default
    now = json.loads(json.dumps(now))
    changed = {key: (value, now.get(key)) for key, value in kept.items() if now.get(key) != value}
    assert not changed, f"enter what these do in training.revisions, then in {path.name}: {changed}"


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "toy" / "seeds-0-4"
    with locked(path, patient=False) as first, locked(path, patient=False) as second:
        assert first and not second
    with locked(path, patient=False) as third:
        assert third


def test_more_seeds_are_more_runs() -> None:
    assert [(job.first, job.count) for job in jobs(CENTRAL, range(5))] == [(0, 5)]
    assert [(job.first, job.count) for job in jobs(CENTRAL, range(12))] == [(0, 5), (5, 5), (10, 2)]
    assert jobs(CENTRAL, range(12))[1].overrides[-2:] == ["seed=5", "num_seeds=5"]


def test_welch_against_scipy() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(3.0, 1.0, 5), random.normal(1.0, 4.0, 10)
    difference, half_width, p = welch(a, b)
    test = scipy.stats.ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval(0.95)
    np.testing.assert_allclose([difference - half_width, difference + half_width], interval)
    assert p == pytest.approx(test.pvalue)
    assert welch([2.0, 2.0], [1.0, 1.0]) == (1.0, 0.0, 0.0)
    assert welch([2.0, 2.0], [2.0, 2.0]) == (0.0, 0.0, 1.0)
    assert np.isnan(welch([2.0], [1.0, 3.0])[1:]).all()


def test_paired_against_scipy() -> None:
    random = np.random.default_rng(0)
    a = random.normal(3.0, 1.0, 8)
    b = a + random.normal(0.2, 0.1, 8)
    difference, half_width, p = paired(a, b)
    test = scipy.stats.ttest_rel(a, b)
    np.testing.assert_allclose([difference - half_width, difference + half_width], test.confidence_interval(0.95))
    assert p == pytest.approx(test.pvalue)
    assert paired([2.0, 3.0], [1.0, 2.0]) == (1.0, 0.0, 0.0)
    assert paired([2.0, 3.0], [2.0, 3.0]) == (0.0, 0.0, 1.0)
    assert np.isnan(paired([2.0], [1.0])[1:]).all()
    with pytest.raises(ValueError, match="cannot be paired"):
        paired([1.0, 2.0], [1.0])


def test_holm_is_the_closure_of_bonferroni() -> None:
    """A hypothesis falls when every set of hypotheses that it is in falls by Bonferroni's test of the set."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    p_values = np.random.default_rng(0).beta(0.3, 2.0, 7).tolist()
    sets = [chosen for size in range(1, 8) for chosen in combinations(range(7), size)]
    for i, adjusted in enumerate(holm(p_values)):
        tests = [min(1.0, len(chosen) * min(p_values[j] for j in chosen)) for chosen in sets if i in chosen]
        assert adjusted == pytest.approx(max(tests))
    assert holm([]) == []


def test_verdicts() -> None:
    high, low, wide = [10.0, 11.0, 12.0], [1.0, 2.0, 3.0], [-50.0, 0.0, 60.0]
    assert more("", "", high, low).verdict == HOLDS
    assert more("", "", low, high).verdict == REVERSED
    assert more("", "", high, wide).verdict == OPEN
    assert less("", "", low, high).verdict == HOLDS
    assert less("", "", high, low).verdict == REVERSED
    assert less("", "", wide, low).verdict == OPEN
    single = more("", "", [2.0], [1.0])
    assert (single.verdict, single.ours) == (OPEN, "2.00 against 1.00: +1.00"), "one seed shows nothing"
    assert more("", "", high, low).ours == "11.0 ± 2.5 against 2.00 ± 2.5: +9.00 ± 2.3"
    assert more("", "", [0.958, 0.962], [0.1, 0.2], "$").ours.startswith("$0.960 ± 0.025 against $0.150 ± 0.64")
    assert more("", "", high, [*low, 4.0]).n == "3 and 4" and more("", "", high, low).n == "3"


def test_a_seed_of_which_nothing_is_known_leaves_a_claim_open() -> None:
    claim = more("", "", [10.0, 11.0, 12.0], [1.0, 2.0, np.nan])
    assert (claim.verdict, claim.p, claim.survives) == (OPEN, None, None)
    assert claim.ours == "11.0 ± 2.5 against 1.50 ± 6.4 (known of 2 of 3)"
    assert less("", "", [np.nan] * 2, [1.0, 2.0]).ours.startswith("nothing known against 1.50")


def test_verdicts_are_corrected_for_the_number_of_claims() -> None:
    """A claim that holds only just holds alone, and among others no longer; what was not tested does not count."""
    low = np.arange(1.0, 6.0)
    far, no, just = more("far", "", low + 30, low), [more("no", "", low, low)] * 3, less("b", "", low, low + 2.5)
    rest = [fact("fact", "", "", True), undecided("?", "", "")]
    alone = corrected([just, *rest])
    assert [claim.survives for claim in alone] == [True, None, None] and alone[0].p_holm == alone[0].p
    among = corrected([just, far, *no, *rest])
    assert [claim.survives for claim in among] == [False, True, None, None, None, None, None]
    assert [claim.verdict for claim in among] == [HOLDS, HOLDS, OPEN, OPEN, OPEN, HOLDS, OPEN]
    assert among[0].p == alone[0].p and among[0].p_holm == pytest.approx(4 * among[0].p, rel=1e-2)
    (few,) = corrected([more("few", "", [30.0, 31, 32, 33], [1.0, 2, 3, 4])])
    assert few.verdict == HOLDS and few.survives is None, "too few seeds"


def test_claims_survive_their_file(tmp_path: Path) -> None:
    claims = [
        more("a, with a comma", "2 against 1", [2.0, 2.1], [1.0, 1.1]),
        less("b", "", [1.0, 2.0], [3.0, 4.0], "$"),
        fact("c", "", "", False),
        undecided("d", "", "nothing"),
    ]
    for some in (claims, corrected(claims)):
        write_claims(some, tmp_path / "claims.csv")
        assert read_claims(tmp_path / "claims.csv") == some
    (tmp_path / "old.csv").write_text("claim,paper,ours,verdict\na,2 against 1,1 ± 1,holds\n")
    (old,) = read_claims(tmp_path / "old.csv")
    assert (old.verdict, old.survives) == (HOLDS, None), "written before verdicts were corrected"


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
