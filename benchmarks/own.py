"""This program's side of the comparison with others: `python -m benchmarks.own JOB` runs one of the same jobs."""

from __future__ import annotations

import tempfile
from importlib.metadata import version

from benchmarks.peers.contract import Figures, Goal, Stopwatch, main
from stellaris_jax.cli import program
from stellaris_jax.execute.loading import load_config

THROUGHPUT: dict[str, list[str]] = {
    "cartpole_small": [
        "env=gymnax/cartpole",
        "env.normalize_reward=false",
        "env.num_envs=4",
        "algorithm.rollout_length=128",
        "algorithm.minibatches=4",
        "algorithm.learning_rate=2.5e-4",
        "algorithm.anneal=false",
        "total_steps=500_000",
        "engine.chunk_rounds=256",
    ],
    "cartpole_large": [
        "env=gymnax/cartpole",
        "env.normalize_reward=false",
        "env.num_envs=2048",
        "algorithm.rollout_length=32",
        "algorithm.minibatches=8",
        "algorithm.learning_rate=1e-3",
        "algorithm.anneal=false",
        "total_steps=4_194_304",
        "engine.chunk_rounds=32",
    ],
    "hopper_spring": [
        "env=brax/hopper",
        "env.num_envs=2048",
        "env.kwargs={backend: spring}",
        "env.normalize_observation=true",
        "env.normalize_reward=false",
        "network.hidden=[256,256]",
        "network.activation=tanh",
        "algorithm.rollout_length=10",
        "algorithm.epochs=4",
        "algorithm.minibatches=32",
        "algorithm.learning_rate=3e-4",
        "algorithm.anneal=false",
        "algorithm.entropy_coefficient=0",
        "total_steps=409_600",
    ],
    "minatar_spaceinvaders": [
        "env=gymnax/spaceinvaders_minatar",
        "env.num_envs=64",
        "network.hidden=[64,64]",
        "network.activation=relu",
        "algorithm.rollout_length=128",
        "algorithm.minibatches=8",
        "algorithm.learning_rate=5e-3",
        "algorithm.anneal=false",
        "total_steps=524_288",
        "engine.chunk_rounds=32",
    ],
    "cartpole_dqn": [
        "env=gymnax/cartpole",
        "algorithm=dqn",
        "env.num_envs=8",
        "network.hidden=[64,64]",
        "algorithm.rollout_length=4",
        "algorithm.options.batch_size=128",
        "algorithm.options.buffer_size=50_000",
        "algorithm.options.learning_starts=1_000",
        "algorithm.options.updates_per_step=0.5",
        "algorithm.options.n_step=1",
        "algorithm.options.target_rate=0.01",
        "algorithm.learning_rate=5e-4",
        "total_steps=50_000",
    ],
    "pendulum_sac": [
        "env=gymnax/pendulum",
        "algorithm=sac",
        "env.num_envs=4",
        "network.hidden=[256,256]",
        "algorithm.rollout_length=4",
        "algorithm.options.batch_size=256",
        "algorithm.options.buffer_size=20_000",
        "algorithm.options.learning_starts=1_000",
        "algorithm.options.updates_per_step=1",
        "algorithm.options.target_rate=0.005",
        "algorithm.learning_rate=3e-4",
        "total_steps=8_000",
    ],
    "hopper_envpool": [
        "env=envpool/hopper",
        "algorithm.anneal=false",
        "total_steps=65_536",
    ],
    "atari_spaceinvaders": [
        "env=envpool/spaceinvaders",
        "env.num_envs=8",
        "algorithm.rollout_length=128",
        "algorithm.minibatches=4",
        "total_steps=8_192",
    ],
}
"""The same networks, epochs and minibatches as in `benchmarks/peers/`; the algorithm of the peers is `system=central`,
one minibatch after the other on the newest policy."""

