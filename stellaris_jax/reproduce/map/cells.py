"""What the map is made of: tasks, methods, and the axes between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stellaris_jax.reproduce.training import Variant

RATES = ("3e-4", "1e-3", "3e-3", "1e-2", "3e-2")
"""Learning rates that every method is tried at."""
LADDER = ("1e-5", "3e-5", "1e-4", *RATES, "1e-1", "3e-1")
"""Those that a method may come to beside them, as long as the outermost is the best for it."""


class Task(NamedTuple):
    """A task of the map. env: as on the command line; overrides: beside those of its tuned file. steps: budget, in env
    steps. solved: the return that counts as solved. worst: about what an untrained policy earns. rates: that are
    tried."""

    env: str
    steps: int
    solved: float
    worst: float
    overrides: tuple[str, ...] = ()
    rates: tuple[str, ...] = RATES

    def share(self, value: float) -> float:
        """A return as a share of the way from the worst to what counts as solved."""
        return (value - self.worst) / (self.solved - self.worst)


SEQUENTIAL = "all-reduce"
"""What stands for all systems where there is one learner."""

_SHORT = ("algorithm.epochs=4", "algorithm.minibatches=8")

TASKS = {
    "cartpole": Task("gymnax/cartpole", 150_000, 475.0, 20.0),
    "acrobot": Task("gymnax/acrobot", 150_000, -100.0, -500.0),
    "breakout": Task("gymnax/breakout_minatar", 250_000, 10.0, 0.4),
    "asterix": Task("gymnax/asterix_minatar", 250_000, 1.5, 0.45),
    "pendulum": Task("brax/inverted_pendulum", 200_000, 900.0, 10.0),
    "brax_hopper": Task("brax/hopper", 250_000, 550.0, 95.0, ("network.hidden=[64,64]", *_SHORT)),
    "hopper": Task("envpool/hopper", 40_960, 400.0, 15.0, _SHORT, RATES[:3]),
}

LEARNERS = (1, 4, 8, 16, 32)
"""No more than a round has gradients; beyond that nobody gets one."""
LEARNER_COUNTS = (8, 32)
"""Numbers of learners that every method is tried with."""
TUNING, CONFIRMING = range(8), range(8, 16)
"""Seeds that rates and methods are chosen on, and seeds that what is chosen is judged by."""

_WEIGHTED = ("system.weights=power", "system.options.root=1")
_GATE = ("system=stellaris", "system.weights=constant")
_TRUNCATED = ("system.truncation=weight",)
_WHOLE = ("system.truncation=none",)

SYSTEMS: dict[str, tuple[str, ...]] = {
    "all-reduce": ("system=allreduce",),
    "async": ("system=async",),
    "SSP": ("system=ssp",),
    "softsync": ("system=softsync", "system.weights=constant"),
    "softsync, w = 1/s": ("system=softsync",),
    "Stellaris": ("system=stellaris",),
}
PARTS: dict[str, tuple[str, ...]] = {
    "w": ("system=async", *_WEIGHTED),
    "truncation": ("system=async", *_TRUNCATED),
    "w, truncation": ("system=async", *_WEIGHTED, *_TRUNCATED),
    "gate": (*_GATE, *_WHOLE),
    "gate, w": ("system=stellaris", *_WEIGHTED, *_WHOLE),
    "gate, truncation": (*_GATE, *_TRUNCATED),
    "gate, w, truncation": ("system=stellaris", *_WEIGHTED, *_TRUNCATED),
}
"""Stellaris's three ideas one by one; all without any is async, and w = 1/s (v = 1) throughout."""
WEIGHTS: dict[str, tuple[str, ...]] = {
    "w on the gradient": ("system=async", *_WEIGHTED, "system.aggregation=gradient"),
    "polynomial": ("system=fedasync",),
    "hinge": ("system=async", "system.weights=hinge"),
    "exponential": ("system=async", "system.weights=exponential"),
    "FedBuff": ("system=fedbuff",),
}
CORRECTIONS: dict[str, tuple[str, ...]] = {
    name: ("system=async", f"system.corrections=[{correction}]")
    for name, correction in {
        "DC-ASGD": "delay_compensation",
        "gap-aware": "gap_aware",
        "less momentum": "less_momentum",
        "KL gate": "kl_gate",
        "norm ratio": "norm_ratio",
        "ESS": "ess",
    }.items()
}
ADMISSION: dict[str, tuple[str, ...]] = {
    "drop above 8": ("system=async", "system.admission=bounded"),
    "wait at 8": ("system=async", "system.admission=waiting"),
    "capacity (AReaL)": ("system=areal", "system.options.eta=1"),  # with more it never binds, and is softsync
    "in order": ("system=async", "system.admission=in_order"),
}
OBJECTIVES: dict[str, tuple[str, ...]] = {
    **{
        name: (f"algorithm={algorithm}", "algorithm.gae_lambda=0.95", "system=async")
        for name, algorithm in {
            "V-trace": "impala",
            "TIS": "tis",
            "CISPO": "cispo",
            "decoupled": "decoupled",
            "A-3PO": "a3po",
            "SAPO": "sapo",
            "TOPR": "topr",
            "BAPO": "bapo",
        }.items()
    },
    **{
        name: ("system=async", f"algorithm.masks=[{mask}]")
        for name, mask in {"IcePop": "icepop", "OPSM": "opsm"}.items()
    },
    **{  # their masks take the place of PPO's clip
        name: ("algorithm=importance", "system=async", f"algorithm.masks=[{mask}]")
        for name, mask in {"DPPO": "dppo", "M2PO": "m2po"}.items()
    },
}
METHODS = {**SYSTEMS, **PARTS, **WEIGHTS, **CORRECTIONS, **ADMISSION, **OBJECTIVES}
"""Overrides of each; the number of learners comes on top."""
CORE = (*SYSTEMS, "w", "gate, w", "KL gate", "less momentum", "DC-ASGD")
"""Methods that are tried with every number of learners."""


