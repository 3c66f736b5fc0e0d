"""The documentation: examples and commands on its pages run, and the site is sound."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from browser import browser, find
from commands import REPOSITORY
from pages_of_docs import DOCS, blocks, commands, generator, made

from stellaris_jax import load_config
from stellaris_jax.config.optioned import options_of
from stellaris_jax.config.options import PLACES
from stellaris_jax.config.tree import knobs

MADE = ("_build", "methods", "reference", "results", "project", "drawings")
WRITTEN = [REPOSITORY / "README.md", *sorted(p for p in DOCS.rglob("*.md") if p.relative_to(DOCS).parts[0] not in MADE)]
"""Pages that somebody has written."""
TINY = ["env.num_envs=8", "algorithm.rollout_length=16", "algorithm.epochs=1", "algorithm.minibatches=8",
        "network.hidden=[4]", "total_steps=256", "evaluation.episodes=2", "evaluation.points=1", "run.progress=false",
        "engine.chunk_rounds=1"]  # fmt: skip
"""Settings that make a run short; a page's own keys have precedence."""
START = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", 2)  # of what one process runs, one command asks for two
"""
ALL = """
import stellaris_jax
from stellaris_jax.cli.main import main
whole, names = stellaris_jax.load_config, {}
stellaris_jax.load_config = lambda overrides: whole([*overrides, "total_steps=4096", "evaluation.episodes=4"])
for step in json.loads(sys.argv[1]):
    if isinstance(step, str):
        exec(step, names)
        continue
    try:
        main(step)
    except SystemExit as end:
        if end.code:
            sys.exit(f"{step} ended with {end.code}")
"""
# Trackio is the one extra that `all` leaves out.
COMPOSED = """
from stellaris_jax import ConfigError, load_config
for overrides in json.loads(sys.argv[1]):
    try:
        load_config(overrides)
    except ConfigError as error:
        if "pip install 'stellaris-jax[trackio]'" not in str(error):
            raise
"""


def steps(text: str) -> list[list[str] | str]:
    """Steps of a page, from top to bottom: shortened commands, and examples in Python, which share names."""
    done: list[list[str] | str] = []
    for whole, language, inside in re.findall(r"^(```(sh|python)\n(.*?)^```$)", text, flags=re.M | re.S):
        if language == "python":
            assert len(inside.strip().splitlines()) <= 12, inside
        done += [inside] if language == "python" else [short(command) for command in commands(whole)]
    return done


def short(command: list[str]) -> list[str]:
    """The same command on the smallest job."""
    name, *words = command
    keys = {word.partition("=")[0] for word in words}
    if name == "choose":
        few = ["--systems", "async", "--seeds", "1", "--fresh-seeds", "2", "--target", "1", "--budget", "10m"]
        return [name, "env=gymnax/cartpole", *TINY, "env.num_envs=16", *few]
    if name not in ("train", "tune") or keys & {"--resume", "trace"}:
        return command
    if "resume" in keys:
        return [name, *("total_steps=512" if word.startswith("total_steps=") else word for word in words)]
    rest = [word for word in words if not word.startswith("total_steps=")]
    replays = {"algorithm=dqn", "algorithm=sac"} & {*words}  # without passes over a round's data
    tiny = [word for word in TINY if not (replays and word.startswith(("algorithm.epochs", "algorithm.minibatches")))]
    tiny += ["algorithm.options.learning_starts=128"] if replays else []
    return [name, *(["-m"] if "-m" in rest else []), *tiny, *(word for word in rest if word != "-m")]


def run(code: str, data: object, where: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", START + code, json.dumps(data)],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"


# Commands and examples ------------------------------------------------------------------------------------------------


def composed(texts: Iterable[str]) -> int:
    """How many commands to train there are, all of which lead to configurations that can run."""
    given = [command[1:] for text in texts for command in commands(text) if command[0] == "train"]
    others = ("-m", "resume=", "trace=")
    whole = [words for words in given if not any(word.startswith(others) for word in words)]
    run(COMPOSED, whole, REPOSITORY)
    return len(whole)


def test_commands_to_train_can_run() -> None:
    assert composed(path.read_text() for path in WRITTEN) > 20


@pytest.mark.slow
def test_commands_that_are_made_can_run() -> None:
    assert composed(text for name, text in made().items() if name.startswith("methods/")) > 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [path for path in WRITTEN if steps(path.read_text())], ids=lambda p: p.relative_to(REPOSITORY).as_posix()
)
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    for folder in ("examples", "results"):
        (tmp_path / folder).symlink_to(REPOSITORY / folder)
    run(ALL, steps(page.read_text()), tmp_path)


@pytest.mark.parametrize("example", blocks((DOCS / "start.md").read_text(), "python"))
def test_the_first_examples_in_python_run(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of the first pages, on fewer steps; those of other pages are slow tests."""
    monkeypatch.chdir(tmp_path)
    less = ["total_steps=4096", "evaluation.episodes=4"]
    monkeypatch.setattr("stellaris_jax.load_config", lambda overrides: load_config([*overrides, *less]))
    exec(compile(example, "start.md", "exec"), {})


def test_what_is_ours_on_a_page_is_tested() -> None:
    """A command stands in a block that is run, or in one with prompts, which says that it is not for here."""
    for path in WRITTEN:
        untold = re.sub(r"^ *```(sh|console|text|yaml)\n.*?^ *```$", "", path.read_text(), flags=re.M | re.S)
        assert not re.search(r"^ *(\$ )?(python \S+\.py|stellaris-jax) ", untold, flags=re.M), path


