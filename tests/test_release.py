"""A run that is over leaves nothing in memory, without Python having to look for what refers to itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from training import steps, tiny

import stellaris_jax.report.curves  # noqa: F401  (what is imported late keeps frames of the import, once per process)
from stellaris_jax.execute.run import train
from stellaris_jax.execute.trainer import Trainer


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


KINDS = {
    "plain": [],
    "memory": ["network=gru"],
    "seeds": ["num_seeds=2"],
    "impact": ["algorithm=impact"],
    "scaling": ["scaling=nitro"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_lets_go_of_what_it_is_made_of(kind: str, tmp_path: Path, uncollected: None) -> None:
    """Sweeps are of hundreds of runs, and commands seldom look (`stellaris_jax.cli.program.COLLECT_AFTER`)."""
    seen: dict[str, weakref.ref[Any]] = {}

    def keep(number: int, record: dict[str, Any], trainer: Trainer) -> None:
        parts = {"trainer": trainer, "engine": trainer.engine, "executor": trainer.executor, "source": trainer.source}
        seen.update({name: weakref.ref(part) for name, part in parts.items()})
        seen["policy"] = weakref.ref(trainer.seed_states.states[0].params)

    train(tiny(*KINDS[kind], steps(4), f"run.dir={tmp_path / 'run'}", "evaluation.points=2"), callbacks=[keep])
    assert seen and [name for name, part in seen.items() if part() is not None] == []
