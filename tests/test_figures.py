"""Figures of the papers: what they train is valid, and what they draw, claim and write."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import assert_in_view, circles, curve_ends, legend, saved_figures, widths
from matplotlib.figure import Figure
from study_helpers import Imagined

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.execute.loading import load_config
from stellaris_jax.many.scheduler_job import JobEnv
from stellaris_jax.many.scheduler_training import Choice, Outcome
from stellaris_jax.timeline import Round, Timeline, Usage
from stellaris_jax.timeline.billing import bill
from stellaris_jax.timeline.scaling import Scheduler, limits_of
from stellaris_jax.timeline.scaling.scheduler import SHIPPED
from studies import pictures
from studies.claims import HOLDS, OPEN, REVERSED
from studies.hardware import full_gpu
from studies.minionsrl import study as minionsrl
from studies.nitro import study as nitro
from studies.stellaris import cluster
from studies.stellaris import figures as stellaris_figures
from studies.stellaris import study as stellaris
from studies.stellaris.baselines import BASELINES
from studies.stellaris.figures import FIGURES
from studies.study import BEGIN, END, Study, reproduce


def test_the_evaluation_of_nitro_is_of_valid_configurations() -> None:
    """One scale of actors for all, batches of one size, and a Stellaris that fits the testbed."""
    work = set()
    # Every environment and every rule; they are files of their own, so not each with each.
    pairs = {(env, "Nitro") for env in nitro.ENVS} | {(nitro.ENVS[0], name) for name in nitro.RULES}
    for env, name in pairs:
        for settings in ((), nitro.STELLARIS):
            config = load_config([*nitro.variant(env, name, *settings).overrides])
            samples = config.env.num_envs * config.algorithm.rollout_length
            work.add((samples // config.algorithm.minibatches, samples, config.total_steps, limits_of(config).maximum))
            assert config.system.rule == ("stellaris" if settings else "central")
    assert len(work) == 1 and work == {(1024, 64 * 256, 50 * 64 * 256, 64)}


def test_every_panel_shows_all_its_actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panels = {"small": {"a": [[1, 2, 3], [1, 2, 3]]}, "large": {"a": [[4, 16]], "b": [[32, 32]]}}
    drawn: list[Any] = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: drawn.append(figure))
    pictures.widths(panels, tmp_path / "widths.png", "actors")
    assert [axes.get_title() for axes in drawn[0].axes] == [*panels]
    for axes, most in zip(drawn[0].axes, (3, 32), strict=True):
        bottom, top = axes.get_ylim()
        assert bottom == 0 and most < top < 2 * most


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
            jobs_.add((cut, config.total_steps, scaling.target, scaling.budget, limits_of(config).maximum))
            assert scaling.rule == {"IMPACT": "max"}.get(rule, rule.lower())
        assert len(jobs_) == 1
    (cut, steps, *_, actors) = min(jobs_)
    assert (cut, steps, actors) == ((128, 30, 16, 32), 50 * 32 * 128, 32)
    # A round is as long as the paper's: 240 gradients of 0.54 ms for each actor.
    assert config.delays.learner.seconds * 30 * 16 == pytest.approx(32 * 240 * 0.000538)


def test_schedulers_are_trained_and_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of schedulers are made up here; test_scheduler.py trains and runs them."""
    trained: list[tuple[int, bool]] = []

    def train_scheduler(job: list[str], episodes: int, seed: int = 0, start: Scheduler | None = None) -> Any:
        trained.append((episodes, start is not None))
        return Scheduler.load(SHIPPED), None

    def run_jobs(env: JobEnv, choose: Choice, jobs: int, seed: int) -> Outcome:
        actors = choose(np.zeros((jobs, 8)), np.random.default_rng(seed))
        assert actors.shape == (jobs,)
        return Outcome(*5 * [-1.0 * actors])

    minionsrl._warm.cache_clear()
    for name, value in {"train_scheduler": train_scheduler, "run_jobs": run_jobs, "COMPARED": 2}.items():
        monkeypatch.setattr(minionsrl, name, value)
    study = Study(tmp_path / "runs", tmp_path / "results", seeds=1)
    study.results.mkdir()
    claims = minionsrl.schedulers(study)
    # Each job is compiled before its first training is timed.
    pretrained, tuned = (minionsrl.EPISODES, False), (minionsrl.FINE_TUNING, True)
    assert trained == [(1, False), pretrained, (1, False), tuned, pretrained]
    monkeypatch.setattr(minionsrl, "train_scheduler", None)
    monkeypatch.setattr(minionsrl, "run_jobs", None)
    assert minionsrl.schedulers(study) == claims and len(claims) == 13
    rows = list(csv.DictReader((tmp_path / "results" / "figure_schedulers.csv").open()))
    kinds = {(row["of"], row["what"]) for row in rows}
    assert len(kinds) == len(rows) == 3 + 4 + 3 + 3
    assert all(float(row["value"]) > 0 for row in rows if row["of"] == "seconds")
    assert {row["what"]: float(row["value"]) for row in rows if row["of"] != "seconds"}["all actors"] == -16


