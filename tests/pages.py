"""Pages of reports, read."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path


class Reader(HTMLParser):
    """Contents of a page: its tables' cells, headings, links, identifiers, text; and whether its tags match."""

    def __init__(self, page: Path):
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.links: list[str] = []
        self.headings: list[str] = []
        self.identifiers: list[str] = []
        self.words = ""
        self.open: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        if tag == "a":
            self.links.append(given["href"] or "")
        if given.get("id"):
            self.identifiers.append(given["id"] or "")
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag in ("h2", "h3"):
            self.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "link", "img"):
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data
        if self.open and self.open[-1] in ("h2", "h3"):
            self.headings[-1] += data
        if not {"style", "script"} & set(self.open):
            self.words += data + " "
