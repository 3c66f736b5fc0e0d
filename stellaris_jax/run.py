"""One run on disk: its directory, telemetry, checkpoints, signals and summary around a `Trainer`."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from stellaris_jax import __version__
from stellaris_jax.checkpoint import Checkpoints
from stellaris_jax.compose import from_yaml, to_yaml
from stellaris_jax.config import Config
from stellaris_jax.evaluate import Evaluation
from stellaris_jax.report.curves import plot_run
from stellaris_jax.scaling.scheduler import SHIPPED_FOR, is_carried_over
from stellaris_jax.schema import ConfigError
from stellaris_jax.telemetry import Telemetry
from stellaris_jax.telemetry.jsonl import plain
from stellaris_jax.trainer import Trainer
from stellaris_jax.validation import validate

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "gymnax",
    "brax",
    "mujoco",
    "mujoco-mjx",
    "playground",
    "warp-lang",
    "envpool",
    "gymnasium",
)


class Interrupted(Exception):
    """Training was stopped by a signal; a checkpoint has been written."""

    def __init__(self, signum: int, run_dir: Path):
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum, self.run_dir = signum, run_dir


def train(config: Config) -> dict[str, Any]:
    """Train as configured, in a run directory; returns the summary. With `config.resume`, continue a run.

    Raises:
      ConfigError: before anything is compiled, if the run cannot start.
      Interrupted: after SIGINT or SIGTERM, with everything saved.
    """
    validate(config)
    if config.engine.compile_cache:
        enable_compile_cache()
    run_dir = Path(config.resume) if config.resume else new_run_dir(config)
    trainer = Trainer(config)
    run_dir.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(run_dir / "checkpoints", config.checkpoint.keep)
    notes: list[str] = []
    resumed = _resume(trainer, checkpoints, notes) if config.resume else None
    write_atomically(run_dir / "config.yaml", to_yaml(config))
    telemetry = Telemetry(
        run_dir,
        total_rounds=trainer.total_rounds,
        title=f"{config.system.name} · {config.algorithm.name} · {config.env.name}",
        progress=config.run.progress,
        resume_round=resumed,
    )
    if is_carried_over(config):
        notes.append(
            f"actors are chosen by the scheduler that comes with the package, trained on {SHIPPED_FOR}; "
            "scripts/train_scheduler.py makes one for other jobs (scaling.scheduler=PATH)"
        )
    with telemetry, caught_signals() as caught, closing(trainer):
        for note in notes:
            telemetry.note(note)
        evaluation = _loop(trainer, telemetry, checkpoints, caught)
        checkpoints.wait()
        if caught:
            telemetry.note(f"saved round {trainer.round}; continue with: python scripts/train.py resume={run_dir}")
            raise Interrupted(caught[0], run_dir)
        if evaluation is None and config.evaluation.episodes > 0:
            evaluation = trainer.evaluate()
        summary = {**trainer.summary(evaluation), "versions": versions(), "device": device_name(config)}
        write_atomically(run_dir / "summary.json", json.dumps(plain(summary), indent=2) + "\n")
        plot_run(run_dir)
        telemetry.finish(summary)
    checkpoints.close()
    return summary


def _resume(trainer: Trainer, checkpoints: Checkpoints, notes: list[str]) -> int:
    """Continue from the newest intact checkpoint, or from the start where the run was stopped before its first."""
    if not checkpoints.rounds():
        notes.append("there is no checkpoint yet: the run starts over")
        return 0
    restored = trainer.restore(checkpoints, notes.append)
    notes.append(f"resumed at round {restored} of {trainer.total_rounds}")
    return restored


def _loop(trainer: Trainer, telemetry: Telemetry, checkpoints: Checkpoints, caught: list[int]) -> Evaluation | None:
    """Train to the end or to a signal; the last evaluation, if one was made at the last round."""
    evaluation_rounds, checkpoint_rounds = set(trainer.evaluation_rounds), set(trainer.checkpoint_rounds)
    evaluation: Evaluation | None = None
    while not trainer.finished and not caught:
        if seconds := trainer.compile():
            telemetry.note(f"compiled {trainer.about_chunk}in {seconds:.1f} s")
        telemetry.rounds(trainer.step())
        evaluation = None
        ends = trainer.finished
        if trainer.round in evaluation_rounds or (ends and evaluation_rounds):
            evaluation = trainer.evaluate()
            telemetry.evaluation(trainer.evaluation_record(evaluation))
        if trainer.round in checkpoint_rounds or ends:
            trainer.save(checkpoints, evaluation.mean_ci95()[0] if evaluation else None)
    if caught:
        trainer.save(checkpoints)
    return evaluation


def open_run(run_dir: str | Path) -> Trainer:
    """The trainer of a run directory, at its newest intact checkpoint."""
    path = Path(run_dir) / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{run_dir} holds no run: there is no {path}.")
    config = from_yaml(path)
    config.engine.devices = 1
    trainer = Trainer(config)
    checkpoints = Checkpoints(Path(run_dir) / "checkpoints", config.checkpoint.keep)
    trainer.restore(checkpoints)
    checkpoints.close()
    return trainer


def new_run_dir(config: Config) -> Path:
    """Where a new run goes; a directory that is not empty is refused."""
    if config.run.dir:
        path = Path(config.run.dir)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(
                f"run.dir={path} is not empty; name another directory, or continue the run with resume={path}."
            )
        return path
    label = config.run.name or f"{config.system.name}-{config.env.name}"
    label = re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-").lower()
    stem = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{label}"
    path, n = stem, 1
    while path.exists():
        n += 1
        path = stem.with_name(f"{stem.name}-{n}")
    return path


def enable_compile_cache() -> None:
    """Keep compiled programs in the user's cache directory, unless JAX has been given another."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(root / "stellaris_jax" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Within, the first SIGINT or SIGTERM is only noted (in the list yielded); a second one has its usual effect."""
    caught: list[int] = []
    previous: dict[int, Any] = {}

    def note(signum: int, frame: Any) -> None:
        caught.append(signum)
        for each, handler in previous.items():
            signal.signal(each, handler)

    try:
        for signum in (signal.SIGINT, signal.SIGTERM):
            previous[signum] = signal.signal(signum, note)
    except ValueError:
        pass  # not the main thread: whoever is keeps the signals
    try:
        yield caught
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's contents in one step."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of the packages a result depends on."""
    found = {"python": platform.python_version(), "stellaris_jax": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def device_name(config: Config) -> str:
    """What the run was executed on, in words."""
    device = jax.devices()[0]
    return f"{config.engine.devices} x {device.platform}:{device.device_kind} ({os.cpu_count()} host cores)"
