"""Figures that are made anew: what is published stays unless the caller says so, and counts say what was trained."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import REPOSITORY
from study_helpers import TASK

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.execute.loading import check_and_start_jax
from stellaris_jax.execute.session import Interrupted
from studies import builds, gate, store
from studies import main as command
from studies import outcomes as actors_store
from studies.claims import Claim, fact, read_claims
from studies.history import Series, read_csv
from studies.map import cells, choices
from studies.map import store as map_store
from studies.store import Learned
from studies.study import Figure, Study, reproduce
from studies.training import Job, Variant

HERE = {"machine": "an abacus", "jax": "1.0"}
ELSEWHERE = {"machine": "an abacus", "jax": "2.0"}


def figure(*series: str, envs: Sequence[str] = ("here",)) -> dict[str, Figure]:
    """A figure of curves, one variant each."""

    def make(study: Study) -> list[Claim]:
        wanted = [
            Series(name, env, Variant(f"{env}/{name}", (*TASK, "system=central")))
            for name in series
            for env in study.envs or envs
        ]
        study.histories("1", wanted, 5)
        return [fact("a claim", "", "here", True)]

    return {"1": make}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Names and seeds of the runs that stand-ins for training have trained on this machine."""
    names: list[tuple[str, int]] = []

    def runs(wanted: Sequence[Job], root: Path) -> list[Job]:
        names.extend((job.variant.name, seed) for job in wanted for seed in job.seeds)
        return [*wanted]

    def of_run(variant: Variant, job: Job) -> list[Learned]:
        return [Learned(variant.name, seed, (1,), (1.0,), (0.0,), (), variant.digest) for seed in job.seeds]

    monkeypatch.setattr(store, "runs", runs)
    monkeypatch.setattr(store, "_of_run", of_run)
    monkeypatch.setattr(builds, "origin", lambda: HERE)
    return names


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """A figure of 5 seeds of "a" and "b" is to be published there."""
    (tmp_path / "results").mkdir()
    return Study(tmp_path / "runs", tmp_path / "results", seeds=5)


def seeds(study: Study) -> set[tuple[str, str, int]]:
    return {(one.env, one.series, one.seed) for one in read_csv(study.results / "figure_1.csv")}


def changed(study: Study, **others: Any) -> Study:
    return Study(study.runs, study.results, **{"seeds": study.seeds, **others})


@pytest.mark.parametrize(
    ("others", "series", "reason"),
    [
        ({"seeds": 3}, "ab", "with 5 seeds of here, and this call would have 3"),
        ({}, "a", 'with the series "b" on here, and this call would leave it out'),
    ],
    ids=["seeds", "series"],
)
def test_a_figure_is_not_replaced_with_less(
    others: dict[str, Any], series: str, reason: str, study: Study, trained: list[Any]
) -> None:
    reproduce(study, figure("a", "b"), ["1"])
    before = {path: path.read_bytes() for path in study.results.iterdir()}
    trained.clear()
    advice = r"keep them apart with --results DIR, or replace it with --overwrite\."
    with pytest.raises(ConfigError, match=f"results has figure 1 {re.escape(reason)}: {advice}"):
        reproduce(changed(study, **others), figure(*series), ["1"])
    assert trained == [] and {path: path.read_bytes() for path in study.results.iterdir()} == before
    reproduce(changed(study, overwrite=True, **others), figure(*series), ["1"])
    assert seeds(study) == {("here", name, seed) for name in series for seed in range(others.get("seeds", 5))}
    assert trained == []


