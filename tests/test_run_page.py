"""The page of one run: what it tells, what it does of damage and of many rounds, and how it behaves in a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from browser import BACKGROUND, browser, find
from commands import call, said
from pages import Reader
from run_dirs import make_run

from stellaris_jax.config.compose import compose_config
from stellaris_jax.config.options import complete
from stellaris_jax.config.stored import from_yaml, to_yaml
from stellaris_jax.report.page.page import write_page
from stellaris_jax.report.perfetto import rounds_of

SETTINGS = ["env=gymnax/acrobot", "num_seeds=3", "system.learners=3", "algorithm.epochs=1", "algorithm.minibatches=6"]
SUMMARY = {
    "system": "stellaris", "env": "gymnax/Acrobot-v1", "num_seeds": 3, "env_steps": 81920, "wall_seconds": 4.0,
    "eval_return_mean": 475.0, "eval_return_ci95": 50.0, "eval_return_per_seed": [480.0, 450.0, 495.0],
    "eval_episodes": 384, "device": "1 x cpu:cpu (2 host cores)", "versions": {"python": "3.12.1", "jax": "0.11"},
    "cost_items_usd": {"learner_busy": 0.6, "learner_idle": 0.0, "actor_busy": 0.2}, "cost_common_usd": 1.5,
}  # fmt: skip


def whole_run(path: Path, rounds: int = 24) -> Path:
    """A run with everything that a page shows."""
    make_run(path, rounds=rounds, evaluations=min(rounds, 8))
    (path / "config.yaml").write_text(to_yaml(complete(compose_config(SETTINGS))))
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | SUMMARY))
    lines = []
    for line in (path / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "round":
            number = record["round"]
            record |= {"policy_loss": -1.0 / number, "entropy": 0.7, "group_size": 1 + number % 3}
            record |= {"gate_escapes": number, "gate_groups": 4 * number}
            record["per_seed"]["actors"] = [128.0] * 3
        lines.append(json.dumps(record) + "\n")
    (path / "metrics.jsonl").write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, with its page."""
    place = whole_run(tmp_path_factory.mktemp("runs") / "my run")
    done = call("report.py", place)
    assert (done.returncode, done.stdout.strip()) == (0, str(place / "report.html")), done.stderr
    return place


def bars(page: Path) -> list[dict[str, str]]:
    """The gradients drawn, by what they say of themselves."""
    told = re.findall(r"<title>(fragment [^<]*)</title>", page.read_text())
    form = r"fragment (?P<fragment>\d+), minibatch (?P<minibatch>\d+), on version (?P<version>\d+), by learner "
    form += r"(?P<learner>\d+): staleness (?P<staleness>\d+)"
    return [found.groupdict() for text in told if (found := re.match(form, text))]


def test_page_of_a_run(run: Path) -> None:
    page = Reader(run / "report.html")
    assert page.headings == [
        "Figures", "Return", "Staleness", "Timeline", "The bill", "Losses and diagnostics", "Configuration",
        "To repeat it", "Hardware", "Versions",
    ]  # fmt: skip
    assert "Return 475 (450 to 495), 3 seeds, 384 episodes; after 81,920 env steps" in page.words
    figures, bill, differs, every = page.tables
    assert ["staleness", "mean 2.50  max 7"] in figures
    assert [row[:3] for row in bill[1:]] == [
        ["learners, computing", "$0.60", "75 %"], ["actors, collecting", "$0.20", "25 %"],
        ["total", "$0.80", "100 %"],
    ]  # fmt: skip
    assert {row[0]: (row[1], row[2]) for row in differs[1:] if not row[0].startswith("env.")} == {
        "num_seeds": ("3", "1"), "system.learners": ("3", "8"), "algorithm.epochs": ("1", "4"),
        "algorithm.minibatches": ("6", "8"), "algorithm.anneal": ("false", "true"),
    }  # fmt: skip
    assert ["env.name", '"gymnax/Acrobot-v1"', '"gymnax/CartPole-v1"'] in differs
    assert len(every) > 100
    assert page.links == ["./"]
    assert "losses/policy_loss" in page.words and "losses/entropy" not in page.words, "what never changes is left out"
    assert "env=gymnax/Acrobot-v1" in page.words and "python 3.12.1, jax 0.11" in page.words
    assert len(page.identifiers) == len(set(page.identifiers))


