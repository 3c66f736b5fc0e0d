"""A job's program, compiled for a GPU that is not there: `python -m benchmarks.gpu JOB GPU` does one in this process.

The process needs JAX's plug-in for CUDA and CUDA's compiler, which `make gpu-check` installs, `JAX_PLATFORMS=cpu`, and
XLA's flags to dump what it makes: `measure` starts such processes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from benchmarks.card import JOBS
from benchmarks.gpu_model import GPUS, steps_per_second
from benchmarks.gpu_thunks import GRADIENT, ROUND, STEP, Counts, counted
from benchmarks.process import figures
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.cli import program
from stellaris_jax.engine.mesh import AXIS
from stellaris_jax.engine.state import EngineInputs
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.simulated import planner_of
from stellaris_jax.execute.trainer import Trainer

Figures = dict[str, Any]
DUMP = "--xla_dump_to={} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*chunk.*"


def compiled(job: str, gpu: str, dump: Path, overrides: Collection[str] = ()) -> Figures:
    """Figures of a job's chunk, compiled for a GPU in this process.

    Args:
      job: a name in `JOBS`.
      gpu: a name in `GPUS`.
      dump: folder that XLA writes its dump to.
      overrides: configuration beside the job's.

    Returns: kernels, launches and waits of the host per gradient, per env step of all environments, and per round
    beside these; bytes of arguments and temporaries; the modelled rate.

    Raises:
      ConfigError: the plug-in is not there.
    """
    jax.default_backend = lambda: "gpu"  # seeds side by side, and the forms for accelerators
    trainer = Trainer(load_config([*JOBS[job], "total_steps=1e12", "evaluation.points=0", *overrides]))
    chunk = planner_of(trainer.executor).next()
    plan, rounds = chunk.plans[0], len(chunk.rounds)
    try:
        devices = topologies.get_topology_desc(
            platform="cuda", target_config=GPUS[gpu].description, topology="1x1x1"
        ).devices
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"JAX has no plug-in for {GPUS[gpu].plugin} here ({reason}); `make gpu-check` installs it."
        ) from None
    mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    inputs = EngineInputs(trainer.engine.layout.shapes(), trainer.seed_states.hyper, plan, None, chunk.widths[0])
    begin = time.perf_counter()
    lowered = trainer.engine.lower(inputs, mesh, "cuda")
    made = lowered.compile()
    seconds = time.perf_counter() - begin
    text, memory = made.as_text(), made.memory_analysis()
    if text is None or memory is None:
        raise RunError(f"JAX {jax.__version__} compiles for {gpu}, but shows neither the program nor its memory.")
    counts = counted(dump, text)
    waves = float(np.mean([plan.waves(r) for r in range(rounds)]))
    lengths = {ROUND: rounds, GRADIENT: waves}
    whole, round_ = counts.whole(lengths), counts.find(ROUND)
    steps = rounds * trainer.steps_per_round * trainer.spec.seeds
    likely, lowest, highest = steps_per_second(GPUS[gpu], whole, steps)
    return {
        "compile_seconds": seconds,
        "rounds": rounds,
        "waves": waves,
        "gradients_of_a_wave": int(np.count_nonzero(plan.weights)) / max(1.0, waves * rounds),
        "env_steps": steps,
        GRADIENT: _turn(counts.find(GRADIENT), lengths),
        STEP: _turn(counts.find(STEP), lengths),
        ROUND: None if round_ is None else vars(round_.own),
        "chunk": vars(whole),
        "argument_mb": memory.argument_size_in_bytes / 2**20,
        "temporary_mb": memory.temp_size_in_bytes / 2**20,
        "modelled_steps_per_second": {"likely": likely, "lowest": lowest, "highest": highest},
    }


def _turn(loop: Any, lengths: dict[str, float]) -> Figures | None:
    """Counts of a turn of a loop, a wait for its own length included; `None` without such a loop."""
    return None if loop is None else vars(loop.turn(lengths))


def measure(jobs: Collection[str], gpus: Collection[str], plugins: Path, note: Callable[[str], None]) -> list[Figures]:
    """Compile jobs for GPUs, each in its own process.

    Args:
      jobs: names in `JOBS`.
      gpus: names in `GPUS`.
      plugins: folder in which `make gpu-check` has installed JAX's plug-ins, one folder each.
      note: told of every program.

    Raises:
      ConfigError: a plug-in is not there.
    """
    found = []
    for gpu in gpus:
        folder = (plugins / GPUS[gpu].plugin).resolve()
        if not folder.is_dir():
            raise ConfigError(f"--plugins={plugins} has no folder {GPUS[gpu].plugin}; `make gpu-check` installs it.")
        for job in jobs:
            with tempfile.TemporaryDirectory() as dump:
                if any(map(str.isspace, dump)):
                    raise ConfigError(f"TMPDIR={tempfile.gettempdir()} has a blank, at which XLA cuts its flags.")
                flags = " ".join(filter(None, (os.environ.get("XLA_FLAGS"), DUMP.format(dump))))
                paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
                environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": paths}
                command = [sys.executable, "-m", "benchmarks.gpu", job, gpu, "--dump", dump]
                try:
                    result = figures(command, environment)
                except RunError as error:
                    result = {"failed": str(error)[-300:]}
            result = {"job": job, "gpu": gpu, **result}
            note(json.dumps(result))
            found.append(result)
    return found


def rows(results: list[Figures]) -> list[dict[str, str]]:
    """A row for each program that was compiled."""

    def shown(counts: Figures | None) -> str:
        if counts is None:
            return ""
        return " / ".join(f"{counts[name]:.3g}" for name in Counts.__dataclass_fields__)

    table = []
    for result in results:
        if "failed" in result:
            table.append({"job": result["job"], "GPU": result["gpu"], "a wave": result["failed"]})
            continue
        rate = {name: f"{1e-3 * value:,.0f}k" for name, value in result["modelled_steps_per_second"].items()}
        table.append(
            {
                "job": result["job"],
                "GPU": result["gpu"],
                "gradients of a wave": f"{result['gradients_of_a_wave']:.3g}",
                "a wave": shown(result[GRADIENT]),
                "an env step": shown(result[STEP]),
                "the rest of a round": shown(result[ROUND]),
                "temporaries MB": f"{result['temporary_mb']:,.1f}",
                "compile s": f"{result['compile_seconds']:.0f}",
                "steps/s, modelled, not measured": f"{rate['likely']} ({rate['lowest']} to {rate['highest']})",
            }
        )
    return table


def main() -> None:
    """Compile what the arguments name; the last line of output is one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("gpu", choices=GPUS)
    parser.add_argument("--dump", type=Path, required=True, help="folder of XLA_FLAGS=--xla_dump_to")
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    print(json.dumps(compiled(given.job, given.gpu, given.dump, given.overrides)))


if __name__ == "__main__":
    program.run(main)
