"""Print what each extra brings: packages and megabytes as they are installed here, beside the package without extras.

python scripts/sizes.py
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
UNMEASURED = ("cuda12", "cuda13", "docs", "dev")
"""Extras that most environments do not have whole."""
NAMED = {"gymnasium": "gymnasium", "mujoco": "mujoco", "brax": "brax", "playground": "playground", "envpool": "envpool",
         "ray": "ray", "tune": "optuna", "video": "imageio", "wandb": "wandb", "mlflow": "mlflow-skinny",
         "trackio": "trackio", "stablehlo": "flatbuffers", "onnx": "onnx"}  # fmt: skip
"""The package after which an extra is chosen, whose version is shown."""


@cache
def found(name: str) -> Distribution | None:
    """An installed distribution."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def needed(requirements: Iterable[str], extras: Iterable[str] = ("",)) -> set[str]:
    """Names of all packages that requirements lead to, with those of the project's own extras."""
    names: set[str] = set()
    todo = [(line, extra) for line in requirements for extra in extras]
    seen = set(todo)
    while todo:
        line, extra = todo.pop()
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        own = name == PROJECT["name"]
        if own:
            further = [(one, "") for part in requirement.extras for one in PROJECT["optional-dependencies"][part]]
        else:
            names.add(name)
            lines = (found(name).requires or []) if found(name) else []  # type: ignore[union-attr]
            further = [(one, part) for one in lines for part in ("", *requirement.extras)]
        todo += [one for one in further if one not in seen]
        seen.update(further)
    return names


@cache
def megabytes(name: str) -> float:
    """Megabytes of a package's installed files, without what Python compiled."""
    one = found(name)
    paths = [Path(str(one.locate_file(file))) for file in one.files or []] if one else []
    return sum(path.stat().st_size for path in paths if path.is_file() and path.suffix != ".pyc") / 1e6


def main() -> None:
    """Print the table."""
    base = needed(PROJECT["dependencies"])
    plain = f"{len(base)} packages, {sum(map(megabytes, base)):,.0f} MB"
    print(f"Python {sys.version.split()[0]}; without extras {plain}\n")
    print("| extra | packages | MB | version |\n|---|---|---|---|")
    for extra, lines in PROJECT["optional-dependencies"].items():
        if extra in UNMEASURED:
            continue
        more = needed(lines) - base
        absent = sorted(name for name in more if found(name) is None)
        named = found(NAMED[extra]) if extra in NAMED else None
        version = f"{NAMED[extra]} {named.version}" if named else ""
        size = f"not installed: {', '.join(absent)}" if absent else f"{sum(map(megabytes, more)):,.0f}"
        print(f"| `{extra}` | {len(more)} | {size} | {version} |")


if __name__ == "__main__":
    main()
