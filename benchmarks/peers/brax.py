"""Times brax's own PPO; it shares the environment of rejax, which `install.sh` makes.

brax compiles its training when it is first called. In a job of `throughput` it is called for three stretches of equal
length: the first one's time above that of the others is compilation, and what brax itself says of the speed of the
others, evaluations excluded, is the figure. Cores are those of the same stretches with their evaluations.

brax 0.14.2 calls a function that JAX has left out since: an adapter puts it back.
"""

from __future__ import annotations

import time
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from brax import envs
from brax.training.agents.ppo import networks, train
from flax import linen

from benchmarks.peers.contract import Figures, Goal, Stopwatch, main

HOPPER: dict[str, Any] = {
    "num_envs": 2048,
    "unroll_length": 10,
    "num_minibatches": 32,
    "batch_size": 64,  # of fragments, so that a minibatch has 640 steps
    "num_updates_per_batch": 4,
    "learning_rate": 3e-4,
    "entropy_cost": 0.0,
    "discounting": 0.99,
    "clipping_epsilon": 0.2,
    "max_grad_norm": 0.5,
    "normalize_observations": True,
}

PENDULUM: dict[str, Any] = {
    "num_timesteps": 2_000_000,
    "reward_scaling": 10,
    "normalize_observations": True,
    "unroll_length": 5,
    "num_minibatches": 32,
    "num_updates_per_batch": 4,
    "discounting": 0.97,
    "learning_rate": 3e-4,
    "entropy_cost": 1e-2,
    "num_envs": 2048,
    "batch_size": 1024,
}
"""brax's own settings, of its repository at 0b96d05: notebooks/training.ipynb."""

STRETCH = 102_400
"""Env steps of each of the three stretches."""


def device_put_replicated(tree: Any, devices: list[Any]) -> Any:
    """JAX's former function of this name, for one device, as a CPU has."""
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * len(devices)), tree)


class Reached(Exception):
    """Ends a training whose goal is reached."""


def run(job: str, seed: int, goal: Goal | None) -> Figures:
    """Train one job once."""
    watch = Stopwatch(goal)
    return throughput(seed, watch) if goal is None else to_return(seed, goal, watch)


def throughput(seed: int, watch: Stopwatch) -> Figures:
    """Three stretches, of which the last two count."""
    marks: list[tuple[float, Figures]] = []

    def progress(steps: int, metrics: Figures) -> None:
        marks.append((time.perf_counter(), metrics))
        if len(marks) == 2:
            watch.start()

    train.train(
        envs.get_environment("hopper", backend="spring"),
        **HOPPER,
        num_timesteps=3 * STRETCH,
        episode_length=1000,
        num_evals=4,
        progress_fn=progress,
        network_factory=lambda *sizes, **options: networks.make_ppo_networks(
            *sizes,
            policy_hidden_layer_sizes=(256, 256),
            value_hidden_layer_sizes=(256, 256),
            activation=linen.tanh,
            **options,
        ),
        seed=seed,
    )
    watch.stop()
    walls = [metrics["training/walltime"] for _, metrics in marks[1:]]
    seconds = walls[-1] - walls[0]
    watch.compile_seconds = walls[0] - seconds / 2
    figures = watch.figures(2 * STRETCH, float(marks[-1][1]["eval/episode_reward"]))
    return figures | {"seconds": seconds, "steps_per_second": 2 * STRETCH / seconds}


def to_return(seed: int, goal: Goal, watch: Stopwatch) -> Figures:
    """Train until an evaluation reaches the goal."""
    reached: Figures = {}

    def progress(steps: int, metrics: Figures) -> None:
        reached.update(steps=steps, mean=float(metrics["eval/episode_reward"]))
        if watch.evaluated(steps, reached["mean"]):
            raise Reached

    env = envs.get_environment("inverted_pendulum", backend="spring")
    watch.start()
    with suppress(Reached):
        train.train(
            env,
            **PENDULUM,
            episode_length=1000,
            num_evals=1 + PENDULUM["num_timesteps"] // goal.every,
            num_eval_envs=goal.episodes,
            progress_fn=progress,
            seed=seed,
        )
    watch.stop()
    return watch.figures(reached["steps"], reached["mean"])


if __name__ == "__main__":
    jax.device_put_replicated = device_put_replicated  # type: ignore[assignment]
    main("brax", version("brax"), ["hopper_spring", "inverted_pendulum"], run)
