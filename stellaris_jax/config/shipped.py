"""Config files that ship with the package, and which environments have one."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stellaris_jax.base.commands import PACKAGE, argument, command

if TYPE_CHECKING:
    from stellaris_jax.config.tree import Config

AUTOMATIC = ("normalize_observation", "rescale_action")
"""Keys of `env` that are null and decided by the spaces, in suites without files in `configs/env`."""
DIAGNOSTIC = "diagnostic"
"""Suite of the tests, which gets no automatic settings."""
FEW_LEARNERS = 2
"""Asynchronous learners up to which one learner's learning rate is not far off."""


def shipped_configs() -> Path:
    """Directory of the shipped config files: inside the installed package, or at the top of a checkout."""
    installed = PACKAGE / "configs"
    return installed if installed.is_dir() else PACKAGE.parent / "configs"


def files_below(directory: Path | None) -> tuple[Any, ...]:
    """All config files below a directory, behind links too, each with its modification time and size."""
    paths, visited = [], set()
    for folder, folders, names in os.walk(directory, followlinks=True) if directory else []:
        if (place := os.path.realpath(folder)) in visited:
            folders.clear()  # a link to a visited directory
            continue
        visited.add(place)
        paths += [Path(folder, name) for name in names if name.endswith(".yaml")]
    existing = (path for path in sorted(paths) if path.is_file())
    return tuple((str(path), (stat := path.stat()).st_mtime_ns, stat.st_size) for path in existing)


def is_automatic(env: str) -> bool:
    """Whether the suite has no files in `configs/env`, so that spaces decide the keys of `AUTOMATIC`."""
    suite = env.partition("/")[0]
    return not _folder(suite).is_dir() and suite.lower() != DIAGNOSTIC


def tuned_file(env: str) -> Path | None:
    """File of an environment in `configs/env`, whatever the spelling of its name; `None` if there is none."""
    suite, _, task = env.partition("/")
    return next((file for file in sorted(_folder(suite).glob("*.yaml")) if _plain(file.stem) == _plain(task)), None)


def untuned(config: Config) -> list[str]:
    """Sentences for the user of an environment without a file in `configs/env`."""
    env, system = config.env.name, config.system
    if tuned_file(env) is not None or env.lower().startswith(f"{DIAGNOSTIC}/"):
        return []
    words = [command("tune"), argument("env", env)]
    words += [shlex.quote(f"plugins=[{','.join(config.plugins)}]")] if config.plugins else []
    words += [argument("system", system.name)] if system.name else []
    search = f"{' '.join(words)} --space learning_rate"
    sentences = [f"{env} has no tuned settings; {search} searches for a learning rate"]
    if system.learners > FEW_LEARNERS and system.rule not in ("allreduce", "central"):
        rate = config.algorithm.learning_rate
        sentences.append(
            f"{system.learners} asynchronous learners often need a tenth of one learner's learning rate: try "
            f"algorithm.learning_rate={rate / 10.0:g}"
        )
    return sentences


def _folder(suite: str) -> Path:
    return shipped_configs() / "env" / suite.lower()


def _plain(task: str) -> str:
    """Task name in lower case, without version and punctuation: `CartPole-v1` -> `cartpole`."""
    return re.sub(r"[\W_]", "", re.sub(r"-v\d+$", "", task.lower()))
