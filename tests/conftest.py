"""Test process: four fake CPU devices and a compile cache that outlives the run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stellaris_jax.config.tree import Config

NOT_COMPILED = ("seed", "total_steps", "delays", "prices", "system", "evaluation", "checkpoint", "run", "resume")
COMPILED = ("system.aggregation", "system.truncation", "system.rho", "evaluation.greedy")
"""Parts of a configuration that no program of a trainer depends on, and what of them one does. The rest of a system is
in its plans and their shape."""


def pytest_configure() -> None:
    # The environment reaches the processes that tests start, too. Compiled programs are code: the cache is the user's.
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(user_cache / "stellaris-jax" / "tests"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Most of the suite's time is LLVM's, for programs that run once. XLA_FLAGS=--xla_backend_optimization_level=3 tests
    # them as users run them.
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_backend_optimization_level" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_optimization_level=0".strip()

    import jax

    jax.config.update("jax_num_cpu_devices", 4)


MADE: dict[Any, Any] = {}
"""Engines and evaluators of this process, by what shapes their programs."""


@pytest.fixture(scope="module")
def shared_programs() -> Iterator[None]:
    """Trainers share what they compile with those before, as far as their configurations allow it."""
    from stellaris_jax.engine.static import Static
    from stellaris_jax.training import trainer
    from stellaris_jax.training.sources import compiled, host

    def key(config: Config) -> str:
        static = {name: value for name, value in asdict(config).items() if name not in NOT_COMPILED}
        return json.dumps([static, [attrgetter(name)(config) for name in COMPILED]], sort_keys=True)

    def remembered(make: Callable[..., Any], place: int) -> Callable[..., Any]:
        def remember(*arguments: Any) -> Any:
            """`arguments[place]` is the configuration; what shapes the program beside it has an equal value."""
            rest = [repr(x) for x in arguments if isinstance(x, (int, Static))]
            found = (make, key(arguments[place]), *rest)
            if found not in MADE:
                MADE[found] = make(*arguments)
            return MADE[found]

        return remember

    with pytest.MonkeyPatch.context() as patch:
        for module, name, place in ((trainer, "Engine", 0), (compiled, "Evaluator", 2), (host, "HostEvaluator", 2)):
            patch.setattr(module, name, remembered(getattr(module, name), place))
        yield
