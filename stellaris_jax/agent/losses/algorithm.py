"""Base class of algorithms: a loss, its options, and the data that it needs. To add one, subclass and register it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.common import DRIFT, METRICS, AdvantageInputs, Metrics
from stellaris_jax.agent.networks.policy_network import VALUE, has_outputs
from stellaris_jax.base.registry import register
from stellaris_jax.config.buffer import is_off_policy
from stellaris_jax.config.optioned import Numbered, options_of
from stellaris_jax.config.schema import knob, shown
from stellaris_jax.config.tree import Config
from stellaris_jax.telemetry import names

TAKEN = {*DRIFT, *names.METRICS, "kind", "round", "env_steps", "per_seed", "chi2", "ess", "check", "staleness_counts",
         "in_flight_counts", "queued_counts", "data_lag_counts", "probe", "nonfinite_gradients"}  # fmt: skip
"""Names in records that no algorithm's metric can have."""


KNOWN = {*METRICS, "q_value", "temperature"}
"""Names of our own algorithms' metrics."""

DATA = ("fresh", "replay")

TARGETS: dict[str, tuple[str, Any]] = {
    "none": ("", None),
    "version": ("target_interval", int),
    "polyak": ("target_rate", float),
    "reference": ("", None),
}
"""Kinds of target networks, each with the option that it needs and the type of that."""


