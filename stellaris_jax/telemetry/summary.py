"""Final table of a run, with commands that continue from it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stellaris_jax.base.commands import evaluate_command, resume_command
from stellaris_jax.telemetry import format as fmt


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values of the final table, from the run's summary."""
    get = summary.get
    episodes = get("eval_episodes")
    returned = fmt.over_seeds(get("eval_return_mean"), get("eval_return_ci95"), get("eval_return_per_seed"))
    how = f", {get('eval_actions')} actions" if get("eval_actions") else ""
    return [
        ("eval return", f"{returned}, {fmt.basis(get('num_seeds') or 1, episodes)}{how}" if episodes else fmt.MISSING),
        *_trained(summary),
        ("env steps", fmt.count(get("env_steps"))),
        ("wall time", f"{fmt.number(get('wall_seconds'))} s"),
        ("compile time", f"{fmt.number(get('compile_seconds'))} s"),
        ("speed", f"{fmt.compact(get('steps_per_second'))} env steps/s"),
        ("updates", fmt.count(get("updates"))),
        ("staleness", f"mean {fmt.number(get('staleness_mean'), 2)}  max {fmt.count(get('staleness_max'))}"),
        *_dropped(summary),
        *([] if get("gate_escapes") is None else [("gate escapes", _escapes(summary))]),
        ("occupancy", fmt.percent(get("occupancy"))),
        (f"{fmt.clock(get('executor'))} time", fmt.duration(get("simulated_seconds"))),
        ("cost", fmt.dollars(get("cost_usd"))),
        ("billed actors", _actors(summary)),
        ("non-finite gradients", fmt.count(get("nonfinite_gradients"))),
    ]


def _escapes(summary: dict[str, Any]) -> str:
    """Groups that escaped the gate, and their share."""
    groups = summary.get("gate_groups")
    return fmt.escapes(summary) + (f" ({fmt.percent(summary['gate_escapes'] / groups)})" if groups else "")


def _trained(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Last training return, by sampled actions, if it is outside the interval of a greedy evaluation."""
    trained, value = summary.get("train_return"), summary.get("eval_return_mean")
    if summary.get("eval_actions") != "greedy" or trained is None or value is None:
        return []
    if abs(trained - value) <= (summary.get("eval_return_ci95") or 0.0):
        return []
    return [("train return", f"{fmt.significant(trained)}, sampled actions")]


def _dropped(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Dropped gradients: number, share, and busy seconds of their learners, over all seeds.

    Runs of earlier versions have only the number.
    """
    lost = summary.get("dropped_gradients")
    if not lost:
        return []
    text, share, seconds = fmt.count(lost), summary.get("dropped_share"), summary.get("dropped_seconds")
    if share is not None:
        text += f" ({fmt.percent(share)} of all)"
    if seconds is not None:
        text += f", {fmt.significant(seconds)} {fmt.clock(summary.get('executor'))} s of learners"
    return [("dropped gradients", text)]


def _actors(summary: dict[str, Any]) -> str:
    """Billed actors. Unless actors are scaled, all actors of the platform share the environments."""
    actors, each = fmt.count(summary.get("actors")), summary.get("envs_per_actor")
    paid = "as functions" if summary.get("actor_billing") == "serverless" else "as VMs"
    if each is None:
        return f"{actors} (platform.actors) for {fmt.count(summary.get('num_envs'))} environments, {paid}"
    return f"at most {actors}, {fmt.count(each)} environment{'s' * (each > 1)} each, {paid}"


def print_summary(console: Console, summary: dict[str, Any], run_dir: Path, returns: Sequence[float] = ()) -> None:
    """Print the final table, the run directory and further commands.

    Args:
      console: console to print to.
      summary: figures of `summary.json`.
      run_dir: directory of the run.
      returns: evaluated returns, oldest first, for a line of their own.
    """
    names = [str(summary[key]) for key in ("system", "env") if summary.get(key)]
    seeds = summary.get("num_seeds") or 1
    table = Table(title=Text(" · ".join([*names, f"{seeds} seed{'s' if seeds > 1 else ''}"])), show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right")
    for name, value in summary_rows(summary):
        table.add_row(name, Text(value))
        if name == "eval return" and len(returns) > 1:
            ends = f"{fmt.significant(min(returns))} to {fmt.significant(max(returns))}"
            table.add_row("over the run", Text(f"{ends}  {fmt.sparkline(fmt.spread(returns))}"))
    console.print(table)
    commands = [("run", shlex.quote(str(run_dir))), ("evaluate", evaluate_command(run_dir))]
    if returns and max(returns) - returns[-1] > (summary.get("eval_return_ci95") or 0.0):
        commands.append(("best", f"{evaluate_command(run_dir)} --round best"))
    # Continuing would raise an annealed learning rate again.
    if summary.get("total_steps") and not (summary.get("ended_early") or summary.get("annealed")):
        commands.append(("go on", resume_command(run_dir, f"total_steps={2 * int(summary['total_steps'])}")))
    for name, text in commands:
        console.print(Text(f"{name:<9}", style="cyan") + Text(text, style="default"), soft_wrap=True)
