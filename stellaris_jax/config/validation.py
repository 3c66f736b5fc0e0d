"""Checks of a whole configuration, beyond the type and range of each field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.buffer import buffer_options, minibatches_per_round
from stellaris_jax.config.options import (
    check_options,
    conditions,
    estimator_of,
    has_sequences,
    is_recurrent,
    memory_setting,
    part_optimizers,
)
from stellaris_jax.config.schema import LAST_SEED
from stellaris_jax.config.tree import Config, knobs

MOST_LAYERS = 64
MOST_SAMPLES = 2**30
"""Most samples of a round. With two fragments at a time, their indices have 31 bits."""
LEAST_FACTOR = 1e-30
"""Smallest quotient of a part's learning rate and the base one; 1 / `LEAST_FACTOR` is the largest."""
LEAST_TIMEOUT = 1.0
"""Shortest `live.timeout`, in seconds."""
MOST_PLANNED = 10**10
"""Most steps of planning a round, about gradients times learners squared; more would take hours."""


def check_values(config: Config) -> None:
    """Raise ConfigError for the first value, or combination of values, that no run can have."""
    for key, entry in knobs().items():
        entry.check(attrgetter(key)(config))
    check_options(config)
    require(_combinations(config))
    require(conditions(config))


def require(conditions: Iterable[tuple[bool, str]]) -> None:
    """Raise ConfigError with the sentence of the first condition that does not hold."""
    for holds, sentence in conditions:
        if not holds:
            raise ConfigError(sentence)


def _rates(c: Config) -> Iterator[tuple[bool, str]]:
    part_optimizers(c)
    for name, rate in c.algorithm.learning_rates.items():
        key, base = f"algorithm.learning_rates.{name}", c.algorithm.learning_rate
        replace(knobs()["algorithm.learning_rate"], key=key).check(rate)
        yield (
            LEAST_FACTOR <= rate / base <= 1.0 / LEAST_FACTOR,
            f"{key}={rate} must be {LEAST_FACTOR:g} to {1.0 / LEAST_FACTOR:g} times algorithm.learning_rate={base}.",
        )