@pytest.fixture
def imagined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Imagined:
    monkeypatch.setattr(stellaris_figures, "swept", lambda study, env, rule: stellaris.SWEPT[rule][0])
    monkeypatch.setattr(stellaris_figures, "tuned", lambda study, *which: stellaris.variant(*which, rate="1.5e-4"))
    return Imagined(runs=tmp_path / "runs", results=tmp_path, envs=("hopper", "qbert"))


CURVES: dict[str, tuple[list[str], list[float]]] = {
    "2": (["Stellaris", "without asynchrony", "without serverless"], [351, 223, 270]),
    "6": (["PPO", "PPO, whole GPU", "PPO + Stellaris"], [230, 297]),
    "7": (
        ["IMPACT", "IMPACT, whole GPU", "IMPACT + Stellaris", "IMPACT + Stellaris, pipelined actors"],
        [216, 286],
    ),
    "9": (["RLlib", "RLlib, whole GPU", "RLlib + Stellaris"], [215, 351]),
    "10": (["MinionsRL", "MinionsRL, whole GPU", "MinionsRL + Stellaris"], [223, 271]),
    "11a": (["Stellaris", "softsync", "SSP", "asynchronous"], [406, 270, 181, 172]),
    "11b": (["weight", "surrogate", "artifact", "without"], [406, 345]),
    "12": (["PAR-RL", "PAR-RL, whole GPU", "PAR-RL + Stellaris"], [341, 817]),
}
"""Labels of a figure's curves, and the ends of the paper's curves on Hopper, as read off its pages."""


def check_picture(figure: str, drawn: Figure) -> None:
    """Ours as they were made up (returns of 100 and 200, 0.9 dollars), and the paper's beside them."""
    assert drawn._suptitle.get_text().startswith("Seconds of" if figure == "time" else f"Figure {figure}: ")
    assert_in_view(drawn)
    if figure in CURVES:
        check_curves(drawn, *CURVES[figure])
    elif figure == "3":
        seconds, staleness, kl = drawn.axes
        assert legend(seconds) == ["8 actors", "16 actors", "24 actors", "32 actors"]
        assert legend(staleness) == ["2 learners", "4 learners", "6 learners", "8 learners"]
        assert legend(kl) == ["asynchronous", "synchronous"]
        assert kl.lines[0].get_ydata().tolist() == kl.lines[2].get_ydata().tolist() == [0.5, 1.5]
        assert [line.get_ydata()[0] for line in kl.lines[1::2]] == [1.2, 0.35]
    elif figure == "8":
        assert [axes.get_title() for axes in drawn.axes] == ["PPO", "IMPACT", "RLlib", "MinionsRL"]
        labels = [text.get_text() for text in drawn.axes[1].get_yticklabels()]
        assert labels == [f"{env}\n{name}" for env in ("hopper", "qbert") for name in CURVES["7"][0][:3]]
        assert widths(drawn.axes[1], "paper") == [0.9, 0.9, 0.68, 3.0, 3.0, 2.2]
        assert widths(drawn.axes[1], "here") == pytest.approx([0.9] * 6)
    elif figure == "13":
        assert [axes.get_xlabel() for axes in drawn.axes[3:]] == ["d", "v", "ρ"]
        assert [text.get_text() for text in drawn.axes[4].get_xticklabels()] == ["1", "2", "3", "4"]
        assert circles(drawn.axes[1]) == [377] and circles(drawn.axes[4]) == [0.91]
        assert drawn.axes[4].lines[0].get_ydata() == pytest.approx([0.9] * 4)
    else:
        (axes,) = drawn.axes  # hopper's
        waiting = ["Stellaris", "… with truncation", "PPO", "… both GPUs", "RLlib", "… free exchange"]
        pipelined = ["Stellaris, pipelined", "… with truncation", "IMPACT, pipelined"]
        assert [text.get_text() for text in axes.get_yticklabels()] == [*waiting, *pipelined]
        ours, truncated, ppo, both, rllib, free, early, early_truncated, _ = (bar.get_width() for bar in axes.patches)
        assert ours < truncated and free < rllib and both < ppo and ours < ppo
        assert early < ours and early < early_truncated < truncated


