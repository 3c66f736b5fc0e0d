"""Cells of the study: methods against data staleness on token tasks, written down before anything was trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from studies import outcomes
from studies.training import Variant


class Task(NamedTuple):
    """Task of the study.

    Attributes:
      overrides: its environment, and what differs from the environment's own settings.
      tokens: tokens of the longest completion.
      completions: completions of a batch, in groups of 8.
    """

    overrides: tuple[str, ...]
    tokens: int
    completions: int = 256


ADDITION, SORT, COUNTDOWN, TAIL = "addition", "sort", "countdown", "tail"
SMALL = "addition, small batches"
TASKS = {
    ADDITION: Task(("env=tokens/addition",), 4),
    SMALL: Task(("env=tokens/addition", "warm_start.errors=0.3", "warm_start.batch=64"), 4, completions=64),
    SORT: Task(("env=tokens/sort",), 7),
    COUNTDOWN: Task(("env=tokens/countdown",), 6),
    TAIL: Task(
        ("env=tokens/tail", "env.kwargs.longest=32", "env.kwargs.slack=0.25", "algorithm.rollout_length=32",
         "warm_start.updates=300", "warm_start.errors=0.7"),
        tokens=32, completions=128,
    ),
}  # fmt: skip

LADDER = ("1e-6", "3e-6", "1e-5", "3e-5", "1e-4", "3e-4", "1e-3", "3e-3", "1e-2")
"""Learning rates, half-decades."""
RATES = LADDER[3:7]
"""Learning rates that every method is tried with; further ones while the outermost is best."""
TUNING, JUDGING = range(2), range(8, 16)
"""Tuning seeds, which choose learning rates, and judging seeds, which judge the choices."""

_RELATIVE = ("algorithm.advantage=group", "algorithm.epochs=1", "algorithm.gamma=1", "algorithm.gae_lambda=1",
             "algorithm.entropy_coefficient=0", "algorithm.max_grad_norm=1", "algorithm.adam_eps=1e-5")  # fmt: skip
NONE, CLIP, DAPO, GSPO, CISPO, TIS = "no correction", "PPO clip", "DAPO", "GSPO", "CISPO", "TIS"
ICEPOP, M2PO, DECOUPLED, A3PO, DPPO, VCPO = "IcePop", "M2PO", "decoupled", "A-3PO", "DPPO-TV", "VCPO"
METHODS: dict[str, tuple[str, ...]] = {
    NONE: ("algorithm=tis", *_RELATIVE, "algorithm.options.weight_low=1", "algorithm.options.weight_cap=1"),
    CLIP: ("algorithm=grpo",),
    DAPO: ("algorithm=grpo", "algorithm.options.clip_high=0.28"),
    GSPO: ("algorithm=gspo",),
    CISPO: ("algorithm=cispo", *_RELATIVE),
    TIS: ("algorithm=tis", *_RELATIVE),
    ICEPOP: ("algorithm=importance", *_RELATIVE, "algorithm.masks=[icepop]"),
    M2PO: ("algorithm=importance", *_RELATIVE, "algorithm.masks=[m2po]"),
    DECOUPLED: ("algorithm=decoupled", *_RELATIVE),
    A3PO: ("algorithm=a3po", *_RELATIVE),
    DPPO: ("algorithm=importance", *_RELATIVE, "algorithm.masks=[dppo]"),
    VCPO: ("algorithm=importance", *_RELATIVE, "system.corrections=[ess]"),
}
"""Settings of the methods that are compared, by name."""
RENEWED = {
    f"{DECOUPLED} at {interval}": (*METHODS[DECOUPLED], f"algorithm.options.target_interval={interval}")
    for interval in (1, 4)
}
"""Decoupled PPO whose proximal policy is renewed more often than every 16 updates."""
RENEWAL_RATE = "1e-4"
"""Learning rate of all of these: the tuning seeds chose it for PPO's clip, TIS and decoupled PPO at 64 updates. It was
not tuned for other intervals."""
LEVELS = (0, 8, 64, 256)
"""Data lags in batches, each of one update."""

SIGNALS = {
    "entropy": ("low", "–"),
    "kl": ("high", "–"),
    "ess": ("low", "VCPO"),
    "tv": ("high", "–"),
    "m2": ("high", "M2PO"),
    "grad_norm": ("high", "–"),
    "update_cosine": ("high", "GAC"),
    "clip_fraction": ("high", "–"),
    "equal_groups": ("high", "–"),
}
"""Records that may announce a collapse: their side and who names it, written down beforehand."""


class Question(NamedTuple):
    """Question of the study: what is varied besides method and learning rate.

    Attributes:
      tasks: tasks that it is asked for.
      batches: batches of a run, each of one update.
      methods: methods that are compared.
      levels: levels that are compared.
      variants: further settings by name; a cell's method ends with a comma and the name, unless it is empty.
      settings: settings of a level.
    """

    tasks: tuple[str, ...]
    batches: int
    methods: tuple[str, ...]
    levels: tuple[int, ...]
    variants: Mapping[str, tuple[str, ...]]
    settings: Callable[[int], tuple[str, ...]]


def _late(lag: int) -> tuple[str, ...]:
    """Data exactly so many batches late."""
    options = ("system.data_admission=fixed", f"system.data_admission_options.lag={lag}")
    return ("system.actors=independent", "system.actor_shards=1", *options)


def _ahead(eta: int) -> tuple[str, ...]:
    """Actors at most so many batches ahead, eight shards of uneven speed."""
    options = ("system.data_admission=ready_first", f"system.data_admission_options.eta={eta}")
    pace = ("delays.learner.seconds=8", "platform.cache=0.03")
    return ("system.actors=independent", "system.actor_shards=8", "delays=lognormal", *pace, *options)


def _bounded(bound: int) -> tuple[str, ...]:
    """Data at most so many batches late; a shard is a group, and takes as long as its longest completion."""
    options = ("system.data_admission=bounded", f"system.data_admission_options.bound={bound}")
    pace = ("system.actor_shards=16", "delays.by=episodes", "delays.learner.seconds=2")
    return ("system.actors=independent", *pace, *options)


IN_FLIGHT, WHOLE, WAIT, DROP = "in flight", "whole", "wait", "drop"


def _transformer(layers: int, width: int, updates: int, rate: str) -> tuple[str, ...]:
    network = (f"network.options.layers={layers}", f"network.options.width={width}")
    return (*network, f"warm_start.updates={updates}", f"warm_start.learning_rate={rate}")


SIZES = {
    "50k": _transformer(1, 64, 1000, "1e-3"),
    "500k": _transformer(2, 144, 500, "1e-3"),
    "5M": _transformer(4, 320, 500, "3e-4"),
}
"""Transformers by their approximate number of parameters; their warm starts were chosen on seeds from 100 on, so that
all begin at about 35 % right; on the study's seeds 500k begins at 22 %."""
PRECISIONS = {name: (f"system.actor_precision={name}",) for name in ("bfloat16", "int8")}
METHOD, YOUNG, BETWEEN, MISMATCH, OTHERS, RENEWAL = "methods", "young", "between", "mismatch", "tasks", "renewal"
FLIGHT, ADMISSION, SCALE = "in flight", "admission", "scale"
QUESTIONS = {
    METHOD: Question((ADDITION,), 400, tuple(METHODS), LEVELS, {"": ()}, _late),
    YOUNG: Question((ADDITION,), 400, (CLIP, TIS, DECOUPLED, NONE), (0, 1, 4), {"": ()}, _late),
    BETWEEN: Question((ADDITION,), 400, (CLIP, DECOUPLED), (0, 16, 32), {"": ()}, _late),
    MISMATCH: Question((ADDITION,), 400, (NONE, CLIP, TIS, ICEPOP), (0, 8), PRECISIONS, _late),
    OTHERS: Question((SORT, COUNTDOWN), 400, (NONE, CLIP, GSPO, TIS, M2PO, DECOUPLED), (0, 64), {"": ()}, _late),
    RENEWAL: Question(
        (ADDITION,), 400, (CLIP, TIS, DECOUPLED, *RENEWED), (64,), {"": ()}, _late
    ),
    FLIGHT: Question(
        (TAIL,), 100, (CLIP,), (1, 4), {WHOLE: ("system.sync_steps=0",), IN_FLIGHT: ("system.sync_steps=4",)}, _ahead
    ),
    ADMISSION: Question(
        (TAIL,), 100, (CLIP,), (1, 2),
        {WAIT: ("system.data_admission_options.by=wait",), DROP: ("system.data_admission_options.by=drop",)}, _bounded,
    ),
    SCALE: Question((SMALL,), 200, (CLIP, DECOUPLED), (0, 8, 64), SIZES, _late),
}  # fmt: skip