def _combinations(c: Config) -> Iterator[tuple[bool, str]]:
    """Conditions between keys, each with the error message for its violation."""
    last = c.seed + c.num_seeds - 1
    yield (
        last <= LAST_SEED,
        f"The last seed, seed + num_seeds - 1 = {last}, must be at most {LAST_SEED}.",
    )
    yield (
        len(c.network.hidden) <= MOST_LAYERS,
        f"network.hidden has {len(c.network.hidden)} layers, and at most {MOST_LAYERS} are possible.",
    )
    yield (
        c.executor == "simulated" or c.num_seeds == 1,
        f"num_seeds={c.num_seeds} is not possible with executor={c.executor}, which has one.",
    )
    yield (
        c.executor == "simulated" or c.engine.devices == 1,
        f"engine.devices={c.engine.devices} is not possible with executor={c.executor}, which has one.",
    )
    yield (
        c.executor == "simulated" or not c.engine.distributed,
        f"engine.distributed=true is not possible with executor={c.executor}, which has processes of its own kind.",
    )
    shards = c.platform.parameter_shards
    yield (
        c.executor == "simulated" or shards == 1,
        f"platform.parameter_shards={shards} is not possible with executor={c.executor}, which has one parameter "
        "function; 1 is.",
    )
    yield (
        c.executor != "live" or c.live.timeout >= LEAST_TIMEOUT,
        f"live.timeout={c.live.timeout:g} is too short: processes are looked after five times a second, and passing "
        "arrays to one may take longer, so each would be replaced before it answers; "
        f"{LEAST_TIMEOUT:g} s or more are possible.",
    )
    yield (
        c.executor != "live" or not c.live.address or c.live.pool == "ray",
        f"live.address={c.live.address} is not possible with live.pool={c.live.pool}, which joins no cluster; "
        "live.pool=ray does.",
    )
    yield (
        bool(c.trace) == (c.executor == "replay"),
        "executor=replay needs trace=RUN_DIR, the directory of a live run."
        if c.executor == "replay"
        else f"trace={c.trace} is for executor=replay.",
    )
    samples = c.env.num_envs * c.algorithm.rollout_length
    yield (
        samples <= MOST_SAMPLES,
        f"env.num_envs={c.env.num_envs} times algorithm.rollout_length={c.algorithm.rollout_length} are more than the "
        f"{MOST_SAMPLES} samples that a round can have.",
    )
    yield (
        not (c.env.clip_reward and c.env.normalize_reward),
        "env.clip_reward and env.normalize_reward both scale rewards; only one of them can be true.",
    )
    yield (
        samples % c.algorithm.minibatches == 0,
        f"algorithm.minibatches={c.algorithm.minibatches} must divide the {samples} samples of a round "
        f"(env.num_envs={c.env.num_envs} times algorithm.rollout_length={c.algorithm.rollout_length}).",
    )
    yield from _rates(c)
    sequences = {
        f"algorithm.name={c.algorithm.name}": getattr(register.algorithm.get(c.algorithm.name), "sequences", False),
        f"algorithm.advantage={c.algorithm.advantage}": getattr(
            register.advantage.get(estimator_of(c)), "by_learners", False
        ),
    }
    for what, needed in sequences.items():
        yield (
            not needed or c.env.num_envs % c.algorithm.minibatches == 0,
            f"algorithm.minibatches={c.algorithm.minibatches} must divide env.num_envs={c.env.num_envs} under "
            f"{what}, whose minibatches are whole fragments of environments.",
        )
    recurrent = is_recurrent(c)
    mean = c.algorithm.loss_mean
    yield (
        mean == "samples" or has_sequences(c),
        f"algorithm.loss_mean={mean} needs minibatches of whole sequences, which a policy with memory has, and "
        "algorithms that learn from sequences; accepted: samples.",
    )
    yield (
        not recurrent or c.env.num_envs % c.algorithm.minibatches == 0,
        f"algorithm.minibatches={c.algorithm.minibatches} must divide env.num_envs={c.env.num_envs} with "
        f"{memory_setting(c.network)}, for minibatches are whole fragments of environments then.",
    )
    yield (
        c.env.num_envs % c.engine.devices == 0,
        f"env.num_envs={c.env.num_envs} must be a multiple of engine.devices={c.engine.devices}.",
    )
    if c.system.actors == "independent":
        yield from _independent(c)
    else:
        yield from _only_independent(c)
    learners = c.system.learners
    slots = c.platform.gpus * c.platform.slots_per_gpu
    yield (
        learners <= slots,
        f"system.learners={learners} must be at most the platform's {slots} slots "
        f"(platform.gpus={c.platform.gpus} times platform.slots_per_gpu={c.platform.slots_per_gpu}).",
    )
    fragments = c.system.fragments_in_flight
    times = {
        "pipelined": " of two fragments",
        "independent": f" times system.batches_in_flight={fragments}",
    }.get(c.system.actors, "")
    gradients = minibatches_per_round(c) * fragments
    of = f"algorithm.epochs={c.algorithm.epochs} times algorithm.minibatches={c.algorithm.minibatches}{times}"
    if options := buffer_options(c):
        of = f"algorithm.options.updates_per_step={options['updates_per_step']:g} times the env steps of a round{times}"
    yield (
        learners <= gradients,
        f"system.learners={learners} must be at most the {gradients} minibatches there are at a time ({of}).",
    )
    steps = gradients * learners**2
    yield (
        steps <= MOST_PLANNED,
        f"system.learners={learners} and the {gradients} minibatches there are at a time ({of}) are too many for their "
        f"rounds to be planned: {steps:.1e} steps, of {MOST_PLANNED:.0e} that are possible.",
    )
    priced = c.prices.learner_vms * c.prices.learner_vm_slots
    yield (
        slots <= priced,
        f"platform={c.platform.name} has {slots} learner slots, but prices={c.prices.name} pays for {priced} "
        f"(prices.learner_vms={c.prices.learner_vms} times prices.learner_vm_slots={c.prices.learner_vm_slots}).",
    )
    priced = c.prices.actor_vms * c.prices.actor_vm_slots
    yield (
        c.platform.actors <= priced,
        f"platform={c.platform.name} has {c.platform.actors} actors, but prices={c.prices.name} pays for {priced} "
        f"(prices.actor_vms={c.prices.actor_vms} times prices.actor_vm_slots={c.prices.actor_vm_slots}).",
    )


ONLY_INDEPENDENT = {
    "system.actor_shards": 0,
    "system.sync_steps": 0,
    "system.publish_every": 1,
    "system.publish_lag": 0,
    "system.data_admission": "fifo",
    "system.data_queue": 0,
    "system.batches_in_flight": 2,
    "delays.by": "steps",
    "delays.actor_failure": 0.0,
    "system.dynamic_sampling": 0,
}
"""Keys that only independent actors have, with the values that mean nothing."""


