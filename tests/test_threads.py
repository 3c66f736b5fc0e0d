"""How many threads JAX starts with for operations on a CPU."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import python

from stellaris_jax import load_policy
from stellaris_jax.config.compose import compose_config
from stellaris_jax.engine.mesh import threads_of

COUNT = """
import os, sys
from pathlib import Path
from stellaris_jax.execute.loading import load_config
load_config(sys.argv[2:], alone=sys.argv[1] == "alone")
threads = sum(task.read_text().startswith("tf_XLAEigen") for task in Path("/proc/self/task").glob("*/comm"))
print(threads, os.environ.get("NPROC"))
"""
SMALL = ["env=gymnax/cartpole"]


@pytest.mark.parametrize(
    ("overrides", "one"),
    [
        (SMALL, True),
        (["env=gymnax/acrobot", "system=allreduce"], True),
        ([*SMALL, "env.num_envs=32"], True),  # the largest that was measured
        ([*SMALL, "env.num_envs=64"], False),
        ([*SMALL, "network.hidden=[512]"], False),
        ([*SMALL, "num_seeds=2"], False),
        ([*SMALL, "engine.devices=2"], False),
        ([*SMALL, "executor=live"], False),
        ([*SMALL, "network=gru"], False),
        (["env=gymnax/breakout_minatar"], False),
        (["env=brax/inverted_pendulum", "env.num_envs=4"], False),
        (["env=envpool/hopper"], False),
    ],
)
def test_one_where_all_operations_are_small(overrides: list[str], one: bool) -> None:
    assert threads_of(compose_config(overrides)) == (1 if one else None)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are told by Linux")
def test_a_run_that_is_not_alone_has_all() -> None:
    """And who says how many is heard. The variable is JAX's own affair: this tells if it is not heard any more."""
    cores = str(len(os.sched_getaffinity(0)))
    for alone, given, count in (
        ("alone", {}, "1 None"),
        ("beside others", {}, f"{cores} None"),
        ("alone", {"NPROC": "3"}, "3 3"),
    ):
        command = [sys.executable, "-c", COUNT, alone, *SMALL]
        environment = {name: value for name, value in os.environ.items() if name != "NPROC"} | given
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == count


def test_their_number_changes_nothing(tmp_path: Path) -> None:
    """The same records to the bit with one thread and with two, of what is thought small enough for one."""
    job = [*SMALL, "env.num_envs=32", "total_steps=8192", "run.progress=false", "evaluation.points=1"]
    found = []
    for threads in ("1", "2"):
        run = tmp_path / threads
        python("-m", "stellaris_jax", "train", *job, f"run.dir={run}", check=True, NPROC=threads)
        found.append(np.asarray(load_policy(run).params))
    np.testing.assert_array_equal(*found)
