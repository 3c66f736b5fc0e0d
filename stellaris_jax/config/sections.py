"""Sections of the configuration tree: every key with its type, default, help text and accepted values.

A help text names the unit and, where there is one, the symbol and equation of the paper ("Stellaris", SC'24).
`stellaris-jax train --help` prints all of them.
"""

# ruff: noqa: RUF009  (`knob` and `group` make dataclass fields)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stellaris_jax.base.renamed import warn_renamed
from stellaris_jax.config.schema import Section, group, knob


@dataclass(frozen=True)
class EnvConfig(Section):
    name: str = knob("gymnax/CartPole-v1", "environment as suite/name, e.g. gymnax/acrobot, brax/reacher")
    num_envs: int = knob(
        16, "environments stepped side by side per seed (N), shared out over the actors", within="[1, inf)"
    )
    kwargs: dict[str, Any] = knob({}, "extra arguments for the suite, e.g. env.kwargs.backend=spring for brax")
    overlap: bool = knob(
        True,
        "host environments step on threads while learners train on the fragment before; false takes turns; of live "
        "runs system.actors says that",
    )
    timeout: float = knob(
        600.0, "seconds a host environment may take for a step or a reset before the run gives up", within="(0, inf)"
    )
    frame_stack: int = knob(
        0, "observe this many last frames, joined along the last axis; 0: as the suite has it", within="[0, 1000]"
    )
    sticky_actions: float = knob(0.0, "probability that the last action is done again instead", within="[0, 1)")
    life_loss: bool = knob(False, "a lost life ends an episode in training; evaluations play whole games (Atari)")
    clip_reward: bool = knob(False, "learn from the sign of rewards; returns are reported as the task gives them")
    wrappers: tuple[str, ...] = knob(
        (), "registered wrappers put around the environment and its preprocessing, the first innermost", kind="wrapper"
    )
    normalize_observation: bool | None = knob(
        False,
        "subtract the running mean of observations, divide by their deviation; null: if they are real numbers of a Box",
    )
    rescale_action: bool | None = knob(
        False,
        "actions from -1 to 1 stand for the bounds of the environment's Box; null: if a bound is above 2 or below 0.5 "
        "in size, or both have one sign",
    )
    normalize_reward: bool = knob(False, "divide rewards by the running deviation of the discounted return")


@dataclass(frozen=True)
class NetworkConfig(Section):
    policy: str = knob("actor_critic", "the policy: what it computes from observations", kind="policy")
    options: dict[str, Any] = knob({}, "options of the policy")
    torso: str = knob(
        "mlp",
        "layers before the hidden ones: convolutions with ReLUs on images [height, width, channels]; mlp has none",
        kind="torso",
    )
    hidden: tuple[int, ...] = knob(
        (64, 64), "widths of the dense hidden layers after the torso, in units; [] has none", within="[1, inf)"
    )
    activation: str = knob("tanh", "activation of the hidden layers", choices=("tanh", "relu"))
    shared: bool = knob(False, "policy and critic share torso and hidden layers; false gives each its own")
    init: str = knob(
        "orthogonal",
        "initial weights: orthogonal (gain sqrt(2), 0.01 and 1 at the outputs of policy and critic), or RLlib's normc "
        "(columns of norm 1, 0.01 at outputs)",
        choices=("orthogonal", "normc"),
    )
    log_std: str = knob(
        "free",
        "log-deviations of continuous actions: free parameters, or a function of the state, kept within [-5, 2]",
        choices=("free", "state"),
    )
    memory: str = knob(
        "none", "cell behind the hidden layers that carries something from step to step of an episode", kind="memory"
    )
    memory_size: int = knob(64, "units of that cell", within="[1, inf)")