class Algorithm(Numbered):
    """Loss with options, which `algorithm.options` sets.

    Float options are inputs of the compiled program: inside `loss` they are arrays, and another value needs no
    compilation. All other options are constants there. Two algorithms that differ only in floats are equal.

    >>> class Margin(Algorithm):
    ...     margin: float = knob(0.1, "what an action must gain")
    >>> Margin({"margin": 0.2}) == Margin(), Margin({"margin": 0.2}).margin
    (True, 0.2)
    """

    advantage: ClassVar[str] = "gae"
    """Estimator of advantages and targets, unless `algorithm.advantage` names another."""

    advantages: ClassVar[tuple[str, ...]] = ()
    """Values of `algorithm.advantage` that are accepted; empty if all are."""

    standardises: ClassVar[bool] = True
    """Whether advantages are standardised over a batch, or by learners over a minibatch."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Outputs of the policy that `loss` needs, see `PolicyNetwork.outputs`; its estimator may need more."""

    sequences: ClassVar[bool] = False
    """Whether minibatches hold whole sequences of environments instead of single samples, and have `Samples.steps`."""

    metrics: ClassVar[Mapping[str, str]] = METRICS
    """Metrics that `loss` returns, with a description that names the unit."""

    truncations: ClassVar[tuple[str, ...]] = ("weight", "surrogate", "artifact", "none")
    """Modes of `system.truncation` that change the loss; the algorithm refuses the others."""

    target: ClassVar[str] = "none"
    """Target network: `none`; an old `version` of the policy (`TargetNetwork`); `polyak`, a running mean of versions
    (`PolyakTarget`); or `reference`, the policy that the run starts from."""

    data: ClassVar[str] = "fresh"
    """Data of minibatches: `fresh` batches, each learned from in `algorithm.epochs` passes and then forgotten; or
    those of a `replay` buffer (`OffPolicy`)."""

    draws: ClassVar[bool] = False
    """Whether the loss draws random numbers, with `ReplayInputs.key`."""

    masked: ClassVar[bool] = True
    """Whether the loss applies masks, as `total` does; if not, `algorithm.masks` is refused."""

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        named, name = config.algorithm.advantage, f"algorithm.name={config.algorithm.name}"
        if wrong := cls._declared_wrongly() or cls._target_wrongly(config.algorithm.options):
            yield False, f"{cls.__name__}.{wrong}."
            return
        yield (
            not cls.advantages or named in cls.advantages,
            f"algorithm.advantage={named} is not possible with {name}; accepted: {', '.join(cls.advantages)}.",
        )
        masks = ",".join(config.algorithm.masks)
        yield cls.masked or not masks, f"algorithm.masks=[{masks}] changes nothing under {name}; accepted: []."
        coefficient = config.algorithm.kl_coefficient
        yield (
            coefficient == 0.0 or "kl" in cls.metrics,
            f"algorithm.kl_coefficient={coefficient} changes nothing under {name}: it has no metric kl; accepted: 0.",
        )
        yield from has_outputs(config, cls.needs, name)
        if named == "own":
            estimator: Any = register.advantage[cls.advantage]
            other = VALUE in estimator.needs and VALUE not in cls.needs and not cls.advantages
            for holds, message in estimator.conditions(config, section):
                told = message.replace("algorithm.advantage=own", f"{name} with {cls.advantage}")
                yield holds, f"{told.removesuffix('.')}, or algorithm.advantage=group." if other else told
        yield (
            config.system.truncation in cls.truncations,
            f"system.truncation={config.system.truncation} changes nothing under algorithm.name="
            f"{config.algorithm.name}; accepted: {', '.join(cls.truncations)}.",
        )

    @classmethod
    def _declared_wrongly(cls) -> str:
        """End of a sentence about the first declared attribute that cannot be; empty if all can."""
        for attribute in ("advantages", "needs", "truncations"):
            names = getattr(cls, attribute)
            if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
                return f"{attribute} must be a tuple of texts, not {shown(names)}"
        if cls.advantage not in register.advantage:
            return f"advantage must be one of {', '.join(register.advantage)}, not {shown(cls.advantage)}"
        if cls.data not in DATA:
            return f"data must be one of {', '.join(DATA)}, not {shown(cls.data)}"
        if cls.data == "replay" and not is_off_policy(cls):
            return "data is replay, so the class must inherit from OffPolicy"
        if not isinstance(cls.metrics, Mapping):
            return f"metrics must be descriptions by name, not {shown(cls.metrics)}"
        taken = [name for name in cls.metrics if name not in KNOWN and (name in TAKEN or not str(name).isidentifier())]
        return f"metrics cannot have {shown(taken[0])}, a name that records have or that is none" if taken else ""

    @classmethod
    def _target_wrongly(cls, options: Mapping[str, Any]) -> str:
        """End of a sentence about a target network that cannot be; empty if it can."""
        try:
            target = cls(options).target  # may be a property
        except Exception as error:
            return f"target failed: {type(error).__name__}: {error}"
        if not isinstance(target, str) or target not in TARGETS:
            return f"target must be one of {', '.join(TARGETS)}, not {shown(target)}"
        algorithm: Any = cls
        option, kind = TARGETS[target]
        own = options_of(algorithm)
        if option and (option not in own or own[option].knob.kind is not kind):
            return f"target={target} needs the option {option}, of the type {kind.__name__}"
        return ""

    def fields(self, steps: AdvantageInputs) -> dict[str, jax.Array]:
        """Own fields of samples, `[T, N]` by name, from the steps of a batch; the loss finds them in `batch.own`."""
        return {}

    def loss(self, inputs: Any) -> tuple[jax.Array, Metrics]:
        """Loss of a minibatch, a scalar, and its `metrics`, scalars by name without gradient; see `total`.

        Inputs are `LossInputs`; of an algorithm that learns from a replay buffer they are `ReplayInputs`.
        """
        raise NotImplementedError


class TargetNetwork(Algorithm):
    """Algorithm with a target network, whose policy is `Samples.target_policy` of its minibatches."""

    target = "version"
    target_interval: int = knob(
        16, "versions between refreshes of the target network (pi_t); as many more are kept", within="[1, inf)"
    )


class PolyakTarget(Algorithm):
    """Algorithm whose target network follows the policy (Polyak averaging): T <- T + tau (theta - T) at each version.

    A learner has the target network of the version that it has fetched: `Samples.target_policy` of its minibatch.
    """

    target = "polyak"
    target_rate: Number = knob(
        0.005, "share of the way that the target network moves towards each version (tau)", within="[0, 1]"
    )
