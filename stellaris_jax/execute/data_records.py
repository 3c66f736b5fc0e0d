"""Part of a record about data: how old they are, how long they waited, what was dropped. Independent actors have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stellaris_jax.base.statistics import mean
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.prepare import EpisodeStatistics
from stellaris_jax.timeline import Round, Usage
from stellaris_jax.timeline.records import Fragment


def data_record(config: Config, row: Sequence[Round]) -> dict[str, Any]:
    """Values of a round `[S]` about its data; empty unless actors are independent."""
    if config.system.actors != "independent":
        return {}
    counts = np.sum([_padded(one.data_lag_counts, row) for one in row], axis=0).tolist()
    batches = [batch for one in row for batch in one.batches]
    used = [fragment for batch in batches for fragment in batch.fragments]
    dropped = [fragment for one in row for fragment in one.dropped_fragments]
    lasted = mean([fragment.end - fragment.begin for fragment in used + dropped])
    return {
        "learned_steps": learned_steps(config, [one.index + 1 for one in row]),
        "data_lag_max": len(counts) - 1 if counts else None,
        "data_lag_counts": counts,
        "data_lag_batches": _mean([batch.age(fragment) for batch in batches for fragment in batch.fragments]),
        "data_lag_seconds": _mean([one.data_seconds for one in row if one.groups]),
        "data_queue": mean([one.waiting for one in row]),
        "data_queue_seconds": _mean([batch.second - one.end for batch in batches for one in batch.fragments]),
        "actor_utilisation": mean([_utilisation(config, one.usage) for one in row]),
        "actor_blocked": mean([_blocked(config, one.usage) for one in row]),
        "fragments_dropped": sum(one.usage.fragments_dropped for one in row),
        "fragments_dropped_share": len(dropped) / len(used + dropped) if dropped else 0.0,
        "fragments_dropped_slowness": (
            mean([one.end - one.begin for one in dropped]) / lasted if dropped and lasted > 0.0 else None
        ),
        **({"fragments_equal_share": _equal_share(used, dropped)} if config.system.dynamic_sampling else {}),
        "actors_failed": sum(one.usage.actor_failures for one in row),
        **({"valid_share": _valid_share(config, used)} if config.delays.by == "episodes" else {}),
    }


def _valid_share(config: Config, used: Sequence[Fragment]) -> float | None:
    """Share of the places in a round's batches that hold a sample; `None` if the round forms no batch."""
    places = len(used) * config.env.num_envs * config.algorithm.rollout_length
    return config.actor_shards * sum(fragment.samples for fragment in used) / places if used else None


def _equal_share(used: Sequence[Fragment], dropped: Sequence[Fragment]) -> float:
    """Share of a round's fragments that dynamic sampling has dropped."""
    return sum(fragment.equal for fragment in dropped) / max(len(used) + len(dropped), 1)


def _mean(values: Sequence[float]) -> float | None:
    """Mean of a round's values; `None` without any, because a round may form no batch or aggregate nothing."""
    return mean(values) if values else None


def learned_steps(config: Config, batches: Sequence[int]) -> float:
    """Mean number of env steps that seeds have learned from, after so many batches each."""
    return mean(batches) * config.env.num_envs * config.algorithm.rollout_length


def dropped_return(kept: EpisodeStatistics, dropped: EpisodeStatistics | None, round_: int) -> dict[str, float | None]:
    """Mean return of the episodes in a round's dropped data less that in its used data; `None` without either."""
    if dropped is None:
        return {}
    means = []
    for episodes in (dropped, kept):
        ended = float(np.sum(episodes.ended[round_]))
        means.append(float(np.sum(episodes.total_return[round_])) / ended if ended else None)
    lost, used = means
    return {"fragments_dropped_return": None if lost is None or used is None else lost - used}


def _padded(counts: list[int], row: Sequence[Round]) -> np.ndarray:
    """Histogram, as long as the longest of a round's seeds."""
    return np.pad(np.array(counts, np.int64), (0, max(len(one.data_lag_counts) for one in row) - len(counts)))


def _utilisation(config: Config, usage: Usage) -> float:
    """Share of the actors' time in which they rolled out."""
    return usage.actor_busy / (config.platform.actors * usage.seconds) if usage.seconds else 0.0


def _blocked(config: Config, usage: Usage) -> float:
    """Share of the actors' time in which they waited before they could begin a fragment."""
    return usage.actor_blocked / (config.platform.actors * usage.seconds) if usage.seconds else 0.0
