"""Sources of Hydra's config files: environments without a file, and a user's own files."""

from __future__ import annotations

import re
from pathlib import Path

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from stellaris_jax.config.shipped import AUTOMATIC, is_automatic, shipped_configs, tuned_file
from stellaris_jax.config.stored import read_yaml


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
