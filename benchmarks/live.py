"""Simulated runs beside live ones: seconds, staleness, utilisation, updates, dollars."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from stellaris_jax.base.statistics import mean_ci95
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.execute.job import as_executed
from stellaris_jax.execute.live import LiveExecutor
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.report.curves import save
from stellaris_jax.report.gantt import pictured
from stellaris_jax.timeline import Round, Timeline
from stellaris_jax.timeline.billing import bill

RULES = {
    "async": ("system=async",),
    "softsync": ("system=softsync",),
    "stellaris": ("system=stellaris",),
    "all-reduce": ("system=allreduce",),
}
LEARNERS = (1, 2, 4)
SEEDS = range(5)
CALIBRATING = 100
"""Added to a seed, it is that of the runs that calibrate."""
JOB = (
    "env=gymnax/cartpole",
    "env.num_envs=16",
    "algorithm.rollout_length=128",
    "network.hidden=[256,256]",
    "algorithm.epochs=4",
    "algorithm.minibatches=4",
    "algorithm.learning_rate=3e-4",
    "live.actors=2",
    "platform.gpus=1",
    "platform.slots_per_gpu=4",
    "evaluation.points=0",
    "run.loggers=[]",
)
"""Gradients of some milliseconds, beside which what Ray takes is not all."""
MEASURED = {"platform.cache": 0.0, "platform.rpc": 0.0, "platform.shared_memory": 0.0}
"""Passing data is a part of the durations that are measured."""
STORE_BYTES = 2**29
WAYS = ("live", "compiled")
"""Executors whose speeds are compared."""
MEASURES = ("seconds", "staleness", "utilisation", "updates", "dollars")


class Figures(NamedTuple):
    """Figures of a run, per round but for staleness and utilisation."""

    seconds: float
    staleness: float
    utilisation: float
    updates: float
    dollars: float

    @classmethod
    def of(cls, config: Config, rounds: Sequence[Round]) -> Figures:
        """Figures of all rounds after the first, in which everything is new."""
        first, last = rounds[0].usage, rounds[-1].usage
        seconds = last.seconds - first.seconds
        gradients = last.gradients - first.gradients
        price = [bill(config.system, config.prices, usage, config.platform.actors).total for usage in (first, last)]
        number = len(rounds) - 1
        return cls(
            seconds / number,
            (last.staleness_total - first.staleness_total) / gradients,
            (last.learner_busy - first.learner_busy) / (seconds * config.system.learners),
            (last.updates - first.updates) / number,
            (price[1] - price[0]) / number,
        )


def live(
    rules: Sequence[str], learners: Sequence[int], rounds: int, out: Path | None, note: Callable[[str], None]
) -> Any:
    """Calibrate, foretell and live through every rule with every number of learners, all of it for each seed.

    Durations are those of a live run of one learner that waits for the parameter function, so that nothing computes
    beside anything. What slows whom down, on the cores they share, are two numbers, fitted to live runs under pure
    asynchrony: `platform.interference` to one learner's, `platform.contention` to that of the most. None of these runs
    is one that is foretold. They are made anew for each seed: a machine is not as fast a quarter of an hour later.

    Args:
      rules: of `RULES`.
      learners: numbers of them.
      rounds: of every run; the first one is left out.
      out: directory for a picture of the last rule's timelines with the most learners; none by default.
      note: told of every figure.

    Returns:
      JSON data: `calibration`, and `rows` with what was measured and foretold, and the error as a share.
    """
    from stellaris_jax.live.join import LOCAL, join, leave  # needs Ray, which other commands do without

    joined = join("live.address", LOCAL, STORE_BYTES)
    try:
        with TemporaryDirectory() as directory:
            return _compared(rules, learners, rounds, out, note, Path(directory))
    finally:
        if joined:
            leave()


def _compared(
    rules: Sequence[str],
    learners: Sequence[int],
    rounds: int,
    out: Path | None,
    note: Callable[[str], None],
    directory: Path,
) -> Any:
    cells = [(rule, count) for rule in rules for count in learners]
    real: dict[tuple[str, int], list[Figures]] = {cell: [] for cell in cells}
    foretold: dict[tuple[str, int], list[Figures]] = {cell: [] for cell in cells}
    machines = []
    for seed in SEEDS:
        machines.append(_calibrated(max(learners), seed + CALIBRATING, rounds, directory))
        note(f"seed {seed}: interference {machines[-1].interference:.3f}, contention {machines[-1].contention:.3f}")
        for rule, count in cells:
            config = _config(rule, count, seed, rounds)
            records = lived(config)
            simulated = foretell(config, machines[-1], seed)
            real[rule, count].append(Figures.of(as_executed(config), records))
            foretold[rule, count].append(Figures.of(as_executed(config), simulated))
            note(_told(seed, rule, count, real[rule, count][-1], foretold[rule, count][-1]))
            if out is not None and count == max(learners) and seed == SEEDS[-1]:
                out.mkdir(parents=True, exist_ok=True)
                pair = {"simulated seconds": simulated[1:4], "real seconds": records[1:4]}
                save(pictured(pair, config), out / f"timeline_{rule}.png")
    numbers = {name: [getattr(machine, name) for machine in machines] for name in ("interference", "contention")}
    table = [_row(*cell, real[cell], foretold[cell]) for cell in cells]
    return {"calibration": numbers, "rounds": rounds, "rows": table}


def _calibrated(learners: int, seed: int, rounds: int, directory: Path) -> Machine:
    """The machine as live runs of a seed, with one learner and with more, have it."""
    log = directory / str(seed)
    log.mkdir()
    lived(_config("all-reduce", 1, seed, rounds), log)
    machine = Machine(log)
    for field, count in (("interference", 1), ("contention", learners)):
        if field == "interference" or count > 1:
            machine = fitted(machine, field, lived(_config("async", count, seed, rounds)), count, rounds)
    return machine


def _config(rule: str, learners: int, seed: int, rounds: int) -> Config:
    steps = 16 * 128 * rounds
    group = (f"system.rule_options.c={max(1, learners // 2)}",) if rule == "softsync" else ()
    own = (f"system.learners={learners}", f"seed={seed}", f"total_steps={steps}", "executor=live")
    return load_config([*JOB, *RULES[rule], *group, *own])


def lived(config: Config, directory: Path | None = None) -> list[Round]:
    """The rounds of a live run, whose trace may be left in a directory."""
    with closing(Trainer(config)) as trainer:
        trainer.run()
        assert isinstance(trainer.executor, LiveExecutor)
        rounds = [one.record for one in trainer.executor.conductor.traced]
        if directory is not None:
            trainer.write(directory)
            (directory / "config.yaml").write_text(to_yaml(config))
    return rounds


class Machine(NamedTuple):
    """The simulator's model of a machine: a log of the durations of jobs, and two numbers of `platform`."""

    log: Path
    interference: float = 0.0
    contention: float = 0.0


