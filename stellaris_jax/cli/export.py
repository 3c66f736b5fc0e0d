"""Writes the newest policy of a run, or another that was kept, to one file with spaces, normaliser and a model card.

stellaris-jax export RUN_DIR --to stablehlo [--out FILE] [--seed N]     for JAX, any size of batch, CPUs, GPUs and TPUs
stellaris-jax export RUN_DIR --to onnx [--out FILE] [--seed N]          for onnxruntime and other readers of ONNX
stellaris-jax export RUN_DIR --to flax [--out FILE] [--seed N]          parameters by name, for further training

load_policy of stellaris_jax takes each of them, as it takes the directory of a run.
"""

from __future__ import annotations

from collections.abc import Sequence

from stellaris_jax.cli import program
from stellaris_jax.cli.working import working
from stellaris_jax.policies.export.artefact import ENDINGS


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    parser = program.Parser("export", __doc__)
    parser.add_argument("run_dir", type=program.path, metavar="RUN_DIR", help="directory of the run")
    parser.add_argument("--to", required=True, choices=list(ENDINGS), help="format of the file")
    endings = ", ".join(ENDINGS.values())
    parser.add_argument(
        "--out",
        type=program.path,
        metavar="FILE",
        help=f"by default RUN_DIR/policy with the format's ending ({endings})",
    )
    parser.add_argument("--seed", type=program.seed, metavar="N", help="trained seed (by default the first)")
    program.add_round(parser)
    program.add_trust(parser)
    arguments = parser.parse_args(argv)
    is_run = (arguments.run_dir / "config.yaml").is_file()
    with working(f"exporting the policy of {arguments.run_dir} to {arguments.to}", when=is_run):
        # Imported late, so that --help is answered at once.
        from stellaris_jax.policies.export.writing import export_policy

        trust = program.trust_of(arguments)
        out = export_policy(arguments.run_dir, arguments.to, arguments.out, arguments.seed, trust, arguments.round)
    print(f"{out} ({out.stat().st_size:,} bytes)")
    print(f"{out}.md")
