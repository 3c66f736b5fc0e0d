"""Test process: four fake CPU devices and a compile cache that outlives the run."""

from __future__ import annotations

import os
from pathlib import Path


def pytest_configure() -> None:
    # The environment reaches the processes that tests start, too. Compiled programs are code: the cache is the user's.
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(user_cache / "stellaris-jax" / "tests"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    os.environ["JAX_PLATFORMS"] = "cpu"

    import jax

    jax.config.update("jax_num_cpu_devices", 4)
