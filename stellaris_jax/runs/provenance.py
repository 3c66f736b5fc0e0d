"""Provenance of a result: package versions, devices and processor."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

from stellaris_jax import __version__
from stellaris_jax.config.tree import Config

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "gymnax",
    "brax",
    "mujoco",
    "mujoco-mjx",
    "playground",
    "warp-lang",
    "envpool",
    "gymnasium",
)


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of the packages a result depends on."""
    result = {"python": platform.python_version(), "stellaris_jax": __version__}
    for name in PACKAGES:
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            continue
    return result


def device_name(config: Config) -> str:
    """Devices and host of a run, in words."""
    device = jax.devices()[0]
    host = f"{os.cpu_count()} host cores, {processor()}"
    return f"{config.engine.devices} x {device.platform}:{device.device_kind} ({host})"


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the host's processor: cloud machines of one name differ by a factor of two in speed."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    pairs = [[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]
    facts = dict(reversed(pairs))  # the first of several processors
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{word} {facts[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if facts.get(key)]
    return f"{name} ({', '.join(numbers)})" if numbers else name
