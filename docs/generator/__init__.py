"""Pages that nobody writes: made of the registry, docstrings, the configuration's schema and `results/`.

`docs/conf.py` calls `write` before Sphinx reads anything, so what a page says is what the code does. They stay
away from git; hand-written ones lie beside the folders that are made here.
"""

from __future__ import annotations

from pathlib import Path

from generator import configuration, drawing, methods, reference, repository

FOLDERS = ("methods", "reference", "results", "project", "drawings")
"""Generator of the pages that `docs/` makes of the code and of `results/`."""


def pages() -> dict[str, str]:
    """Every file that is made, by its path below `docs/`."""
    return {
        **methods.pages(),
        **configuration.pages(),
        **reference.pages(),
        **repository.pages(),
        **drawing.pages(),
    }


def write(docs: Path) -> None:
    """Bring the folders up to date; what has not changed is left alone, so that Sphinx need not read it again."""
    made = pages()
    for folder in FOLDERS:
        for path in (docs / folder).rglob("*"):
            if path.is_file() and path.relative_to(docs).as_posix() not in made:
                path.unlink()
    for name, text in made.items():
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
