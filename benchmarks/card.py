"""Costs and throughput of an accelerator: `python -m benchmarks.card JOB` runs one job in this process.

Every job is a process of its own, so that memory, compiler options and what is compiled are those of one alone. Set
`JAX_COMPILATION_CACHE_DIR`, and a second run of a job loads what the first compiled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.own import THROUGHPUT, TOKENS
from stellaris_jax.cli import program
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.simulated import planner_of
from stellaris_jax.execute.trainer import Trainer

Figures = dict[str, Any]

LOOPS = "--xla_gpu_enable_command_buffer=+WHILE"
"""XLA's flag that puts loops into CUDA graphs; off upstream, where it has crashed (openxla#35760)."""

CARTPOLE = ["env=gymnax/cartpole", "engine.chunk_rounds=16"]
BREAKOUT = [
    "env=gymnax/breakout_minatar", "system=stellaris", "algorithm.rollout_length=128", "algorithm.learning_rate=2.5e-3",
]  # fmt: skip
PENDULUM = [
    "env=gymnax/pendulum", "system=stellaris", "algorithm.rollout_length=128", "algorithm.epochs=8",
    "algorithm.minibatches=8", "algorithm.learning_rate=1e-3", "algorithm.anneal=false",
]  # fmt: skip
HOPPER = [
    "env=brax/hopper", "system=stellaris", "network.hidden=[256,256]", "algorithm.rollout_length=64",
    "algorithm.minibatches=32", "algorithm.learning_rate=3e-4",
]  # fmt: skip
WIDE = [
    "env=gymnax/cartpole", "system=central", "env.num_envs=8192", "env.normalize_reward=false", "network.hidden=[64]",
    "algorithm.rollout_length=32", "algorithm.epochs=1", "algorithm.minibatches=4", "engine.chunk_rounds=16",
]  # fmt: skip

JOBS: dict[str, list[str]] = {
    "cartpole": CARTPOLE,
    "cartpole, 8 seeds": [*CARTPOLE, "num_seeds=8"],
    "cartpole, 64 seeds": [*CARTPOLE, "num_seeds=64"],
    "cartpole, 8 lanes": [*CARTPOLE, "engine.lanes=8"],
    "cartpole, central": [*CARTPOLE, "system=central"],
    "cartpole, 8192 x 32": WIDE,
    "cartpole, 8192 x 32, 8 seeds": [*WIDE, "num_seeds=8", "engine.chunk_rounds=4"],
    "breakout": [*BREAKOUT, "engine.chunk_rounds=8"],
    "cartpole, 2048 x 32": [*THROUGHPUT["cartpole_large"], "system=central"],
    "hopper": [*HOPPER, "engine.chunk_rounds=2"],
    "hopper, 2048 x 10": [*THROUGHPUT["hopper_spring"], "system=central", "engine.chunk_rounds=4"],
    "cartpole, DQN": [*THROUGHPUT["cartpole_dqn"], "system=central"],
    "pendulum, SAC": [*THROUGHPUT["pendulum_sac"], "system=central"],
    "addition": [*TOKENS["tokens_addition"], "system=central"],
    "addition, 16 seeds": [*TOKENS["tokens_population"], "system=central"],
    "addition, 20M parameters": [
        *TOKENS["tokens_addition"], "system=central", "network.options.layers=6", "network.options.heads=8",
        "network.options.width=512", "network.options.inner=2048", "warm_start.updates=0",
    ],
}  # fmt: skip
"""Configurations whose rates are measured, by name."""

COMPARED = {
    "cartpole": [*CARTPOLE, "engine.chunk_rounds=1"],
    "breakout": [*BREAKOUT, "engine.chunk_rounds=1", "system.learners=4"],
    "pendulum": [*PENDULUM, "engine.chunk_rounds=1"],
}
"""Configurations whose first round is compared with a CPU's."""

LEAST = 2.0
"""Seconds for which chunks of a job are timed."""


def measure(job: str, overrides: list[str]) -> Figures:
    """Rate, compilation and memory of a job.

    Args:
      job: a name in `JOBS`.
      overrides: configuration beside the job's.

    Returns: median env steps per second of whole chunks, planning and records included; gradients per second.
    Milliseconds of a chunk, of its plan, and of the call that executes it. Seconds of compilation; the largest memory
    of the device; parameters of the network.
    """
    trainer = Trainer(load_config([*JOBS[job], "total_steps=1e12", "evaluation.points=0", *overrides]))
    trainer.compile()
    compiled = trainer.summary(None)["compile_seconds"]
    trainer.step()
    rates, planned, called = list[float](), list[float](), list[float]()
    planner, engine = planner_of(trainer.executor), trainer.engine
    plan, placed = planner.plan, engine.placed
    # Functions of these two objects, so that nothing else is timed.
    planner.plan = _timed(plan, planned)  # type: ignore[method-assign]
    engine.placed = lambda *inputs: _timed(placed(*inputs), called)  # type: ignore[method-assign]
    begin = time.perf_counter()
    while time.perf_counter() - begin < LEAST or len(rates) < 3:
        start = time.perf_counter()
        rounds = len(trainer.step())
        rates.append(rounds / (time.perf_counter() - start))
    rounds_per_second = statistics.median(rates)
    members = trainer.config.num_seeds
    result = {
        "steps_per_second": rounds_per_second * trainer.steps_per_round * members,
        "gradients_per_second": rounds_per_second * trainer.spec.shape.gradients * members,
        "chunks": len(rates),
        "chunk_ms": 1e3 * rounds / rounds_per_second,
        "planning_ms": 1e3 * statistics.median(planned),
        "call_ms": 1e3 * statistics.median(called),
        "compile_seconds": compiled,
        "device_memory_mb": memory(),
        "parameters": trainer.network.size,
        "planning_share": trainer.summary(None)["planning_seconds"] / trainer.summary(None)["train_seconds"],
    }
    trainer.close()
    return result