def _only_independent(c: Config) -> Iterator[tuple[bool, str]]:
    """Condition that no key of independent actors is set for other actors."""
    values = {key: attrgetter(key)(c) for key in ONLY_INDEPENDENT}
    given = [f"{key}={value}" for key, value in values.items() if value != ONLY_INDEPENDENT[key]]
    others = [f"{key}={nothing}" for key, nothing in ONLY_INDEPENDENT.items() if values[key] != nothing]
    verb = "are" if len(given) > 1 else "is"
    yield (
        not given,
        f"{_listed(given)} {verb} for system.actors=independent; with system.actors={c.system.actors} give "
        f"{_listed(others)}.",
    )


def _listed(items: list[str]) -> str:
    """Items as words: `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _dynamic(c: Config) -> Iterator[tuple[bool, str]]:
    """Conditions on dynamic sampling, which drops fragments by their groups' returns."""
    own, each = f"system.dynamic_sampling={c.system.dynamic_sampling}", c.env.num_envs // c.actor_shards
    yield (
        c.delays.by == "episodes",
        f"{own} needs delays.by=episodes, not {c.delays.by}: it depends on returns, so a round is planned in parts.",
    )
    yield (
        estimator_of(c) == "group",
        f"{own} drops groups of equal returns, which algorithm.advantage={estimator_of(c)} does not have; "
        "algorithm.advantage=group does.",
    )
    yield (
        each % c.group == 0,
        f"{own} needs whole groups of {c.group} environments (algorithm.advantage_options.size) in each of "
        f"{c.actor_shards} shards, not {each} (env.num_envs={c.env.num_envs}); give another system.actor_shards.",
    )
    yield (
        not c.env.clip_reward,
        f"{own} compares returns as the task gives them, not with env.clip_reward=true; false is possible.",
    )


def _independent(c: Config) -> Iterator[tuple[bool, str]]:
    """Conditions on the keys of independent actors."""
    system, envs, devices, shards = c.system, c.env.num_envs, c.engine.devices, c.actor_shards
    each = f" times engine.devices={devices}" if devices > 1 else ""
    kept = f"; a run that is resumed keeps its shards, so give an engine.devices that divides {envs // shards}"
    fewer = f"; on so many devices, give one that divides {envs // devices}"
    yield (
        envs % (shards * devices) == 0,
        f"system.actor_shards={shards}{each} must divide env.num_envs={envs}"
        f"{'' if devices == 1 else kept if c.resume else fewer}.",
    )
    yield (
        shards <= c.platform.actors,
        f"system.actor_shards={shards} must be at most platform.actors={c.platform.actors}, which the shards share.",
    )
    steps, sync = c.algorithm.rollout_length, system.sync_steps
    yield (
        sync == 0 or sync > steps or steps % sync == 0,
        f"system.sync_steps={sync} must divide algorithm.rollout_length={steps}, or be 0, or be larger: once per "
        "fragment.",
    )
    yield (
        system.data_queue == 0 or system.data_queue >= shards,
        f"system.data_queue={system.data_queue} is too short: a batch is {shards} fragments, one for each shard "
        "(system.actor_shards); give as many or more, or 0.",
    )
    behind = system.publish_every + system.publish_lag
    yield (
        behind < system.versions,
        f"system.publish_every={system.publish_every} plus system.publish_lag={system.publish_lag} must be less than "
        f"system.versions={system.versions}, for actors fetch versions that are kept.",
    )
    scaled = c.scaling.rule != "fixed" or c.scaling.actors > 0
    yield (
        not scaled,
        f"scaling={c.scaling.name} is not possible with system.actors=independent: scaling rules choose the actors of "
        "a round, at which all actors meet; leave scaling=fixed without scaling.actors.",
    )
    yield (
        c.delays.by == "steps" or not c.engine.distributed,
        "engine.distributed=true is not possible with delays.by=episodes; engine.distributed=false is.",
    )
    yield (
        c.delays.by == "steps" or c.engine.members != "together" or c.num_seeds == 1,
        "engine.members=together is not possible with delays.by=episodes, for every seed has lengths of its own; apart "
        "or auto are.",
    )
    yield (
        c.delays.by == "steps" or c.executor == "simulated",
        f"delays.by=episodes is not possible with executor={c.executor}, whose durations are "
        f"{'measured' if c.executor == 'live' else 'those of the trace'}; delays.by=steps is.",
    )
    if system.dynamic_sampling:
        yield from _dynamic(c)
    actors = c.live.actors
    yield (
        c.executor != "live" or actors in (0, shards),
        f"live.actors={actors} is not possible with independent actors, whose {shards} shards are an actor each; "
        f"{'set it to 0' if c.resume else f'leave it at 0, or give system.actor_shards={actors}'}.",
    )