class Cell(outcomes.Cell):
    """Setting that is trained.

    Its question is one of `QUESTIONS`. Its method is one of `METHODS` or `RENEWED`, with a comma and the name of the
    question's variant unless that is empty. Its level is a lag or a bound in batches.
    """

    __slots__ = ()

    @property
    def episodes(self) -> int:
        return 256

    @property
    def together(self) -> int:
        return 9 if self.question == SCALE else 8

    @property
    def signals(self) -> tuple[str, ...]:
        return tuple(SIGNALS)

    @property
    def variant(self) -> Variant:
        task, question = TASKS[self.task], QUESTIONS[self.question]
        method, _, name = self.method.partition(", ")
        overrides = (
            *task.overrides,
            *{**METHODS, **RENEWED}[method],
            "system=allreduce", "system.learners=1", *question.settings(self.level), *question.variants[name],
            f"env.num_envs={task.completions}", "algorithm.minibatches=1",
            f"algorithm.learning_rate={self.rate}", "algorithm.anneal=false",
            f"total_steps={question.batches * task.completions * task.tokens}",
            "evaluation.points=0", "evaluation.greedy=false", "run.loggers=[]",
        )  # fmt: skip
        return Variant("/".join(map(str, self)), overrides)

    def share(self, value: float) -> float:
        return value


def places(question: str) -> list[Cell]:
    """Places of a question: all of its tasks, methods, variants and levels."""
    about = QUESTIONS[question]
    names = [f"{method}, {name}" if name else method for method in about.methods for name in about.variants]
    return [Cell(question, task, name, level, "") for task in about.tasks for name in names for level in about.levels]
