"""Settings of a sweep itself: keys `sweep.*` of its command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.options import unknown_key
from stellaris_jax.config.schema import shown


class SweepSettings(NamedTuple):
    """Settings of how the points of a sweep are trained.

    Attributes:
      together: train points concurrently, sharing programs.
      ray: address of the Ray cluster that trains them, `local` for one on this machine; empty for this process.
    """

    together: bool = True
    ray: str = ""

    @classmethod
    def of(cls, lines: Sequence[str]) -> SweepSettings:
        """Settings from lines such as `sweep.ray=local`. Raises ConfigError."""
        settings = cls()
        for line in lines:
            key, _, value = line.lstrip("+").partition("=")
            if key == "sweep.together":
                if value.lower() not in ("true", "false"):
                    raise ConfigError(f"{key} must be true or false, not {shown(value)}.")
                settings = settings._replace(together=value.lower() == "true")
            elif key == "sweep.ray":
                settings = settings._replace(ray=value.strip("\"'"))
            else:
                raise unknown_key(key)
        if settings.ray and not settings.together:
            raise ConfigError("sweep.ray is not possible with sweep.together=false, which trains one point at a time.")
        return settings


SWEEP_KEYS = tuple(f"sweep.{field}" for field in SweepSettings._fields)
