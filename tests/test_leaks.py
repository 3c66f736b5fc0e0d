"""Memory of long runs: nothing that is done after every round, or for every checkpoint, is kept."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import python

from stellaris_jax.runs.checkpoint import Checkpoints

ARRAYS = 20
MOST_BYTES = 3000
"""Bytes by which a process may grow for a record and its checkpoint; 10 kB leaked before, of which 0.1 kB is left."""


def test_a_checkpoint_leaves_nothing_in_memory(tmp_path: Path) -> None:
    """TensorStore would leak four strings for each of its arrays."""
    checkpoints, blocks = Checkpoints(tmp_path / "checkpoints", keep=1), []
    for number in range(1, 31):
        checkpoints.save(number, [np.full(8, number)] * ARRAYS, {})
        checkpoints.wait()
        if number in (10, 30):
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    checkpoints.close()
    assert (blocks[1] - blocks[0]) / 20 < 2 * ARRAYS


LONG = """
import ctypes, gc, os, sys
from stellaris_jax import load_config, train
rounds, run_dir = int(sys.argv[1]), sys.argv[2]
config = load_config([
    "env=gymnax/cartpole", "env.num_envs=2", "algorithm.rollout_length=4", "network.hidden=[4]",
    "algorithm.anneal=false", f"total_steps={8 * rounds}", "evaluation.points=10", "evaluation.episodes=2",
    "run.progress=false", "checkpoint.interval=1", "checkpoint.keep=1", f"run.dir={run_dir}",
])
def measure(number, record, trainer):
    if number in (rounds // 4, rounds - 1):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm") as file:
            print("RSS", int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), flush=True)
train(config, [measure])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_of_a_long_run_is_flat(tmp_path: Path) -> None:
    """Thousands of records with a checkpoint each: an hour of a run that saves every second."""
    rounds = 3200
    done = python("-c", LONG, rounds, tmp_path / "run", check=True, JAX_PLATFORMS="cpu")
    first, last = (int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("RSS"))
    assert (last - first) / (0.75 * rounds) < MOST_BYTES, (first, last)