RETURN: dict[str, list[str]] = {
    "cartpole": ["env=gymnax/cartpole"],
    "acrobot": ["env=gymnax/acrobot"],
    "asterix_minatar": ["env=gymnax/asterix_minatar"],
    "breakout_minatar": ["env=gymnax/breakout_minatar"],
    "asterix_alike": ["env=gymnax/asterix_minatar"],
    "breakout_alike": ["env=gymnax/breakout_minatar"],
    "spaceinvaders_minatar": ["env=gymnax/spaceinvaders_minatar"],
    "freeway_minatar": ["env=gymnax/freeway_minatar"],
    "pendulum": ["env=gymnax/pendulum"],
    "inverted_pendulum": ["env=brax/inverted_pendulum"],
    "brax_hopper": ["env=brax/hopper"],
    "hopper": ["env=envpool/hopper"],
    "cartpole_by_dqn": ["env=gymnax/cartpole", "algorithm=dqn"],
    "acrobot_by_dqn": ["env=gymnax/acrobot", "algorithm=dqn"],
    "pendulum_by_sac": ["env=gymnax/pendulum", "algorithm=sac"],
    "breakout_by_dqn": ["env=gymnax/breakout_minatar", "algorithm=dqn"],
    "hopper_by_sac": ["env=envpool/hopper", "algorithm=sac", "total_steps=50_000"],
}
"""The settings that come with the package, in `configs/env/`; in a job called alike, the peer has them, too."""

TOKENS: dict[str, list[str]] = {
    "tokens_addition": [
        "env=tokens/addition",
        "env.num_envs=256",
        "algorithm.minibatches=1",
        "algorithm.learning_rate=3e-4",
        "warm_start.updates=1500",
        "warm_start.errors=0.7",
        "total_steps=307_200",
        "engine.chunk_rounds=10",
    ],
}
TOKENS["tokens_population"] = [*TOKENS["tokens_addition"], "num_seeds=16"]
"""Jobs of `benchmark tokens`: 300 updates of 32 groups of 8 completions, for one seed and for 16."""

JOBS = (*THROUGHPUT, *RETURN, *TOKENS)


def measure(job: str, seed: int, goal: Goal | None = None, overrides: list[str] | None = None) -> Figures:
    """Run one job once in this process.

    Args:
      job: one of `JOBS`.
      seed: of the run.
      goal: what is trained for; None for a job of `THROUGHPUT` or `TOKENS`.
      overrides: configuration beside the job's.

    Returns: the figures that `benchmarks.peers.contract.Stopwatch` names.
    """
    settings = [*(overrides or []), f"seed={seed}"]
    if goal is None:
        return _throughput([*(THROUGHPUT | TOKENS)[job], "system=central", "evaluation.points=1", *settings])
    return _to_return([*RETURN[job], *settings], goal)


def _throughput(overrides: list[str]) -> Figures:
    """All steps of a job without compilation and evaluation."""
    # Here and below imported as late as the command `train` does.
    from stellaris_jax.execute.trainer import Trainer

    watch = Stopwatch()
    trainer = Trainer(load_config(overrides, alone=True))
    with watch.compiling():
        trainer.compile()
    watch.start()
    trainer.run()
    watch.stop()
    mean = trainer.evaluate().mean_ci95()[0]
    trainer.close()
    steps = trainer.round * trainer.steps_per_round * trainer.config.num_seeds
    return watch.figures(steps, mean) | waiting(trainer.summary(None))


def waiting(summary: Figures) -> Figures:
    """The largest share of the seconds of training that the device may have waited for plans."""
    return {"planning_share": summary["planning_seconds"] / summary["train_seconds"]}


def _to_return(overrides: list[str], goal: Goal) -> Figures:
    """A run as `train` makes it, with its directory and checkpoints, until its goal is reached or it is over."""
    from stellaris_jax.execute.run import train

    config = load_config(overrides, alone=True)
    points = max(1, round(config.total_steps / goal.every))
    config = config.replace(
        {
            "evaluation.episodes": goal.episodes,
            "evaluation.points": points,
            "run.progress": False,
        }
    )
    watch = Stopwatch(goal)
    with tempfile.TemporaryDirectory() as folder:
        config = config.replace({"run.dir": f"{folder}/run"})
        watch.start()
        summary = train(config, watch=lambda record: watch.evaluated(record["env_steps"], record["eval_return_mean"]))
        watch.stop()
    watch.compile_seconds = summary["compile_seconds"]
    return watch.figures(round(summary["env_steps"]), summary["eval_return_mean"]) | waiting(summary)


if __name__ == "__main__":
    program.run(lambda: main("stellaris_jax", version("stellaris_jax"), JOBS, measure))
