"""Integrity of a run's files: a check in every line of `metrics.jsonl`, digests in `summary.json`.

`check` ends every line: the line's number, a CRC-32 of the line, and the run that it belongs to, as in
`17-9f3a2c1b-5e6f7a8b`. So a flipped bit, a missing line and a file of another run are found, also after the run has
been resumed. `integrity` in the summary holds SHA-256 digests of the metrics, of the configuration and of the summary
itself. Files of earlier versions have neither; they are compared with each other as far as that goes.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from stellaris_jax.config import inputs
from stellaris_jax.config.continuation import RESUMABLE

KEY = "integrity"
"""Key of the digests in a summary."""
PLACES = ("resume", "run", "plugins", "trace", "init_from")
"""Keys, and groups of keys, that may be edited without making another run: where it, its plug-ins, its trace and its
start lie."""
CHECK = re.compile(rb',"check":"(\d+)-([0-9a-f]{8})-([0-9a-f]{8})"}\s*$')

Flat = Mapping[str, Any]


class Checked(NamedTuple):
    """A line of `metrics.jsonl`: its text without the check, its number, and the run that it belongs to.

    The number is 0, and the owner empty, where the line has no check.
    """

    text: bytes
    number: int = 0
    owner: str = ""


def settings_digest(config: Flat) -> str:
    """Digest of a flat configuration, but for where things lie."""
    return _digest(_without(config, PLACES))


def fixed_settings(config: Flat) -> dict[str, Any]:
    """Settings of a flat configuration that cannot change while a run is resumed."""
    return _without(config, (*PLACES, *RESUMABLE))


def owner_of(config: Flat) -> str:
    """Eight letters for a run: a digest of the settings that cannot change while it is resumed."""
    return _digest(fixed_settings(config))[:8]


def _without(config: Flat, left_out: Iterable[str]) -> dict[str, Any]:
    names = tuple(left_out)
    groups = tuple(f"{name}." for name in names)
    return {key: value for key, value in config.items() if key not in names and not key.startswith(groups)}


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def checked_line(text: str, number: int, owner: str) -> str:
    """A line of JSON, a mapping, with its check; ends in a line break."""
    return f'{text[:-1]},"check":"{number}-{_crc(text.encode(), number, owner)}-{owner}"}}\n'


def _crc(text: bytes, number: int, owner: str) -> str:
    return f"{zlib.crc32(text, zlib.crc32(f'{number}-{owner}'.encode())):08x}"


def unchecked(line: bytes) -> Checked | None:
    """A line without its check; None where the check does not hold."""
    found = CHECK.search(line)
    if found is None:
        return Checked(line)
    text, number, owner = line[: found.start()] + b"}", int(found[1]), found[3].decode()
    return Checked(text, number, owner) if _crc(text, number, owner) == found[2].decode() else None


def sealed(summary: dict[str, Any], metrics: str, config: Flat, trace: str = "") -> dict[str, Any]:
    """A summary, as plain data, with digests.

    Args:
      summary: the figures.
      metrics: digest of the metrics file.
      config: the flat configuration, as it is read from `config.yaml`.
      trace: digest of the trace of a live run (`digest_of`).
    """
    digests = {"metrics": metrics, "settings": settings_digest(config), **({"trace": trace} if trace else {})}
    return {**summary, KEY: {**digests, "summary": _digest([summary, digests])}}


class Seal(NamedTuple):
    """Digests that a summary was written with; empty where an earlier version wrote it."""

    metrics: str = ""
    settings: str = ""
    trace: str = ""


def digest_of(path: Path) -> str:
    """SHA-256 of a file; "" where there is none. Raises OSError."""
    try:
        return inputs.digest_of(path)
    except FileNotFoundError:
        return ""


def seal_of(summary: dict[str, Any]) -> Seal | None:
    """The digests in a summary; None where the summary is not what was written."""
    if KEY not in summary:
        return Seal()
    try:
        digests = dict(summary[KEY])
        own = digests.pop("summary")
        rest = {key: value for key, value in summary.items() if key != KEY}
        return Seal(**digests) if own == _digest([rest, digests]) else None
    except (TypeError, ValueError, KeyError):
        return None
