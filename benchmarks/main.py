"""Measure this machine: `stellaris-jax benchmark COMMAND [options]`.

throughput  training steps/s on five jobs, beside rejax and CleanRL where `--rejax` and `--cleanrl` name Pythons that
            have them (see benchmarks/peers/ for their environments)
members     training steps/s of several seeds: each by itself on the cores there are, beside all under vmap
engine      time per gradient of asynchronous learners as a ratio to synchronous ones
envs        env steps/s of every adapter: beside its suite alone, with a policy, in training
plan        gradients planned per second of one core, by system, learners and members; a second checkout beside it
            with `--beside`
startup     seconds from the command to the first training step, with a warm compile cache
limit       arithmetic and bytes of each job, counted, beside this machine's matrix-product and memory rates, measured:
            the share of the limit that a job reaches, and where its time goes
scale       time and memory as environments, learners, members, network width and version ring grow, a plot for each
calibrate   seconds of a rollout, a gradient and an aggregation of a job on this machine, written as a file of group
            delays: --out configs/delays/mine.yaml, then delays=mine
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from stellaris_jax.cli import program
from stellaris_jax.config.outputs import check_output
from stellaris_jax.config.schema import ConfigError
from stellaris_jax.report.table import print_table, wide_console
from stellaris_jax.report.telemetry.format import significant

FOLDER = "benchmarks/peers"
PEER_MODULES = {"rejax": "rejax, gymnax", "cleanrl": "torch, gym, envpool"}
"""What the Python of a peer must have, of what is not in the standard library."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command on these arguments; those of the process by default."""
    program.run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> None:
    # Imported late, so that a mistake in what comes before answers at once.
    from benchmarks import envs as environments
    from benchmarks import limit as limits
    from benchmarks import members, scale, startup
    from benchmarks import plan as planning
    from benchmarks import throughput as benchmark

    parser = program.Parser("benchmark", __doc__)
    count = program.at_least(1)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=program.SubParser)
    through = commands.add_parser("throughput", help="training steps/s beside a peer")
    through.add_argument("--jobs", nargs="+", choices=list(benchmark.JOBS), default=list(benchmark.JOBS))
    through.add_argument("--systems", nargs="+", choices=list(benchmark.SYSTEMS), default=["central", "stellaris"])
    through.add_argument("--repeats", type=count, default=3, help="runs of each, with seeds 0, 1, ... (default 3)")
    for peer in sorted({*benchmark.PEERS.values()}):
        through.add_argument(f"--{peer}", metavar="PYTHON", help=f"Python of a virtual environment for {peer}")
    seeds = commands.add_parser("members", help="several seeds, apart and together")
    seeds.add_argument("--counts", nargs="+", type=count, default=[1, 2, 4, 8, 16], help="seeds (default 1 2 4 8 16)")
    seeds.add_argument("--repeats", type=count, default=9, help="chunks of each way (default 9)")
    seeds.add_argument("overrides", nargs="*", help="the job, e.g. env=brax/hopper")
    engine = commands.add_parser("engine", help="the cost of asynchrony per gradient")
    engine.add_argument("--rounds", type=count, default=16, help="rounds per chunk (default 16)")
    engine.add_argument("--repeats", type=count, default=15, help="chunks of each system (default 15)")
    engine.add_argument("overrides", nargs="*", help="config overrides, e.g. engine.lanes=8")
    one = commands.add_parser("measure", help="one run of one job, as a JSON line (used by throughput)")
    one.add_argument("job", choices=list(benchmark.JOBS))
    one.add_argument("system", choices=list(benchmark.SYSTEMS))
    one.add_argument("--seed", type=program.seed, default=0)
    envs = commands.add_parser("envs", help="env steps/s of every adapter")
    envs.add_argument("--envs", nargs="+", choices=list(environments.ENVS), default=list(environments.ENVS))
    envs.add_argument("--repeats", type=count, default=7, help="fragments or chunks of each kind (default 7)")
    start = commands.add_parser("startup", help="seconds from the command to the first training step")
    start.add_argument("--beside", type=Path, action="append", default=[], help="another checkout, measured in turn")
    start.add_argument("--repeats", type=count, default=7, help="commands of each (default 7)")
    start.add_argument("overrides", nargs="*", help="config overrides, e.g. env=brax/hopper")
    plan = commands.add_parser("plan", help="gradients planned per second")
    plan.add_argument("--jobs", nargs="+", choices=list(planning.JOBS), default=list(planning.JOBS), metavar="JOB")
    plan.add_argument("--beside", type=Path, action="append", default=[], help="another checkout, measured in turn")
    plan.add_argument("--repeats", type=count, default=3, help="processes for each (default 3)")
    plan.add_argument("--seconds", type=count, default=1, help="seconds of planning in each (default 1)")
    plan.add_argument("--csv", type=Path, help="write the table to this file")
    bound = commands.add_parser("limit", help="jobs beside what this machine can do")
    bound.add_argument("--jobs", nargs="+", choices=list(benchmark.JOBS), default=list(benchmark.JOBS))
    bound.add_argument("--systems", nargs="+", choices=list(benchmark.SYSTEMS), default=["stellaris"])
    bound.add_argument("--repeats", type=count, default=3, help="timings of each part (default 3)")
    grow = commands.add_parser("scale", help="how cost grows with the size of a job")
    grow.add_argument("--axes", nargs="+", choices=list(scale.AXES), default=list(scale.AXES))
    grow.add_argument("--most", type=count, help="leave out larger sizes than this one")
    grow.add_argument("--repeats", type=count, default=5, help="chunks of each size (default 5)")
    grow.add_argument("--out", type=Path, help="directory for a plot of every axis, <axis>.png")
    for command in (through, seeds, engine, envs, plan, start, bound, grow):
        command.add_argument("--json", type=Path, help="write the figures, with hardware and versions, to this file")
    own = commands.add_parser("calibrate", help="this machine's durations as a delay model")
    own.add_argument("--out", type=Path, required=True, help="the file to write, e.g. configs/delays/mine.yaml")
    own.add_argument("--repeats", type=count, default=32, help="timings of each part (default 32)")
    own.add_argument("overrides", nargs="*", help="the job, e.g. env=brax/hopper")
    arguments = parser.parse_args(argv)

    console = wide_console()
    result: Any
    if getattr(arguments, "json", None) is not None:
        check_output("--json", arguments.json)
    if getattr(arguments, "csv", None) is not None:
        check_output("--csv", arguments.csv)
    if arguments.command == "measure":
        print(json.dumps(benchmark.measure(arguments.job, arguments.system, arguments.seed)))
        return
    benchmark.enable_compile_cache()
    if arguments.command == "calibrate":
        write_delays(console, arguments)
        return
    if arguments.command == "throughput":
        pythons = {peer: python for peer in benchmark.PEERS.values() if (python := getattr(arguments, peer))}
        for peer, python in pythons.items():
            check_peer(peer, python)
        result = benchmark.throughput(arguments.jobs, arguments.systems, arguments.repeats, pythons, console.print)
        show_throughput(console, result, benchmark.PEERS)
    elif arguments.command == "members":
        result = members.members(arguments.counts, arguments.repeats, arguments.overrides, console.print)
    elif arguments.command == "envs":
        result = [environments.measure(name, arguments.repeats) for name in arguments.envs]
        show_envs(console, result)
    elif arguments.command == "plan":
        checkouts = [*(path.resolve() for path in arguments.beside), planning.HERE]
        result = planning.plan(arguments.jobs, checkouts, arguments.repeats, arguments.seconds, console.print)
        title = "gradients planned per second of one core, and microseconds per gradient (medians)"
        print_table(console, title, planning.rows(result), names=("job",))
        if arguments.csv:
            planning.write_csv(result, arguments.csv)
    elif arguments.command == "limit":
        result = limits.limit(arguments.jobs, arguments.systems, arguments.repeats, console.print)
        print_table(console, "the share of the limit (medians)", limits.rows(result), names=("job", "system"))
        title = "where the time goes (medians; in brackets: beside other parts)"
        print_table(console, title, limits.part_rows(result), names=("job", "system", "part"))
    elif arguments.command == "scale":
        result = scale.scale(arguments.axes, arguments.most, arguments.repeats, arguments.out, console.print)
        print_table(console, "cost by size (medians)", scale.rows(result), names=("axis", "refused"))
    elif arguments.command == "startup":
        checkouts = [*arguments.beside, startup.HERE]
        result = startup.startup(checkouts, arguments.repeats, arguments.overrides, console.print)
        console.print_json(json.dumps(result))
    else:
        result = benchmark.engine_cost(arguments.rounds, arguments.repeats, arguments.overrides)
        console.print_json(json.dumps(result))
    if arguments.json:
        document = {"benchmark": arguments.command, **benchmark.context(), "result": result}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