@dataclass(frozen=True)
class AlgorithmConfig(Section):
    name: str = knob("ppo", "the loss", kind="algorithm")
    masks: tuple[str, ...] = knob(
        (), "masks of samples by how far the policy has come since, which multiply the policy's loss", kind="mask"
    )
    options: dict[str, Any] = knob({}, "options of the algorithm")
    mask_options: dict[str, Any] = knob({}, "options of masks, below the name of each")
    advantage: str = knob(
        "own", "estimator of advantages and of the critic's targets; own: the algorithm's", kind="advantage"
    )
    advantage_options: dict[str, Any] = knob({}, "options of the estimator")
    optimizer: str = knob("adam", "what turns an aggregated gradient into a step", kind="optimizer")
    optimizer_options: dict[str, Any] = knob({}, "options of the optimizer")
    rollout_length: int = knob(128, "steps of every environment per round (T), in env steps", within="[1, inf)")
    loss_mean: str = knob(
        "samples",
        "mean of the loss over a minibatch: over samples, over sequences of the mean over their samples (sequences), "
        "or the sum over samples by the constant length of fragments (constant, as in Dr. GRPO)",
        choices=("samples", "sequences", "constant"),
    )
    epochs: int = knob(4, "passes over a round's data", within="[1, inf)")
    minibatches: int = knob(4, "minibatches per pass; each is one learner invocation", within="[1, inf)")
    learning_rate: float = knob(1e-3, "base learning rate (alpha_0 of Eq. 4)", within="(0, inf)")
    learning_rates: dict[str, Any] = knob(
        {}, "base learning rates of parts of the policy that have their own, by name: actor, critic, body, log_std"
    )
    optimizers: dict[str, Any] = knob(
        {},
        "optimizers of parts of the policy that have their own, by name of the part: critic: sgd, or with options "
        "critic: {name: sgd, momentum: 0.9}",
    )
    anneal: bool = knob(False, "lower the learning rate linearly to zero over total_steps")
    max_grad_norm: float = knob(
        0.5, "clip the norm of an aggregated gradient at this value; 0 turns it off", within="[0, inf)"
    )
    adam_b1: float = knob(0.9, "decay of Adam's mean of gradients (beta 1)", within="[0, 1)")
    adam_b2: float = knob(0.999, "decay of Adam's mean of squared gradients (beta 2)", within="[0, 1)")
    adam_eps: float = knob(1e-5, "epsilon of Adam", within="(0, inf)")
    gamma: float = knob(0.99, "discount per step (gamma)", within="[0, 1]")
    gae_lambda: float = knob(0.95, "lambda of advantage estimation: GAE's and V-trace's", within="[0, 1]")
    value_coefficient: float = knob(0.5, "weight of the value loss", within="[0, inf)")
    entropy_coefficient: float = knob(0.01, "weight of the entropy bonus", within="[0, inf)")
    kl_coefficient: float = knob(
        0.0,
        "initial weight of KL(mu || pi), for IMPACT of KL(target network || pi), adapted each round within "
        "[1e-16, 1e9]; 0 turns it off",
        within="[0, inf)",
    )
    kl_target: float = knob(0.01, "KL the coefficient is adapted towards, in nats", within="(0, inf)")


@dataclass(frozen=True)
class ScalingConfig(Section):
    name: str = knob("fixed", "name of the rule, for reports")
    rule: str = knob(
        "fixed",
        "how many actors the next round has: always as many (fixed, max), by the return reached (adapt), doubled every "
        "so often (hydrozoa), by gradient noise (kungfu), by curvature (nitro), or by a learned scheduler (minionsrl)",
        kind="scaling",
    )
    options: dict[str, Any] = knob({}, "options of the rule")
    actors: int = knob(
        0, "actors of rule fixed, and of the first round of others; 0: all, of others the fewest", within="[0, inf)"
    )
    maximum: int = knob(
        0,
        "most actors of a round (I_max), which share env.num_envs; 0: one for each environment, as far as the platform "
        "has them",
        within="[0, inf)",
    )
    minimum: int = knob(
        1, "fewest actors of a round (I_min); 0: an eighth of the most, as Nitro's 8 of 64", within="[0, inf)"
    )
    target: float | None = knob(
        None, "mean return of a round's episodes at which training ends (J); null: none. adapt and minionsrl need it"
    )
    budget: float = knob(
        0.0, "dollars after which no round is begun (B); 0: none. minionsrl needs it", within="[0, inf)"
    )
    ends: bool = knob(True, "training ends at the target and when the budget is spent; false: rules only know of them")


