"""Measure this machine: `stellaris-jax benchmark COMMAND [options]`.

peers       beside rejax, brax's PPO, sbx and CleanRL, in turn: steps/s at the same work, time to a return with each
            one's own settings, and a sweep (benchmarks/peers/install.sh makes their environments)
members     training steps/s of several seeds: each by itself on the cores there are, beside all under vmap
engine      time per gradient of asynchronous learners as a ratio to synchronous ones
methods     time per gradient under every correction, mask and policy objective as a ratio to that under none
envs        env steps/s of every adapter: beside its suite alone, with a policy, in training
plan        gradients planned per second of one core, by system, learners and members; a second checkout beside it
            with `--beside`
startup     seconds from the command to the first training step, with a warm compile cache
live        what the simulator foretells of runs on Ray beside those runs (seconds per round, staleness, utilisation,
            updates, dollars), and what being live costs beside the compiled engine
cost        what being live costs: env steps/s live, in the compiled engine and of RLlib's PPO and APPO, with the same
            work on gymnasium's CartPole and envpool's Hopper
limit       arithmetic and bytes of each job, counted, beside this machine's matrix-product and memory rates, measured:
            the share of the limit that a job reaches, and where its time goes
operations  what XLA executes on a CPU, operation by operation, from its trace: products, reductions, arithmetic, moves
scale       time and memory as environments, learners, members, network width and version ring grow, a plot for each
calibrate   seconds of a rollout, a gradient and an aggregation of a job on this machine, written as a file of group
            delays: --out configs/delays/mine.yaml, then delays=mine
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import check_output
from stellaris_jax.cli import program
from stellaris_jax.report.table import print_table, wide_console

TITLES = {
    "throughput": "training with the same work for all (medians; compilation and evaluation excluded)",
    "return": "time to a return, own settings of each (medians; compilation and evaluation included)",
    "sweep": "a sweep of 64 members, from the command to its end (medians)",
}
"""The parts of `peers`, and what is written above their tables."""
PARTS = tuple(TITLES)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command on these arguments; those of the process by default."""
    program.run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> None:
    # Imported late, so that a mistake in what comes before answers at once.
    from benchmarks import cost as costs
    from benchmarks import engine as engines
    from benchmarks import envs as environments
    from benchmarks import limit as limits
    from benchmarks import live as foretold
    from benchmarks import members, own, scale, startup
    from benchmarks import operations as executed
    from benchmarks import plan as planning
    from benchmarks.process import ROOT
    from benchmarks.sweep import MEMBERS
    from stellaris_jax.execute.run import enable_compile_cache

    parser = program.Parser("benchmark", __doc__)
    count = program.at_least(1)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=program.SubParser)
    peers = commands.add_parser("peers", help="beside other programs")
    peers.add_argument("--parts", nargs="+", choices=PARTS, help="kinds of jobs (default: all, or those of --jobs)")
    peers.add_argument("--jobs", nargs="+", choices=own.JOBS, metavar="JOB", help=f"some of {', '.join(own.JOBS)}")
    peers.add_argument("--repeats", type=count, default=3, help="runs of each, with seeds 0, 1, ... (default 3)")
    peers.add_argument("--peers", type=Path, default=Path("peers"), help="where their environments are (default peers)")
    every = len(MEMBERS)
    peers.add_argument("--processes", type=count, default=8, help=f"of {every} members, measured alone (default 8)")
    seeds = commands.add_parser("members", help="several seeds, apart and together")
    seeds.add_argument("--counts", nargs="+", type=count, default=[1, 2, 4, 8, 16], help="seeds (default 1 2 4 8 16)")
    seeds.add_argument("--repeats", type=count, default=9, help="chunks of each way (default 9)")
    seeds.add_argument("overrides", nargs="*", help="the job, e.g. env=brax/hopper")
    engine = commands.add_parser("engine", help="the cost of asynchrony per gradient")
    methods = commands.add_parser("methods", help="the cost of corrections, masks and objectives per gradient")
    for command in (engine, methods):
        command.add_argument("--rounds", type=count, default=16, help="rounds per chunk (default 16)")
        command.add_argument("--repeats", type=count, default=15, help="chunks of each (default 15)")
        command.add_argument("overrides", nargs="*", help="config overrides, e.g. engine.lanes=8")
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
    bound.add_argument("--jobs", nargs="+", choices=list(own.THROUGHPUT), default=list(own.THROUGHPUT))
    bound.add_argument("--systems", nargs="+", choices=list(limits.SYSTEMS), default=["stellaris"])
    bound.add_argument("--repeats", type=count, default=3, help="timings of each part (default 3)")
    single = commands.add_parser("operations", help="what XLA executes, one by one")
    single.add_argument("--jobs", nargs="+", choices=list(own.THROUGHPUT), default=["cartpole_small"])
    single.add_argument("--systems", nargs="+", choices=list(limits.SYSTEMS), default=list(limits.SYSTEMS))
    single.add_argument("--rounds", type=count, default=8, help="rounds of the chunk that is traced (default 8)")
    alive = commands.add_parser("live", help="live runs, and what is foretold of them")
    alive.add_argument("--rules", nargs="+", choices=list(foretold.RULES), default=list(foretold.RULES))
    learners = list(foretold.LEARNERS)
    alive.add_argument("--learners", nargs="+", type=count, default=learners, help="numbers of them (default 1 2 4)")
    alive.add_argument("--rounds", type=program.at_least(4), default=12, help="rounds of every run (default 12)")
    alive.add_argument("--out", type=Path, help="directory for a picture of each rule's timelines, foretold and live")
    dear = commands.add_parser("cost", help="what being live costs")
    dear.add_argument("--jobs", nargs="+", choices=list(costs.JOBS), default=["cartpole", "hopper"])
    dear.add_argument("--learners", type=count, default=2, help="asynchronous ones (default 2)")
    dear.add_argument("--rounds", type=program.at_least(2), default=24, help="rounds of every run (default 24)")
    dear.add_argument("--repeats", type=count, default=3, help="runs of each, with seeds 0, 1, ... (default 3)")
    dear.add_argument("--peers", type=Path, help="where environments of peers are; without it RLlib is left out")
    grow = commands.add_parser("scale", help="how cost grows with the size of a job")
    grow.add_argument("--axes", nargs="+", choices=list(scale.AXES), default=list(scale.AXES))
    grow.add_argument("--most", type=count, help="leave out larger sizes than this one")
    grow.add_argument("--repeats", type=count, default=5, help="chunks of each size (default 5)")
    grow.add_argument("--out", type=Path, help="directory for a plot of every axis, <axis>.png")
    for command in (peers, seeds, engine, methods, envs, plan, start, bound, single, alive, dear, grow):
        command.add_argument("--json", type=Path, help="write the figures, with hardware and versions, to this file")
    delays = commands.add_parser("calibrate", help="this machine's durations as a delay model")
    delays.add_argument("--out", type=Path, required=True, help="the file to write, e.g. configs/delays/mine.yaml")
    delays.add_argument("--repeats", type=count, default=32, help="timings of each part (default 32)")
    delays.add_argument("overrides", nargs="*", help="the job, e.g. env=brax/hopper")
    arguments = parser.parse_args(argv)

    console = wide_console()
    result: Any
    if getattr(arguments, "json", None) is not None:
        check_output("--json", arguments.json)
    if getattr(arguments, "csv", None) is not None:
        check_output("--csv", arguments.csv)
    enable_compile_cache()
    if arguments.command == "calibrate":
        write_delays(console, arguments)
        return
    if arguments.command == "peers":
        result = compare(console, arguments)
    elif arguments.command == "members":
        result = members.members(arguments.counts, arguments.repeats, arguments.overrides, console.print)
    elif arguments.command == "envs":
        result = [environments.measure(name, arguments.repeats) for name in arguments.envs]
        show_envs(console, result)
    elif arguments.command == "plan":
        checkouts = [*(path.resolve() for path in arguments.beside), ROOT]
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
    elif arguments.command == "operations":
        result = executed.operations(arguments.jobs, arguments.systems, arguments.rounds, console.print)
        title = "operations per gradient, and the microseconds of the longest (medians)"
        print_table(console, title, executed.rows(result), names=("job", "system", "kind", "the longest"))
    elif arguments.command == "live":
        result = foretold.live(arguments.rules, arguments.learners, arguments.rounds, arguments.out, console.print)
        title = "live / foretold per round, and the error of the prediction (means of five seeds)"
        print_table(console, title, foretold.rows(result), names=("rule",))
        speeds = costs.speeds(max(arguments.learners), arguments.rounds, 3)
        result["speed"] = speeds
        told = ", ".join(f"{way} {value:,.0f}" for way, value in speeds["steps_per_second"].items())
        console.print(f"env steps/s with {speeds['learners']} learners: {told}; ratio {speeds['ratio']:.2g}")
    elif arguments.command == "cost":
        asked = (arguments.jobs, arguments.learners, arguments.rounds, arguments.repeats, arguments.peers)
        result = costs.cost(*asked, console.print)
        title = f"training, {arguments.learners} asynchronous learners (medians)"
        print_table(console, title, costs.rows(result), names=("job", "way"))
    elif arguments.command == "scale":
        result = scale.scale(arguments.axes, arguments.most, arguments.repeats, arguments.out, console.print)
        print_table(console, "cost by size (medians)", scale.rows(result), names=("axis", "refused"))
    elif arguments.command == "startup":
        checkouts = [*arguments.beside, ROOT]
        result = startup.startup(checkouts, arguments.repeats, arguments.overrides, console.print)
        console.print_json(json.dumps(result))
    else:
        jobs = {"engine": engines.systems, "methods": engines.methods}[arguments.command](arguments.overrides)
        result = engines.gradient_cost(jobs, arguments.rounds, arguments.repeats, console.print)
        console.print_json(json.dumps(result))
    if arguments.json:
        document = {"benchmark": arguments.command, **context(), "result": result}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


