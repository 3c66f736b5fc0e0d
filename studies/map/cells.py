"""Cells of the map: tasks, methods, and axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from studies.training import Variant

RATES = ("3e-4", "1e-3", "3e-3", "1e-2", "3e-2")
"""Learning rates that every method is tried at."""
LADDER = ("1e-5", "3e-5", "1e-4", *RATES, "1e-1", "3e-1")
"""All learning rates; those outside of `RATES` are tried while the outermost one is a method's best."""


class Task(NamedTuple):
    """Task of the map.

    Attributes:
      env: environment, as on the command line.
      steps: budget, in env steps.
      solved: return that counts as solved.
      worst: approximate return of an untrained policy.
      overrides: overrides besides those of its tuned file.
      rates: learning rates to try.
    """

    env: str
    steps: int
    solved: float
    worst: float
    overrides: tuple[str, ...] = ()
    rates: tuple[str, ...] = RATES

    def share(self, value: float) -> float:
        """Return as a share of the way from the worst to the solved return."""
        return (value - self.worst) / (self.solved - self.worst)


SEQUENTIAL = "all-reduce"
"""Method that stands for all systems with one learner."""

_SHORT = ("algorithm.epochs=4", "algorithm.minibatches=8")
_MINATAR = (
    "algorithm.rollout_length=128",
    "algorithm.minibatches=8",
)  # the games' own settings are those of one learner

TASKS = {
    "cartpole": Task("gymnax/cartpole", 150_000, 475.0, 20.0),
    "acrobot": Task("gymnax/acrobot", 150_000, -100.0, -500.0),
    "breakout": Task("gymnax/breakout_minatar", 250_000, 10.0, 0.4, _MINATAR),
    "asterix": Task("gymnax/asterix_minatar", 250_000, 1.5, 0.45, _MINATAR),
    "pendulum": Task("brax/inverted_pendulum", 200_000, 900.0, 10.0),
    "brax_hopper": Task("brax/hopper", 250_000, 550.0, 95.0, ("algorithm.rollout_length=64", *_SHORT)),
    "hopper": Task("envpool/hopper", 40_960, 400.0, 15.0, _SHORT, RATES[:3]),
}

LEARNERS = (1, 4, 8, 16, 32)
"""Numbers of learners, at most the gradients of a round; further learners would get none."""
LEARNER_COUNTS = (8, 32)
"""Numbers of learners that every method is tried with."""
TUNING, CONFIRMING = range(8), range(8, 16)
"""Tuning seeds, which choose rates and methods, and confirming seeds, which judge the choices."""

_WEIGHTED = ("system.weights=power", "system.weight_options.root=1")
_GATE = ("system=stellaris", "system.weights=constant")
_TRUNCATED = ("system.truncation=weight",)
_UNTRUNCATED = ("system.truncation=none",)

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
    "gate": (*_GATE, *_UNTRUNCATED),
    "gate, w": ("system=stellaris", *_WEIGHTED, *_UNTRUNCATED),
    "gate, truncation": (*_GATE, *_TRUNCATED),
    "gate, w, truncation": ("system=stellaris", *_WEIGHTED, *_TRUNCATED),
}
"""Stellaris's three ideas one by one. Without any it is async; w = 1/s (v = 1) throughout."""
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
    "capacity (AReaL)": (
        "system=areal_gradients",
        "system.admission_options.eta=1",
    ),  # a larger eta never binds, and equals softsync
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
    **{  # their masks replace PPO's clip
        name: ("algorithm=importance", "system=async", f"algorithm.masks=[{mask}]")
        for name, mask in {"DPPO": "dppo", "M2PO": "m2po"}.items()
    },
}
METHODS = {**SYSTEMS, **PARTS, **WEIGHTS, **CORRECTIONS, **ADMISSION, **OBJECTIVES}
"""Overrides of each method; the number of learners is added."""
CORE = (*SYSTEMS, "w", "gate, w", "KL gate", "less momentum", "DC-ASGD")
"""Methods that are tried with every number of learners."""


def _kl_gate(*overrides: str, corrections: str = "kl_gate", system: str = "async") -> tuple[str, ...]:
    return (f"system={system}", *overrides, f"system.corrections=[{corrections}]")


COMBINED: dict[str, tuple[str, ...]] = {
    "KL gate at 0.01": _kl_gate("system.correction_options.kl_gate.trust_kl=0.01"),
    "KL gate at 0.005": _kl_gate("system.correction_options.kl_gate.trust_kl=0.005"),
    "KL gate at 0.002": _kl_gate("system.correction_options.kl_gate.trust_kl=0.002"),
    "KL gate, w": _kl_gate(*_WEIGHTED),
    "KL gate, softsync": _kl_gate("system.weights=constant", system="softsync"),
    "KL gate, wait at 8": _kl_gate("system.admission=waiting"),
    "KL gate, truncation": _kl_gate(*_TRUNCATED),
    "KL gate, gap-aware": _kl_gate(corrections="gap_aware,kl_gate"),
    "KL gate, less momentum": _kl_gate(corrections="less_momentum,kl_gate"),
    "KL gate, norm ratio": _kl_gate(corrections="norm_ratio,kl_gate"),
    "KL gate, ESS": _kl_gate(corrections="ess,kl_gate"),
}
"""KL gate, which works at the most rates on the tuning seeds, at other strengths and combined with other methods."""