def sentences(text: str) -> list[str]:
    """Sentences of a page, without code blocks; cells of tables and items of lists stand for themselves."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    parts = re.split(r"\n\s*\n|\n(?=- )|\|", text)
    ended = (re.split(r"(?<=[.?!:])\s+(?=[A-Z*`(])", " ".join(part.split())) for part in parts)
    return [sentence for part in ended for sentence in part if sentence]


def test_sentences_of_the_readme_are_short() -> None:
    found = sentences((REPOSITORY / "README.md").read_text())
    assert len(found) > 40
    assert [sentence for sentence in found if len(sentence.split()) > 25] == []


def test_settings_that_the_readme_names_can_run() -> None:
    """Settings in its sentences; its blocks of commands are run elsewhere."""
    text = re.sub(r"^```.*?^```$", "", (REPOSITORY / "README.md").read_text(), flags=re.M | re.S)
    named = [words.split() for words in re.findall(r"`((?:system|experiment)=[^`]*)`", text)]
    assert ["system=central"] in named
    for overrides in named:
        load_config(overrides)


@pytest.mark.parametrize("page", ["coming_from.md", "troubleshooting.md"])
def test_keys_that_a_page_names_exist(page: str) -> None:
    sections = "algorithm|env|network|evaluation|system|engine|run|live|checkpoint|scaling|platform"
    named = {*re.findall(rf"`((?:{sections})\.[a-z_.]+)", (DOCS / page).read_text())}
    assert len(named) > 5
    options = {name for place in PLACES for thing in place.kind for name in options_of(place.kind[thing])}
    for key in sorted(named):
        section, _, leaf = key.rpartition(".")
        assert key in knobs() or ("options" in section and leaf in options), key


def test_pages_know_the_pythons_that_are_pinned() -> None:
    pinned = sorted(int(path.stem.removeprefix("py3")) for path in (REPOSITORY / "constraints").glob("py*.txt"))
    assert f"(pinned versions: 3.{pinned[0]} to 3.{pinned[-1]})." in (DOCS / "start.md").read_text()


def test_every_example_plugin_is_shown() -> None:
    shown = "".join(path.read_text() for path in WRITTEN)
    for path in (REPOSITORY / "examples" / "plugins").glob("*.py"):
        assert re.search(rf"literalinclude\}} \S*/{path.name}\n", shown), path.name


def test_links_lead_where_they_led() -> None:
    generator()
    from generator.repository import rebased, sources

    text = "[a](stellaris/README.md#x) [b](stellaris) [c](../pyproject.toml) [d](nowhere.md) [e](https://x.y) [f](#g)"
    moved = rebased(text, "results/README.md", "results/claims.md", sources())
    assert moved == (
        "[a](/results/stellaris.md#x) [b](/results/stellaris.md) [c](../../pyproject.toml) d [e](https://x.y) [f](#g)"
    )


def test_links_of_written_pages_lead_somewhere_in_a_checkout() -> None:
    """README leads to pages as files. A link to what the generator makes works on the site alone."""
    on_site_alone = []
    for path in WRITTEN:
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            file = target.partition("#")[0]
            if not file or re.match("[a-z]+:", target):
                continue
            place = DOCS / file.lstrip("/") if file.startswith("/") else path.parent / file
            if place.resolve().is_relative_to(DOCS) and place.resolve().relative_to(DOCS).parts[0] in MADE:
                on_site_alone.append(f"{path.name}: {file}")
                assert not re.search("results|project", file), f"{path}: {target}"
            else:
                assert place.exists(), f"{path}: {target}"
    assert len(on_site_alone) <= 8, on_site_alone


# The site -------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Links, pictures and anchors of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.targets: list[str] = []
        self.anchors = {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.add(given.get("id") or "")
        self.targets += [value for name in ("href", "src") if (value := given.get(name))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew as `make docs` does; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "--quiet", "-d", str(folder / "doctrees")]
    done = subprocess.run([*command, str(DOCS), str(folder / "html")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "html"


def pages_of(site: Path) -> Iterator[Path]:
    return (path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts)


@pytest.mark.slow
def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    pages = {path: Page(path) for path in pages_of(site)}
    assert len(pages) > 90
    for path, page in pages.items():
        for target in page.targets:
            if re.match("[a-z]+:", target):
                assert target.startswith(("https://", "data:")), f"{path}: {target}"
                continue
            file, anchor = urldefrag(target)
            place = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
            assert place.exists(), f"{path}: {target}"
            if place in pages:
                assert unquote(anchor) in pages[place].anchors, f"{path}: {target}"


@pytest.mark.slow
@pytest.mark.skipif(find() is None, reason="needs Chromium (Debian's package chromium)")
def test_pages_in_a_browser(site: Path, tmp_path: Path) -> None:
    """On a phone and on a desk: no sideways scrolling, no complaints, nothing fetched, no broken picture."""
    broken = "[...document.images].filter(i => i.complete && !i.naturalWidth && i.src).map(i => i.src)"
    with browser(tmp_path / "profile") as window:
        for width, dark in ((390, False), (1280, True)):
            for page in pages_of(site):
                window.open(page, width, 800, dark)
                assert window.evaluate("document.documentElement.scrollWidth") <= width, page
                assert window.evaluate(broken) == [], page
                article = window.evaluate("document.querySelector('article').clientHeight")
                assert article > 50 or page.name == "search.html", page
        window.open(site / "concepts.html", 390, 800)
        assert window.evaluate("document.querySelector('svg.boxes').clientWidth") > 300
        window.screenshot(tmp_path / "concepts.png")
        assert (tmp_path / "concepts.png").stat().st_size > 50_000
        assert window.told == []
        assert all(url.startswith(("file:", "data:")) for url in window.requested)