def context() -> dict[str, Any]:
    """Hardware and versions a figure belongs to."""
    from stellaris_jax.execute.loading import load_config
    from stellaris_jax.runs.provenance import device_name, versions

    return {"device": device_name(load_config()), "versions": versions()}


def write_delays(console: Console, arguments: argparse.Namespace) -> None:
    from stellaris_jax.execute.calibrate import calibrate, write
    from stellaris_jax.execute.loading import load_config

    check_output("--out", arguments.out)
    if arguments.out.exists():
        raise ConfigError(f"--out={arguments.out} exists; name another file.")
    table = calibrate(load_config(arguments.overrides), arguments.repeats)
    command = shlex.join(
        ["python", "scripts/benchmark.py", "calibrate", *arguments.overrides, "--out", str(arguments.out)]
    )
    write(table, arguments.out, f"Seconds on {context()['device']}, by\n{command}")
    for name, values in table.items():
        console.print(f"{name:9}  median {sorted(values)[len(values) // 2]:.3g} s of {len(values)}")
    console.print(f"Written to {arguments.out}; use it with delays={arguments.out.stem}.")


def compare(console: Console, arguments: argparse.Namespace) -> dict[str, Any]:
    """The `peers` command: measure its parts, one after the other, and print a table of each.

    Raises:
      ConfigError: before anything is measured, if there is nobody to compare with or nothing to do.
    """
    from benchmarks import beside
    from benchmarks import sweep as sweeps

    asked = arguments.jobs or [job for jobs in beside.KINDS.values() for job in jobs]
    chosen = {kind: [job for job in jobs if job in asked] for kind, jobs in beside.KINDS.items()}
    parts = arguments.parts or [part for part in PARTS if not arguments.jobs or chosen.get(part)]
    for kind, jobs in chosen.items():
        if arguments.jobs and jobs and kind not in parts:
            raise ConfigError(f"--jobs={jobs[0]} is one of the part {kind}, which --parts leaves out.")
    if arguments.processes > len(sweeps.MEMBERS):
        raise ConfigError(f"--processes={arguments.processes} must be at most {len(sweeps.MEMBERS)}.")
    contestants = beside.programs(arguments.peers, console.print)
    result: dict[str, Any] = {}
    for part in parts:
        if part == "sweep":
            rejax = contestants["rejax"].command if "rejax" in contestants else None
            result[part] = sweeps.sweep(rejax, arguments.processes, arguments.repeats, console.print)
            print_table(console, TITLES[part], sweeps.rows(result[part]), names=("way",))
        else:
            result[part] = beside.compare(chosen[part], contestants, arguments.repeats, console.print)
            print_table(console, TITLES[part], beside.rows(part, result[part]), names=("job", "program"))
    return result


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