_FACTORED = {**METHODS, **COMBINED}
FRACTIONAL: dict[str, tuple[str, ...]] = {
    f"{method}, fractional": (*_FACTORED[method], "system.aggregation=fractional")
    for method in ("Stellaris", "w", "KL gate", "KL gate at 0.01")
}
"""Methods that weight gradients; an update of weight sum t is a fraction t of an Adam step, moments included."""

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
"""Other settings, one at a time; delays are Pareto's by default."""

_ONCE = "algorithm.epochs=1"
LAGS: dict[str, tuple[str, ...]] = {
    "lag 4": ("env.num_envs=2", _ONCE, "algorithm.minibatches=4"),
    "lag 32": ("env.num_envs=16", _ONCE, "algorithm.minibatches=32"),
    "lag 128": ("env.num_envs=32", _ONCE, "algorithm.minibatches=64", "system.actors=pipelined"),
    "lag 256": ("env.num_envs=64", _ONCE, "algorithm.minibatches=128", "system.actors=pipelined"),
}
"""Data of a policy that is up to so many updates old.

There are as many updates of as many samples, and training uses each sample once, but more samples are collected at a
time.
"""
UPDATES_OF_A_BATCH = {"lag 4": 4, "lag 32": 32, "lag 128": 64, "lag 256": 128}
"""Updates of each batch. With pipelined actors data are of this batch and of the one before."""
LAGGED = ("all-reduce", *(name for name in OBJECTIVES if name != "V-trace"), "ESS")
"""Methods that can affect stale data in minibatches of single steps; the first is plain PPO."""


def on_stale_data(method: str, lag: str) -> tuple[str, ...]:
    """Overrides by which a method meets stale data as its source has it.

    Proximal policies are renewed with every batch (AReaL). M2PO is that of its authors' code. Steps are scaled by the
    effective sample size without PPO's clip, which would keep that near 1.
    """
    interval = UPDATES_OF_A_BATCH[lag]
    return {
        "decoupled": (*METHODS["decoupled"], f"algorithm.options.target_interval={interval}"),
        "A-3PO": (*METHODS["A-3PO"], f"algorithm.options.proximal_interval={interval}"),
        "M2PO": ("algorithm=importance", "algorithm.masks=[m2po_clip]"),
        "ESS": ("algorithm=importance", "system.corrections=[ess]"),
    }.get(method, METHODS[method])


MANY_LEARNERS, MANY_MINIBATCHES = 64, "32 minibatches"
"""Number of learners above the gradients of a usual round, and the variation whose rounds have enough gradients."""
MANY_LEARNERS_METHODS = ("all-reduce", "async", "softsync", "Stellaris", "w", "KL gate")

HELD_OUT = ("breakout", "asterix", "pendulum", "brax_hopper", "hopper")
"""Held-out tasks, which choose no method."""
HELD_OUT_LEARNERS = 16
"""Held-out number of learners, which chooses no method."""


class Cell(NamedTuple):
    """Place on the map.

    Attributes:
      task: key of `TASKS`.
      method: key of `METHODS`, `COMBINED` or `FRACTIONAL`.
      learners: number of learners.
      rate: learning rate.
      variation: key of `VARIATIONS` or `LAGS`.
    """

    task: str
    method: str
    learners: int
    rate: str
    variation: str = ""

    @property
    def variant(self) -> Variant:
        """Variant that is trained there; every learner is billed for the seconds it is busy."""
        task, method = TASKS[self.task], {**METHODS, **COMBINED, **FRACTIONAL}[self.method]
        if self.variation in LAGS:
            method = on_stale_data(self.method, self.variation)
        if self.learners == 1:  # all systems are the same then
            method = (*(line for line in method if not line.startswith("system=")), *METHODS[SEQUENTIAL])
        group, grouped = max(1, self.learners // 2), []
        if "system=areal_gradients" in method:
            group = min(
                group, 8
            )  # two groups must be fewer than the gradients of a round, or the bound would never bind
        if {"system=softsync", "system=fedbuff", "system=areal_gradients"} & set(method):
            grouped.append(f"system.rule_options.c={group}")
        if "system=areal_gradients" in method:
            grouped.append(f"system.admission_options.batch={group}")
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
    """All cells of these axes. Methods change fastest, so that cells with a common plan are adjacent.

    With one learner there is one system, and methods outside of the core have few numbers of learners.

    Args:
      tasks: keys of `TASKS`.
      methods: keys of `METHODS`, `COMBINED` or `FRACTIONAL`.
      learners: numbers of learners.
      rates: learning rates.
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


def lag_cells(task: str) -> list[Cell]:
    """All cells of stale data, with one learner."""
    return [Cell(task, method, 1, rate, lag) for lag in LAGS for method in LAGGED for rate in RATES]


def many_learners_cells(task: str) -> list[Cell]:
    """All cells of the largest number of learners, and of one learner, in rounds with as many gradients."""
    places = [(SEQUENTIAL, 1), *((method, MANY_LEARNERS) for method in MANY_LEARNERS_METHODS)]
    return [Cell(task, method, count, rate, MANY_MINIBATCHES) for method, count in places for rate in RATES]


def held_out_cells(task: str, methods: Iterable[str]) -> list[Cell]:
    """All cells of methods on a held-out task, and the sequential trainer's."""
    places = [(SEQUENTIAL, 1), *((method, HELD_OUT_LEARNERS) for method in methods)]
    return [Cell(task, method, count, rate) for method, count in places for rate in TASKS[task].rates]
