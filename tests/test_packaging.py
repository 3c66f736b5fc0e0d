"""Published archives: contents of the wheel, one version, pins within the declared ranges, a pure import."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from commands import REPOSITORY, python
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from training import TINY, steps

import stellaris_jax
from stellaris_jax.cli.examples import example_files

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
# The CUDA extras are not pinned: they are the user's.
PUBLISHED_EXTRAS = (
    "gymnasium", "mujoco", "box2d", "brax", "playground", "envpool", "ray", "tune", "video", "wandb", "mlflow",
    "stablehlo", "onnx", "all", "docs", "dev",
)  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def repository_files(folder: str, pattern: str) -> set[str]:
    return {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / folder).rglob(pattern)}


def test_wheel_holds_the_package_its_configs_and_examples_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"stellaris_jax-{stellaris_jax.__version__}.dist-info/"
    code = {"stellaris_jax/py.typed"}.union(
        *(repository_files("stellaris_jax", f"*.{kind}") for kind in ("py", "css", "js"))
    )
    code |= repository_files("stellaris_jax", "*.npz") | repository_files("stellaris_jax", "*.md")
    configs = {f"stellaris_jax/{name}" for name in repository_files("configs", "*.yaml")}
    examples = {f"stellaris_jax/{path.relative_to(REPOSITORY)}" for path in example_files(REPOSITORY / "examples")}
    assert {name for name in names if not name.startswith(info)} == code | configs | examples
    assert info + "licenses/LICENSE" in names


def test_source_distribution_holds_what_make_needs(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    needed = {"Makefile", "LICENSE", "CHANGELOG.md", "README.md", "scripts/install.sh", "tests/conftest.py"}
    assert needed | repository_files("constraints", "*.txt") <= names


def test_links_of_what_is_published_are_absolute(built: Path) -> None:
    """In the long description, where nothing of the repository is beside it; both archives say the same."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        about = message_from_string(file.read(name).decode())
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        (info,) = (member for member in tar.getmembers() if member.name.count("/") == 1 and "PKG-INFO" in member.name)
        packed = tar.extractfile(info)
        assert packed and message_from_string(packed.read().decode()).get_payload() == about.get_payload()
    text = str(about.get_payload())
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 20 and all(link.startswith("https://") for link in links)
    repository = PROJECT["urls"]["Repository"]
    assert f"({repository}/blob/main/docs/start.md)" in text
    assert re.search(r"!\[[^]]*\]\(https://raw\.githubusercontent\.com/[^)]*/timeline\.png\)", text)
    assert {line.partition(", ")[0] for line in about.get_all("Project-URL", [])} == set(PROJECT["urls"])
    assert about["Description-Content-Type"] == "text/markdown"


def test_there_is_one_version(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name.split("-")[1] == stellaris_jax.__version__
    headings = re.findall(r"^## \[(.+?)\]", (REPOSITORY / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    expected = "Unreleased" if "dev" in stellaris_jax.__version__ else stellaris_jax.__version__
    assert headings[0] == expected
    cited = re.search(r"^version: (.+)$", (REPOSITORY / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert cited and ("dev" in stellaris_jax.__version__ or cited[1] == stellaris_jax.__version__)


@pytest.mark.parametrize(
    "constraints", sorted((REPOSITORY / "constraints").glob("py*.txt")), ids=lambda path: path.stem
)
def test_every_dependency_is_pinned_within_its_range(constraints: Path) -> None:
    lines = [line for line in constraints.read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)  # anything but name==version fails here
    extras = PROJECT["optional-dependencies"]
    declared = PROJECT["dependencies"] + [line for extra in PUBLISHED_EXTRAS for line in extras[extra]]
    for requirement in map(Requirement, declared):
        name, python = canonicalize_name(requirement.name), f"3.{constraints.stem.removeprefix('py3')}"
        is_for = requirement.marker is None or requirement.marker.evaluate({"python_version": python})
        if name != PROJECT["name"] and is_for:
            assert requirement.specifier.contains(pins[name], prereleases=True), requirement


def test_sizes_of_all_extras_are_stated() -> None:
    """On the page that says how to install them; the script that measures them follows extras and dependencies."""
    rows = re.findall(r"^\| (`.*?) \|", (REPOSITORY / "docs" / "start.md").read_text(), re.M)
    stated = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {*PROJECT["optional-dependencies"]} - {"all", "docs", "dev"} <= stated
    needed = runpy.run_path(str(REPOSITORY / "scripts" / "sizes.py"))["needed"]
    base, brax = needed(PROJECT["dependencies"]), needed(PROJECT["optional-dependencies"]["brax"])
    assert {"jax", "jaxlib", "hydra-core", "omegaconf"} <= base
    assert {"brax", "mujoco", "gymnasium"} <= brax and PROJECT["name"] not in brax


def test_import_sets_no_environment_and_leaves_jax_alone() -> None:
    code = (
        "import json, os, sys; before = dict(os.environ); import stellaris_jax;"
        "print(json.dumps([dict(os.environ) == before, 'jax' in sys.modules]))"
    )
    same_environment, jax_imported = json.loads(python("-c", code, check=True).stdout)
    assert same_environment and not jax_imported


@pytest.mark.slow
def test_what_is_published_is_accepted_by_an_index(built: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


PLAIN = """
import sys
from stellaris_jax.cli.train import main
main({arguments})
print(sorted({{name.partition(".")[0] for name in sys.modules}} & set({others})))
"""


def test_a_plain_run_imports_nothing_it_does_not_need(tmp_path: Path) -> None:
    """No extra's package, and of those that others bring along none that is large."""
    others = ["brax", "envpool", "imageio", "matfree", "mujoco", "mujoco_playground", "onnx", "onnxruntime", "optuna"]
    others += ["pandas", "ray", "seaborn", "warp"]
    small = [*TINY, steps(2), f"run.dir={tmp_path / 'run'}"]
    code = PLAIN.format(arguments=small, others=others)
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"], ids=["wheel", "sdist"])
def test_what_is_published_works_in_an_empty_environment(kind: str, built: Path, tmp_path: Path) -> None:
    """Installed alone, outside the checkout: the main job, a sweep and an evaluation."""
    (archive,) = built.glob(kind)
    constraints = REPOSITORY / "constraints" / f"py{sys.version_info[0]}{sys.version_info[1]}.txt"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    commands = tmp_path / "venv" / "bin"

    def run(*command: str) -> str:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    run(str(commands / "pip"), "install", "--quiet", "--constraint", str(constraints), str(archive))
    command = str(commands / "stellaris-jax")
    job = ["total_steps=8192", "evaluation.points=1", "evaluation.episodes=4", "run.progress=false"]
    out = run(command, "train", *job, "run.dir=main")
    assert "stellaris-jax evaluate main" in out
    assert "return" in run(command, "evaluate", "main", "--episodes", "4")
    run(command, "train", "-m", *job, "num_seeds=1", "system=stellaris,async", "hydra.sweep.dir=sweep")
    assert (tmp_path / "sweep" / "1" / "summary.json").is_file()
    run(command, "check-env", "gymnax/cartpole")
    assert "Next: python mine/train.py" in run(command, "examples", "mine")
    rule = ["plugins=[mine/plugins/rule.py]", "system.rule=quorum"]
    run(command, "train", *job, *rule, "run.dir=quorum")
    assert "stellaris-jax" in run(command, "--help")
