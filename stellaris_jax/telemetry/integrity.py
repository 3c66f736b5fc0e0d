"""Integrity of a run's files: a check in every line of `metrics.jsonl`, digests in `summary.json`.

`check` ends every line: the line's number, a CRC-32 of the line, and the run that it belongs to, as in
`17-9f3a2c1b-5e6f7a8b`. It detects flipped bits, missing lines and files of another run, also after the run has been
resumed. The key `integrity` in the summary holds SHA-256 digests of the metrics, of the configuration and of the
summary itself. Files of earlier versions have neither, and are only compared with each other.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from stellaris_jax.base import inputs
from stellaris_jax.config.continuation import RESUMABLE
from stellaris_jax.config.old_options import first_layout

KEY = "integrity"
"""Key of the digests in a summary."""
PLACES = ("resume", "run", "plugins", "trace", "init_from")
"""Keys, and groups of keys, that may be edited without making another run: paths of the run and of its inputs."""
EVERY_PLACES = (PLACES, PLACES[:-1])
"""`PLACES` of every version that wrote digests, newest first: a run keeps the digests that its version wrote."""
CHECK = re.compile(rb',"check":"(\d+)-([0-9a-f]{8})-([0-9a-f]{8})"}\s*$')

Flat = Mapping[str, Any]


class Checked(NamedTuple):
    """Line of `metrics.jsonl`.

    Attributes:
      text: the line without its check.
      number: number of the line; 0 without a check.
      owner: run that the line belongs to; empty without a check.
    """

    text: bytes
    number: int = 0
    owner: str = ""


def settings_digest(config: Flat, places: Sequence[str] = PLACES) -> str:
    """Digest of a flat configuration without its paths."""
    return _digest(_without(first_layout(config), places))


def has_settings_digest(config: Flat, digest: str) -> bool:
    """Whether a digest is `settings_digest` of the configuration, in this version or an earlier one."""
    return any(digest == settings_digest(config, places) for places in EVERY_PLACES)


def fixed_settings(config: Flat, places: Sequence[str] = PLACES) -> dict[str, Any]:
    """Settings of a flat configuration that cannot change while a run is resumed, by the keys of digests."""
    return _without(first_layout(config), (*places, *RESUMABLE))


def run_identity(config: Flat, places: Sequence[str] = PLACES) -> str:
    """Eight-letter identity of a run: a digest of the settings that cannot change while it is resumed."""
    return _digest(fixed_settings(config, places))[:8]


def has_identity(config: Flat, owner: str) -> bool:
    """Whether an identity is `run_identity` the configuration, in this version or an earlier one."""
    return any(owner == run_identity(config, places) for places in EVERY_PLACES)


def _without(config: Flat, left_out: Iterable[str]) -> dict[str, Any]:
    names = tuple(left_out)
    groups = tuple(f"{name}." for name in names)
    return {key: value for key, value in config.items() if key not in names and not key.startswith(groups)}


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def checked_line(text: str, number: int, owner: str) -> str:
    """Line of JSON, a mapping, with its check added; ends in a line break."""
    return f'{text[:-1]},"check":"{number}-{_crc(text.encode(), number, owner)}-{owner}"}}\n'


def _crc(text: bytes, number: int, owner: str) -> str:
    return f"{zlib.crc32(text, zlib.crc32(f'{number}-{owner}'.encode())):08x}"


def verified_line(line: bytes) -> Checked | None:
    """Line without its check; None if the check fails."""
    match = CHECK.search(line)
    if match is None:
        return Checked(line)
    text, number, owner = line[: match.start()] + b"}", int(match[1]), match[3].decode()
    return Checked(text, number, owner) if _crc(text, number, owner) == match[2].decode() else None


def with_digests(summary: dict[str, Any], metrics: str, config: Flat, trace: str = "") -> dict[str, Any]:
    """Summary, as plain data, with digests.

    Args:
      summary: the figures.
      metrics: digest of the metrics file.
      config: flat configuration, as read from `config.yaml`.
      trace: digest of the trace of a live run (`digest_of`).
    """
    digests = {"metrics": metrics, "settings": settings_digest(config), **({"trace": trace} if trace else {})}
    return {**summary, KEY: {**digests, "summary": _digest([summary, digests])}}


class Digests(NamedTuple):
    """Digests in a summary; empty in summaries of earlier versions.

    Attributes:
      metrics: digest of the metrics file.
      settings: digest of the configuration.
      trace: digest of a live run's trace.
    """

    metrics: str = ""
    settings: str = ""
    trace: str = ""


def digest_of(path: Path) -> str:
    """SHA-256 of a file; "" if there is none. Raises OSError."""
    try:
        return inputs.digest_of(path)
    except FileNotFoundError:
        return ""


def summary_digests(summary: dict[str, Any]) -> Digests | None:
    """Digests in a summary; None if the summary was changed."""
    if KEY not in summary:
        return Digests()
    try:
        digests = dict(summary[KEY])
        recorded = digests.pop("summary")
        figures = {key: value for key, value in summary.items() if key != KEY}
        return Digests(**digests) if recorded == _digest([figures, digests]) else None
    except (TypeError, ValueError, KeyError):
        return None
