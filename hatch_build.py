"""Long description of the built package: README.md, whose relative links become absolute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


def absolute(text: str, repository: str) -> str:
    """A text in Markdown with links to files of a repository on GitHub, and its pictures' contents."""
    raw = repository.replace("https://github.com/", "https://raw.githubusercontent.com/")

    def moved(found: re.Match[str]) -> str:
        label, target = found.groups()
        place = f"{raw}/main" if label.startswith("!") else f"{repository}/blob/main"
        return f"{label}({place}/{target})"

    return LINK.sub(moved, text)


class CustomMetadataHook(MetadataHookInterface):
    """The hook that Hatchling calls by this name."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, metadata["urls"]["Repository"]),
        }