def _kl_gate(*overrides: str, corrections: str = "kl_gate", system: str = "async") -> tuple[str, ...]:
    return (f"system={system}", *overrides, f"system.corrections=[{corrections}]")


COMBINED: dict[str, tuple[str, ...]] = {
    "KL gate at 0.01": _kl_gate("system.options.trust_kl=0.01"),
    "KL gate at 0.005": _kl_gate("system.options.trust_kl=0.005"),
    "KL gate at 0.002": _kl_gate("system.options.trust_kl=0.002"),
    "KL gate, w": _kl_gate(*_WEIGHTED),
    "KL gate, softsync": _kl_gate("system.weights=constant", system="softsync"),
    "KL gate, wait at 8": _kl_gate("system.admission=waiting"),
    "KL gate, truncation": _kl_gate(*_TRUNCATED),
    "KL gate, gap-aware": _kl_gate(corrections="gap_aware,kl_gate"),
    "KL gate, less momentum": _kl_gate(corrections="less_momentum,kl_gate"),
    "KL gate, norm ratio": _kl_gate(corrections="norm_ratio,kl_gate"),
    "KL gate, ESS": _kl_gate(corrections="ess,kl_gate"),
}
"""The KL gate, which on the seeds for tuning bears most rates, at other strengths and with what might go with it."""

_FACTORED = {**METHODS, **COMBINED}
FRACTIONAL: dict[str, tuple[str, ...]] = {
    f"{method}, fractional": (*_FACTORED[method], "system.aggregation=fractional")
    for method in ("Stellaris", "w", "KL gate", "KL gate at 0.01")
}
"""Methods that weigh gradients, where an update of trust t is a fraction t of an Adam step, moments included."""

VARIATIONS: dict[str, tuple[str, ...]] = {
    "": (),
    "constant delays": ("delays=constant",),
    "lognormal delays": ("delays=lognormal",),
    "1 epoch": ("algorithm.epochs=1",),
    "8 epochs": ("algorithm.epochs=8",),
    "2 minibatches": ("algorithm.minibatches=2",),
    "32 minibatches": ("algorithm.minibatches=32",),
    "pipelined actors": ("system.actors=pipelined",),
}
"""What else is changed, one thing at a time; delays are Pareto's where nothing is said."""

