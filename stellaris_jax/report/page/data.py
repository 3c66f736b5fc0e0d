"""Section of a run's page on the data of independent actors: age, waiting, dropped fragments, utilisation."""

from __future__ import annotations

import numpy as np

from stellaris_jax.report.curves import column
from stellaris_jax.report.page import charts
from stellaris_jax.report.page.markup import Cell, panels, paragraph, table, words
from stellaris_jax.report.page.markup import figure as shown
from stellaris_jax.report.runs import Run, counts_learned
from stellaris_jax.telemetry.format import MISSING, clock, count, number, percent, significant

SMALL = (
    "data_lag_batches", "data_lag_seconds", "data_queue", "data_queue_seconds", "fragments_dropped_share",
    "fragments_dropped_slowness", "fragments_dropped_return", "valid_share",
)  # fmt: skip
"""Metrics that have a small picture each."""


def content(run: Run) -> str:
    """Figures and pictures of a run's data; empty unless its actors are independent."""
    if not run.rounds or not counts_learned([run]):
        return ""
    large = [
        charts.lines_panel(run, {"data_lag": "mean", "data_lag_max": "largest"}, "data lag (versions)"),
        charts.distribution_panel(run, "data_lag_counts", "data lag", "segments, for each gradient"),
        charts.lines_panel(
            run,
            {
                "actor_utilisation": "actors roll",
                "actor_blocked": "actors wait",
                "learner_utilisation": "learners compute",
            },
            "time since the start (%)",
            100.0,
        ),
        charts.lines_panel(run, {"env_steps": "rolled", "learned_steps": "learned from"}, "env steps so far"),
    ]
    explanation = (
        "Data lag is the number of versions between the policy that acted and the one that learns. The age of a "
        "fragment in batches is the number of batches formed before its own, less those that were complete at its "
        "begin. Actors wait while the data admission or a full data queue lets them begin no fragment. Dropped "
        "fragments bias the data if their slowness differs from 1, or the return of their episodes from that of used "
        "ones."
    )
    return (
        _figures(run) + panels(large) + panels(charts.captioned_panels(run, SMALL), small=True) + paragraph(explanation)
    )


def _figures(run: Run) -> str:
    """Table of means over rounds, and of totals."""
    seconds = f"{clock(run.config.get('executor'))} s"
    lines = {
        "data lag, versions": f"mean {_mean(run, 'data_lag')}, largest {count(_largest(run, 'data_lag_max'))}",
        "age of fragments, batches": f"mean {_mean(run, 'data_lag_batches')}",
        "age of data when learned from": f"mean {_mean(run, 'data_lag_seconds')} {seconds}",
        "data queue": f"mean {_mean(run, 'data_queue')} fragments at a round's end, each waits "
        f"{_mean(run, 'data_queue_seconds')} {seconds}",
        "actors": f"roll {_share(run, 'actor_utilisation')} of the time, wait {_share(run, 'actor_blocked')}",
        "learners": f"compute {_share(run, 'learner_utilisation')} of the time",
        "env steps": f"{count(_last(run, 'env_steps'))} rolled, {count(_last(run, 'learned_steps'))} learned from"
        f"{_ratio(run)}",
        "fragments dropped": _dropped(run),
        "rollouts that died": count(_last(run, "actors_failed")),
    }
    rows: list[list[Cell]] = [[words(name), shown(value)] for name, value in lines.items()]
    return table(["", ""], rows, "figures of the data", sortable=False)


def _known(run: Run, key: str) -> np.ndarray:
    values = column(run.rounds, key)
    return values[np.isfinite(values)]


def _mean(run: Run, key: str) -> str:
    known = _known(run, key)
    return significant(float(known.mean())) if len(known) else MISSING


def _largest(run: Run, key: str) -> float | None:
    known = _known(run, key)
    return float(known.max()) if len(known) else None


def _last(run: Run, key: str) -> float | None:
    known = _known(run, key)
    return float(known[-1]) if len(known) else None


def _share(run: Run, key: str) -> str:
    last = _last(run, key)
    return MISSING if last is None else percent(last)


def _ratio(run: Run) -> str:
    rolled, learned = _last(run, "env_steps"), _last(run, "learned_steps")
    return f" ({number(rolled / learned, 2)} rolled per learned)" if rolled and learned else ""


def _dropped(run: Run) -> str:
    """Number, share and bias of dropped fragments."""
    lost = _last(run, "fragments_dropped")
    if not lost:
        return count(lost)
    return (
        f"{count(lost)}, mean share {percent(float(_known(run, 'fragments_dropped_share').mean()))} of a round; mean "
        f"slowness {_mean(run, 'fragments_dropped_slowness')}, return less that of used ones "
        f"{_mean(run, 'fragments_dropped_return')}"
    )
