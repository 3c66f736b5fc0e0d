"""Faults of independent actors that were mended: records of nothing, start-up, refusals, answers of plug-ins."""

from __future__ import annotations

from typing import Any

import pytest
from training import steps, tiny

from stellaris_jax import Trainer

pytestmark = pytest.mark.usefixtures("shared_programs")

FREE = ("system.actors=independent", "delays=pareto", "system.sync_steps=4", "engine.chunk_rounds=3")
OF_GRADIENTS = (
    "policy_loss", "value_loss", "entropy", "kl", "grad_norm", "update_norm", "kl_coefficient", "ess", "chi2",
    "data_lag", "data_lag_max", "data_lag_seconds", "staleness_mean", "staleness_max", "staleness_in_flight",
    "staleness_queued", "staleness_seconds", "group_size",
)  # fmt: skip
"""Records that a round has of the gradients that it aggregates."""


# Records of nothing ---------------------------------------------------------------------------------------------------


def test_a_round_that_aggregates_nothing_has_no_losses() -> None:
    """One group may end two batches: then the later round has nothing to aggregate."""
    config = tiny(
        steps(8), *FREE, "system=async", "system.rule_options.coalesce=true", "algorithm.epochs=1", "system.learners=2",
        "algorithm.minibatches=1", "system.batches_in_flight=4", "delays.aggregate.seconds=20", "delays.failure=0",
    )  # fmt: skip
    records: list[dict[str, Any]] = Trainer(config).run()
    nothing = [record for record in records if not sum(record["staleness_counts"])]
    assert 0 < len(nothing) < len(records)
    for record in records:
        empty = record in nothing
        assert [name for name in OF_GRADIENTS if (record[name] is None) is not empty] == []
        assert record["per_seed"]["staleness_mean"] == [record["staleness_mean"]]
        assert record["learning_rate"] > 0.0