def test_a_figure_grows(study: Study, trained: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """By seeds, series and environments; each call says what it trained."""
    calls = [
        (changed(study, seeds=3), figure("a"), "here/a", "3 trained, 0 read"),
        (study, figure("a"), "here/a", "2 trained, 3 read"),
        (study, figure("a", "b"), "here/b", "5 trained, 5 read"),
        (changed(study, envs=["there"]), figure("a"), "there/a", "5 trained, 0 read"),
        (study, figure("a", "b"), "", "0 trained, 10 read"),
    ]
    for one, figures_, name, told in calls:
        reproduce(one, figures_, ["1"])
        amount = f"to train: 1 setting, {told.partition(' ')[0]} runs of one seed, 320 env steps each"
        before = [amount, f"training 1 of 1: {name}"] if name else []
        after = f"figure 1: {told}; its claims are in {study.results / 'README.md'}"
        claim = "  a claim: here; holds, no test"
        assert capsys.readouterr().out.splitlines() == ["figure 1", *before, claim, after]
    assert {(env, name) for env, name, _ in seeds(study)} == {("here", "a"), ("here", "b"), ("there", "a")}


def test_runs_of_other_versions_are_not_mixed_in(
    study: Study, trained: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of another machine are read; new ones join them only with --overwrite."""
    reproduce(study, figure("a"), ["1"])
    monkeypatch.setattr(builds, "origin", lambda: ELSEWHERE)
    reproduce(study, figure("a"), ["1"])
    reason = r"figure 1 made with jax 1.0 \(here 2.0\), and this call would train 5 of its runs: keep them apart"
    with pytest.raises(ConfigError, match=reason):
        reproduce(study, figure("a", "b"), ["1"])
    assert len(trained) == 5
    reproduce(changed(study, overwrite=True), figure("a", "b"), ["1"])
    reproduce(changed(study, seeds=6), figure("a", "b"), ["1"])  # both have been recorded
    (study.results / builds.ORIGINS).unlink()
    with pytest.raises(ConfigError, match="versions and a machine that were not recorded, and this call would train 2"):
        reproduce(changed(study, seeds=7), figure("a", "b"), ["1"])


def test_an_interrupted_figure_goes_on(study: Study, trained: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no claims yet, so nothing is published."""
    study.learned([Variant("here/a", (*TASK, "system=central"))], range(3))
    monkeypatch.setattr(builds, "origin", lambda: ELSEWHERE)
    reproduce(study, figure("a"), ["1"])
    assert len(seeds(study)) == 5


def test_a_table_is_not_replaced_with_less(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure of measurements: fewer of them, other environments, another machine."""
    monkeypatch.setattr(builds, "origin", lambda: HERE)

    def measured(envs: Sequence[str], repeats: int) -> dict[str, Figure]:
        def make(study: Study) -> list[Claim]:
            builds.current_build().measure()
            study.table("1", ("env", "seconds"), ((env, i) for env in envs for i in range(repeats)))
            return [fact("a claim", "", "here", True)]

        return {"1": make}

    reproduce(study, measured(["here"], 3), ["1"])
    reproduce(study, measured(["here", "there"], 3), ["1"])
    with pytest.raises(ConfigError, match=r"with 6 lines in figure_1.csv, and this call would have 4"):
        reproduce(study, measured(["here", "there"], 2), ["1"])
    with pytest.raises(ConfigError, match="of there as well, and this call would leave only here"):
        reproduce(study, measured(["here"], 9), ["1"])
    monkeypatch.setattr(builds, "origin", lambda: ELSEWHERE)
    with pytest.raises(ConfigError, match=r"jax 1.0 \(here 2.0\), and this call would measure it"):
        reproduce(study, measured(["here", "there"], 3), ["1"])
    reproduce(changed(study, overwrite=True), measured(["here", "there"], 3), ["1"])
    monkeypatch.setattr(builds, "origin", lambda: HERE)
    with pytest.raises(ConfigError, match=r"jax 2.0 \(here 1.0\), and this call would measure it"):
        reproduce(study, measured(["here", "there"], 3), ["1"])


def test_a_record_that_is_none_is_refused(study: Study, trained: list[Any]) -> None:
    reproduce(study, figure("a"), ["1"])
    for text in ('{"1": 3}', "[" * 100_000):
        (study.results / builds.ORIGINS).write_text(text)
        with pytest.raises(ConfigError, match=r"made\.json cannot be read"):
            reproduce(study, figure("a", "b"), ["1"])


READERS = {
    "learned.csv": store._read, "figure_1.csv": read_csv, "claims_1.csv": read_claims, "gate_1.csv": gate.read,
    "map.csv": map_store.read,
}  # fmt: skip


@pytest.mark.parametrize("name", list(READERS))
def test_tables_that_are_damaged_are_told_of(name: str, study: Study, trained: list[Any]) -> None:
    """Tables of another kind, and every published one with each of its cells replaced or its line cut off."""
    path = study.results / name
    path.write_text("one,two\n1,2\n")
    with pytest.raises(ConfigError, match=f"{re.escape(name)} cannot be read: it has no column [a-z]+"):
        READERS[name](path)
    if name not in ("learned.csv", "figure_1.csv"):
        return
    source = {"learned.csv": "learned.csv", "figure_1.csv": "figure_2.csv"}[name]
    header, line, *_ = (REPOSITORY / "results" / "stellaris" / source).read_text().splitlines()
    path.write_text(f"{header}\n{line}\n")
    READERS[name](path)
    seed = header.split(",").index("seed")
    cells = line.split(",")
    for damaged in (",".join([*cells[:seed], "soon", *cells[seed + 1 :]]), ",".join(cells[: seed + 1])):
        path.write_text(f"{header}\n{line}\n{damaged}\n")
        with pytest.raises(ConfigError, match=f"{re.escape(name)} cannot be read: row 2 is damaged"):
            READERS[name](path)


def test_curves_of_a_run_have_one_length(study: Study) -> None:
    path = study.results / "learned.csv"
    path.write_text("variant,seed,config,rounds,returns,kl,actors\na,0,x,1 2,0.5,1 1,\n")
    with pytest.raises(ConfigError, match=r"row 1 is damaged \(it has 2 rounds, 1 returns and 2 divergences\)"):
        store._read(path)


def test_a_figure_of_the_map_keeps_its_tasks(study: Study) -> None:
    def claimed(study: Study, task: str) -> list[Claim]:
        return [fact(f"{task}, 8 learners: something holds", "", "", True)]

    made = {"methods": choices.each_task(claimed)}
    reproduce(study, made, ["methods"])
    with pytest.raises(ConfigError, match="figure methods of acrobot as well, and this call would leave only cartpole"):
        reproduce(changed(study, envs=["cartpole"]), made, ["methods"])
    reproduce(changed(study, envs=["acrobot", "cartpole"]), made, ["methods"])


def test_cells_are_counted(study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def trained(wanted: Sequence[cells.Cell], seeds: range) -> Iterable[map_store.Outcome]:
        curve = (1.0,) * map_store.POINTS
        empty = tuple(curve for _ in map_store.WARNINGS)
        return [
            map_store.Outcome(cell, seed, 20, curve, curve, 1.0, 0.0, 0.0, "digest", empty)
            for cell in wanted
            for seed in seeds
        ]

    monkeypatch.setattr(map_store, "trained", trained)
    monkeypatch.setattr(map_store, "digest", lambda cell: "digest")

    def make(study: Study) -> list[Claim]:
        map_store.outcomes([cells.Cell("cartpole", "async", 8, "1e-3")], range(8), study.results)
        return []

    for told in ("8 trained, 0 read", "0 trained, 8 read"):
        reproduce(study, {"rates": make}, ["rates"])
        assert f"figure rates: {told}" in capsys.readouterr().out


EXAMPLES = [line.partition("   ")[0] for line in str(command.__doc__).splitlines() if line.startswith("stellaris-jax ")]


class Trained(Exception):
    """The first run of a figure could be trained."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_help_train_something(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure asks for valid runs, simulates, or trains a scheduler; something else stands in for all of these."""
    from stellaris_jax.execute.loading import load_config
    from studies import study as study_module
    from studies.choose import runs as choose_runs
    from studies.minionsrl import study as minionsrl
    from studies.regimes import timelines
    from studies.stellaris import timing

    def train(variants: Iterable[Variant], *_: object) -> None:
        check_and_start_jax(load_config([*next(iter(variants)).overrides]))
        raise Trained

    def stop(*_: object) -> None:
        raise Trained

    monkeypatch.setattr(study_module, "learned", train)
    monkeypatch.setattr(map_store, "trained", lambda wanted, seeds: train([wanted[0].variant]))
    monkeypatch.setattr(actors_store, "trained", lambda wanted: train([wanted[0][0].variant]))
    monkeypatch.setattr(minionsrl, "_trained", stop)
    monkeypatch.setattr(timelines, "simulate", stop)
    monkeypatch.setattr(timing, "simulated", stop)
    monkeypatch.setattr(choose_runs, "train", lambda configs, *_: (check_and_start_jax(configs[0]), stop()))
    arguments = shlex.split(example)[2:]
    monkeypatch.chdir(tmp_path)
    if arguments == ["index"]:
        command.main(arguments)
        assert (tmp_path / "results" / "README.md").is_file()
        return
    (tmp_path / "results").mkdir()
    asked: list[Callable[[Study], Any]] = []
    monkeypatch.setattr(study_module, "reproduce", lambda *request: asked.append(request[:3]))
    command.main(arguments)
    ((study, figures_, wanted),) = asked
    names = [name for one in wanted for name in figures_ if name.rstrip("ab") == one or name == one]
    study.results.mkdir(parents=True, exist_ok=True)
    for name in names:
        with pytest.raises(Trained):
            figures_[name](study)


def test_a_study_that_a_signal_ends_says_how_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run's own sentence tells how that run goes on, not the study."""

    def stop(*_: object) -> None:
        raise Interrupted(signal.SIGINT, tmp_path)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("studies.study.reproduce", stop)
    with pytest.raises(SystemExit) as ended:
        command.main(["map", "--figure", "lag", "--results", "mine"])
    assert ended.value.code == 130
    assert "the study goes on when its own command is repeated" in capsys.readouterr().out


def test_the_help_keeps_published_results_apart() -> None:
    """In a checkout, whose results are published: what would be less, or measured here, goes elsewhere."""
    kept = [line for line in EXAMPLES if re.search(r"--seeds|--envs|schedulers|stellaris$", line)]
    assert kept and all("--results" in line for line in kept)
    assert (REPOSITORY / "results" / "minionsrl" / "claims_schedulers.csv").is_file()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["map", "--seeds", "3"], "--seeds does not go with map: seeds 0 to 7 choose"),
        (["map", "--untuned"], "--untuned does not go with map"),
        (["nitro", "--untuned"], "--untuned does not go with nitro"),
    ],
    ids=["map-seeds", "map-untuned", "nitro-untuned"],
)
def test_options_that_change_nothing_are_refused(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert reason in capsys.readouterr().err


def test_overwrite_reaches_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from studies import study as study_module

    asked: list[Study] = []
    monkeypatch.setattr(study_module, "reproduce", lambda study, *_: asked.append(study))
    for option in ([], ["--overwrite"]):
        command.main(["map", "--results", str(tmp_path), *option])
    assert [study.overwrite for study in asked] == [False, True]
