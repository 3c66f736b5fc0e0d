"""Texts in `env.kwargs` that lead to code or to files: `xml_file=/a/b.xml`, `env_id=module:Env-v0`.

Environments open or import what their arguments name. MuJoCo XML may include other files, shimmy imports the module
in `env_id`, and envpool's ViZDoom starts the program `vzd_path`. `config.trust` asks consent for such texts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError

PREFIX = "env.kwargs."
JOB = "job"
"""Argument of `env=job/training`: overrides of the job that a scheduler learns on."""
LEADING = re.compile(r"[:/\\]|^[~.]")
"""Pattern of a path, or of a module and a name in it."""
OPENED = re.compile(r"\w+_(path|dir|args)|motion_file", re.ASCII)
"""Arguments that always need consent: ViZDoom's paths may be relative, and its arguments write files."""


def leading(kwargs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Texts that lead to code or files, each after its dotted key, such as `env.kwargs.xml_file`."""
    texts = []
    for key, value in kwargs.items():
        if key != JOB or not isinstance(value, tuple):  # `config.trust` reads the lines of a job
            texts += [
                (name, text) for name, text in _texts(key, value) if LEADING.search(text) or _is_opened(name, text)
            ]
    return [(PREFIX + key, text) for key, text in texts]


def check_files(kwargs: Mapping[str, Any]) -> None:
    """Raise ConfigError if a text is the path of something that is no directory and no regular file.

    Files that are too large are refused as well: XML above 16 MiB, others above 256 MiB.
    """
    for key, value in kwargs.items():
        for name, text in _texts(key, value):
            path = os.path.expanduser(text)
            if not LEADING.search(text) or "\0" in path or os.path.isdir(path) or not os.path.lexists(path):
                continue
            try:
                inputs.open_regular(path, inputs.DOCUMENT if name.endswith("xml_file") else inputs.TABLE).close()
            except OSError as error:
                raise ConfigError(f"{PREFIX}{name}={text} cannot be used: {inputs.reason(error)}.") from None


def source_of(text: str) -> Path | str:
    """File that a text is the path of, or module that it names."""
    module, colon, _ = text.rpartition(":")
    return module if colon and not LEADING.search(module) else Path(os.path.expanduser(text))


def _is_opened(key: str, text: str) -> bool:
    return bool(text) and OPENED.fullmatch(key.rpartition(".")[2]) is not None


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Texts in an argument, each after its dotted key; the texts of a list share its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, element in value.items():
            yield from _texts(f"{key}.{name}", element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _texts(key, element)
