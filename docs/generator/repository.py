"""Pages that are files of the repository: what `results/` says, the changelog, the rules of contributing."""

from __future__ import annotations

import re
from os.path import relpath
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def sources() -> dict[str, str]:
    """Files of the repository that are pages, by the path below `docs/` that each has there."""
    results = REPOSITORY / "results"
    found = {"CHANGELOG.md": "project/changelog.md", "CONTRIBUTING.md": "project/contributing.md"}
    found |= {"SECURITY.md": "project/security.md", "results/README.md": "results/claims.md"}
    for path in [*sorted(results.glob("*/README.md")), *sorted(results.glob("*/*/*.md"))]:
        parts = path.relative_to(results).with_suffix("").parts
        found[path.relative_to(REPOSITORY).as_posix()] = f"results/{'-'.join(parts).removesuffix('-README')}.md"
    return {source: page for source, page in found.items() if (REPOSITORY / source).is_file()}


def pages() -> dict[str, str]:
    """Each of them, with links that lead where they led."""
    places = sources()
    return {page: rebased((REPOSITORY / source).read_text(), source, page, places) for source, page in places.items()}


def on_site(app: Any, name: str, content: list[str]) -> None:
    """Let links of a page that somebody wrote lead to pages of the site; in the checkout they lead to files.

    The arguments are those of Sphinx's event `source-read`.
    """
    page, places = f"{name}.md", sources()
    if page in places.values() or not (DOCS / page).is_file():
        return

    def moved(found: re.Match[str]) -> str:
        target = found[3].partition("#")[0]
        place = (DOCS / page).parent / target
        outside = target.startswith("../") and place.exists() and not place.resolve().is_relative_to(DOCS)
        return rebased(found[0], f"docs/{page}", page, places) if outside else found[0]

    content[0] = LINK.sub(moved, content[0])


def rebased(text: str, source: str, page: str, places: dict[str, str]) -> str:
    """A text of `source` as it stands on `page`.

    Links to files that are pages go there, others to the files themselves, which the site brings along. Of a folder,
    its README is what is meant; where there is nothing to lead to, text is left.
    """

    def moved(found: re.Match[str]) -> str:
        bang, label, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path, _, anchor = target.partition("#")
        place = ((REPOSITORY / source).parent / path).resolve()
        if not place.exists() or not place.is_relative_to(REPOSITORY):
            return label
        place = place / "README.md" if place.is_dir() else place
        name = place.relative_to(REPOSITORY).as_posix()
        if name in places or place.is_relative_to(DOCS):
            goal = places.get(name) or place.relative_to(DOCS).as_posix()
            return f"{bang}[{label}](/{goal}{f'#{anchor}' if anchor else ''})"
        if name == "README.md":
            return f"[{label}](/index.md)"
        return f"{bang}[{label}]({relpath(place, (DOCS / page).parent)})" if place.is_file() else label

    return LINK.sub(moved, text)