@dataclass(frozen=True)
class PlatformConfig(Section):
    name: str = knob("regular", "name of the platform, for reports")
    gpus: int = knob(2, "GPUs that host learner functions", within="[1, inf)")
    slots_per_gpu: int = knob(4, "learner functions one GPU holds at a time", within="[1, inf)")
    gpus_per_vm: int = knob(1, "GPUs of one VM; the parameter function lives on the first VM", within="[1, inf)")
    actors: int = knob(128, "actor functions, one CPU core each", within="[1, inf)")
    cold_start: float = knob(1.5, "seconds to start a learner function whose container is not warm", within="[0, inf)")
    warm_start: float = knob(0.0, "seconds to start a learner function in a warm container", within="[0, inf)")
    actor_cold_start: float = knob(0.3, "seconds to start an actor whose container or VM is not up", within="[0, inf)")
    keep_alive: float = knob(600.0, "seconds an idle container stays warm", within="[0, inf)")
    prewarm: bool = knob(True, "start the run with warm containers")
    shared_memory: float = knob(
        0.0, "seconds to pass a policy or gradient between functions of one VM", within="[0, inf)"
    )
    rpc: float = knob(0.0, "seconds to pass a policy or gradient between VMs", within="[0, inf)")
    cache: float = knob(0.0, "seconds to pass a policy or trajectory through the distributed cache", within="[0, inf)")
    parameter_shards: int = knob(
        1,
        "parameter functions, each for an equal part of the parameters: an aggregation takes so many times less than "
        "delays.aggregate",
        within="[1, inf)",
    )
    contention: float = knob(
        0.0, "share by which every other learner that computes on its GPU slows a learner down", within="[0, inf)"
    )
    interference: float = knob(
        0.0,
        "share by which learners and the parameter function slow each other down while both compute",
        within="[0, inf)",
    )


@dataclass(frozen=True)
class DelayConfig(Section):
    kind: str = knob("constant", "distribution of durations", kind="delay")
    seconds: float = knob(
        1.0,
        "the constant; the median of lognormal; the mean of exponential; the minimum of pareto, in seconds",
        within="[0, inf)",
    )
    options: dict[str, Any] = knob({}, "options of the distribution")


@dataclass(frozen=True)
class DelaysConfig(Section):
    name: str = knob("lognormal", "name of the delay model, for reports")
    learner: DelayConfig = group(DelayConfig, "one learner invocation: one minibatch gradient")
    actor: DelayConfig = group(DelayConfig, "one actor rolling out its share of a fragment")
    aggregate: DelayConfig = group(DelayConfig, "one aggregation by the parameter function")
    loader: DelayConfig = group(
        DelayConfig, "the data loader, from a whole fragment to minibatches that learners can have", seconds=0.0
    )
    scaling: DelayConfig = group(
        DelayConfig, "scaling=nitro: from the end of a round to the next one's number of actors", seconds=0.4
    )
    log: str = knob("", "log of jobs that delays=trace takes durations from: a file, or the directory of a live run")
    failure: float = knob(
        0.0, "probability that a learner invocation dies; its minibatch is retried, its time billed", within="[0, 0.99]"
    )
    by: str = knob(
        "steps",
        "independent actors: a fragment has algorithm.rollout_length steps and takes its drawn seconds (steps), or "
        "each of its environments stops at the end of an episode, and the fragment takes the share of the drawn "
        "seconds that its longest environment has of these steps (episodes)",
        choices=("steps", "episodes"),
    )
    actor_failure: float = knob(
        0.0,
        "independent actors: probability that a shard dies while it rolls a fragment, which it begins again",
        within="[0, 0.99]",
    )


@dataclass(frozen=True)
class PricesConfig(Section):
    name: str = knob("us_east_2", "name of the price book, for reports")
    learner_vm: float = knob(3.06, "dollars per hour of one learner VM", within="[0, inf)")
    learner_vms: int = knob(2, "learner VMs in the cluster", within="[1, inf)")
    learner_vm_slots: int = knob(
        4, "learner functions per learner VM (an invocation pays this share)", within="[1, inf)"
    )
    actor_vm: float = knob(4.896, "dollars per hour of one actor VM", within="[0, inf)")
    actor_vms: int = knob(1, "actor VMs in the cluster", within="[1, inf)")
    actor_vm_slots: int = knob(128, "actor functions per actor VM (an invocation pays this share)", within="[1, inf)")
    actor_gb: float = knob(
        0.0,
        "GB of memory of a serverless actor that is priced by memory; 0 prices it as its share of a VM",
        within="[0, inf)",
    )
    gb_second: float = knob(0.0, "dollars per GB and second of such an actor's execution", within="[0, inf)")
    reserved_gb_second: float = knob(
        0.0, "dollars per GB and second, by wall-clock, of the concurrency reserved for all of them", within="[0, inf)"
    )


