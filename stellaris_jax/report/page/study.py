"""The page of a study: its README.md, with the pictures in it."""

from __future__ import annotations

import base64
import io
import os
import re
import struct
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from urllib.parse import quote

from stellaris_jax.config import inputs
from stellaris_jax.config.schema import ConfigError
from stellaris_jax.report.page.markup import Cell, bullets, table, text

SOURCE = "README.md"
ROOM = 1_200_000
"""Bytes that all pictures may take, as text."""
WIDEST, COLOURS = 1400, 96
"""Of a picture: pixels, at most, and colours."""
PIXELS = 16_000_000
"""Pixels that a picture may have to be read."""
MOST = 200
"""Pictures of a page."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
PICTURE = re.compile(r"!\[([^\]]{0,1000})\]\(([^)\s]{1,1000})\)")
"""Pattern of a picture. Without limits, many that are begun and not ended would take a time that is quadratic."""
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:|//|#", re.IGNORECASE)
"""How an address begins that is none of a file beside the README."""


def is_study(place: Path) -> bool:
    """Whether a directory has a README.md to make a page of."""
    return (place / SOURCE).is_file()


def content(place: Path, out: Path) -> tuple[str, list[str]]:
    """The page of a directory, between its beginning and its end; and what is left out of it, in sentences.

    Raises ConfigError where its README.md cannot be read.
    """
    try:
        source = inputs.read_text(place / SOURCE, errors="replace")
    except OSError as error:
        raise ConfigError(f"{place / SOURCE} cannot be read: {inputs.reason(error)}.") from None
    source = _without_comments(source)
    names = dict.fromkeys(found[2] for found in PICTURE.finditer(source))
    notes: list[str] = []
    small = _small({name: place / name for name in names if not ADDRESS.match(name)}, notes)
    pictures = _pictures(small, notes)

    def inline(line: str) -> str:
        return _inline(line, lambda target: _address(target, place, out), pictures)

    missing = f'<div class="notes">{bullets(notes)}</div>' if notes else ""
    return missing + "".join(_blocks(source.splitlines(), inline)), notes


def _without_comments(source: str) -> str:
    """A text without what stands between `<!--` and `-->`."""
    first, *others = source.split("<!--")
    return first + "".join(one.partition("-->")[2] if "-->" in one else f"<!--{one}" for one in others)


def _small(paths: dict[str, Path], notes: list[str]) -> dict[str, Path]:
    """Pictures that are PNG and small enough to be decoded; `notes` is told of the others."""
    found: dict[str, Path] = {}
    for name, path in paths.items():
        if len(found) == MOST:
            notes.append(f"Pictures after the first {MOST} are left out.")
            break
        try:
            with inputs.open_regular(path, inputs.DOCUMENT) as file:
                head = file.read(24)
            if not head.startswith(SIGNATURE):
                raise ValueError("it is no PNG picture")
            width, height = struct.unpack(">II", head[16:])
            if width * height > PIXELS:
                raise ValueError(f"it has {width} × {height} pixels, more than the {PIXELS:,} that are read")
        except (OSError, ValueError, struct.error) as error:
            notes.append(f"{path} is left out: {inputs.reason(error)}.")
        else:
            found[name] = path
    return found


def _pictures(paths: dict[str, Path], notes: list[str]) -> dict[str, str]:
    """Pictures as addresses that hold them, small enough for the page; `notes` is told of those that are damaged."""
    from PIL import Image  # of Matplotlib's

    width, found, damaged = WIDEST, dict[str, str](), dict[str, str]()
    while True:
        for name, path in paths.items():
            try:
                with inputs.open_regular(path) as packed, Image.open(packed, formats=("PNG",)) as image:
                    flat = Image.new("RGB", image.size, "white")
                    flat.paste(image, mask=image.convert("RGBA").getchannel("A"))
            except (OSError, ValueError, SyntaxError) as error:
                damaged[name] = f"{name} is left out: it is damaged ({inputs.reason(error)})."
                continue
            flat.thumbnail((width, width))
            file = io.BytesIO()
            flat.quantize(COLOURS).save(file, "PNG", optimize=True)
            found[name] = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        if sum(map(len, found.values())) <= ROOM or width < 300:
            notes.extend(damaged.values())
            return found
        width = int(0.8 * width)


def _address(target: str, place: Path, out: Path) -> str:
    """Where a link leads, from the page; nowhere where it would run something."""
    if ADDRESS.match(target):
        return target if re.match(r"https?:|mailto:|#", target, re.IGNORECASE) else ""
    path, hash_, part = target.partition("#")
    moved = os.path.relpath((place / path).resolve(), out.resolve().parent).replace(os.sep, "/")
    return quote(moved) + hash_ + part


def _inline(line: str, address: Callable[[str], str], pictures: dict[str, str]) -> str:
    """Text with code, pictures, links and emphasis."""
    kept: list[str] = []

    def keep(markup: str) -> str:
        kept.append(markup)
        return f"\0{len(kept) - 1}\0"

    def picture(found: re.Match[str]) -> str:
        if found[2] not in pictures:
            return keep(text(f"[{found[1]}]"))
        return keep(f'<img alt="{escape(found[1])}" src="{pictures[found[2]]}">')

    def linked(found: re.Match[str]) -> str:
        return keep(f'<a href="{escape(address(found[2]))}">') + found[1] + keep("</a>")

    line = re.sub(r"`([^`]+)`", lambda found: keep(f"<code>{text(found[1])}</code>"), line.replace("\0", ""))
    line = PICTURE.sub(picture, line)
    line = re.sub(r"\[([^\]]{1,1000})\]\(([^)\s]{1,1000})\)", linked, line)
    line = re.sub(r"\*\*(.{1,1000}?)\*\*", r"<strong>\1</strong>", text(line))
    line = re.sub(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])", r"<em>\1</em>", line)
    return re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], line)


def _blocks(lines: list[str], inline: Callable[[str], str]) -> Iterator[str]:
    """Headings, tables, lists, quotations, code and paragraphs."""
    place = 0
    while place < len(lines):
        line = lines[place]
        start = place
        if not line.strip():
            place += 1
        elif line.startswith("```"):
            place = next((i for i in range(place + 1, len(lines)) if lines[i].startswith("```")), len(lines)) + 1
            yield f"<pre>{text(chr(10).join(lines[start + 1 : place - 1]))}</pre>"
        elif line.startswith("    "):
            place = _while(lines, place, lambda one: one.startswith("    "))
            yield f"<pre>{text(chr(10).join(one[4:] for one in lines[start:place]))}</pre>"
        elif heading := re.match(r"(#{1,6}) +(.*)", line):
            place += 1
            level = min(3, len(heading[1]))
            yield f"<h{level}>{inline(heading[2])}</h{level}>"
        elif line.startswith("|"):
            place = _while(lines, place, lambda one: one.startswith("|"))
            yield _table([_cells(one) for one in lines[start:place]], inline)
        elif line.startswith(">"):
            place = _while(lines, place, lambda one: one.startswith(">"))
            inner = [one[1:].removeprefix(" ") for one in lines[start:place]]
            yield f'<div class="notes">{"".join(_blocks(inner, inline))}</div>'
        elif re.match(r"[-*] ", line):
            place = _while(lines, place, lambda one: bool(re.match(r"[-*] |  +\S", one)))
            items = re.split(r"^[-*] ", "\n".join(lines[start:place]), flags=re.MULTILINE)[1:]
            listed = "".join(f"<li>{inline(' '.join(item.split()))}</li>" for item in items)
            yield f"<ul>{listed}</ul>"
        else:
            place = _while(lines, place, lambda one: bool(one.strip()) and not re.match(r"#|\||>|```|[-*] ", one))
            yield f"<p>{inline(' '.join(lines[start:place]))}</p>"


def _while(lines: list[str], start: int, holds: Callable[[str], bool]) -> int:
    """The first line after `start` of which it does not hold."""
    return next((i for i in range(start + 1, len(lines)) if not holds(lines[i])), len(lines))


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _table(rows: list[list[str]], inline: Callable[[str], str]) -> str:
    head, body = rows[0], [row for row in rows[1:] if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    cells = [[Cell(f'<span class="long">{inline(cell)}</span>') for cell in row] for row in body]
    even = [row + [Cell("")] * (len(head) - len(row)) for row in cells]
    return table(head, [row[: len(head)] for row in even], "table", sortable=False)


STYLE = """
img{max-width:min(100%,1000px);height:auto;background:#fff;border-radius:4px}p:has(img){max-width:none}
td .long{min-width:0}td{vertical-align:top}
"""
