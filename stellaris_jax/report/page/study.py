"""Page of a study: its README.md with the pictures embedded."""

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

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.report.page.markup import Cell, bullets, table, text

SOURCE = "README.md"
ROOM = 1_200_000
"""Size limit of all embedded pictures, in bytes of text."""
WIDEST, COLOURS = 1400, 96
"""Largest width of a picture, in pixels, and its number of colours."""
PIXELS = 16_000_000
"""Most pixels of a picture that is read."""
MOST = 200
"""Most pictures of a page."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
PICTURE = re.compile(r"!\[([^\]]{0,1000})\]\(([^)\s]{1,1000})\)")
"""Pattern of a picture. The length limits keep unterminated pictures from taking quadratic time."""
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:|//|#", re.IGNORECASE)
"""Pattern of addresses that are no relative paths."""


def is_study(place: Path) -> bool:
    """Whether a directory has a README.md to make a page of."""
    return (place / SOURCE).is_file()


def content(place: Path, out: Path) -> tuple[str, list[str]]:
    """Body of the page of a directory, and sentences about what was left out of it.

    Raises ConfigError if the README.md cannot be read.
    """
    try:
        source = inputs.read_text(place / SOURCE, errors="replace")
    except OSError as error:
        raise ConfigError(f"{place / SOURCE} cannot be read: {inputs.reason(error)}.") from None
    source = _without_comments(source)
    names = dict.fromkeys(match[2] for match in PICTURE.finditer(source))
    notes: list[str] = []
    small = _small({name: place / name for name in names if not ADDRESS.match(name)}, notes)
    pictures = _pictures(small, notes)

    def inline(line: str) -> str:
        return _inline(line, lambda target: _address(target, place, out), pictures)

    missing = f'<div class="notes">{bullets(notes)}</div>' if notes else ""
    return missing + "".join(_blocks(source.splitlines(), inline)), notes


def _without_comments(source: str) -> str:
    """Text without HTML comments."""
    first, *others = source.split("<!--")
    return first + "".join(part.partition("-->")[2] if "-->" in part else f"<!--{part}" for part in others)


def _small(paths: dict[str, Path], notes: list[str]) -> dict[str, Path]:
    """PNG pictures that are small enough to be decoded; others are reported in `notes`."""
    small: dict[str, Path] = {}
    for name, path in paths.items():
        if len(small) == MOST:
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
            small[name] = path
    return small


def _pictures(paths: dict[str, Path], notes: list[str]) -> dict[str, str]:
    """Pictures as data URLs, small enough together for the page; damaged ones are reported in `notes`."""
    from PIL import Image  # installed with Matplotlib

    width, encoded, damaged = WIDEST, dict[str, str](), dict[str, str]()
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
            encoded[name] = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        if sum(map(len, encoded.values())) <= ROOM or width < 300:
            notes.extend(damaged.values())
            return encoded
        width = int(0.8 * width)


def _address(target: str, place: Path, out: Path) -> str:
    """Target of a link, relative to the page; empty for schemes that could run code."""
    if ADDRESS.match(target):
        return target if re.match(r"https?:|mailto:|#", target, re.IGNORECASE) else ""
    path, hash_, part = target.partition("#")
    moved = os.path.relpath((place / path).resolve(), out.resolve().parent).replace(os.sep, "/")
    return quote(moved) + hash_ + part


def _inline(line: str, address: Callable[[str], str], pictures: dict[str, str]) -> str:
    """HTML of one line of Markdown with code, pictures, links and emphasis."""
    parts: list[str] = []

    def keep(markup: str) -> str:
        parts.append(markup)
        return f"\0{len(parts) - 1}\0"

    def picture(match: re.Match[str]) -> str:
        if match[2] not in pictures:
            return keep(text(f"[{match[1]}]"))
        return keep(f'<img alt="{escape(match[1])}" src="{pictures[match[2]]}">')

    def linked(match: re.Match[str]) -> str:
        return keep(f'<a href="{escape(address(match[2]))}">') + match[1] + keep("</a>")

    line = re.sub(r"`([^`]+)`", lambda match: keep(f"<code>{text(match[1])}</code>"), line.replace("\0", ""))
    line = PICTURE.sub(picture, line)
    line = re.sub(r"\[([^\]]{1,1000})\]\(([^)\s]{1,1000})\)", linked, line)
    line = re.sub(r"\*\*(.{1,1000}?)\*\*", r"<strong>\1</strong>", text(line))
    line = re.sub(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])", r"<em>\1</em>", line)
    return re.sub(r"\0(\d+)\0", lambda match: parts[int(match[1])], line)


def _blocks(lines: list[str], inline: Callable[[str], str]) -> Iterator[str]:
    """HTML of Markdown blocks: headings, tables, lists, quotations, code and paragraphs."""
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
            place = _while(lines, place, lambda text: text.startswith("    "))
            yield f"<pre>{text(chr(10).join(line[4:] for line in lines[start:place]))}</pre>"
        elif heading := re.match(r"(#{1,6}) +(.*)", line):
            place += 1
            level = min(3, len(heading[1]))
            yield f"<h{level}>{inline(heading[2])}</h{level}>"
        elif line.startswith("|"):
            place = _while(lines, place, lambda text: text.startswith("|"))
            yield _table([_cells(line) for line in lines[start:place]], inline)
        elif line.startswith(">"):
            place = _while(lines, place, lambda text: text.startswith(">"))
            inner = [line[1:].removeprefix(" ") for line in lines[start:place]]
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
    """Index of the first line after `start` for which the predicate is false."""
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
