"""Where Hydra finds files of configuration: those that ship, a user's own, and environments that have none."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from stellaris_jax.config.commands import PACKAGE
from stellaris_jax.config.stored import read_yaml

AUTOMATIC = ("normalize_observation", "rescale_action")
"""Keys of `env` that are null, and decided by the spaces, for environments of suites without files in `configs/env`."""
DIAGNOSTIC = "diagnostic"
"""The suite of tests, which is left as it is."""


def shipped_configs() -> Path:
    """The directory of the shipped config files: inside the installed package, or at the top of a checkout."""
    installed = PACKAGE / "configs"
    return installed if installed.is_dir() else PACKAGE.parent / "configs"


def files_below(directory: Path | None) -> tuple[Any, ...]:
    """All files of configuration below a directory, behind links too, each with when it was changed and its size."""
    found, known = [], set()
    for folder, folders, names in os.walk(directory, followlinks=True) if directory else []:
        if (place := os.path.realpath(folder)) in known:
            folders.clear()  # a link to where it lies
            continue
        known.add(place)
        found += [Path(folder, name) for name in names if name.endswith(".yaml")]
    there = (path for path in sorted(found) if path.is_file())
    return tuple((str(path), (stat := path.stat()).st_mtime_ns, stat.st_size) for path in there)


def is_automatic(env: str) -> bool:
    """Whether the suite has no files in `configs/env`, so that spaces decide the keys of `AUTOMATIC`."""
    suite = env.partition("/")[0]
    return not _folder(suite).is_dir() and suite.lower() != DIAGNOSTIC


def _folder(suite: str) -> Path:
    return shipped_configs() / "env" / suite.lower()


class SuiteSource(ConfigSource):
    """Where Hydra finds `env/<suite>/<name>` for a name that has no file of its own.

    A spelling of a tuned environment (`CartPole-v1` for cartpole.yaml) gets its file, any other name nothing but the
    name. In suites without any file, such as gymnasium, the keys of `AUTOMATIC` depend on the spaces.
    Whether the suite has such an environment is checked later, by `load_config`.
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
        suite, _, task = name.partition("/")
        folder = _folder(suite)
        tuned = next((file for file in sorted(folder.glob("*.yaml")) if _plain(file.stem) == _plain(task)), None)
        about = {"name": name, **(dict.fromkeys(AUTOMATIC) if is_automatic(name) else {})}
        node = OmegaConf.merge(read_yaml(tuned) if tuned else {}, {"env": about})
        return ConfigResult(self.provider, self.full_path(), node, {"package": "_global_"})


class OwnSource(FileConfigSource):
    """Where Hydra finds the files of `--config-dir`, which are read as a run's stored configuration is."""

    @staticmethod
    def scheme() -> str:
        return "own"

    def load_config(self, config_path: str) -> ConfigResult:
        read_yaml(Path(self.path) / self._normalize_file_name(config_path))
        return super().load_config(config_path)


def _plain(task: str) -> str:
    """`CartPole-v1` -> `cartpole`: lower case, without version and punctuation."""
    return re.sub(r"[\W_]", "", re.sub(r"-v\d+$", "", task.lower()))