def check_peer(peer: str, python: str) -> None:
    """Raise ConfigError unless `python` runs and has what a peer needs: found out before an hour has gone by."""
    module = PEER_MODULES[peer]
    if shutil.which(python) is None:
        raise ConfigError(f"--{peer}={python} is not a program.")
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode != 0:
        raise ConfigError(f"--{peer}={python} is not a Python that has {module}; {FOLDER}/{peer}_ppo.py says how.")


def write_delays(console: Console, arguments: argparse.Namespace) -> None:
    from benchmarks import throughput as benchmark
    from stellaris_jax.training.calibrate import calibrate, write
    from stellaris_jax.training.loading import load_config

    check_output("--out", arguments.out)
    if arguments.out.exists():
        raise ConfigError(f"--out={arguments.out} exists; name another file.")
    table = calibrate(load_config(arguments.overrides), arguments.repeats)
    command = shlex.join(
        ["python", "scripts/benchmark.py", "calibrate", *arguments.overrides, "--out", str(arguments.out)]
    )
    write(table, arguments.out, f"Seconds on {benchmark.context()['device']}, by\n{command}")
    for name, values in table.items():
        console.print(f"{name:9}  median {sorted(values)[len(values) // 2]:.3g} s of {len(values)}")
    console.print(f"Written to {arguments.out}; use it with delays={arguments.out.stem}.")


