"""Section `system` of the configuration tree: actors, learners and the parameter function."""

# ruff: noqa: RUF009  (`knob` and `group` make dataclass fields)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stellaris_jax.base.renamed import warn_renamed
from stellaris_jax.config.schema import Section, knob


@dataclass(frozen=True)
class SystemConfig(Section):
    name: str = knob("stellaris", "name of the system, for reports")
    rule: str = knob(
        "stellaris",
        "when the parameter function aggregates gradients",
        kind="rule",
    )
    rule_options: dict[str, Any] = knob({}, "options of the rule")
    weights: str = knob("power", "how much a gradient is trusted by its staleness (w of Eq. 4)", kind="weight")
    weight_options: dict[str, Any] = knob({}, "options of the weights")
    admission: str = knob("all", "which gradients are kept, and which learners may start", kind="admission")
    admission_options: dict[str, Any] = knob({}, "options of the admission policy")
    learners: int = knob(8, "learner functions that may be in flight (n)", within="[1, inf)")
    aggregation: str = knob(
        "factored",
        "how weights meet the optimizer: on its direction and step size (factored), on the gradient it is fed "
        "(gradient), by one optimizer step per gradient (sequential), or by a fraction of an Adam step, moments "
        "included (fractional)",
        choices=("factored", "gradient", "sequential", "fractional"),
    )
    corrections: tuple[str, ...] = knob(
        (), "corrections of gradients by what has happened since, in this order", kind="correction"
    )
    correction_options: dict[str, Any] = knob({}, "options of corrections, below the name of each")
    truncation: str = knob(
        "weight",
        "global importance-sampling truncation (Eq. 2): R'/R weights the clipped loss (weight), R' is the ratio in it "
        "(surrogate), or as in the released code (artifact)",
        choices=("weight", "surrogate", "artifact", "none"),
    )
    rho: float = knob(1.0, "truncation threshold (rho of Eq. 2)", within="(0, inf)")
    actors: str = knob(
        "barrier",
        "actors wait for all updates of the round (barrier), collect the next fragment meanwhile (pipelined), or each "
        "shard of them rolls fragments without waiting for the others (independent)",
        choices=("barrier", "pipelined", "independent"),
    )
    actor_precision: str = knob(
        "float32",
        "arithmetic of actors: float32, weights (and the transformer's arithmetic) in bfloat16, or matrices rounded to "
        "int8; learners always have float32, so that actors' probabilities differ from theirs even on fresh data",
        choices=("float32", "bfloat16", "int8"),
    )
    actor_shards: int = knob(
        0,
        "independent actors: shards (A) of env.num_envs, each an actor by itself that stands for its share of "
        "platform.actors; 0: the most up to 8 that divide env.num_envs, or a shard for each group with "
        "system.dynamic_sampling",
        within="[0, inf)",
    )
    sync_steps: int = knob(
        0,
        "independent actors: env steps after which an actor fetches the newest policy, also within a fragment; 0, or "
        "more than algorithm.rollout_length: once per fragment",
        within="[0, inf)",
    )
    publish_every: int = knob(
        1, "independent actors: versions from one that actors can fetch to the next one", within="[1, inf)"
    )
    publish_lag: int = knob(
        0,
        "independent actors: newest versions that actors cannot fetch yet, for they are on their way",
        within="[0, inf)",
    )
    data_admission: str = knob(
        "fifo",
        "independent actors: which fragments make a batch, which are dropped, and when actors wait",
        kind="data_admission",
    )
    data_admission_options: dict[str, Any] = knob({}, "options of the data admission")
    data_queue: int = knob(
        0,
        "independent actors: fragments of shards that may wait for a batch before actors wait; 0: as many batches as "
        "system.data_admission needs, one for fifo; a batch is as many fragments as there are shards",
        within="[0, inf)",
    )
    dynamic_sampling: int = knob(
        0,
        "independent actors: fragments each of whose groups has equal returns, which teach nothing, are dropped, for "
        "each batch at most so many batches' worth, and then kept (DAPO); 0: none is dropped; needs delays.by=episodes "
        "and algorithm.advantage=group",
        within="[0, 1000]",
    )
    batches_in_flight: int = knob(
        2, "independent actors: batches with gradients under way at a time, at most", within="[1, inf)"
    )
    versions: int = knob(32, "policy versions kept for learners (length H of the version ring)", within="[2, inf)")
    overflow: str = knob(
        "wait",
        "a gradient older than the version ring delays the next update (wait) or is discarded and counted (drop)",
        choices=("wait", "drop"),
    )
    learner_billing: str = knob(
        "serverless",
        "learners are billed for busy seconds (serverless) or for wall-clock (serverful)",
        choices=("serverless", "serverful"),
    )
    actor_billing: str = knob(
        "serverful",
        "actors are billed for busy seconds (serverless) or for wall-clock (serverful)",
        choices=("serverless", "serverful"),
    )

    @property
    def fragments_in_flight(self) -> int:
        """Batches whose samples are stored at a time: one to learn from, and with `pipelined` actors one that they
        collect; `batches_in_flight` with `independent` actors."""
        return {"barrier": 1, "pipelined": 2, "independent": self.batches_in_flight}.get(self.actors, 1)

    @property
    def options(self) -> dict[str, Any]:
        """Options of all objects in one mapping, as plug-ins read them before the next release."""
        warn_renamed("config.system.options", "config.system.rule_options, weight_options and so on")
        merged = {**self.rule_options, **self.weight_options, **self.admission_options}
        return merged | {name: value for own in self.correction_options.values() for name, value in own.items()}