def test_command_of_the_page_leads_to_the_same_configuration(run: Path) -> None:
    (line,) = re.findall(r"<pre>([^<]* env=[^<]*)</pre>", (run / "report.html").read_text())
    assert complete(compose_config(line.split()[2:])) == from_yaml(run / "config.yaml")


def test_timelines_are_those_of_the_run(run: Path, tmp_path: Path) -> None:
    """Every gradient of the rounds asked for is there, and says what the simulation does."""
    write_page([run], tmp_path / "page.html", rounds=[range(2, 4), range(10, 11)])
    config = from_yaml(run / "config.yaml")
    from stellaris_jax.timeline.plan import MinibatchLayout

    lived = list(rounds_of(run, config, MinibatchLayout.of(config)))
    expected = [
        {name: str(getattr(gradient, name)) for name in ("fragment", "minibatch", "version", "learner", "staleness")}
        for number in (2, 3, 10)
        for group in lived[number - 1].round.groups
        for gradient in group.gradients
    ]
    found = bars(tmp_path / "page.html")
    key = json.dumps
    assert sorted(map(key, found)) == sorted(map(key, expected)) and len(found) == 18
    assert "Rounds 2 to 3" in Reader(tmp_path / "page.html").words


@pytest.mark.parametrize(
    ("rounds", "word"),
    [("25", "which has 24"), ("3-2", "smaller"), ("0", "at least 1"), ("x", "integer"), ("1,", "int")],
)
def test_rounds_that_cannot_be(rounds: str, word: str, run: Path, tmp_path: Path) -> None:
    done = call("report.py", run, "--rounds", rounds, "--out", tmp_path / "page.html")
    assert done.returncode == 2 and len(said(done.stderr)) == 1 and word in done.stderr, done.stderr


def test_rounds_are_of_one_run(run: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "other", rounds=8)
    done = call("report.py", run, tmp_path / "other", "--rounds", "1", "--out", tmp_path / "page.html")
    assert done.returncode == 2 and "--rounds is of the page of one run" in done.stderr