def _timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """Function that notes how long it takes, waiting for arrays on the device included."""

    def run(*arguments: Any) -> Any:
        begin = time.perf_counter()
        result = function(*arguments)
        jax.block_until_ready(jax.tree.leaves(result))
        seconds.append(time.perf_counter() - begin)
        return result

    return run


def memory() -> float | None:
    """Largest memory of the device so far, in MB; `None` where the platform does not count it."""
    counted = jax.devices()[0].memory_stats()
    return None if counted is None else counted["peak_bytes_in_use"] / 2**20


# What a kernel, a launch and a wait cost ------------------------------------------------------------------------------

FEW, MANY = 32, 288
"""Numbers of dependent kernels in a program, and of turns of a loop, whose times are compared."""


def costs(size: int = 1024) -> Figures:
    """Microseconds of a dependent kernel in a CUDA graph and launched alone, and of a turn of a loop by its form.

    A loop's turn has one kernel. `counted` has a length that the compiler knows, `value` one that is a value.

    Args:
      size: numbers that every kernel reads and writes.
    """
    x = jnp.ones(size)

    def chain(length: int) -> Callable[[jax.Array], jax.Array]:
        def run(x: jax.Array) -> jax.Array:
            for _ in range(length):
                x = jax.lax.optimization_barrier(jnp.sin(x))
            return x

        return run

    def counted(length: int) -> Callable[[jax.Array], jax.Array]:
        return lambda x: jax.lax.fori_loop(0, length, lambda _, x: jnp.sin(x), x)

    def of_value(turns: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, turns, lambda _, x: jnp.sin(x), x)

    def per_turn(make: Callable[[int], Any], options: dict[str, str] | None) -> float:
        few, many = (jax.jit(make(n)).lower(x).compile(compiler_options=options) for n in (FEW, MANY))
        return 1e6 * (_seconds(lambda: many(x)) - _seconds(lambda: few(x))) / (MANY - FEW)

    def per_value(options: dict[str, str] | None) -> float:
        compiled = jax.jit(of_value).lower(jnp.int32(0), x).compile(compiler_options=options)
        few, many = jnp.int32(FEW), jnp.int32(MANY)
        return 1e6 * (_seconds(lambda: compiled(many, x)) - _seconds(lambda: compiled(few, x))) / (MANY - FEW)

    flag = "xla_gpu_enable_command_buffer"
    ways = {"graphs": None} if jax.default_backend() == "cpu" else {"graphs": None, "no graphs": {flag: ""}}
    single = jax.jit(jnp.sin).lower(x).compile()
    result: Figures = {"call": 1e6 * _seconds(lambda: single(x))}
    for way, options in ways.items():
        result[way] = {
            "kernel": per_turn(chain, options),
            "turn, counted": per_turn(counted, options),
            "turn, value": per_value(options),
        }
    return {"microseconds": result}


def _seconds(run: Callable[[], Any], times: int = 30) -> float:
    """Median seconds of a call, the device's work included."""
    taken = []
    for _ in range(times + 3):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[3:])


# Agreement ------------------------------------------------------------------------------------------------------------


def first_round(job: str, overrides: list[str]) -> np.ndarray:
    """Parameters `[P]` after the first round of one of `COMPARED`, without those that it began with."""
    trainer = Trainer(load_config([*COMPARED[job], "evaluation.points=0", *overrides]))
    before = np.asarray(trainer.state.params)
    trainer.step()
    after = np.asarray(trainer.state.params)
    trainer.close()
    return (after - before).reshape(-1)


def agreement(job: str, reference: str | None, out: str | None) -> Figures:
    """Distance of this device's first round from a CPU's, relative to the round's own length, and whether it repeats.

    Args:
      job: a name in `COMPARED`.
      reference: file with the CPU's round; `None` compares nothing.
      out: file that this device's round is written to; `None` writes none.
    """
    rounds = {"default": first_round(job, []), "again": first_round(job, [])}
    with jax.default_matmul_precision("highest"):
        rounds["highest"] = first_round(job, [])
    result: Figures = {"repeats": bool(np.array_equal(rounds["default"], rounds["again"]))}
    if out is not None:
        np.save(out, rounds["highest"])
    if reference is not None:
        expected = np.load(reference)
        for name in ("default", "highest"):
            result[name] = float(np.linalg.norm(rounds[name] - expected) / np.linalg.norm(expected))
    return result


def main() -> None:
    """Run what the arguments name; the last line of output is one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=[*JOBS, "costs", *(f"agreement, {name}" for name in COMPARED)])
    parser.add_argument("--reference", help="file with a CPU's round to compare with")
    parser.add_argument("--out", help="file to write this device's round to")
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    if given.job == "costs":
        found = costs()
    elif given.job in JOBS:
        found = measure(given.job, given.overrides)
    else:
        found = agreement(given.job.removeprefix("agreement, "), given.reference, given.out)
    device = jax.devices()[0]
    print(json.dumps({"job": given.job, "device": f"{device.platform}:{device.device_kind}", **found}))


if __name__ == "__main__":
    program.run(main)
