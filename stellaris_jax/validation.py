"""What a configuration must be to run, beyond the type and range of each of its fields."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from stellaris_jax.config import Config, DelayConfig, knobs
from stellaris_jax.scaling.width import CONSTANT, is_scaled, width_of
from stellaris_jax.schema import ConfigError


def validate(config: Config) -> None:
    """Raise ConfigError for the first value or combination of values that cannot run."""
    for key, entry in knobs().items():
        entry.check(attrgetter(key)(config))
    for conditions in (_combinations, _scaling):
        for holds, sentence in conditions(config):
            if not holds:
                raise ConfigError(sentence)


def _combinations(c: Config) -> Iterator[tuple[bool, str]]:
    """Conditions between keys, each with the sentence to say where it does not hold."""
    samples = c.env.num_envs * c.algorithm.rollout_length
    yield (
        not (c.env.clip_reward and c.env.normalize_reward),
        "env.clip_reward and env.normalize_reward both scale rewards; only one of them can be true.",
    )
    yield (
        samples % c.algorithm.minibatches == 0,
        f"algorithm.minibatches={c.algorithm.minibatches} must divide the {samples} samples of a round "
        f"(env.num_envs={c.env.num_envs} times algorithm.rollout_length={c.algorithm.rollout_length}).",
    )
    yield (
        c.algorithm.name == "ppo" or c.env.num_envs % c.algorithm.minibatches == 0,
        f"algorithm.minibatches={c.algorithm.minibatches} must divide env.num_envs={c.env.num_envs} under "
        f"algorithm.name={c.algorithm.name}, whose minibatches are whole fragments of environments.",
    )
    yield (
        c.env.num_envs % c.engine.devices == 0,
        f"env.num_envs={c.env.num_envs} must be a multiple of engine.devices={c.engine.devices}.",
    )
    learners = c.system.learners
    slots = c.platform.gpus * c.platform.slots_per_gpu
    yield (
        learners <= slots,
        f"system.learners={learners} must be at most the platform's {slots} slots "
        f"(platform.gpus={c.platform.gpus} times platform.slots_per_gpu={c.platform.slots_per_gpu}).",
    )
    fragments = 2 if c.system.actors == "pipelined" else 1
    gradients = c.algorithm.epochs * c.algorithm.minibatches * fragments
    yield (
        learners <= gradients,
        f"system.learners={learners} must be at most the {gradients} minibatches there are at a time "
        f"(algorithm.epochs={c.algorithm.epochs} times algorithm.minibatches={c.algorithm.minibatches}"
        f"{' of two fragments' if fragments == 2 else ''}).",
    )
    yield (
        c.system.rule != "central" or learners == 1,
        f"system.rule=central has one learner, so system.learners must be 1, not {learners}.",
    )
    yield (
        c.system.rule != "softsync" or c.system.softsync_c <= learners,
        f"system.softsync_c={c.system.softsync_c} must be at most system.learners={learners}.",
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
    for key in ("learner", "actor", "aggregate", "scaling"):
        delay: DelayConfig = getattr(c.delays, key)
        yield (
            delay.kind != "measured" or len(delay.table) > 0,
            f"delays.{key}.kind=measured needs delays.{key}.table, a list of seconds with at least one entry.",
        )
        yield (
            delay.kind not in ("lognormal", "pareto") or delay.seconds > 0,
            f"delays.{key}.seconds must be greater than 0 if delays.{key}.kind is {delay.kind}, not {delay.seconds}.",
        )


def _scaling(c: Config) -> Iterator[tuple[bool, str]]:
    """Conditions on the number of actors, where it is not simply all of the platform's."""
    scaling = c.scaling
    for rule, needs in {"adapt": ("target",), "minionsrl": ("target", "budget")}.items():
        for key in needs:
            value = getattr(scaling, key)
            yield (
                scaling.rule != rule or value > 0.0,
                f"scaling.{key}={value} must be greater than 0 under scaling.rule={rule}, which goes by shares of it.",
            )
    if not is_scaled(c):
        return
    width = width_of(c)
    yield (
        width.maximum <= c.platform.actors,
        f"scaling.maximum={width.maximum} must be at most platform.actors={c.platform.actors}.",
    )
    yield (
        c.env.num_envs % width.maximum == 0,
        f"env.num_envs={c.env.num_envs} must be a multiple of scaling.maximum={width.maximum}, to be shared evenly.",
    )
    for key in ("minimum", "actors"):
        yield (
            getattr(scaling, key) <= width.maximum,
            f"scaling.{key}={getattr(scaling, key)} must be at most scaling.maximum={width.maximum}.",
        )
    yield (
        scaling.rule in CONSTANT or scaling.actors == 0 or scaling.actors >= width.minimum,
        f"scaling.actors={scaling.actors}, of the first round, must be at least scaling.minimum={width.minimum}.",
    )
