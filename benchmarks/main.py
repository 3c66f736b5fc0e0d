"""Measure this machine: `stellaris-jax benchmark COMMAND [options]`.

peers       beside rejax, brax's PPO, sbx and CleanRL, in turn: steps/s at the same work, and time to a return with each
            one's own settings (benchmarks/peers/install.sh makes their environments)
tokens      token tasks beside a plain loop in JAX and optax, in turn: steps/s and the share of right completions, for
            one seed; and the cores that a population of 16 uses
engine      time per gradient of asynchronous learners as a ratio to synchronous ones
methods     time per gradient under every correction, mask and policy objective as a ratio to that under none
actors      time per gradient with independent actors as a ratio to that with actors that wait for the round
plan        gradients planned per second of one core, by system, learners and members; a second checkout beside it
            with `--beside`
startup     seconds from the command to the first training step, with a warm compile cache
live        simulated runs beside live runs on Ray (seconds per round, staleness, utilisation, updates, dollars), and
            env steps/s of live runs beside the compiled engine
foretell    simulated runs of independent actors beside live ones, in ten settings, after one live run of each task that
            calibrates (data lag, staleness, utilisation, seconds per round)
card        an accelerator: microseconds of kernels, launches and loops; steps/s, memory, compilation of jobs; how far
            results are from a CPU's, and whether they repeat; another checkout beside it with `--beside`
gpu         a job's program compiled for a GPU that is not there (`make gpu-check`): kernels, launches and waits of the
            host per gradient and per env step, memory, and a modelled rate, which is no measurement
defaults    returns of the defaults on environments without settings of their own, beside sbx's PPO at equal env steps
limit       arithmetic and bytes of each job, counted, beside this machine's matrix-product and memory rates, measured:
            the share of the limit that a job reaches, and where its time goes
calibrate   seconds of a rollout, a gradient and an aggregation of a job on this machine, written as a file of group
            delays: --out configs/delays/mine.yaml, then delays=mine
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Sequence
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
}
"""Titles of the tables of `peers`, by the kind of its jobs."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command on these arguments; those of the process by default."""
    program.run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> None:
    arguments = _parser().parse_args(argv)
    console = wide_console()
    for option in ("json", "csv"):
        path = getattr(arguments, option, None)
        if path is not None:
            check_output(f"--{option}", path)
    from stellaris_jax.execute.run import enable_compile_cache

    enable_compile_cache()
    result = COMMANDS[arguments.command](console, arguments)
    if getattr(arguments, "json", None) is not None:
        document = {"benchmark": arguments.command, **context(), "result": result}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


