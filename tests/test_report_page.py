"""The page of `stellaris-jax report`: what it holds, what it does of damage, and how it looks in a browser."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import unquote

import matplotlib.image
import numpy as np
import pytest
from browser import browser, find
from commands import call, said
from pages import Reader
from run_dirs import make_run

from stellaris_jax.config.compose import compose_config
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.report.page.markup import interval_bar
from stellaris_jax.report.page.page import write_page
from stellaris_jax.report.page.sources import run_command
from stellaris_jax.report.results import load_run
from stellaris_jax.report.runs import read_run
from stellaris_jax.report.verdicts import Question, within
from stellaris_jax.telemetry.format import significant

FIVE = [400.0, 420.0, 380.0, 410.0, 395.0]


def config_of(rate: float, system: str = "stellaris", env: str = "gymnax/CartPole-v1", **others: Any) -> dict[str, Any]:
    algorithm = {"learning_rate": rate, **others}
    return {"system": {"name": system}, "env": {"name": env}, "algorithm": algorithm, "seed": 0, "num_seeds": 5}


def make_sweep(path: Path, size: int = 4, returns: list[float] = FIVE) -> Path:
    for index in range(size):
        system = ("stellaris", "async")[index % 2]
        levels = [value * (1 - 0.02 * index) + 3 * (index % 3) * (-1) ** seed for seed, value in enumerate(returns)]
        run_dir = make_run(path / str(index), config_of(1e-4 * 2 ** (index // 2), system), levels, rounds=16)
        summary = json.loads((run_dir / "summary.json").read_text())
        summary |= {"device": "1 x cpu:cpu (2 host cores)", "versions": {"python": "3.12.1", "jax": "0.11"}}
        (run_dir / "summary.json").write_text(json.dumps(summary))
    return path


def page_of(*places: Path, threshold: float | None = None) -> Reader:
    out = places[0].parent / "page.html"
    write_page(places, out, question=Question(threshold=threshold))
    return Reader(out)


def test_page_of_a_sweep(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "my sweep")
    done = call("report.py", sweep, "--threshold", 300)
    title, *_, path = done.stdout.splitlines()
    assert (done.returncode, title, path) == (0, "Is it the setting or the noise?", str(sweep / "report.html"))
    page = Reader(sweep / "report.html")
    assert page.headings == [
        "Results", "Is it the setting or the noise?", "Curves", "Interquartile means and performance profiles",
        "Sensitivity", "What differs", "To repeat it", "Commands", "Hardware", "Versions",
    ]  # fmt: skip
    results, differences, middles, varied, same = page.tables
    assert [row[2:4] for row in results[1:]] == [
        ["stellaris", "0.0001"], ["async", "0.0001"], ["stellaris", "0.0002"], ["async", "0.0002"],
    ]  # fmt: skip
    mean = (1 - math.exp(-5)) * sum(FIVE) / 5
    assert results[1][4].startswith(f"{mean:.0f} ± ") and results[1][1] == "★"
    assert results[0][8] == "300 reached" and [row[8] for row in results[1:]] == ["5 of 5"] * 4
    assert len(differences) == len(results) - 1, "none of the best with itself"
    assert len(middles) == len(results)
    assert [row[:2] for row in varied[1:]] == [["system.name", "2"], ["algorithm.learning_rate", "2"]]
    assert same and not any(row[0] in ("seed", "num_seeds") for row in same)
    assert page.links == ["0/", "1/", "2/", "3/"]
    assert "1 x cpu:cpu (2 host cores): 4 runs" in page.words and "python 3.12.1, jax 0.11" in page.words
    assert len(page.identifiers) == len(set(page.identifiers))


def test_rates_that_vary_with_the_system_are_listed(tmp_path: Path) -> None:
    """The name of the system tells the two rows apart; that each has a learning rate of its own must not be hidden."""
    for system, rate in (("stellaris", 1e-2), ("async", 1e-4)):
        make_run(tmp_path / system, config_of(rate, system), FIVE, rounds=16)
    page = page_of(tmp_path / "stellaris", tmp_path / "async")
    assert "1 setting varying with these, the learning rate among them" in page.words
    assert ["algorithm.learning_rate", "0.01, 0.0001"] in [row for table in page.tables for row in table]


def test_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", size=2)
    call("report.py", sweep)
    content = (sweep / "report.html").read_text()
    fetched = re.findall(r"""(?:src|href)=["']([^"']*)["']|url\(([^)]*)\)|@import""", content)
    targets = {first or second for first, second in fetched}
    assert targets and all(target.startswith(("#", "data:")) or target in ("0/", "1/") for target in targets)
    assert "prefers-color-scheme:dark" in content and "currentColor" in content
    assert "#123456" not in content and "#000000" not in content.replace("<style>", "")


def test_sixty_four_rows_are_below_two_megabytes(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", size=64)
    page = page_of(sweep, threshold=350.0)
    assert len(page.tables[0]) == 65
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    assert "57 more are grey" in page.words


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>&\"'"
    for index, name in enumerate((evil, "good")):
        make_run(tmp_path / "s" / str(index), config_of(1e-3, system=name), FIVE, rounds=8)
    page = page_of(tmp_path / "s")
    assert page.tables[0][1][2] == evil
    assert (tmp_path / "page.html").read_text().count("<script>") == 1


def test_environments_are_kept_apart_and_put_together(tmp_path: Path) -> None:
    for index, (env, rate, level) in enumerate([("a", 1, 1.0), ("a", 2, 2.0), ("b", 1, 800.0), ("b", 2, 900.0)]):
        make_run(tmp_path / "s" / str(index), config_of(rate, env=env), [level, level * 1.01] * 3, rounds=8)
    page = page_of(tmp_path / "s")
    assert [name for name in page.headings if name in ("a", "b", "All environments")] == [
        "a", "b", "a", "b", "All environments",
    ]  # fmt: skip
    assert [row[1] for row in page.tables[0]].count("★") == 2
    together = page.tables[4]
    assert [row[1] for row in together[1:]] == ["learning_rate=1", "learning_rate=2"]
    assert len(page.identifiers) == len(set(page.identifiers))
    figures = [float(row[2]) for row in together[1:]]
    assert 0 <= figures[0] < 0.1 and 0.9 < figures[1] <= 1, "scaled in each environment"


def test_runs_without_evaluations(tmp_path: Path) -> None:
    for index in range(2):
        make_run(tmp_path / "s" / str(index), config_of(10.0 ** (index - 4)), FIVE, rounds=8, evaluations=0)
    page = page_of(tmp_path / "s", threshold=3.0)
    assert "No evaluations: 0, 1; their curves are of training episodes" in page.words
    assert "Curves" in page.headings and "Is it the setting or the noise?" not in page.headings
    assert "No seed of any setting has ever reached it." in page.words


def test_one_seed_and_one_row(tmp_path: Path) -> None:
    run = make_run(tmp_path / "sweep" / "0", config_of(1e-3), [300.0], rounds=8)
    page = page_of(tmp_path / "sweep")
    assert "There is nothing to compare it with" in page.words.replace("there", "There")
    assert "one seed" in page.words and "Nothing but the seed" in page.words
    make_run(tmp_path / "other", config_of(2e-3), [310.0], rounds=8)
    page = page_of(run, tmp_path / "other")
    assert page.tables[1][1][2] == "too few seeds"


def test_too_few_seeds_are_shown_by_their_range(tmp_path: Path) -> None:
    page = page_of(make_sweep(tmp_path / "s", size=2, returns=[100.0, 200.0, 300.0]))
    assert "2 settings with fewer than 5 seeds: the table shows the range of the seeds" in page.words
    assert page.tables[0][1][3] == "199 (99.3 to 298)"
    assert page.tables[2][1][3] == "99.3 to 298 (range)"
    assert page.tables[1][1][4].endswith("(range)") and page.tables[1][1][8] == "-", "and nothing is tested"


def test_directories_of_runs_and_runs_by_name(tmp_path: Path) -> None:
    """As of a study, whatever they are called. A run that is named twice is one, and so is its repetition."""
    trials = [make_run(tmp_path / "study" / f"trial-{n}", config_of(1e-4 * n), FIVE, rounds=8) for n in (1, 2)]
    shutil.copytree(trials[0], tmp_path / "again")
    (tmp_path / "study" / "notes").mkdir()
    page = page_of(tmp_path / "study", trials[1], tmp_path / "again")
    assert page.links == ["study/trial-1/", "study/trial-2/"]
    assert f"{tmp_path / 'again'} has the configuration and the seed of a run before it" in page.words
    assert page.tables[1][1][2] == "tied", "runs that came to the same"


def torn(run: Path) -> None:
    """Only the first lines of the metrics are left."""
    (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes()[:3000])
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"rounds": 40}))


DAMAGE = {
    "gone": lambda run: shutil.rmtree(run),
    "empty": lambda run: [path.unlink() for path in run.iterdir()],
    "no metrics": lambda run: (run / "metrics.jsonl").unlink(),
    "no result": lambda run: (run / "summary.json").unlink(),
    "torn metrics": torn,
    "other metrics": lambda run: (run / "metrics.jsonl").write_text(
        '{"kind":"evaluation","round":1,"env_steps":1,"per_seed":{"eval_return_mean":["x"]}}\n'
    ),
    "ragged metrics": lambda run: (run / "metrics.jsonl").write_text(
        '{"kind":"evaluation","round":1,"env_steps":1,"per_seed":{"eval_return_mean":[1]}}\n'
        '{"kind":"evaluation","round":2,"env_steps":2,"per_seed":{"eval_return_mean":[1,2]}}\n'
    ),
    "binary": lambda run: [path.write_bytes(b"\x00\xff{") for path in run.iterdir()],
    "summary of another kind": lambda run: (run / "summary.json").write_text('{"updates": "many", "device": 3}'),
}


TOLD = {
    "gone": "",  # nothing is left that could tell
    "empty": "has no configuration that can be read",
    "no metrics": "No evaluations: 1",
    "no result": "Points without a result: 1",
    "torn metrics": "does not have the 40 rounds of summary.json",
    "other metrics": "line 1 is damaged and left out",
    "ragged metrics": "records of another shape",
    "binary": "config.yaml is damaged and left out",
    "summary of another kind": "holds values of another kind",
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.filterwarnings("error")
def test_damage_is_told_in_a_sentence(what: str, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "s", size=4)
    DAMAGE[what](sweep / "1")
    done = call("report.py", sweep, "--threshold", 200)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    page = Reader(sweep / "report.html")
    assert TOLD[what] in done.stderr + page.words
    rows = page.tables[0]
    assert {"0.0001", "0.0002"} == {row[3] for row in rows[1:]}
    assert {"0/", "2/", "3/"} <= set(page.links)


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_of_all_there_is(what: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", config_of(1e-3), FIVE, rounds=8)
    DAMAGE[what](run)
    done = call("report.py", run)
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr
    if done.returncode == 2:
        assert done.stderr.splitlines()[-1].startswith("error: ") and not (run / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nowhere"], "nowhere"),
        (["."], "holds neither a run"),
        ([], "DIR"),
        ([".", "--out", "page.pdf"], ".html"),
        ([".", "--threshold", "x"], "number"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("report.py", *arguments)
    assert done.returncode == 2 and len(said(done.stderr)) == 1 and word in done.stderr


def test_command_of_a_run_leads_to_its_configuration(tmp_path: Path) -> None:
    overrides = [
        "env=gymnax/acrobot",
        "system=softsync",
        "system.rule_options.c=3",
        "network.hidden=[8,4]",
        "num_seeds=5",
    ]
    config = compose_config([*overrides, "scaling.target=0.5"])
    run = make_run(tmp_path / "run", rounds=8)
    (run / "config.yaml").write_text(to_yaml(config))
    command = run_command(read_run(run))
    assert command is not None
    given = [word for word in shlex.split(command) if "=" in word]
    assert compose_config(given) == config
    assert len(given) < 20, "what is as by default is left out"


def test_marks_of_a_bar_lie_where_their_figures_are() -> None:
    drawn = interval_bar(5.0, 0.0, 10.0, (0.0, 10.0), seeds=[2.5], zero=True)
    assert 'class="ends" d="M2.0 10H198.0"' in drawn and 'class="middle" d="M100.0 3V17"' in drawn
    assert 'class="seed" d="M51.0 6V14"' in drawn and "NaN" not in interval_bar(math.nan, math.nan, 1.0, (0.0, 0.0))


@pytest.mark.skipif(find() is None, reason="needs Chromium (Debian's package chromium)")
def test_page_in_a_browser(tmp_path: Path) -> None:
    """On a phone and on a desk: no sideways scrolling, no complaints, no requests, links that lead somewhere."""
    sweep = make_sweep(tmp_path / "sweep", size=12)
    call("report.py", sweep, "--threshold", 300)
    page = sweep / "report.html"
    with browser(tmp_path / "profile") as window:
        for width, dark in ((390, False), (1280, True)):
            window.open_fitting(page, width, dark, ".notes")
            seen = window.evaluate("[...document.querySelectorAll('figure svg')].map(e => e.clientHeight)")
            assert len(seen) == 6 and min(seen) > 100
            picture = tmp_path / f"{width}.png"
            window.screenshot(picture)
            pixels = matplotlib.image.imread(picture)
            assert pixels.shape[1] == width and pixels.shape[0] > 2000 and pixels[..., :3].std() > 0.05
        column = "[...document.querySelector('table').tBodies[0].rows].map(row => row.cells[4].textContent)"
        before = window.evaluate(column)
        click = "[...document.querySelectorAll('th button')].find(b => b.textContent == 'return').click()"
        window.evaluate(click)
        after = window.evaluate(column)
        assert after != before and sorted(after) == sorted(before)
        means = [float(cell.split()[0]) for cell in after]
        assert means == sorted(means)
        window.evaluate(click)
        assert window.evaluate(column) == after[::-1]
        links = window.evaluate("[...document.querySelectorAll('a')].map(a => a.href)")
        assert len(links) == 12 and all(Path(unquote(link.removeprefix("file://"))).is_dir() for link in links)
        assert window.told == []
        assert set(window.requested) == {page.resolve().as_uri()}


def test_verdicts_and_a_margin(tmp_path: Path) -> None:
    """The terminal has the verdicts of the page; a margin says what is shown to be no worse."""
    best = [400.0, 410.0, 390.0, 405.0, 395.0]
    losses = {1e-3: 0.0, 1e-2: 1.0, 1e-1: 40.0}
    for index, (rate, loss) in enumerate(losses.items()):
        levels = [value - loss + 0.1 * (-1) ** seed * bool(loss) for seed, value in enumerate(best)]
        make_run(tmp_path / "sweep" / str(index), config_of(rate), levels, rounds=16)
    done = call("report.py", tmp_path / "sweep", "--margin", 5)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split()[-2:] == ["within", "5"]
    assert [line.split()[-1] for line in lines[3:5]] == ["yes", "no"]
    assert [("the setting" in line, "highest mean" in line) for line in lines[2:5]] == [
        (False, True), (True, False), (True, False),
    ]  # fmt: skip
    page = Reader(tmp_path / "sweep" / "report.html")
    assert "best − this: the last return, over the seeds that both have" in page.words
    assert "within 5: yes if the whole interval is at most 5" in page.words
    assert "within 5" not in call("report.py", tmp_path / "sweep").stdout
    for margin, complaint in (("-1", "--margin=-1 is no loss of return"), ("x", "--margin")):
        refused = call("report.py", tmp_path / "sweep", f"--margin={margin}")
        assert refused.returncode == 2 and complaint in refused.stderr


def test_verdicts_against_a_point(tmp_path: Path) -> None:
    """Means over the run are compared with those of a point that is neither measure's best one."""
    rng = np.random.default_rng(0)
    means = {}
    for index, (rate, level) in enumerate({1e-3: 300.0, 1e-2: 400.0, 1e-1: 330.0}.items()):
        made = make_run(tmp_path / "sweep" / str(index), config_of(rate), list(level + rng.normal(0, 9, 6)), rounds=16)
        (run,) = [load_run(made)]
        steps = np.array([row["env_steps"] for row in run.evaluations])
        heights = np.array([row["per_seed"]["eval_return_mean"] for row in run.evaluations])
        between = (heights[1:] + heights[:-1]) / 2 * np.diff(steps)[:, None]
        means[rate] = between.sum(axis=0) / (steps[-1] - steps[0])
    asked = ["--measure", "mean", "--against", tmp_path / "sweep" / "2", "--margin", 5]
    done = call("report.py", tmp_path / "sweep", *asked)
    assert done.returncode == 0, done.stderr
    _, heading, *lines = done.stdout.splitlines()
    assert "mean return" in heading and "reference − this" in heading
    rows = {float(line.split()[0]): line for line in lines[:3]}
    for rate, answer, run in ((1e-3, "no", 0), (1e-2, "yes", 1)):
        gap = float((means[1e-1] - means[rate]).mean())
        assert f" {significant(gap)} " in rows[rate] and rows[rate].split()[-1] == answer
        assert rows[rate].split()[1] == str(run)
    assert "reference" in rows[1e-1] and "best" not in heading
    page = Reader(tmp_path / "sweep" / "report.html")
    assert "reference − this: the mean return over the run" in page.words and "P(reference better)" in page.words
    best = call("report.py", tmp_path / "sweep", "--measure", "mean").stdout.splitlines()
    assert "best − this" in best[1] and "highest mean" in next(line for line in best[2:5] if line.startswith("0.01"))
    refused = call("report.py", tmp_path / "sweep" / "0", "--margin", 5)
    assert refused.returncode == 2 and "--margin compare settings, but" in refused.stderr
    refused = call("report.py", tmp_path / "sweep", "--against", tmp_path)
    assert refused.returncode == 2 and "is none of the compared runs; accepted: the directory of one" in refused.stderr


@pytest.mark.parametrize(
    ("low", "high", "enough", "answer"),
    [
        (-1, 1.9, True, "yes"),
        (-1, 2, True, "yes"),
        (1, 3, True, "not shown"),
        (2.1, 3, True, "no"),
        (0, 1, False, "too few seeds"),
    ],
)
def test_within_a_margin(low: float, high: float, enough: bool, answer: str) -> None:
    assert within(Mock(low=low, high=high, enough=enough), 2.0) == answer