_ONCE = "algorithm.epochs=1"
LAGS: dict[str, tuple[str, ...]] = {
    "lag 4": ("env.num_envs=2", _ONCE, "algorithm.minibatches=4"),
    "lag 32": ("env.num_envs=16", _ONCE, "algorithm.minibatches=32"),
    "lag 128": ("env.num_envs=32", _ONCE, "algorithm.minibatches=64", "system.actors=pipelined"),
    "lag 256": ("env.num_envs=64", _ONCE, "algorithm.minibatches=128", "system.actors=pipelined"),
}
"""Data of a policy that is up to so many updates old: as many updates of as many samples, each sample learned from
once, but more of them collected at a time."""
LAGGED = ("all-reduce", *(name for name in OBJECTIVES if name != "V-trace"), "ESS")
"""Methods that can do something about stale data in minibatches of single steps; the first is PPO as it is."""

CROWD, CROWDED = 64, "32 minibatches"
"""More learners than a round has gradients elsewhere, and the variation in which it has more of them."""
IN_CROWD = ("all-reduce", "async", "softsync", "Stellaris", "w", "KL gate")

HELD_OUT = ("breakout", "asterix", "pendulum", "brax_hopper", "hopper")
"""Tasks that no method is chosen by."""
HELD_LEARNERS = 16
"""Learners that no method is chosen with."""


class Cell(NamedTuple):
    """A place on the map: keys of `TASKS`; of `METHODS`, `COMBINED` or `FRACTIONAL`; and of `VARIATIONS` or `LAGS`;
    values of the axes."""

    task: str
    method: str
    learners: int
    rate: str
    variation: str = ""

    @property
    def variant(self) -> Variant:
        """What is trained there; every learner is billed for the seconds it is busy."""
        task, method = TASKS[self.task], {**METHODS, **COMBINED, **FRACTIONAL}[self.method]
        if self.learners == 1:  # where there is one system
            method = (*(one for one in method if not one.startswith("system=")), *METHODS[SEQUENTIAL])
        group, grouped = max(1, self.learners // 2), []
        if "system=areal" in method:
            group = min(group, 8)  # two of them are fewer than a round has gradients, or the bound would never bind
        if {"system=softsync", "system=fedbuff", "system=areal"} & set(method):
            grouped.append(f"system.options.c={group}")
        if "system=areal" in method:
            grouped.append(f"system.options.batch={group}")
        machines = max(8, -(-self.learners // 4))  # of four learners each
        overrides = (
            f"env={task.env}",
            *method,
            *grouped,
            "delays=pareto",
            f"system.learners={self.learners}",
            "system.learner_billing=serverless",
            f"platform.gpus={machines}",
            f"prices.learner_vms={machines}",
            "system.versions=128",
            f"algorithm.learning_rate={self.rate}",
            "algorithm.anneal=false",
            f"total_steps={task.steps}",
            *task.overrides,
            *{**VARIATIONS, **LAGS}[self.variation],
            "evaluation.points=0",
            "run.loggers=[]",
        )
        return Variant("/".join(map(str, self)), overrides)


def grid(
    tasks: Iterable[str],
    methods: Iterable[str] = METHODS,
    learners: Iterable[int] = LEARNERS,
    rates: Iterable[str] = RATES,
) -> list[Cell]:
    """All cells of these axes; methods change fastest, so that what shares a plan stands together.

    With one learner there is one system, and methods that are not of the core have few numbers of learners.
    """
    methods = list(methods)
    return [
        Cell(task, method, count, rate)
        for task in tasks
        for count in learners
        for method in methods
        if (method == SEQUENTIAL if count == 1 else method in CORE or count in LEARNER_COUNTS)
        for rate in rates
    ]


def lags(task: str) -> list[Cell]:
    """All cells of stale data, which one learner learns from."""
    return [Cell(task, method, 1, rate, lag) for lag in LAGS for method in LAGGED for rate in RATES]


def crowd(task: str) -> list[Cell]:
    """All cells of as many learners as there are anywhere, and of one, where rounds have as many gradients."""
    places = [(SEQUENTIAL, 1), *((method, CROWD) for method in IN_CROWD)]
    return [Cell(task, method, count, rate, CROWDED) for method, count in places for rate in RATES]


def held_out(task: str, methods: Iterable[str]) -> list[Cell]:
    """All cells of methods that are judged on a task they were not chosen by, and the sequential trainer's."""
    places = [(SEQUENTIAL, 1), *((method, HELD_LEARNERS) for method in methods)]
    return [Cell(task, method, count, rate) for method, count in places for rate in TASKS[task].rates]
