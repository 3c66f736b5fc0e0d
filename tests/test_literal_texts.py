"""Texts of pictures: drawn as they stand, in Matplotlib's own style, whatever names and a `matplotlibrc` hold."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib as mpl
import pytest
from commands import REPOSITORY, python
from drawn import legend
from matplotlib.figure import Figure
from matplotlib.text import Text
from run_dirs import make_run
from study_helpers import made_up

from stellaris_jax.execute.loading import load_config
from stellaris_jax.report import curves, gantt, search
from stellaris_jax.report.page.page import write_page
from stellaris_jax.report.runs import read_run
from studies import pictures
from studies.map import pictures as maps

NAMES = ["_a$b_c$", r"$\frac{$ \alpha %"]
"""A name that would be drawn as a formula, and one that would be refused as a broken one."""
FOREIGN = {"text.usetex": True, "text.latex.preamble": r"\input{evil}", "font.size": 40.0, "axes.facecolor": "red"}
"""Settings that a stranger's `matplotlibrc` may have."""


def page(run: Path, name: str, path: Path) -> None:
    """The page of runs that differ in a name, and in a number over more than a magnitude."""
    places = []
    for index, rate in enumerate((1e-4, 1e-3, 1e-2)):
        for seed in (0, 1):
            config = {"system": {"name": name}, "env": {"name": name}, "algorithm": {"learning_rate": rate}}
            place = path.parent / f"{index}{seed}"
            places.append(make_run(place, {**config, "run": {"dir": str(place)}, "seed": seed}, rounds=8))
    write_page(places, path.with_suffix(".html"))
    write_page([run], path.with_suffix(".html"))


VALUES = [1.0, 2.0, 3.0]
DRAW: dict[str, Callable[[Path, str, Path], Any]] = {
    "run": lambda run, name, path: curves.plot_run(run, path),
    "comparison": lambda run, name, path: curves.plot_runs({name: [run], "b": [run]}, path, name),
    "page": page,
    "timeline": lambda run, name, path: gantt.plot_timeline(load_config().replace({"system.name": name}), 2, path),
    "importance": lambda run, name, path: curves.save(search.importance_figure({name: 0.7, "b": 0.3}, 9), path),
    "history": lambda run, name, path: curves.save(search.history_figure([search.Trial(0, VALUES, True)]), path),
    "curves": lambda run, name, path: pictures.curves({name: [made_up("hopper", name, 0)]}, {}, path, name),
    "widths": lambda run, name, path: pictures.widths({name: {name: [[1, 2]]}}, path, name),
    "bars": lambda run, name, path: pictures.bars({name: [pictures.Bar(name, 1.0, VALUES)]}, path, name, name),
    "sensitivity": lambda run, name, path: pictures.sensitivity(
        {name: [pictures.Point(name, (1.0, 1.0), VALUES, VALUES)]}, path, name
    ),
    "heat": lambda run, name, path: maps.heat({name: [(name, VALUES)]}, [name], name, path, name),
    "forest": lambda run, name, path: maps.forest({name: (VALUES, VALUES)}, path, name),
}  # fmt: skip


@pytest.fixture(scope="module", params=NAMES)
def named(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run whose system, environment and directory have a name, and the name."""
    place = tmp_path_factory.mktemp("runs") / request.param
    config = {"system": {"name": request.param}, "env": {"name": request.param}, "run": {"dir": str(place)}, "seed": 0}
    return make_run(place, config, rounds=8), request.param


@pytest.fixture
def figures() -> Iterator[list[Figure]]:
    """Figures that are saved meanwhile."""
    found: list[Figure] = []
    savefig = Figure.savefig

    def save(figure: Figure, *arguments: Any, **options: Any) -> None:
        savefig(figure, *arguments, **options)
        found.append(figure)

    with mock.patch.object(Figure, "savefig", save):
        yield found


@pytest.mark.parametrize("kind", DRAW)
def test_names_are_drawn_as_they_stand(
    kind: str, named: tuple[Path, str], figures: list[Figure], tmp_path: Path
) -> None:
    run, name = named
    with mpl.rc_context(FOREIGN):
        DRAW[kind](run, name, tmp_path / "picture.svg")
    assert figures
    for figure in figures:
        texts = figure.findobj(Text)
        assert texts and not any(text.get_parse_math() or text.get_usetex() for text in texts)
        assert not [text for text in texts if "mathdefault" in text.get_text()]
        assert all(axes.get_facecolor() != (1.0, 0.0, 0.0, 1.0) for axes in figure.axes)
    assert mpl.rcParams["text.parse_math"], "the user's own pictures stay as they are"


def test_names_with_an_underscore_have_their_legend(tmp_path: Path) -> None:
    runs = {name: [read_run(make_run(tmp_path / name))] for name in ("_a", "b")}
    figure = curves.comparison_figure(runs, "title")
    assert [text.split()[0] for text in legend(figure)] == ["_a", "b"]


def test_a_file_of_the_current_folder_changes_nothing(tmp_path: Path) -> None:
    """It is read by Matplotlib as it is imported."""
    lines = ["text.usetex: True", "font.size: 40", "savefig.facecolor: red", "text.latex.preamble: x"]
    program = (
        "from pathlib import Path; from stellaris_jax.report import curves, search; "
        "curves.save(search.importance_figure({'a$b_c$': 0.7, 'b': 0.3}, 9), Path('picture.png'))"
    )
    for name, text in (("own", ""), ("foreign", "\n".join(lines))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "matplotlibrc").write_text(text)
        python("-c", program, cwd=tmp_path / name, check=True)
    assert (tmp_path / "own" / "picture.png").read_bytes() == (tmp_path / "foreign" / "picture.png").read_bytes()


# The rule -------------------------------------------------------------------------------------------------------------

MAKERS = {"Figure", "titled", "panel", "savefig", "legend_below", "rc_context"}
"""Calls by which a function draws."""


def drawers() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions of the package that make, measure or save figures."""
    folders = [REPOSITORY / name for name in ("stellaris_jax", "studies", "benchmarks")]
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        if path.name == "style.py":
            continue
        text = path.read_text()
        for node in ast.parse(text).body if any(f"{name}(" in text for name in MAKERS) else ():
            if isinstance(node, ast.FunctionDef):
                called = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
                if {getattr(func, "id", getattr(func, "attr", "")) for func in called} & MAKERS:
                    yield f"{path.relative_to(REPOSITORY)}:{node.name}", node


def test_everything_is_drawn_in_one_style() -> None:
    found = dict(drawers())
    assert len(found) > 15
    assert [name for name, node in found.items() if "drawing()" not in map(ast.unparse, node.decorator_list)] == []
