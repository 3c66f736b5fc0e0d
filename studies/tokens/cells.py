"""Cells of the study: methods against data staleness on token tasks, written down before anything was trained."""

from __future__ import annotations

from studies import outcomes
from studies.training import Variant

STEPS = {"addition": 4}
"""Tokens of the longest completion, by task."""
LEVELS = (0, 8, 64, 256)
"""Data lags in batches, each of one update."""
BATCHES = 400
"""Updates of a run."""
COMPLETIONS = 256
"""Completions of a batch: 32 prompts, 8 of each."""

LADDER = ("1e-6", "3e-6", "1e-5", "3e-5", "1e-4", "3e-4", "1e-3", "3e-3", "1e-2")
"""Learning rates, half-decades."""
RATES = LADDER[3:7]
"""Learning rates that every method is tried with; further ones while the outermost is best."""
TUNING, JUDGING = range(2), range(8, 16)
"""Tuning seeds, which choose learning rates, and judging seeds, which judge the choices."""

_RELATIVE = ("algorithm.advantage=group", "algorithm.epochs=1", "algorithm.gamma=1", "algorithm.gae_lambda=1",
             "algorithm.entropy_coefficient=0", "algorithm.max_grad_norm=1")  # fmt: skip
NONE, CLIP = "no correction", "PPO clip"
METHODS: dict[str, tuple[str, ...]] = {
    NONE: ("algorithm=tis", *_RELATIVE, "algorithm.options.weight_low=1", "algorithm.options.weight_cap=1"),
    CLIP: ("algorithm=grpo",),
    "DAPO": ("algorithm=grpo", "algorithm.options.clip_high=0.28"),
    "GSPO": ("algorithm=gspo",),
    "CISPO": ("algorithm=cispo", *_RELATIVE),
    "TIS": ("algorithm=tis", *_RELATIVE),
    "IcePop": ("algorithm=importance", *_RELATIVE, "algorithm.masks=[icepop]"),
    "M2PO": ("algorithm=importance", *_RELATIVE, "algorithm.masks=[m2po]"),
    "decoupled": ("algorithm=decoupled", *_RELATIVE),
    "A-3PO": ("algorithm=a3po", *_RELATIVE),
    "DPPO-TV": ("algorithm=importance", *_RELATIVE, "algorithm.masks=[dppo]"),
    "VCPO": ("algorithm=importance", *_RELATIVE, "system.corrections=[ess]"),
}
"""Settings of the methods that are compared, by name."""

SIGNALS = ("entropy", "kl", "ess", "tv", "m2", "grad_norm", "update_cosine", "clip_fraction", "equal_groups")
"""Records that may announce a collapse."""


class Cell(outcomes.Cell):
    """Setting that is trained: its level is a data lag in batches, its method a key of `METHODS`."""

    __slots__ = ()

    @property
    def episodes(self) -> int:
        return 256

    @property
    def together(self) -> int:
        return 8

    @property
    def signals(self) -> tuple[str, ...]:
        return SIGNALS

    @property
    def variant(self) -> Variant:
        overrides = (
            f"env=tokens/{self.task}",
            *METHODS[self.method],
            "system=allreduce", "system.learners=1", "system.actors=independent", "system.actor_shards=1",
            "system.data_admission=fixed", f"system.data_admission_options.lag={self.level}",
            f"env.num_envs={COMPLETIONS}", "algorithm.minibatches=1",
            f"algorithm.learning_rate={self.rate}", "algorithm.anneal=false",
            f"total_steps={BATCHES * COMPLETIONS * STEPS[self.task]}",
            "evaluation.points=0", "evaluation.greedy=false", "run.loggers=[]",
        )  # fmt: skip
        return Variant("/".join(map(str, self)), overrides)

    def share(self, value: float) -> float:
        return value


def places(task: str) -> list[Cell]:
    """Places of all methods and lags."""
    return [Cell("methods", task, method, level, "") for method in METHODS for level in LEVELS]