def show_throughput(console: Console, results: list[dict[str, Any]], peers: dict[str, str]) -> None:
    rows = []
    for result in results:
        ratio = result.get(f"ratio_to_{peers[result['job']]}")
        rows.append(
            {
                "job": result["job"],
                "what": result["what"],
                "steps/s": f"{result['steps_per_second']:,.0f}",
                "ratio to peer": "" if ratio is None else f"{ratio:.2f}",
                "return": significant(result["return_mean"]),
                "compile s": f"{result['compile_seconds']:.1f}",
                "peak MB": f"{result['peak_memory_mb']:.0f}",
            }
        )
    title = "training throughput (medians; compilation and evaluation excluded)"
    print_table(console, title, rows, names=("job", "what"))


def show_envs(console: Console, results: list[dict[str, Any]]) -> None:
    rows = []
    for result in results:
        speeds = result["steps_per_second"]
        kinds = ("suite", "adapter", "policy", "training", "training, no overlap")
        rows.append(
            {
                "environment": f"{result['env']} x {result['num_envs']}",
                **{kind: f"{speeds[kind]:,.0f}" if kind in speeds else "" for kind in kinds},
                "adapter to suite": f"{result['adapter_to_suite']:.2f}",
                "compile s": f"{result['compile_seconds']['training']:.1f}",
            }
        )
    print_table(console, "env steps/s (medians)", rows, names=("environment",))