def check_curves(drawn: Figure, names: list[str], paper: list[float]) -> None:
    """Return over env steps, seconds and dollars, the paper's ends beside ours where it has any."""
    assert legend(drawn) == [*names, *["paper"] * bool(paper)]
    assert [axes.get_xlabel() for axes in drawn.axes[:3]] == ["env steps", "simulated seconds", "dollars"]
    assert drawn.axes[0].get_ylabel().endswith("return")
    for panel in range(len(drawn.axes)):
        ours = {name: 200 if "Stellaris" in name else 100 for name in names}
        ends = curve_ends(drawn, panel)
        ends.pop("paper", None)  # its mark may have the look of a curve's
        assert ends == pytest.approx(ours, abs=1)
    assert circles(drawn.axes[1]) == paper


@pytest.mark.parametrize("figure", list(FIGURES))
def test_figures_have_pictures_claims_and_a_file(
    figure: str, imagined: Imagined, monkeypatch: pytest.MonkeyPatch
) -> None:
    if figure == "3":
        imagined = replace(imagined, seeds=2)
    with saved_figures() as drawn:
        claims = FIGURES[figure](imagined)
    tasks = ["_hopper", "_qbert"] if figure == "7" else [""]  # a picture for each of several tasks
    assert list(drawn) == [f"figure_{figure}{task}.png" for task in tasks]
    check_picture(figure, drawn[f"figure_{figure}{tasks[0]}.png"])
    assert (imagined.results / f"figure_{figure}.csv").is_file()
    assert claims
    if figure == "3":
        verdicts = {claim.claim: claim.verdict for claim in claims}
        assert set(list(verdicts.values())[:-1]) == {HOLDS}, "more learners: faster, less busy, more stale"
        assert verdicts.popitem()[1] == REVERSED, "here nobody moves the policy further"
    if figure in ("6", "11a", "12"):
        verdicts = {claim.verdict for claim in claims if "ends higher" in claim.claim}
        assert verdicts == {HOLDS}
    if figure in ("6", "8", "11a", "12"):  # without tuning they claim and write the rest
        monkeypatch.delattr(stellaris_figures, "tuned")
        monkeypatch.delattr(cluster, "_chosen")
        rest = FIGURES[figure](replace(imagined, tuning=False))
        assert rest == [claim for claim in claims if "tuned" not in claim.claim]
        assert "tuned" not in (imagined.results / f"figure_{figure}.csv").read_text()


RULES = ["Nitro", "without boosting", "all actors", "Hydrozoa", "KungFu", "KungFu's code", "MinionsRL", "Nitro's code"]
SHARED = ["Nitro", "Stellaris", "Stellaris + Nitro", "Stellaris, shared GPU", "Stellaris + Nitro, shared GPU"]
SIBLINGS: dict[str, tuple[list[str], list[float]]] = {
    "10": (["PPO", "PPO + Nitro"], []),
    "15": (RULES, []),
    "17": (["Nitro", "without boosting", "without serverless"], [385, 274, 348]),
    "together": (SHARED, []),
}
OTHERS = [(nitro, figure) for figure in nitro.FIGURES if figure != "20"] + [(minionsrl, "4")]


