"""Export of a run's policy: one file and a model card."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from stellaris_jax.agent.networks.policy_network import has_usual_distribution
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import check_output, write_atomically
from stellaris_jax.config.options import memory_setting
from stellaris_jax.config.schema import plain
from stellaris_jax.config.trust import Trust
from stellaris_jax.envs.space_data import space_to_data
from stellaris_jax.execute.run import open_run
from stellaris_jax.policies.export.artefact import ENDINGS, Metadata, with_fingerprint
from stellaris_jax.policies.export.card import card
from stellaris_jax.policies.policy import policy_of
from stellaris_jax.runs.run_dir import writing


def export_policy(
    run_dir: str | Path,
    to: str,
    out: str | Path | None = None,
    seed: int | None = None,
    trust: Trust = False,
    at: int | str | None = None,
) -> Path:
    """Write the newest policy saved in a run directory to a file, with its normalizer and spaces.

    A model card, in Markdown, is written to the same place, under the file's name with `.md` appended.

    Args:
      run_dir: run directory; the run may still be training.
      to: format: stablehlo, onnx or flax.
      out: new file; by default `policy` with the format's ending, in the run directory. Existing files are not
        replaced.
      seed: one of the run's seeds; by default the first.
      trust: plug-ins and modules that the run may import (see `config.trust`).
      at: round of another checkpoint that was kept, or `best` (see `open_run`).

    Returns:
      Path of the file.

    Raises:
      ConfigError: the export is not possible; nothing is written.
      RunError: the file cannot be written.
    """
    if to not in ENDINGS:
        raise ConfigError(f"--to {to} is no format; accepted: {', '.join(ENDINGS)}.")
    run_dir = Path(run_dir)
    out = run_dir / f"policy{ENDINGS[to]}" if out is None else Path(out)
    if out.suffix != ENDINGS[to]:
        raise ConfigError(f"--out={out} must end in {ENDINGS[to]} for --to {to}.")
    card_path = out.with_name(f"{out.name}.md")
    trainer = open_run(run_dir, trust=trust, at=at)
    if trainer.network.recurrent:
        memory = memory_setting(trainer.config.network)
        raise ConfigError(f"{run_dir} has {memory}, and no format has memory; load_policy({str(run_dir)!r}) does.")
    policy = policy_of(trainer, seed)
    check_output("--out", out)
    _refuse_existing(out, card_path)
    config, network = trainer.config, trainer.network
    metadata = Metadata(
        env=trainer.env.name,
        observation_space=space_to_data(network.observation_space),
        action_space=space_to_data(policy.own or network.action_space),
        network=plain(config.network),
        normalize_observation=bool(config.env.normalize_observation),
        seed=trainer.seeds[0] if seed is None else seed,
        env_steps=trainer.accounts.env_steps(trainer.usages),
        rescale_action=policy.own is not None,
        distribution=0 if has_usual_distribution(policy.network) else policy.network.distribution.size,
    )
    data = with_fingerprint(import_module(f"stellaris_jax.policies.export.{to}").write(policy, metadata))
    text = card(run_dir, trainer, metadata, to, out)
    with writing(out.parent):
        _refuse_existing(out, card_path)  # another process may have been quicker
        write_atomically(card_path, text)
        write_atomically(out, data)
    return out


def _refuse_existing(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} exists; name another file by --out, or remove it.")
