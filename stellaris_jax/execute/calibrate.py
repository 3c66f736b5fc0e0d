"""Delay model measured on this machine: one fragment's rollout, one minibatch gradient, one aggregation.

Each part is compiled, run once, and then timed alone until its result is ready. The table of seconds is the `measured`
delay model of `delays.learner`, `delays.actor` and `delays.aggregate`. It also serves `delays.scaling` if the job
measures something to scale its actors by. All environments count as one actor here. On a platform with several actors,
each actor gets the whole fragment's seconds, an upper bound for its share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.config.tree import Config
from stellaris_jax.engine import learner
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.timeline.plan import Invocation, empty_plan

Table = dict[str, list[float]]


def calibrate(config: Config, repeats: int) -> Table:
    """Seconds of `repeats` runs of each part of the job `config`, keyed by names of `delays`."""
    trainer = Trainer(config)
    trainer.run(1)  # fragments to learn from
    state, hyper = jax.tree.map(lambda x: x[0], (trainer.state, trainer.seed_states.hyper))
    first = jax.tree.map(lambda x: jnp.asarray(x[0, 0, 0]), empty_plan(trainer.spec.shape).invocations)
    if first.peers is not None:
        first = first._replace(peers=first.peers._replace(number=jnp.int32(trainer.spec.shape.peers)))  # the maximum

    @jax.jit
    def gradient(invocation: Invocation) -> jax.Array:
        return learner.gradient(trainer.network, trainer.spec, hyper, state.cache(), invocation)[0]

    @jax.jit
    def update(gradients: jax.Array) -> Any:
        weights, size = jnp.ones(len(gradients)), jnp.int32(len(gradients))
        aggregator = trainer.engine.aggregator(hyper)
        return aggregator.update(gradients, state.aggregator, state.params, weights=weights, size=size)

    gradients = gradient(first)[None]
    parts: dict[str, Callable[[], Any]] = {
        "learner": partial(gradient, first),
        "actor": trainer.source.timed_rollout(trainer.seed_states)[0],
        "aggregate": partial(update, gradients),
    }
    if trainer.probe is not None:
        counts = jnp.full(trainer.spec.seeds, config.algorithm.minibatches, jnp.int32)
        seed_states = trainer.seed_states
        parts["scaling"] = partial(trainer.probe, seed_states.hyper, seed_states.states[0], jnp.int32(0), counts)
    for part in parts.values():
        _seconds(part)  # first call: caches and lazy set-up, not timed
    table = {name: [_seconds(part) for _ in range(repeats)] for name, part in parts.items()}
    trainer.close()
    return table


def _seconds(part: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(part())
    return time.perf_counter() - begin


def write(table: Table, path: Path, about: str) -> None:
    """Write a file of configuration group `delays`, named after the path.

    Args:
      table: seconds, keyed by part.
      path: file to write.
      about: comment at the top of the file.
    """
    rows = [
        f"{name}: {{kind: measured, options: {{table: [{', '.join(f'{seconds:.3g}' for seconds in values)}]}}}}"
        for name, values in table.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [*(f"# {line}" for line in about.splitlines()), f"name: {path.stem}", *rows, ""]
    write_atomically(path, "\n".join(lines))