def _parser() -> program.Parser:
    # Imported late, so that a mistake in the command's name answers at once.
    from benchmarks import cards, defaults, foretell, limit, live, own, plan
    from benchmarks.card import JOBS
    from benchmarks.gpu_model import GPUS

    parser = program.Parser("benchmark", __doc__)
    count = program.at_least(1)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=program.SubParser)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = commands.add_parser(name, help=text)
        if name != "calibrate":
            made.add_argument("--json", type=Path, help="write the figures, with hardware and versions, to this file")
        return made

    compared = (*own.THROUGHPUT, *own.RETURN)
    peers = command("peers", "beside other programs")
    peers.add_argument("--parts", nargs="+", choices=TITLES, help="kinds of jobs (default: all, or those of --jobs)")
    peers.add_argument("--jobs", nargs="+", choices=compared, metavar="JOB", help=f"some of {', '.join(compared)}")
    peers.add_argument("--repeats", type=count, default=3, help="runs of each, with seeds 0, 1, ... (default 3)")
    peers.add_argument("--peers", type=Path, default=Path("peers"), help="where their environments are (default peers)")
    tokens = command("tokens", "token tasks beside a plain loop, and beside TRL if it is installed")
    tokens.add_argument("--peers", type=Path, default=Path("peers"), help="where its environment is (default peers)")
    tokens.add_argument("--jobs", nargs="+", choices=list(own.TOKENS), default=list(own.TOKENS), metavar="JOB")
    tokens.add_argument("--repeats", type=count, default=5, help="runs of each, with seeds 0, 1, ... (default 5)")
    for name, text in (
        ("engine", "the cost of asynchrony per gradient"),
        ("methods", "the cost of corrections, masks and objectives per gradient"),
        ("actors", "the cost of independent actors per gradient, beside that of actors that wait for the round"),
    ):
        gradients = command(name, text)
        gradients.add_argument("--rounds", type=count, default=16, help="rounds per chunk (default 16)")
        gradients.add_argument("--repeats", type=count, default=15, help="chunks of each (default 15)")
        gradients.add_argument("overrides", nargs="*", help="config overrides, e.g. engine.lanes=8")
    planned = command("plan", "gradients planned per second")
    planned.add_argument("--jobs", nargs="+", choices=list(plan.JOBS), default=list(plan.JOBS), metavar="JOB")
    planned.add_argument("--beside", type=Path, action="append", default=[], help="another checkout, measured in turn")
    planned.add_argument("--repeats", type=count, default=3, help="processes for each (default 3)")
    planned.add_argument("--seconds", type=count, default=1, help="seconds of planning in each (default 1)")
    planned.add_argument("--csv", type=Path, help="write the table to this file")
    start = command("startup", "seconds from the command to the first training step")
    start.add_argument("--beside", type=Path, action="append", default=[], help="another checkout, measured in turn")
    start.add_argument("--repeats", type=count, default=7, help="commands of each (default 7)")
    start.add_argument("overrides", nargs="*", help="config overrides, e.g. env=brax/hopper")
    untuned = command("defaults", "returns of the defaults on environments without settings, beside sbx's")
    untuned.add_argument("--envs", nargs="+", default=list(defaults.JUDGED_ON), metavar="ENV", help="of gymnasium")
    untuned.add_argument("--seeds", nargs="+", type=int, default=list(range(5)), metavar="N")
    untuned.add_argument("--steps", type=count, default=100_000, help="env steps of a run (default 100,000)")
    untuned.add_argument("--peers", type=Path, help="where sbx's environment is; without it sbx is left out")
    untuned.add_argument("--kept", type=Path, default=Path("runs/defaults.jsonl"), help="finished runs, not repeated")
    text = "another way, as NAME:OVERRIDE,OVERRIDE; the defaults are always there"
    untuned.add_argument("--way", action="append", default=[], metavar="NAME:OVERRIDES", help=text)
    alive = command("live", "live runs beside simulated ones")
    alive.add_argument("--rules", nargs="+", choices=list(live.RULES), default=list(live.RULES))
    learners = list(live.LEARNERS)
    alive.add_argument("--learners", nargs="+", type=count, default=learners, help="numbers of them (default 1 2 4)")
    alive.add_argument("--rounds", type=program.at_least(4), default=12, help="rounds of every run (default 12)")
    alive.add_argument("--out", type=Path, help="directory for a picture of each rule's timelines, simulated and live")
    foretold = command("foretell", "live runs of independent actors beside simulated ones")
    names = list(foretell.SETTINGS)
    foretold.add_argument("--settings", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    foretold.add_argument("--seeds", type=count, default=5, help="seeds of each setting (default 5)")
    foretold.add_argument("--rounds", type=program.at_least(4), default=16, help="rounds of every run (default 16)")
    foretold.add_argument("--pool", choices=("ray", "threads"), default="ray", help="live.pool (default ray)")
    foretold.add_argument("--runs", type=Path, help="directory that keeps live runs' figures, so that a stop costs one")
    card = command("card", "an accelerator's costs and rates")
    card.add_argument("--jobs", nargs="+", choices=cards.NAMES, default=list(cards.NAMES), metavar="JOB")
    card.add_argument(
        "--looped", nargs="+", choices=cards.NAMES, default=[], metavar="JOB", help="also with loops in CUDA graphs"
    )
    card.add_argument("--beside", type=Path, action="append", default=[], help="another checkout, measured in turn")
    card.add_argument(
        "--compared",
        nargs="+",
        choices=cards.NAMES,
        default=[],
        metavar="JOB",
        help="jobs that the other checkouts run",
    )
    card.add_argument("--repeats", type=program.at_least(0), default=3, help="runs of each (default 3)")
    card.add_argument("--together", type=program.at_least(0), default=0, help="jobs that compile at once beforehand")
    card.add_argument("--references", type=Path, help="folder of a CPU's rounds; made there if JAX runs on a CPU")
    card.add_argument("--kept", type=Path, required=True, help="file that keeps every run, so that a stop costs one")
    gpu = command("gpu", "programs compiled for a GPU that is not there")
    gpu.add_argument("jobs", nargs="+", choices=list(JOBS), metavar="JOB", help=f"one of: {'; '.join(JOBS)}")
    gpu.add_argument("--gpu", nargs="+", choices=list(GPUS), default=["h100"], help="GPUs (default h100)")
    gpu.add_argument(
        "--plugins", type=Path, default=Path(".gpu-check"), help="folder with cuda12 and cuda13 (default .gpu-check)"
    )
    bound = command("limit", "jobs beside the limits of this machine")
    bound.add_argument("--jobs", nargs="+", choices=list(own.THROUGHPUT), default=list(own.THROUGHPUT))
    bound.add_argument("--systems", nargs="+", choices=list(limit.SYSTEMS), default=["stellaris"])
    bound.add_argument("--repeats", type=count, default=3, help="timings of each part (default 3)")
    delays = command("calibrate", "this machine's durations as a delay model")
    delays.add_argument("--out", type=Path, required=True, help="the file to write, e.g. configs/delays/mine.yaml")
    delays.add_argument("--repeats", type=count, default=32, help="timings of each part (default 32)")
    delays.add_argument("overrides", nargs="*", help="the job, e.g. env=brax/hopper")
    return parser


def context() -> dict[str, Any]:
    """Hardware and versions a figure belongs to."""
    from stellaris_jax.execute.loading import load_config
    from stellaris_jax.runs.provenance import device_name, versions

    return {"device": device_name(load_config()), "versions": versions()}


def _peers(console: Console, arguments: argparse.Namespace) -> dict[str, Any]:
    """Each kind of jobs, one after the other; a ConfigError comes before anything is measured."""
    from benchmarks import beside

    asked = arguments.jobs or [job for jobs in beside.KINDS.values() for job in jobs]
    chosen = {kind: [job for job in jobs if job in asked] for kind, jobs in beside.KINDS.items()}
    parts = arguments.parts or [part for part in TITLES if chosen[part]]
    for kind, jobs in chosen.items():
        if arguments.jobs and jobs and kind not in parts:
            raise ConfigError(f"--jobs={jobs[0]} is one of the part {kind}, which --parts leaves out.")
    contestants = beside.programs(arguments.peers, console.print)
    result: dict[str, Any] = {}
    for part in parts:
        result[part] = beside.compare(chosen[part], contestants, arguments.repeats, console.print)
        print_table(console, TITLES[part], beside.rows(part, result[part]), names=("job", "program"))
    return result


def _tokens(console: Console, arguments: argparse.Namespace) -> Any:
    from benchmarks import beside

    result = beside.compare(arguments.jobs, beside.on_tokens(arguments.peers), arguments.repeats, console.print)
    title = "training on addition with the same work (medians; compilation, warm start and evaluation excluded)"
    print_table(console, title, beside.rows("throughput", result), names=("job", "program"))
    return result


def _gradients(console: Console, arguments: argparse.Namespace) -> Any:
    from benchmarks import engine

    kinds = {"engine": engine.systems, "methods": engine.methods, "actors": engine.actors}
    jobs = kinds[arguments.command](arguments.overrides)
    result = engine.gradient_cost(jobs, arguments.rounds, arguments.repeats, console.print)
    console.print_json(json.dumps(result))
    return result


def _plan(console: Console, arguments: argparse.Namespace) -> Any:
    from benchmarks import plan
    from benchmarks.process import ROOT

    checkouts = [*(path.resolve() for path in arguments.beside), ROOT]
    result = plan.plan(arguments.jobs, checkouts, arguments.repeats, arguments.seconds, console.print)
    title = "gradients planned per second of one core, and microseconds per gradient (medians)"
    print_table(console, title, plan.rows(result), names=("job",))
    if arguments.csv:
        plan.write_csv(result, arguments.csv)
    return result


def _startup(console: Console, arguments: argparse.Namespace) -> Any:
    from benchmarks import startup
    from benchmarks.process import ROOT

    result = startup.startup([*arguments.beside, ROOT], arguments.repeats, arguments.overrides, console.print)
    console.print_json(json.dumps(result))
    return result


def _live(console: Console, arguments: argparse.Namespace) -> Any:
    from benchmarks import live

    result = live.live(arguments.rules, arguments.learners, arguments.rounds, arguments.out, console.print)
    title = "live / simulated per round, and the error of the prediction (means of five seeds)"
    print_table(console, title, live.rows(result), names=("rule",))
    result["speed"] = speeds = live.speeds(max(arguments.learners), arguments.rounds, 3)
    shown = ", ".join(f"{way} {value:,.0f}" for way, value in speeds["steps_per_second"].items())
    console.print(f"env steps/s with {speeds['learners']} learners: {shown}; ratio {speeds['ratio']:.2g}")
    return result


def _foretell(console: Console, arguments: argparse.Namespace) -> Any:
    from benchmarks import foretell

    given = arguments
    result = foretell.measure(given.settings, given.seeds, given.rounds, given.pool, given.runs, console.print)
    title = "live / simulated, and the error of the prediction (means over seeds, ±: 95 % interval)"
    print_table(console, title, foretell.rows(result), names=("setting",))
    console.print(
        f"{result['hits']} of {len(result['rows'])} settings are within {foretell.GOAL:.0%}; {result['computing']} "
        "compute half of the time or more."
    )
    return result


def _card(console: Console, arguments: argparse.Namespace) -> Any:
    from benchmarks import cards

    given = arguments
    if given.references is not None and not given.references.exists():
        cards.make_references(given.references)
    ways = cards.variants(given.beside, given.looped, given.compared)
    result = cards.measure(
        given.jobs,
        ways,
        given.repeats,
        given.kept,
        given.references,
        given.together,
        lambda text: print(text, flush=True),
    )
    print_table(console, "rates of whole chunks (medians)", cards.rows(result), names=("job", "way"))
    return result


def _gpu(console: Console, arguments: argparse.Namespace) -> Any:
    from benchmarks import gpu

    result = gpu.measure(arguments.jobs, arguments.gpu, arguments.plugins, lambda text: print(text, flush=True))
    title = "compiled, not run: kernels / launches / waits of the host; the rate is a model's"
    print_table(console, title, gpu.rows(result), names=("job", "GPU"))
    return result


def _defaults(console: Console, arguments: argparse.Namespace) -> Any:
    from benchmarks import defaults

    given = arguments
    named = (way.partition(":") for way in given.way)
    ways = {"defaults": [], **{name: overrides.split(",") for name, _, overrides in named}}
    result = defaults.measure(given.envs, ways, given.seeds, given.steps, given.peers, given.kept, console.print)
    print_table(console, "returns (mean and 95 % interval)", defaults.table(result, ways), names=("env",))
    return result


def _limit(console: Console, arguments: argparse.Namespace) -> Any:
    from benchmarks import limit

    result = limit.limit(arguments.jobs, arguments.systems, arguments.repeats, console.print)
    print_table(console, "the share of the limit (medians)", limit.rows(result), names=("job", "system"))
    title = "where the time goes (medians; in brackets: beside other parts)"
    print_table(console, title, limit.part_rows(result), names=("job", "system", "part"))
    return result


def _calibrate(console: Console, arguments: argparse.Namespace) -> None:
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


COMMANDS: dict[str, Callable[[Console, argparse.Namespace], Any]] = {
    "peers": _peers, "tokens": _tokens, "engine": _gradients, "methods": _gradients, "actors": _gradients,
    "plan": _plan, "startup": _startup, "live": _live, "foretell": _foretell, "limit": _limit,
    "card": _card, "gpu": _gpu, "defaults": _defaults,
    "calibrate": _calibrate,
}  # fmt: skip
"""Functions that measure, print and return the figures of each command."""
