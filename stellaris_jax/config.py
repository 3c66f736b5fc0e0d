"""The typed configuration tree: the schema of `configs/`, its documentation and its validation.

Every field carries a help text with its unit and, where it has one, the symbol and equation of the paper
("Stellaris", SC'24). `python scripts/train.py --help` prints them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


class ConfigError(ValueError):
    """A configuration that cannot run; the message is one sentence naming the key, the value and what is accepted."""


def knob(default: Any, help: str) -> Any:
    """A config field with its help text. Mutable defaults (dict, list) are copied per instance."""
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


def group(kind: type, help: str) -> Any:
    """A nested group of config fields."""
    return field(default_factory=kind, metadata={"help": help})


@dataclass
class EnvConfig:
    name: str = knob("gymnax/CartPole-v1", "environment as suite/name, e.g. gymnax/acrobot, brax/reacher")
    num_envs: int = knob(16, "environments stepped side by side per seed (N), shared out over the actors")
    kwargs: dict[str, Any] = knob({}, "extra arguments for the suite, e.g. {backend: spring} for brax")
    normalize_observation: bool = knob(False, "subtract the running mean of observations, divide by their deviation")
    normalize_reward: bool = knob(False, "divide rewards by the running deviation of the discounted return")


@dataclass
class NetworkConfig:
    hidden: list[int] = knob([64, 64], "widths of the hidden layers of the policy and of the value network")
    activation: str = knob("tanh", "activation of the hidden layers: tanh or relu")


@dataclass
class AlgorithmConfig:
    name: str = knob("ppo", "the loss: ppo")
    rollout_length: int = knob(128, "steps of every environment per round (T), in env steps")
    epochs: int = knob(4, "passes over a round's data")
    minibatches: int = knob(4, "minibatches per pass; each is one learner invocation")
    learning_rate: float = knob(1e-3, "base learning rate (alpha_0 of Eq. 4)")
    anneal: bool = knob(False, "lower the learning rate linearly to zero over total_steps")
    max_grad_norm: float = knob(0.5, "clip the norm of an aggregated gradient at this value; 0 turns it off")
    adam_eps: float = knob(1e-5, "epsilon of Adam")
    gamma: float = knob(0.99, "discount per step (gamma)")
    gae_lambda: float = knob(0.95, "lambda of generalised advantage estimation")
    clip: float = knob(0.2, "clip range of the importance ratio (epsilon of PPO)")
    value_clip: float = knob(0.2, "clip range of the value update; 0 turns it off")
    value_coefficient: float = knob(0.5, "weight of the value loss")
    entropy_coefficient: float = knob(0.01, "weight of the entropy bonus")
    kl_coefficient: float = knob(0.0, "initial weight of KL(mu || pi), adapted each round; 0 turns it off")
    kl_target: float = knob(0.01, "KL the coefficient is adapted towards, in nats")


@dataclass
class SystemConfig:
    name: str = knob("stellaris", "name of the system, for reports")
    rule: str = knob(
        "stellaris", "when the parameter function aggregates: allreduce, central, async, softsync, ssp, stellaris, artifact"
    )
    learners: int = knob(8, "learner functions that may be in flight (n)")
    softsync_c: int = knob(4, "gradients per aggregation of rule softsync (c)")
    ssp_s: int = knob(2, "iterations a learner may run ahead of the slowest under rule ssp (s)")
    decay: float = knob(0.96, "decay of the staleness threshold per round (d of Eq. 3)")
    root: int = knob(3, "root of the staleness weight (v of Eq. 4): w = staleness^(-1/v)")
    weighting: bool = knob(True, "weight gradients by staleness (Eq. 4); false gives every gradient weight 1")
    aggregation: str = knob(
        "factored", "how weights meet the optimizer: factored (direction and step size), gradient, sequential"
    )
    truncation: str = knob(
        "weight", "global importance-sampling truncation (Eq. 2): weight, surrogate, artifact, none"
    )
    rho: float = knob(1.0, "truncation threshold (rho of Eq. 2)")
    actors: str = knob("barrier", "barrier: actors wait for the round's updates; pipelined: they collect the next fragment")
    versions: int = knob(32, "policy versions kept for learners (length H of the version ring)")
    overflow: str = knob("wait", "a gradient older than the ring: wait (delay the next update) or drop (count and discard)")
    learner_billing: str = knob("serverless", "learners billed serverless (busy seconds) or serverful (wall-clock)")
    actor_billing: str = knob("serverful", "actors billed serverless (busy seconds) or serverful (wall-clock)")


@dataclass
class PlatformConfig:
    name: str = knob("regular", "name of the platform, for reports")
    gpus: int = knob(2, "GPUs that host learner functions")
    slots_per_gpu: int = knob(4, "learner functions one GPU holds at a time")
    actors: int = knob(128, "actor functions, one CPU core each")
    cold_start: float = knob(1.5, "seconds to start a learner function whose container is not warm")
    warm_start: float = knob(0.0, "seconds to start a learner function in a warm container")
    keep_alive: float = knob(600.0, "seconds an idle container stays warm")
    prewarm: bool = knob(True, "start the run with warm containers")


@dataclass
class DelayConfig:
    kind: str = knob("constant", "distribution of durations: constant, lognormal, pareto, measured")
    seconds: float = knob(1.0, "the constant; the median of lognormal; the minimum of pareto, in seconds")
    sigma: float = knob(0.5, "deviation of log-seconds of lognormal")
    alpha: float = knob(2.0, "tail index of pareto; smaller means heavier stragglers")
    table: list[float] = knob([], "measured durations in seconds, used in order and over again")


@dataclass
class DelaysConfig:
    name: str = knob("lognormal", "name of the delay model, for reports")
    learner: DelayConfig = group(DelayConfig, "one learner invocation: one minibatch gradient")
    actor: DelayConfig = group(DelayConfig, "one actor rolling out its share of a fragment")
    aggregate: DelayConfig = group(DelayConfig, "one aggregation by the parameter function")
    failure: float = knob(0.0, "probability that a learner invocation dies; its minibatch is retried, its time billed")


@dataclass
class PricesConfig:
    name: str = knob("us_east_2", "name of the price book, for reports")
    learner_vm: float = knob(3.06, "dollars per hour of one learner VM")
    learner_vms: int = knob(2, "learner VMs in the cluster")
    learner_vm_slots: int = knob(4, "learner functions per learner VM (an invocation pays this share)")
    actor_vm: float = knob(4.896, "dollars per hour of one actor VM")
    actor_vms: int = knob(1, "actor VMs in the cluster")
    actor_vm_slots: int = knob(128, "actor functions per actor VM (an invocation pays this share)")


@dataclass
class EngineConfig:
    lanes: int = knob(1, "gradients computed side by side on each device")
    devices: int = knob(1, "devices learners and environments are spread over")
    chunk_rounds: int = knob(8, "rounds per compiled call; metrics reach the host once per call")
    compile_cache: bool = knob(True, "keep compiled programs on disk for the next run")


@dataclass
class EvaluationConfig:
    episodes: int = knob(128, "episodes per evaluation and seed; 0 turns evaluation off")
    points: int = knob(10, "evaluations spread evenly over the run, the last at its end")
    greedy: bool = knob(True, "act by the mode of the policy instead of sampling")


@dataclass
class CheckpointConfig:
    interval: int = knob(0, "rounds between checkpoints; 0 saves at every evaluation point")
    keep: int = knob(3, "most recent checkpoints kept beside the best one")


@dataclass
class RunConfig:
    dir: str = knob("", "run directory; empty means runs/<time>-<name>; one that holds a run is refused")
    name: str = knob("", "label in the default directory's name; empty means <system>-<env>")
    progress: bool = knob(True, "live progress display; off prints one line per evaluation")


@dataclass
class Config:
    env: EnvConfig = group(EnvConfig, "what is learned")
    network: NetworkConfig = group(NetworkConfig, "actor-critic network")
    algorithm: AlgorithmConfig = group(AlgorithmConfig, "how it is learned")
    system: SystemConfig = group(SystemConfig, "the architecture: learners, aggregation, truncation")
    platform: PlatformConfig = group(PlatformConfig, "the emulated serverless platform")
    delays: DelaysConfig = group(DelaysConfig, "how long everything takes, in simulated seconds")
    prices: PricesConfig = group(PricesConfig, "what everything costs")
    engine: EngineConfig = group(EngineConfig, "how this machine executes the plan")
    evaluation: EvaluationConfig = group(EvaluationConfig, "measuring the policy")
    checkpoint: CheckpointConfig = group(CheckpointConfig, "saving the run")
    run: RunConfig = group(RunConfig, "where the run lives")
    seed: int = knob(0, "first random seed; seeds seed .. seed + num_seeds - 1 are trained")
    num_seeds: int = knob(1, "independent agents trained side by side, each with its own delays")
    total_steps: int = knob(500_000, "env steps per seed, rounded up to whole rounds")
    resume: str = knob("", "run directory to continue; only total_steps, engine, evaluation and checkpoint may change")
