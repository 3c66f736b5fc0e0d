"""Model card: a policy's task, its returns, and the commands that reproduce it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stellaris_jax.base.commands import command, path_argument
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.policies.export.artefact import Metadata
from stellaris_jax.report.page.sources import run_command
from stellaris_jax.report.runs import read_run
from stellaris_jax.runs.provenance import versions
from stellaris_jax.telemetry.format import basis, count, over_seeds, significant

NEEDS = {
    "stablehlo": "JAX, flatbuffers and NumPy; `jax.export.deserialize` reads what follows the file's first line",
    "onnx": "onnxruntime and NumPy; input `observation`, outputs `action`, `distribution`, `value`",
    "flax": "stellaris_jax; `flax.serialization.msgpack_restore` reads the parameters",
}


def card(run_dir: Path, trainer: Trainer, metadata: Metadata, to: str, out: Path) -> str:
    """Model card of a policy exported to a file, in Markdown.

    Args:
      run_dir: directory of the run.
      trainer: trainer of the run.
      metadata: metadata of the policy.
      to: format of the file.
      out: exported file.
    """
    config = trainer.config
    rows = {
        "task": metadata.env + _arguments(config.env.kwargs) + _limit(trainer.env.max_episode_steps),
        "observations": _space(metadata.observation_space) + _seen(metadata),
        "actions": _space(metadata.action_space) + (", rescaled within the policy" if metadata.rescale_action else ""),
        "trained by": f"{config.algorithm.name}, {config.system.name}, on {count(metadata.env_steps)} env steps",
        "seed": str(metadata.seed) + (f" of {', '.join(map(str, trainer.seeds))}" if len(trainer.seeds) > 1 else ""),
        **_returns(run_dir, trainer, metadata.seed),
        "distribution": _distribution(metadata),
    }
    original = run_command(read_run(run_dir))  # in the local form, while the card is read elsewhere
    train = (
        original.replace(command("train"), "stellaris-jax train")
        if original
        else f"# {run_dir / 'config.yaml'} says how"
    )
    seed = f" --seed {metadata.seed}" if len(trainer.seeds) > 1 else ""
    run, file = path_argument(run_dir), path_argument(out)
    commands = [train, f"stellaris-jax evaluate {run}", f"stellaris-jax export {run} --to {to} --out {file}{seed}"]
    return "\n".join(
        [
            f"# A policy for {metadata.env}",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {text} |" for name, text in rows.items()),
            "",
            "## Use",
            "",
            "```python",
            "from stellaris_jax import load_policy",
            "",
            f"policy = load_policy({json.dumps(out.name)})",
            "action = policy(observation)  # one, or a batch",
            "```",
            "",
            f"Needs {NEEDS[to]}.",
            "",
            "## Repeat",
            "",
            "```",
            *commands,
            "```",
            "",
            "Made with " + ", ".join(f"{name} {number}" for name, number in versions().items()) + ".",
            "",
        ]
    )


def _arguments(kwargs: dict[str, Any]) -> str:
    """Arguments of the environment, whose values may be anybody's texts."""
    given = ", ".join(f"{name}={json.dumps(value, default=str)}" for name, value in kwargs.items())
    return f" ({given})".replace("|", "\\|") if given else ""


def _limit(steps: int | None) -> str:
    return ", episodes without a time limit" if steps is None else f", episodes of at most {count(steps)} steps"


def _space(space: dict[str, Any]) -> str:
    if space["kind"] == "Discrete":
        return f"one of {space['n']}"
    if space["kind"] == "MultiDiscrete":
        return f"{len(space['nvec'])} choices, one of {', '.join(map(str, space['nvec']))}"
    if space["kind"] == "MultiBinary":
        return f"{space['n']} switches"
    low, high = space["low"], space["high"]
    bounds = f" from {low} to {high}" if isinstance(low, str) and isinstance(high, str) else ""
    return f"{space['dtype']} {space['shape']}{bounds}"


def _seen(metadata: Metadata) -> str:
    return ", normalised within the policy" if metadata.normalize_observation else ""


def _distribution(metadata: Metadata) -> str:
    if metadata.distribution:
        return f"{metadata.distribution} parameters of a distribution of the policy's own; the action is its mode"
    kinds = {
        "Box": "means and log-deviations of normals" + _clipped(metadata),
        "MultiBinary": "log-odds of being on; the action is what is likelier",
    }
    return kinds.get(metadata.action_space["kind"], "logits; the action is the most likely")


def _clipped(metadata: Metadata) -> str:
    if metadata.rescale_action:
        return " over actions from -1 to 1; the action is the mean, clipped to these and rescaled to the bounds"
    return "; the action is the mean, clipped to the bounds"


def _returns(run_dir: Path, trainer: Trainer, seed: int) -> dict[str, str]:
    """Last evaluation of the run's policies, up to the exported round, as rows of the card."""
    config, seeds = trainer.config, trainer.seeds
    evaluations = [row for row in read_run(run_dir).evaluations if row["round"] <= trainer.round]
    if not evaluations:
        return {"return": "not evaluated"}
    last = evaluations[-1]
    per_seed = last["per_seed"]["eval_return_mean"]
    actions = "the most likely actions" if config.evaluation.greedy else "sampled actions"
    details = f"{basis(len(seeds), config.evaluation.episodes * len(seeds))}, {actions}"
    if last["round"] < trainer.round:
        details += f", after {count(last['env_steps'])} env steps"
    rows = {"return": f"{over_seeds(last['eval_return_mean'], last['eval_return_ci95'], per_seed)}; {details}"}
    if len(seeds) > 1:
        rows["return of this seed"] = significant(per_seed[seeds.index(seed)])
    return rows
