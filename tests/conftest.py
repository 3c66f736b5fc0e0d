"""Test process: four fake CPU devices and a compile cache that outlives the run."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import thorough

if TYPE_CHECKING:
    from stellaris_jax.config.tree import Config
    from stellaris_jax.engine.program_cache import ProgramCache


def pytest_configure() -> None:
    # The environment reaches the processes that tests start, too. Compiled programs are code: the cache is the user's.
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(user_cache / "stellaris-jax" / "tests"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
    # Consent and other state that commands store for this user belong to the tests alone.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="stellaris-jax-state-")
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Most of the suite's time is LLVM's, for programs that run once. XLA_FLAGS=--xla_backend_optimization_level=3 tests
    # them as users run them.
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_backend_optimization_level" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_optimization_level=0".strip()

    import jax

    jax.config.update("jax_num_cpu_devices", 4)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", metavar="I/N", default="0/1", help="only every N-th file of tests, from the I-th on")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of `thorough.txt` are marked so, and those of other shares are left out."""
    listed = thorough.listed()
    for item in items:
        if item.nodeid in listed:
            item.add_marker("thorough")
    number, shares = map(int, config.getoption("share").split("/"))
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    others = {*files} - {*files[number::shares]}
    config.hook.pytest_deselected(items=[item for item in items if item.path in others])
    items[:] = [item for item in items if item.path not in others]


@pytest.fixture(autouse=True)
def as_registered() -> Iterator[None]:
    """Names and plug-ins that a test adds are gone after it, so that none depends on those before it."""
    from stellaris_jax.base import registry

    kinds = registry.register.kinds().values()
    entries = {kind: dict(kind._entries) for kind in kinds}
    plugins, modules = dict(registry._plugins), {*sys.modules}
    yield
    for kind in kinds:
        # The package's own objects come at the first lookup, and stay.
        for name in [name for name, place in kind._places.items() if not place.module.startswith("stellaris_jax.")]:
            if name not in entries[kind]:
                kind._entries.pop(name, None)
                del kind._places[name]
    added = {name for name in registry._plugins if name not in plugins}
    for name in [name for name in sys.modules if name not in modules and name.partition(".")[0] in added]:
        del sys.modules[name]
    for name in added:
        del registry._plugins[name]


MAPPED = 25_000
"""Mappings of memory at which compiled programs are let go of: Linux gives a process 65,530, each program takes some,
and XLA crashes where it gets no more."""


@pytest.fixture(autouse=True)
def few_mappings(programs: ProgramCache) -> Iterator[None]:
    """Programs are dropped after any test, before there are too many; tests that need them compile them again."""
    yield
    maps = Path("/proc/self/maps")
    if maps.is_file() and maps.read_bytes().count(b"\n") > MAPPED:
        import gc

        import jax

        programs.forget()
        EVALUATORS.clear()
        jax.clear_caches()
        gc.collect()


EVALUATORS: dict[Any, Any] = {}
"""Evaluators of host environments in this process, by the settings that shape their programs."""


@pytest.fixture(scope="session")
def programs() -> ProgramCache:
    """Compiled programs of this process."""
    from stellaris_jax.engine.program_cache import ProgramCache

    return ProgramCache()


@pytest.fixture(scope="module")
def shared_programs(programs: ProgramCache) -> Iterator[None]:
    """Trainers share what they compile with those before."""
    from stellaris_jax.execute import trainer
    from stellaris_jax.sources import host

    make = host.HostEvaluator

    def remembered(env: Any, network: Any, config: Config, episodes: int, *rest: Any) -> Any:
        key = (config.env, config.network, config.evaluation.greedy, episodes)
        if key not in EVALUATORS:
            EVALUATORS[key] = make(env, network, config, episodes, *rest)
        return EVALUATORS[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "ProgramCache", lambda: programs)
        patch.setattr(host, "HostEvaluator", remembered)
        yield
