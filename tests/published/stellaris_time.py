"""Numbers of the Stellaris study that come from timelines alone: seconds and dollars by what is counted."""

from __future__ import annotations

import functools
from functools import partial

import numpy as np

from published.case import Case
from published.files import table
from published.paper_runs import TASKS
from published.texts import row, significant_span

FINDINGS, STELLARIS = "results/README.md", "results/stellaris/README.md"
ALL_TASKS = (*TASKS, "spaceinvaders")


@functools.cache
def mean_of(column: str, task: str, which: str) -> float:
    """Mean of a column over a system's timelines."""
    lines = table("stellaris/figure_time.csv")
    return float(np.mean([float(line[column]) for line in lines if (line["env"], line["system"]) == (task, which)]))


seconds_of, dollars_of = partial(mean_of, "seconds"), partial(mean_of, "cost_usd")


def row_of_seconds(which: str) -> str:
    return row(*(f"{seconds_of(task, which):,.0f}" for task in ALL_TASKS))


def counted_beside() -> str:
    """Speed of Stellaris, truncation's time counted, beside PPO and RLlib with whole GPUs."""
    speeds = [seconds_of(task, f"{name}, whole GPU") / seconds_of(task, "Stellaris, truncation counted")
              for name in ("PPO", "RLlib") for task in ALL_TASKS]  # fmt: skip
    return f"{significant_span(speeds)} times as fast as PPO and RLlib"


def on_equal_actors() -> str:
    speeds = [seconds_of(task, "IMPACT, whole GPU") / seconds_of(task, "Stellaris, pipelined actors")
              for task in ALL_TASKS]  # fmt: skip
    return f"{significant_span(speeds)} times as fast as IMPACT"


def with_both_gpus() -> str:
    speeds = [seconds_of(task, "PPO, both GPUs") / seconds_of(task, "Stellaris") for task in ALL_TASKS]
    return f"{significant_span(speeds)} times"


def row_of_dollars(which: str) -> str:
    return row(*(f"{dollars_of(task, which):.2f}" for task in ALL_TASKS))


def one_machine_beside(ours: str) -> str:
    """Dollars of PPO with a whole GPU and its machine, over those of Stellaris."""
    ratios = [dollars_of(task, "PPO, whole GPU, one machine") / dollars_of(task, ours)
              for task in ALL_TASKS]  # fmt: skip
    return significant_span(ratios)


CASES = [
    *(Case(page, near, "0.96 to 1.3 times as fast as IMPACT", on_equal_actors)
      for page, near in ((STELLARIS, "| less time |"), (FINDINGS, "Stellaris saves time and dollars"))),
    Case(STELLARIS, "| less time |", "0.92 to 0.94 times", with_both_gpus),
    Case(STELLARIS, "| fewer dollars |", "cost 1.4 times as much as Stellaris (1.1 to 1.2 times",
         lambda: f"cost {one_machine_beside('Stellaris').split(' to ')[0]} times as much as Stellaris "
                 f"({one_machine_beside('Stellaris, truncation counted')} times"),
    *(Case(STELLARIS, f"| {near} | {printed[:4]}", printed, partial(row_of_dollars, which))
      for near, printed, which in (
        ("Stellaris", "0.64 | 0.73 | 0.69 | 3.18", "Stellaris"),
        ("Stellaris, truncation counted", "0.77 | 0.90 | 0.88 | 4.10", "Stellaris, truncation counted"),
        ("PPO, whole GPU, both machines paid", "1.27 | 1.44 | 1.35 | 6.18", "PPO, whole GPU"),
        ("PPO, whole GPU, one machine paid", "0.92 | 1.04 | 0.97 | 4.46", "PPO, whole GPU, one machine"),
        ("Stellaris, pipelined actors", "0.50 | 0.56 | 0.50 | 2.25", "Stellaris, pipelined actors"),
        ("IMPACT, whole GPU, one machine paid", "0.54 | 0.57 | 0.52 | 2.58", "IMPACT, whole GPU, one machine"),
    )),
    Case(STELLARIS, "| less time |", "0.99 to 1.1 times as fast as PPO and RLlib", counted_beside),
    Case(FINDINGS, "Stellaris saves time and dollars", "0.99 to 1.1 times as fast as PPO and RLlib", counted_beside),
    *(Case(STELLARIS, f"| {near}", printed, partial(row_of_seconds, which)) for near, printed, which in (
        ("Stellaris | 351", "351 | 391 | 351 | 1,557", "Stellaris"),
        ("Stellaris, truncation counted | 398", "398 | 450 | 416 | 1,884", "Stellaris, truncation counted"),
        ("Stellaris | 253", "253 | 269 | 216 | 889", "Stellaris, pipelined actors"),
        ("Stellaris, truncation counted | 255", "255 | 270 | 224 | 992",
         "Stellaris, pipelined actors, truncation counted"),
        ("PPO, whole GPU |", "416 | 471 | 441 | 2,019", "PPO, whole GPU"),
        ("PPO, both GPUs without loss |", "331 | 365 | 324 | 1,432", "PPO, both GPUs"),
        ("RLlib, whole GPUs |", "412 | 482 | 424 | 1,856", "RLlib, whole GPU"),
        ("RLlib, free exchange of gradients |", "362 | 402 | 363 | 1,601", "RLlib, whole GPU, no parameter function"),
        ("IMPACT, whole GPU |", "246 | 259 | 234 | 1,166", "IMPACT, whole GPU"),
    )),
]  # fmt: skip
