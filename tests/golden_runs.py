"""Golden runs: small configurations, each trained for a few rounds, and digests of what they computed.

Two versions of the package compute the same if their golden runs on one machine are equal. This module uses public
names of `stellaris_jax` alone, so that it trains with an earlier checkout, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIVE_RUN = ROOT / "tests" / "data" / "live_run"
"""Run directory of a live run of four rounds, with its trace."""
SMALL = (
    "env=gymnax/cartpole", "env.num_envs=4", "network.hidden=[8]", "algorithm.rollout_length=16", "algorithm.epochs=2",
    "algorithm.minibatches=4", "num_seeds=2", "total_steps=256", "evaluation.points=0", "evaluation.episodes=0",
)  # fmt: skip
"""Overrides of every configuration: four rounds of eight gradients, on CartPole, unless others follow."""
FAST = ("algorithm.learning_rate=0.05", "system.learners=3")
"""Fewer learners than gradients, and a learning rate at which samples are clipped, masked and truncated."""
QUIET = ("run.loggers=[]", "run.progress=false")
CLOCKS = {
    "wall_seconds", "steps_per_second", "train_seconds", "detection_seconds", "planning_seconds", "compile_seconds",
    "device",
}  # fmt: skip
"""Keys of records and summaries whose values depend on the machine or the version."""


CLEARED = 16
"""Configurations after which compiled programs are dropped: Linux limits the mappings of a process."""


class Case(NamedTuple):
    """Configuration of the table.

    Attributes:
      overrides: overrides; `{first}` stands for the directory of the run before it.
      stored: whether it is trained in a run directory, by `train`, rather than by a `Trainer`.
      first: overrides of a run that is trained before, in a run directory; empty without one.
    """

    overrides: tuple[str, ...]
    stored: bool = False
    first: tuple[str, ...] = ()


def _each(key: str, values: str, *others: str) -> dict[str, Case]:
    """Cases of a key, one for each value; a key in the form `key=[]` takes lists of one value."""
    form = key.replace("[]", "[{}]") if key.endswith("[]") else f"{key}={{}}"
    return {form.format(value): Case((*SMALL, *others, form.format(value))) for value in values.split()}


TOKENS = (
    "env=tokens/sort", "env.kwargs.length=3", "env.kwargs.group=2", "env.num_envs=16", "algorithm.rollout_length=4",
    "network.policy=transformer", "network.options.layers=1", "network.options.heads=2", "network.options.width=8",
    "warm_start.updates=40", "warm_start.learning_rate=1e-2", "algorithm.epochs=2", "algorithm.learning_rate=3e-4",
    "system.learners=2",
)  # fmt: skip
"""Completions of a tiny transformer."""

REPLAY = (
    "env.normalize_observation=false", "env.normalize_reward=false", "algorithm.epochs=1", "algorithm.minibatches=1",
    "algorithm.options.updates_per_step=0.125", "algorithm.options.batch_size=8", "algorithm.options.buffer_size=200",
    "algorithm.options.learning_starts=32", "algorithm.options.n_step=3",
)  # fmt: skip
"""Draws from a small replay buffer."""

TABLE = {
    **_each(
        "system",
        "allreduce artifact async dc_asgd fedasync gap_aware msrl par_rl parallax srl ssp "
        "stellaris stellaris_no_async stellaris_no_serverless stellaris_no_truncation stellaris_no_weighting",
        *FAST,
    ),
    **_each("system", "areal_gradients fedbuff softsync", FAST[0], "system.learners=4"),
    **_each("system", "central impact minionsrl nitro rllib sample_factory seed_rl", FAST[0]),
    **_each("system", "areal one_step pipeline stellaris_async_actors", *FAST),
    **_each("delays.by", "episodes", "system=areal", "system.sync_steps=4", *FAST),
    **_each("system", "pipeline_rl prime_rl slime sync verl_async", *TOKENS, "algorithm=grpo"),
    **_each("algorithm", "grpo gspo", *TOKENS, "system=async"),
    "impact, pipelined": Case((*SMALL, FAST[0], "system=impact", "system.actors=pipelined")),
    **_each("algorithm", "a3po bapo cispo decoupled impact impala importance ppo sapo tis topr", *FAST),
    **_each("system", "gorila distributed_dqn", *REPLAY, "algorithm=dqn"),
    **_each("algorithm", "dqn", *REPLAY, "system=async", "network.policy=q_network"),
    **_each("algorithm", "sac", *REPLAY, "env=gymnax/pendulum", "network.policy=squashed_gaussian_twin_q"),
    **_each("algorithm.advantage", "gae nstep vtrace none", *FAST),
    **_each("algorithm.advantage", "group", "algorithm.advantage_options.size=4", *FAST),
    **_each("algorithm.optimizer", "sgd rmsprop", *FAST),
    **_each("algorithm.masks=[]", "icepop dppo opsm m2po m2po_clip", "system=async", *FAST),
    **_each("system.corrections=[]", "less_momentum norm_ratio ess", "system=async", *FAST),
    **_each("system.truncation", "weight surrogate artifact", *FAST),
    **_each("system.weights", "inverse hinge exponential", "system=async", *FAST),
    **_each("system.admission", "all bounded waiting in_order", "system=async", "algorithm.epochs=8", "delays=pareto"),
    **_each("system.aggregation", "gradient fractional", *FAST),
    **_each("system.overflow", "drop", "system=async", "system.versions=2"),
    **_each("network.memory", "gru lstm", "network.memory_size=4", "evaluation.episodes=2"),
    **_each("network", "minatar_cnn", "env=gymnax/breakout_minatar"),
    **_each("network.init", "normc", "env=gymnax/pendulum", "network.shared=true", "network.log_std=state"),
    **_each(
        "system.data_admission",
        "bounded capacity evict_stalest fifo fixed in_order newest ready_first window",
        *(*FAST, "system.actors=independent", "system.sync_steps=4", "delays=pareto", "delays.actor_failure=0.1"),
    ),
    **_each("system.publish_every", "2", *FAST, "system.actors=independent", "env.normalize_observation=true"),
    **_each("engine.members", "together"),
    **_each("engine.lanes", "2", "system=softsync"),
    **_each("engine.devices", "4", "system=softsync", "system.actors=pipelined"),
    **_each("algorithm.kl_coefficient", "0.2", "delays.failure=0.2", "algorithm.max_grad_norm=0"),
    "init_from": Case((*SMALL, "init_from={first}", "seed=2"), first=SMALL),
    "resume": Case(
        ("resume={first}", "total_steps=512"), True, (*SMALL, "algorithm.anneal=false", "system.actors=pipelined")
    ),
    "replay": Case((*QUIET, "executor=replay", f"trace={LIVE_RUN}", "evaluation.episodes=0", "run.dir={first}"), True),
    **_each("scaling", "max hydrozoa kungfu nitro", "scaling.maximum=4"),
    **_each("scaling", "adapt minionsrl", "scaling.maximum=4", "scaling.target=1000"),
    **_each(
        "env",
        "gymnax/pendulum brax/inverted_pendulum mjx/hopper envpool/CartPole-v1 gymnasium/CartPole-v1 "
        "diagnostic/truncation",
        "env.normalize_observation=true",
        "env.normalize_reward=true",
        "evaluation.episodes=2",
    ),
}
"""Every configuration by its name. None sets an option of a rule, because versions differ in where options stand."""


def computed(case: Case) -> dict[str, Any]:
    """Digests of one configuration, trained now; `refused` holds the sentence if it is refused.

    `parameters` and `optimizer` are SHA-256 digests of arrays, `numbers` maps keys of records and of the summary to
    digests of their values, and `final` holds the final parameters of all seeds.
    """
    import jax
    import numpy as np

    from stellaris_jax import ConfigError, load_config

    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "run"
        try:
            if case.first:
                _in_directory(load_config([*case.first, *QUIET, f"run.dir={first}"]))
            config = load_config([override.format(first=first) for override in case.overrides])
            records, summary, trainer = _in_directory(config) if case.stored else _alone(config)
        except ConfigError as error:
            return {"refused": str(error)}
    numbers: dict[str, list[Any]] = {}
    for record in (*records, {"summary": summary}):
        for key, value in _flat(record):
            numbers.setdefault(key, []).append(value)
    params = np.asarray(trainer.state.params)
    return {
        "parameters": _digest([params]),
        "optimizer": _digest([np.asarray(leaf) for leaf in jax.tree.leaves(trainer.state.aggregator)]),
        "numbers": {key: sha256(json.dumps(values).encode()).hexdigest()[:16] for key, values in numbers.items()},
        "final": params.ravel().tolist(),
    }


def _alone(config: Any) -> tuple[list[dict[str, Any]], dict[str, Any], Any]:
    """Records, summary and trainer of a configuration."""
    from stellaris_jax import Trainer

    trainer = Trainer(config)
    records = trainer.run()
    evaluation = trainer.evaluate() if config.evaluation.episodes else None
    trainer.close()
    return records, trainer.summary(evaluation), trainer


def _in_directory(config: Any) -> tuple[list[dict[str, Any]], dict[str, Any], Any]:
    """Records, summary and trainer of a configuration that is trained in its run directory."""
    from stellaris_jax import train

    records: list[dict[str, Any]] = []
    trainers: list[Any] = []

    def keep(round_: int, record: dict[str, Any], trainer: Any) -> None:
        records.append(record)
        trainers[:] = [trainer]

    with redirect_stdout(StringIO()):
        summary = train(config, callbacks=[keep])
    return records, summary, trainers[0]


def _digest(arrays: Sequence[Any]) -> str:
    sha = sha256()
    for array in arrays:
        sha.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return sha.hexdigest()


def _flat(record: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Deterministic values of a record by their dotted keys."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        elif key not in CLOCKS and not above.startswith("summary.versions"):
            yield above + key, value


def differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """One line for every configuration that two sets of golden runs do not agree on."""
    lines = []
    for name in sorted({*mine, *other}):
        a, b = mine.get(name), other.get(name)
        if a is None or b is None:
            lines.append(f"{name}: only one of them has it")
        elif "refused" in a or "refused" in b:
            if a != b:
                lines.append(f"{name}: {a.get('refused', 'trained')} / {b.get('refused', 'trained')}")
        elif parts := [*_apart(a, b)]:
            lines.append(f"{name}: {'; '.join(parts)}")
    return lines


def _apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Phrases about the parts in which two results differ."""
    if len(a["final"]) != len(b["final"]):
        yield f"{len(a['final'])} parameters / {len(b['final'])}"
    elif a["parameters"] != b["parameters"]:
        largest = max(abs(x - y) / max(abs(x), abs(y), 1e-30) for x, y in zip(a["final"], b["final"], strict=True))
        yield f"final parameters differ by a factor of up to {largest:.2g}"
    if a["optimizer"] != b["optimizer"]:
        yield "another optimizer state"
    keys = [key for key in {**a["numbers"], **b["numbers"]} if a["numbers"].get(key) != b["numbers"].get(key)]
    if keys:
        yield f"other values of {', '.join(keys)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Train, write and compare; returns 1 if anything differs."""
    parser = argparse.ArgumentParser(description="Train small configurations and compare what they compute.")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--compare", type=Path, help="JSON file of other golden runs of this machine")
    parser.add_argument("--package", type=Path, default=ROOT, help="checkout to train with (default: this one)")
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names, such as system= or resume")
    arguments = parser.parse_args(argv)
    sys.path.insert(0, str(arguments.package.resolve()))
    # As in the tests, because most of the time is LLVM's; set before JAX starts.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Versions that compile the same programs share them.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "stellaris-jax" / "tests"))
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="stellaris-jax-state-")
    import jax

    import stellaris_jax

    jax.config.update("jax_num_cpu_devices", 4)
    print(f"training with {stellaris_jax.__file__}")
    runs = {}
    for name, case in TABLE.items():
        if name.startswith(tuple(arguments.only)):
            runs[name] = computed(case)
            print(f"{name}: {runs[name].get('refused', runs[name].get('parameters'))}", flush=True)
            if arguments.out:
                arguments.out.write_text(json.dumps(runs, indent=1) + "\n")
            if len(runs) % CLEARED == 0:
                jax.clear_caches()
                gc.collect()
    if not arguments.compare:
        return 0
    others = json.loads(arguments.compare.read_text())
    lines = differences(runs, {name: run for name, run in others.items() if name.startswith(tuple(arguments.only))})
    print("\n".join(lines) or f"all {len(runs)} are equal to the bit")
    return int(bool(lines))