@pytest.mark.parametrize(("paper", "figure"), OTHERS)
def test_figures_of_the_siblings(paper: Any, figure: str, imagined: Imagined) -> None:
    """Runs with Stellaris in their name end at 200, all others at 100."""
    envs = ("cartpole", "hopper") if paper is minionsrl else ("hopper",)
    with saved_figures() as drawn:
        claims = paper.FIGURES[figure](replace(imagined, envs=envs))
    assert {*drawn, f"figure_{figure}.csv"} <= {path.name for path in imagined.results.iterdir()}
    for picture in drawn.values():
        assert_in_view(picture)
    picture, actors = drawn.pop(f"figure_{figure}.png"), drawn.pop(f"figure_{figure}_actors.png", None)
    assert not drawn
    if figure == "16":
        assert [axes.get_xlabel() for axes in picture.axes[2:]] == ["d", "n"]
        assert picture.axes[2].lines[0].get_ydata() == pytest.approx([0.9] * 3)
    elif paper is minionsrl:
        names = ["MinionsRL", "Max", "Adapt", "IMPACT", "Azure ML"]
        assert legend(picture) == [*names, "paper"]
        assert curve_ends(picture, 0) == pytest.approx(dict.fromkeys(names[:3], 100), abs=1)
        assert curve_ends(picture, 3) == pytest.approx(dict.fromkeys(names, 100), abs=1)
    else:
        check_curves(picture, *SIBLINGS[figure])
    if actors is not None:
        assert legend(actors) == (legend(picture)[:3] if paper is minionsrl else legend(picture))
        assert {axes.get_xlabel() for axes in actors.axes} == {"round"} and actors.axes[0].get_ylabel() == "actors"
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


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_timed_anew_and_learn_the_same(name: str) -> None:
    """The same gradients on the same versions, with any GPU and with or without a parameter function."""
    algorithm, system, billed = BASELINES[name]
    base = stellaris.variant("hopper", system, algorithm)
    timed = ((), billed, (*billed, *full_gpu(base)))
    configs = [load_config([*base.overrides, *settings]) for settings in timed]
    trained, shared, whole = (
        [timeline.next_round() for _ in range(5)] for timeline in (Timeline.of(c, 0) for c in configs)
    )

    def work(rounds: list[Round]) -> list[Any]:
        return [
            (record.behaviour_version, [sorted((g.minibatch, g.version) for g in group.gradients)])
            for record in rounds
            for group in record.groups
        ]

    assert work(trained) == work(shared) == work(whole)
    assert bill(configs[2].system, configs[2].prices, Usage(learner_busy=3600.0), 1).learner_busy == 3.06
    assert whole[-1].usage.seconds < 0.8 * shared[-1].usage.seconds
    assert (shared[-1].usage.seconds < trained[-1].usage.seconds) == (configs[0].system.learners == 1)


def test_systems_of_the_hpc_testbed() -> None:
    """Both make the same gradients on 16 GPUs; with whole GPUs PAR-RL learns the same in less time, for all 16."""
    base, ours = (cluster.trained("hopper", name) for name in cluster.SYSTEMS)
    configs = [load_config([*base.overrides]), load_config([*base.overrides, *full_gpu(base)])]
    config = load_config([*ours.overrides])
    assert (configs[0].system.learners, config.system.learners) == (16, 64)
    assert {
        (c.algorithm.epochs, c.algorithm.minibatches, c.env.num_envs, c.total_steps) for c in (*configs, config)
    } == {(10, 16, 64, 4 * load_config([*stellaris.variant("hopper", "par-rl").overrides]).total_steps)}
    shared, whole = ([timeline.next_round() for _ in range(3)] for timeline in (Timeline.of(c, 0) for c in configs))
    assert [len(record.groups) for record in shared] == [len(record.groups) for record in whole] == [10] * 3
    assert whole[-1].usage.seconds < shared[-1].usage.seconds
    hour = Usage(learner_busy=3600.0)
    assert bill(configs[1].system, configs[1].prices, hour, 1).learner_busy == pytest.approx(2 * 24.48 / 16)


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
