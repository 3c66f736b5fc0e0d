"""Copies the package's examples into a directory.

stellaris-jax examples DIR

Existing files are not replaced.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from stellaris_jax.base import inputs
from stellaris_jax.base.commands import PACKAGE
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import check_directory, copy
from stellaris_jax.cli import program

FIRST = "train.py"
"""First example to run."""


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    parser = program.Parser("examples", __doc__)
    parser.add_argument(
        "directory", metavar="DIR", type=program.path, help="directory to copy them to, such as examples"
    )
    target: Path = parser.parse_args(argv).directory
    source = shipped_examples()
    check_directory("DIR", target)
    for path in example_files(source):
        place = target / path.relative_to(source)
        exists = place.exists() or place.is_symlink()
        if not exists:
            _copy(path, place)
        print(f"{'kept ' if exists else 'wrote'} {place}")
    print(f"\nNext: python {shlex.quote(str(target / FIRST))}")


def shipped_examples() -> Path:
    """Directory of the examples: inside the installed package, or at the top of a checkout."""
    installed = PACKAGE / "examples"
    return installed if installed.is_dir() else PACKAGE.parent / "examples"


def example_files(source: Path) -> list[Path]:
    """All files of the examples, without Python's caches."""
    return sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _copy(path: Path, place: Path) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        copy(path, place, inputs.DOCUMENT)
    except OSError as error:
        raise ConfigError(f"DIR={place.parent} cannot be written ({inputs.reason(error)}).") from None