@dataclass(frozen=True)
class EngineConfig(Section):
    lanes: int = knob(1, "gradients computed side by side on each device", within="[1, inf)")
    members: str = knob(
        "auto",
        "seeds are executed side by side under vmap (together), or each by itself on the cores of a CPU (apart); auto: "
        "apart on a CPU",
        choices=("auto", "together", "apart"),
    )
    devices: int = knob(1, "devices learners and environments are spread over", within="[1, inf)")
    distributed: bool = knob(
        False,
        "the devices belong to several processes, each started with this very command (docs/distributed.md)",
    )
    chunk_rounds: int = knob(
        8, "rounds per compiled call; one on host environments and where scaling looks at each", within="[1, inf)"
    )
    compile_cache: bool = knob(True, "keep compiled programs on disk for the next run")


@dataclass(frozen=True)
class EvaluationConfig(Section):
    episodes: int = knob(128, "episodes per evaluation and seed; 0 turns evaluation off", within="[0, inf)")
    points: int = knob(10, "evaluations spread evenly over the run, the last at its end", within="[0, 1e6]")
    greedy: bool = knob(True, "act by the mode of the policy instead of sampling")
    episode_limit: int = knob(
        1000, "steps at which an episode of an environment without a time limit is cut", within="[1, inf)"
    )


@dataclass(frozen=True)
class WarmStartConfig(Section):
    updates: int = knob(
        0,
        "optimizer steps of imitation before the first round; 0: none. Needs demonstrations: tokens/...",
        within="[0, 1e7]",
    )
    batch: int = knob(256, "demonstrations of a step", within="[1, 1e7]")
    learning_rate: float = knob(1e-3, "learning rate of its Adam", within="(0, inf)")
    errors: float = knob(0.3, "share of demonstrations with one wrong character", within="[0, 1]")


@dataclass(frozen=True)
class CheckpointConfig(Section):
    interval: int = knob(
        0, "rounds between checkpoints, beside those at every evaluation; 0: only those", within="[0, inf)"
    )
    keep: int = knob(3, "most recent checkpoints kept beside the best one", within="[1, inf)")
    replay: int = knob(
        2_000_000,
        "env steps per seed a resumed run steps host environments through to stand where it stood, and a live one "
        "those of an actor that has died; of a longer run they begin new episodes instead",
        within="[0, inf)",
    )


@dataclass(frozen=True)
class RunConfig(Section):
    dir: str = knob("", "run directory; empty means runs/<time>-<name>; one that holds a run is refused")
    name: str = knob("", "label in the default directory's name; empty means <system>-<env>")
    loggers: tuple[str, ...] = knob(
        ("tensorboard",), "where metrics go, beside metrics.jsonl and the display", kind="logger"
    )
    logger_options: dict[str, Any] = knob({}, "options of loggers, below the name of each")
    callbacks: tuple[str, ...] = knob(
        (),
        "functions of (round, record, trainer) called after every round; one that returns true ends the run",
        kind="callback",
    )
    progress: bool = knob(True, "live progress display; false prints one line per evaluation")

    @property
    def options(self) -> dict[str, Any]:
        """Options of all loggers in one mapping, as plug-ins read them before the next release."""
        warn_renamed("config.run.options", "config.run.logger_options")
        return {name: value for own in self.logger_options.values() for name, value in own.items()}


@dataclass(frozen=True)
class LiveConfig(Section):
    pool: str = knob("ray", "where learners and actors run: processes on Ray, or threads of this process", kind="pool")
    address: str = knob(
        "", "address of a Ray cluster to join; empty starts one on this machine, that ends with the run"
    )
    actors: int = knob(
        0,
        "actor processes of rule fixed, which share env.num_envs; 0: as many as cores, environments or the platform's "
        "actors allow, whatever is least; independent actors have system.actor_shards",
        within="[0, inf)",
    )
    timeout: float = knob(
        120.0,
        "seconds that an invocation may take, its process's start apart, before it is replaced",
        within="(0, inf)",
    )
    learner_cpus: float = knob(0.0, "CPU cores of one learner; 0: its share of those there are", within="[0, inf)")
    learner_gpus: float = knob(0.0, "GPUs of one learner, 0.25 for four of them on one", within="[0, inf)")
    actor_cpus: float = knob(0.0, "CPU cores of one actor; 0: its share of those there are", within="[0, inf)")
    actor_gpus: float = knob(0.0, "GPUs of one actor", within="[0, inf)")
    emulate: bool = knob(
        False,
        "learners and actors also wait, after they have computed, for the seconds that delays.learner and delays.actor "
        "draw",
    )