@pytest.mark.slow
def test_many_rounds_are_below_two_megabytes(tmp_path: Path) -> None:
    place = whole_run(tmp_path / "run", rounds=3000)
    write_page([place], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 1_000_000
    assert "Rounds 2998 to 3000" in Reader(tmp_path / "page.html").words


DAMAGE: dict[str, Any] = {
    "a round of text": '{"kind":"round","round":3,"env_steps":1,"gate":"x","policy_loss":{},"staleness_counts":["a"],'
    '"per_seed":{"train_return":[1.0]}}\n',
    "rounds of another kind": '{"kind":"round","round":-1,"env_steps":1,"staleness_mean":1.5,"staleness_counts":[-1],'
    '"per_seed":{"train_return":[1.0]}}\n',
    "nothing": "",
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.filterwarnings("error")
def test_damaged_records_are_left_out(what: str, tmp_path: Path) -> None:
    place = whole_run(tmp_path / "run", rounds=8)
    (place / "metrics.jsonl").write_text(DAMAGE[what])
    write_page([place], tmp_path / "page.html")
    page = Reader(tmp_path / "page.html")
    assert {"Figures", "The bill", "Configuration"} <= set(page.headings)
    assert "rounds 1 to" not in page.words.lower()


def test_runs_that_are_not_over(tmp_path: Path) -> None:
    """Pages of unfinished runs show their parts, the reason of failure, and the command to resume."""
    place = whole_run(tmp_path / "run", rounds=8)
    (place / "summary.json").write_text('{"failure": "no gradient of seed 0 was finite."}')
    page = Reader(write(place))
    assert "It has no result: no gradient of seed 0 was finite." in page.words
    assert "After 16,384 env steps" in page.words and f"resume={place}" in page.words


def write(place: Path) -> Path:
    write_page([place], place / "report.html")
    return place / "report.html"


def test_one_round_can_be_seen(tmp_path: Path) -> None:
    """A point is no line: it needs a dot, in the middle of whole rounds."""
    from matplotlib.figure import Figure

    from stellaris_jax.report.curves import draw_gate
    from stellaris_jax.report.runs import read_run

    make_run(tmp_path / "run")
    whole = read_run(tmp_path / "run")
    axes = Figure().subplots()
    draw_gate(axes, replace(whole, rounds=whole.rounds[:1]))
    assert [line.get_marker() for line in axes.lines] == ["."] * len(axes.lines) and axes.lines
    left, right = axes.get_xlim()
    assert left < 1 < right and all(tick == int(tick) for tick in axes.get_xticks() if left <= tick <= right)


INDEPENDENT = [
    "system=areal", "delays=pareto", "system.actor_shards=4", "system.sync_steps=32", "system.data_admission=bounded",
    "delays.actor_failure=0.2", "num_seeds=3",
]  # fmt: skip


def independent_run(path: Path, *settings: str) -> Path:
    """A run of independent actors with everything that a page shows."""
    place = whole_run(path, rounds=8)
    (place / "config.yaml").write_text(to_yaml(complete(compose_config([*INDEPENDENT, *settings]))))
    return place


def test_timelines_of_independent_actors(tmp_path: Path) -> None:
    """Every segment of a used fragment is there with its version; batches, dropped and dead fragments, the queue."""
    from stellaris_jax.timeline.plan import MinibatchLayout

    place = independent_run(tmp_path / "run")
    config = from_yaml(place / "config.yaml")
    lived = [entry.round for entry in rounds_of(place, config, MinibatchLayout.of(config))]
    page = tmp_path / "page.html"
    write_page([place], page, rounds=[range(1, 9)])
    titles = re.findall(r"<title>([^<]*)</title>", page.read_text())
    used = [f for one in lived for batch in one.batches for f in batch.fragments]
    for fragment in used:
        own = [title for title in titles if f"; fragment {fragment.number} of shard {fragment.shard}, with" in title]
        versions = [int(title.split("version ")[1].split(";")[0]) for title in own]
        assert versions == fragment.versions
    gone = [one for title in titles for one in (", dropped,", ", died,") if one in title]
    assert gone.count(", dropped,") == lived[-1].usage.fragments_dropped > 0
    assert gone.count(", died,") == lived[-1].usage.actor_failures > 0
    batches = [title for title in titles if re.match(r"batch \d+, formed", title)]
    assert len(batches) == sum(len(one.batches) for one in lived)
    words = Reader(page).words
    assert "shard 3" in words and "data queue" in words and "fragments that wait for a batch, at most" in words


def test_data_of_independent_actors(tmp_path: Path) -> None:
    """The page tells age, waiting, utilisation and the bias of dropping; not of actors that wait for rounds."""
    assert "Data" not in Reader(write(whole_run(tmp_path / "waits", rounds=4))).headings
    place = independent_run(tmp_path / "run")
    lines = []
    for line in (place / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        record["learned_steps"] = record["env_steps"] / 2
        if record["kind"] == "round":
            number = record["round"]
            record |= {"data_lag": 2.0 + number % 2, "data_lag_max": 9, "data_lag_counts": [1, 2, 0, 4]}
            record |= {"data_lag_batches": 1.5, "data_lag_seconds": 12.0, "data_queue": number % 3}
            record |= {"data_queue_seconds": 3.5, "actor_utilisation": 0.75, "actor_blocked": 0.2}
            record |= {"learner_utilisation": 0.4, "fragments_dropped": 3 * number, "fragments_dropped_share": 0.25}
            record |= {"fragments_dropped_slowness": 1.4 if number % 2 else None, "actors_failed": number}
            record |= {"fragments_dropped_return": 10.0 * number}
        lines.append(json.dumps(record) + "\n")
    (place / "metrics.jsonl").write_text("".join(lines))
    page = Reader(write(place))
    assert page.headings.index("Data") == page.headings.index("Staleness") + 1
    figures = {row[0]: row[1] for table in page.tables for row in table if len(row) == 2}
    assert figures["data lag, versions"] == "mean 2.50, largest 9"
    assert figures["age of fragments, batches"] == "mean 1.50"
    assert figures["actors"] == "roll 75 % of the time, wait 20 %"
    assert figures["learners"] == "compute 40 % of the time"
    assert figures["env steps"] == "16,384 rolled, 8,192 learned from (2.00 rolled per learned)"
    dropped = "24, mean share 25 % of a round; mean slowness 1.40, return less that of used ones 45.0"
    assert figures["fragments dropped"] == dropped and figures["rollouts that died"] == "8"
    drawn = set(re.findall(r'aria-label="([^"]*)"', (place / "report.html").read_text()))
    assert {"data lag (versions) over rounds", "distribution of data lag over all rounds"} <= drawn
    assert {"return over env steps rolled", "return over env steps learned from"} <= drawn
    assert "data/queue_seconds" not in page.words and "data/fragments_dropped_return" in page.words
    # Beside a run whose actors wait, the table has the data lag.
    write_page([place, tmp_path / "waits"], tmp_path / "both.html")
    both = Reader(tmp_path / "both.html")
    at = both.tables[0][0].index("data lag")
    assert sorted(row[at] for row in both.tables[0][1:]) == ["-", "2.50 (max 9)"]
    done = call("runs.py", place, tmp_path / "waits")
    assert done.returncode == 0 and re.search(r"\blag\b", done.stdout) and "2.00" in done.stdout
    done = call("runs.py", tmp_path / "waits")
    assert not re.search(r"\blag\b", done.stdout)


def test_a_timeline_that_only_training_knows_is_not_shown(tmp_path: Path) -> None:
    place = independent_run(tmp_path / "run", "delays.by=episodes", "delays.actor_failure=0")
    page = Reader(write(place))
    assert "There is no timeline:" in page.words and "durations follow its episodes" in page.words


def test_a_plugin_is_not_run(tmp_path: Path) -> None:
    place = whole_run(tmp_path / "run", rounds=8)
    (tmp_path / "mine.py").write_text("raise SystemExit('it was run')")
    config = (place / "config.yaml").read_text()
    (place / "config.yaml").write_text(config.replace("plugins: []", f"plugins: [{tmp_path / 'mine.py'}]"))
    page = Reader(write(place))
    assert "A report runs no code of plug-ins, so it draws no timeline of this run" in page.words


@pytest.mark.skipif(find() is None, reason="needs Chromium (Debian's package chromium)")
def test_page_of_a_run_in_a_browser(run: Path, tmp_path: Path) -> None:
    """On a phone and on a desk: no sideways scrolling, no complaints; timelines zoom, bars tell of themselves."""
    page = run / "report.html"
    with browser(tmp_path / "profile") as window:
        for width, dark in ((390, True), (1280, False)):
            window.open_fitting(page, width, dark, ".rows")
            seen = window.evaluate("[...document.querySelectorAll('figure svg')].map(e => e.clientHeight)")
            assert min(seen) > 60
            before = window.evaluate(BACKGROUND)
            window.evaluate("document.getElementById('scheme').click()")
            assert (window.evaluate(BACKGROUND) == "rgb(255, 255, 255)") is dark
            window.evaluate("document.getElementById('scheme').click()")
            assert window.evaluate(BACKGROUND) == before
            picture = tmp_path / f"{width}.png"
            window.screenshot(picture)
            pixels = matplotlib.image.imread(picture)
            assert pixels.shape[1] == width and pixels[..., :3].std() > 0.05
        shown = "document.querySelector('.timeline svg').getAttribute('viewBox').split(' ').map(Number)"
        ticks = "[...document.querySelectorAll('.timeline:first-of-type .ticks span')].map(e => e.textContent)"
        whole, marks = window.evaluate(shown), window.evaluate(ticks)
        assert whole[0] == 0 and len(marks) > 3
        window.evaluate("document.querySelector('[data-zoom=\"0.5\"]').click()")
        left, _, wide, _ = window.evaluate(shown)
        assert (left, wide) == (whole[2] / 4, whole[2] / 2) and window.evaluate(ticks) != marks
        window.evaluate(
            "document.querySelector('.timeline svg').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}))"
        )
        assert window.evaluate(shown)[0] < left
        window.evaluate("document.querySelector('[data-zoom=\"0\"]').click()")
        assert window.evaluate(shown) == whole and window.evaluate(ticks) == marks
        point = "new PointerEvent('pointerover', {bubbles: true})"
        window.evaluate(f"document.querySelector('.timeline path.s0').dispatchEvent({point})")
        assert "staleness 0" in window.evaluate("document.querySelector('.timeline .about').textContent")
        assert window.told == []
        assert set(window.requested) == {page.resolve().as_uri()}
