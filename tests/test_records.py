"""Records of a run against its events: step size, and number of gate escapes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris_jax.agent.fractional import FractionalOptimizer
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.aggregator import MODES, staleness_weighted
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.records import Accounts
from stellaris_jax.telemetry.summary import summary_rows
from stellaris_jax.timeline import Round, Timeline, Usage

SMALL = ("env.num_envs=8", "algorithm.rollout_length=8", "algorithm.epochs=2", "algorithm.minibatches=8")


def simulated(config: Config, rounds: int) -> list[Round]:
    timeline = Timeline.of(config, seed=0)
    return [timeline.next_round() for _ in range(rounds)]


@pytest.mark.parametrize("mode", MODES)
def test_the_learning_rate_is_the_step_that_was_made(mode: str) -> None:
    """An optimizer whose every step is as long as its learning rate, whatever the gradient."""
    config = load_config([*SMALL, "system=stellaris", f"system.aggregation={mode}"])
    rate, factor = config.algorithm.learning_rate, 0.75
    unit: Any = optax.stateless(lambda updates, params: -rate * jnp.sign(updates))
    if mode == "fractional":
        unit = FractionalOptimizer(
            lambda params: (), lambda updates, state, params, trust: (-trust * rate * jnp.sign(updates), state)
        )
    aggregator = staleness_weighted(unit, mode)
    for record in simulated(config, 3):
        moved, steps = 0.0, 0
        state = aggregator.init(jnp.zeros(1))
        for group in record.groups:
            size = len(group.weights)
            updates, state = aggregator.update(
                jnp.ones((size, 1)),
                state,
                jnp.zeros(1),
                weights=jnp.array(group.weights),
                size=jnp.int32(size),
                step_scale=factor,
            )
            moved -= float(updates[0])
            steps += size if mode == "sequential" else 1
        logged = Accounts(config).timeline([record], factor, computed=16)["learning_rate"]
        assert logged == pytest.approx(moved / steps, rel=1e-5)
    assert (logged == pytest.approx(rate * factor)) == (mode == "gradient"), "only there staleness changes no step"


def test_escapes_are_counted_beside_the_groups_they_are_of() -> None:
    """Where no staleness is allowed any more, most groups of the last rounds have escaped; no other rule has a gate."""
    gated = load_config([*SMALL, "system=stellaris", "system.rule_options.decay=0.5", "num_seeds=2"])
    accounts, row = Accounts(gated), [simulated(gated, 6)[-1]] * 2
    record = accounts.timeline(row, 1.0, computed=16)
    groups = [group for one in simulated(gated, 6) for group in one.groups]
    assert record["gate_groups"] == 2 * len(groups)
    assert record["gate_escapes"] == 2 * sum(group.escaped for group in groups)
    assert 0 < record["gate_escapes"] < record["gate_groups"]
    summary = accounts.summary(None, [one.usage for one in row], computed=96)
    assert [summary[key] for key in ("gate_groups", "gate_escapes")] == [record["gate_groups"], record["gate_escapes"]]
    open_ = load_config([*SMALL, "system=async"])
    record = Accounts(open_).timeline(simulated(open_, 1), 1.0, computed=16)
    assert record["gate_groups"] is record["gate_escapes"] is None


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ((), "128 (platform.actors) for 8 environments, as VMs"),
        (("system.actor_billing=serverless",), "128 (platform.actors) for 8 environments, as functions"),
        (("scaling=fixed", "scaling.actors=4", "scaling.maximum=4"), "at most 4, 2 environments each, as VMs"),
    ],
)
def test_the_summary_says_whom_the_bill_is_for(settings: tuple[str, ...], shown: str) -> None:
    config = load_config([*SMALL, *settings])
    summary = Accounts(config).summary(None, [Usage(seconds=1.0)], computed=0)
    assert dict(summary_rows(summary))["billed actors"] == shown


def test_what_admission_wastes() -> None:
    """Throwing stale gradients away takes slow work above all; waiting takes none, and learners idle for it."""
    settings = [*SMALL, "system=async", "delays=pareto", "system.learners=8"]
    records = {}
    for name in ("all", "bounded", "waiting"):
        options = [] if name == "all" else ["system.admission_options.bound=3"]
        config = load_config([*settings, f"system.admission={name}", *options])
        rows = simulated(config, 6)
        records[name] = [Accounts(config).timeline([row], 1.0, computed=16) for row in rows]
        busy = rows[-1].usage.learner_busy / (8 * rows[-1].usage.seconds)
        assert records[name][-1]["learner_utilisation"] == pytest.approx(busy)
        assert sum(record["dropped_seconds"] for record in records[name]) == pytest.approx(
            sum(g.end - g.start for row in rows for g in row.dropped)
        )
        summary = Accounts(config).summary(None, [rows[-1].usage], computed=16)
        assert summary["dropped_seconds"] == pytest.approx(sum(record["dropped_seconds"] for record in records[name]))
        used = sum(len(group.gradients) for row in rows for group in row.groups)
        assert summary["dropped_share"] == summary["dropped_gradients"] / (used + summary["dropped_gradients"])
    slow = [record["dropped_slowness"] for record in records["bounded"] if record["dropped_slowness"] is not None]
    assert slow and np.mean(slow) > 1.1
    for name in ("all", "waiting"):
        assert all(record["dropped_slowness"] is None and record["dropped_seconds"] == 0.0 for record in records[name])
    idle = {name: 1.0 - records[name][-1]["learner_utilisation"] for name in records}
    assert idle["waiting"] > idle["all"]
