"""Sources of Hydra's config files: shipped files, a user's own, and environments without a file."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from stellaris_jax.base.commands import PACKAGE, argument, command
from stellaris_jax.config.stored import read_yaml

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


class SuiteSource(ConfigSource):
    """Hydra source of `env/<suite>/<name>` for names without a file of their own.

    Another spelling of a tuned environment (`CartPole-v1` for cartpole.yaml) gets that file. Any other name sets only
    the name. In suites without any file, such as gymnasium, the values of `untuned.yaml` are set as well, and the keys
    of `AUTOMATIC` depend on the spaces. `load_config` checks later whether the suite has the environment.
    """

    @staticmethod
    def scheme() -> str:
        return "suites"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return False

    def is_config(self, config_path: str) -> bool:
        return re.fullmatch(r"env/[^/]+/.+", config_path) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []

    def load_config(self, config_path: str) -> ConfigResult:
        name = config_path.removeprefix("env/").removesuffix(".yaml")
        automatic = is_automatic(name)
        values = shipped_configs() / "untuned.yaml" if automatic else tuned_file(name)
        about = {"name": name, **(dict.fromkeys(AUTOMATIC) if automatic else {})}
        node = OmegaConf.merge(read_yaml(values) if values else {}, {"env": about})
        return ConfigResult(self.provider, self.full_path(), node, {"package": "_global_"})


class OwnSource(FileConfigSource):
    """Hydra source of the files of `--config-dir`, which are checked as a run's stored configuration is."""

    @staticmethod
    def scheme() -> str:
        return "own"

    def load_config(self, config_path: str) -> ConfigResult:
        read_yaml(Path(self.path) / self._normalize_file_name(config_path))
        return super().load_config(config_path)


def _plain(task: str) -> str:
    """Task name in lower case, without version and punctuation: `CartPole-v1` -> `cartpole`."""
    return re.sub(r"[\W_]", "", re.sub(r"-v\d+$", "", task.lower()))