def foretell(config: Config, machine: Machine, seed: int) -> list[Round]:
    """The rounds that the simulator foretells of a machine."""
    delays = load_config(["delays=trace", f"delays.log={machine.log}"]).delays
    shared = {f"platform.{name}": getattr(machine, name) for name in ("interference", "contention")}
    values = {"delays": delays, **shared, "executor": "simulated", **MEASURED}
    timeline = Timeline.of(as_executed(config).replace(values), seed)
    return [timeline.next_round() for _ in range(config.rounds)]


def fitted(machine: Machine, field: str, crowded: Sequence[Round], learners: int, rounds: int) -> Machine:
    """The machine with the number with which the simulator comes to the seconds of busy learners in a run of so many
    that was lived through."""
    config = as_executed(_config("async", learners, 0, rounds))
    lived_through = Figures.of(config, crowded)
    wanted = lived_through.utilisation * lived_through.seconds
    low, high = 0.0, 4.0
    for _ in range(20):
        middle = (low + high) / 2
        machine = machine._replace(**{field: middle})  # type: ignore[arg-type]
        found = Figures.of(config, foretell(config, machine, 0))
        low, high = (middle, high) if found.utilisation * found.seconds < wanted else (low, middle)
    return machine


def _row(rule: str, learners: int, real: Sequence[Figures], foretold: Sequence[Figures]) -> dict[str, Any]:
    row: dict[str, Any] = {"rule": rule, "learners": learners}
    for measure in MEASURES:
        pairs = [(getattr(a, measure), getattr(b, measure)) for a, b in zip(real, foretold, strict=True)]
        errors = [b / a - 1.0 if a else (0.0 if b == a else float("inf")) for a, b in pairs]
        error = mean_ci95(errors)
        row[measure] = {
            "live": statistics.mean(a for a, _ in pairs),
            "foretold": statistics.mean(b for _, b in pairs),
            "error": error[0],
            "error_ci95": error[1],
        }
    return row


def _told(seed: int, rule: str, learners: int, real: Figures, foretold: Figures) -> str:
    figures = ", ".join(f"{name} {getattr(real, name):.3g} / {getattr(foretold, name):.3g}" for name in MEASURES)
    return f"seed {seed}, {rule}, {learners} learners, live / foretold: {figures}"


def speeds(learners: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Env steps per second of live runs and of the compiled engine: medians, and the median ratio of equal seeds.

    Args:
      learners: number of asynchronous learners.
      rounds: rounds of each run, at least 24: the engine takes eight at a time, and the first are left out.
      repeats: seeds.
    """
    import ray

    pairs = [[speed(way, learners, max(24, rounds), seed) for way in WAYS] for seed in range(repeats)]
    medians = dict(zip(WAYS, map(statistics.median, zip(*pairs, strict=True)), strict=True))
    ratio = statistics.median(alive / compiled for alive, compiled in pairs)
    return {"learners": learners, "steps_per_second": medians, "ratio": ratio, "ray": ray.__version__}


def speed(way: str, learners: int, rounds: int, seed: int) -> float:
    """Env steps per second of one run, the median of its rounds."""
    config = _config("async", learners, seed, rounds)
    if way == "compiled":
        config = config.replace({"executor": "simulated"})
    with closing(Trainer(config)) as trainer:
        trainer.compile()
        trainer.step()
        records = trainer.run()
    return float(statistics.median(record["steps_per_second"] for record in records))


def rows(result: Any) -> list[dict[str, str]]:
    """The table."""
    return [
        {
            "rule": row["rule"],
            "learners": str(row["learners"]),
            **{
                name: f"{row[name]['live']:.3g} / {row[name]['foretold']:.3g} ({row[name]['error']:+.0%})"
                for name in MEASURES
            },
        }
        for row in result["rows"]
    ]
